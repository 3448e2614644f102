//! The oracle agrees with the policy tests in cases/: those of upstream projects, and those that follow
//! docs/concepts/semantics.md rule by rule.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_api::{Case, ManifestReader};
use weir_model::{Severity, World};
use weir_oracle::verdict;

#[test]
fn the_oracle_agrees_with_upstream_projects() {
    check("upstream", "json");
}

#[test]
fn the_oracle_agrees_with_the_documented_semantics() {
    check("semantics", "yaml");
}

#[track_caller]
fn check(folder: &str, extension: &str) {
    let folder = cases_folder().join(folder);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == extension));
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(cases_folder()).unwrap().to_string_lossy();
        let cases = weir_api::cases(name.as_ref().into(), &fs::read(file).unwrap());
        assert!(!cases.is_empty(), "{name} has no cases");
        for case in cases {
            wrong.extend(disagreements(case, &folder).iter().map(|line| format!("{name}: {line}")));
        }
    }
    assert!(wrong.is_empty(), "{} disagreements:\n{}", wrong.len(), wrong.join("\n"));
}

/// The disagreements of a case, one per line.
fn disagreements(mut case: Case, folder: &Path) -> Vec<String> {
    if !case.manifests.is_empty() {
        let mut reader = ManifestReader::new();
        for path in &case.manifests {
            reader.read_file(path.as_str().into(), &fs::read(folder.join(path)).unwrap());
        }
        case.join(reader.finish());
    }
    let errors = case.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let mut wrong: Vec<String> = errors
        .map(|error| {
            format!("{}: {} {}: {}", case.name, error.object_text(), error.field, error.message)
        })
        .collect();
    let world: World = case.objects.iter().cloned().collect();
    for probe in &case.probes {
        let verdict = probe.flow(&world).map(|flow| verdict(&world, &flow));
        if verdict.as_ref() != Ok(&probe.expect) {
            let (from, to, port) = (&probe.from, &probe.to, &probe.port);
            wrong.push(format!(
                "{}: line {}: {from} -> {to} {port}: expected {}, the oracle returns {verdict:?}",
                case.name, probe.line, probe.expect
            ));
        }
    }
    wrong
}

fn cases_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases")
}
