//! The files against the policy tests of this repository.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_aci::{AciSettings, RenderedCluster};
use weir_api::{Case, ManifestReader};
use weir_model::World;

#[test]
fn the_files_agree_with_upstream() {
    let tried = check("upstream", "json");
    assert!(tried > 800, "{tried}");
}

#[test]
fn the_files_agree_with_the_semantics_cases() {
    let tried = check("semantics", "yaml");
    assert!(tried > 400, "{tried}");
}

/// Returns the number of probes. This datapath reports policies that it cannot express, so cases with
/// such policies have none.
#[track_caller]
fn check(folder: &str, extension: &str) -> usize {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases");
    let folder = cases.join(folder);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == extension));
    files.sort();
    let (mut tried, mut wrong) = (0, Vec::new());
    for file in &files {
        let name = file.strip_prefix(&cases).unwrap().to_string_lossy();
        for case in weir_api::cases(name.as_ref().into(), &fs::read(file).unwrap()) {
            let title = format!("{name}: {}", case.name);
            tried += check_case(case, &folder, &mut |line| wrong.push(format!("{title}: {line}")));
        }
    }
    assert!(wrong.is_empty(), "{} disagreements:\n{}", wrong.len(), wrong.join("\n"));
    tried
}

fn check_case(mut case: Case, folder: &Path, wrong: &mut dyn FnMut(String)) -> usize {
    if !case.manifests.is_empty() {
        let mut reader = ManifestReader::new();
        for path in &case.manifests {
            reader.read_file(path.as_str().into(), &fs::read(folder.join(path)).unwrap());
        }
        case.join(reader.finish());
    }
    let world: World = case.objects.iter().cloned().collect();
    let settings = AciSettings { prefix: "kube".into() };
    let cluster = RenderedCluster::new(&settings, "kube", &world).unwrap();
    if cluster.hpp().findings().iter().any(|finding| finding.code == "aci-kind") {
        return 0;
    }
    for probe in &case.probes {
        let actual = probe.flow(&world).map(|flow| cluster.verdict(&flow));
        if actual.as_ref() != Ok(&probe.expect) {
            wrong(format!(
                "line {}: expected {}, the files give {actual:?}",
                probe.line, probe.expect
            ));
        }
    }
    case.probes.len()
}
