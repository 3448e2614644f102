//! Findings that an annotation or weir.yaml suppresses.

use std::{fs, path::Path, process::Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::{command, json, sarif, stderr, stdout};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web}]}
status: {podIP: 10.0.0.1}
";

/// A policy that selects no pod.
fn policy(name: &str, annotations: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: {name}\n  \
         namespace: shop\n  annotations: {annotations}\n\
         spec: {{podSelector: {{matchLabels: {{app: gone-{name}}}}}}}\n"
    )
}

/// A folder with a file for each policy, a pod, and a configuration.
fn folder(policies: &[(&str, &str)], config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("old")).unwrap();
    fs::write(folder.path().join("pod.yaml"), POD).unwrap();
    for (name, annotations) in policies {
        fs::write(folder.path().join(format!("old/{name}.yaml")), policy(name, annotations))
            .unwrap();
    }
    if !config.is_empty() {
        fs::write(folder.path().join("weir.yaml"), config).unwrap();
    }
    folder
}

fn lint(folder: &Path, more: &[&str]) -> Output {
    command().arg("lint").arg("-f").arg(folder).args(more).output().unwrap()
}

fn codes(answer: &Value, list: &str) -> Vec<String> {
    let all = answer[list].as_array().unwrap().iter();
    all.map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

const ANNOTATED: &str = "{ignore-lint.weir.dev/selects-nothing: an operator creates the pods}";

#[test]
fn an_annotation_with_a_reason_suppresses_findings_about_its_object() {
    let folder = folder(&[("one", ANNOTATED), ("two", "{}")], "");
    let answer = json(&lint(folder.path(), &["-o", "json"]));
    assert_eq!(codes(&answer, "findings"), ["selects-nothing"], "of the other policy");
    assert_eq!(answer["findings"][0]["object"], "NetworkPolicy shop/two");
    let suppressed = &answer["suppressed"][0];
    assert_eq!(suppressed["object"], "NetworkPolicy shop/one");
    assert_eq!(suppressed["reason"], "an operator creates the pods");
    assert_eq!(suppressed["source"], "annotation");
    let log = sarif(&lint(folder.path(), &["-o", "sarif"]));
    let results = log["runs"][0]["results"].as_array().unwrap();
    let marked: Vec<&Value> = results.iter().filter(|one| !one["suppressions"].is_null()).collect();
    assert_eq!((results.len(), marked.len()), (2, 1));
    assert_eq!(marked[0]["suppressions"][0]["kind"], "inSource");
    let github = stdout(&lint(folder.path(), &["-o", "github"]));
    assert_eq!(github.lines().count(), 1, "{github}");
    let text = lint(folder.path(), &[]);
    assert_eq!(text.status.code(), Some(1));
    assert!(
        stdout(&text).ends_with("1 warning; not reported: 1 suppressed\n"),
        "{}",
        stdout(&text)
    );
}

#[test]
fn suppressed_findings_do_not_fail_the_run() {
    let folder = folder(&[("one", ANNOTATED)], "");
    let output = lint(folder.path(), &[]);
    assert_eq!(stdout(&output), "nothing found; not reported: 1 suppressed\n");
    assert_eq!(output.status.code(), Some(0));
    // The annotation is that of a list whose kind follows its items.
    let manifest = policy("one", ANNOTATED);
    let object: Value = serde_saphyr::from_str(&manifest).unwrap();
    let pod: Value = serde_saphyr::from_str(POD).unwrap();
    let mut object = object.as_object().unwrap().clone();
    object.remove("kind");
    let text = format!(
        r#"{{"items": [{}], "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicyList"}}"#,
        serde_json::to_string(&object).unwrap()
    );
    let output = crate::weir_reading("lint -f -", &format!("{text}\n---\n{pod}\n"));
    assert_eq!(stdout(&output), "nothing found; not reported: 1 suppressed\n");
}

#[test]
fn an_annotation_without_a_reason_or_without_a_finding_is_reported() {
    let folder = folder(&[("one", "{ignore-lint.weir.dev/selects-nothing: ' '}")], "");
    let answer = json(&lint(folder.path(), &["-o", "json"]));
    assert_eq!(codes(&answer, "findings"), ["selects-nothing", "invalid-suppression"]);
    let folder = self::folder(&[("one", "{ignore-lint.weir.dev/no-dns: a reason}")], "");
    let answer = json(&lint(folder.path(), &["-o", "json"]));
    assert_eq!(codes(&answer, "findings"), ["selects-nothing", "unused-suppression"]);
    assert_eq!(answer["findings"][1]["line"], 6);
}

#[test]
fn entries_select_by_code_object_and_path() {
    let entry = |fields: &str| {
        let config = format!("lint:\n  ignore:\n  - {{{fields}, reason: known}}\n");
        let folder = folder(&[("one", "{}"), ("two", "{}")], &config);
        let answer = json(&lint(folder.path(), &["-o", "json"]));
        let sources = answer["suppressed"].as_array().unwrap().iter();
        assert!(sources.clone().all(|one| one["source"] == "configuration"));
        (codes(&answer, "suppressed").len(), codes(&answer, "findings"))
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(entry("code: selects-nothing"), (2, none.clone()));
    assert_eq!(entry("object: NetworkPolicy shop/*"), (2, none.clone()));
    assert_eq!(entry("path: old/"), (2, none));
    assert_eq!(entry("path: old/t*.yaml"), (1, vec!["selects-nothing".to_owned()]));
    assert_eq!(entry("object: NetworkPolicy shop/one").0, 1);
    let (suppressed, found) = entry("code: no-dns, path: old/");
    assert_eq!(suppressed, 0, "all fields must match");
    assert!(found.contains(&"unused-suppression".to_owned()), "{found:?}");
}

#[test]
fn an_expired_entry_has_no_effect_and_is_reported() {
    let config = |day: &str| {
        format!("lint:\n  ignore:\n  - {{code: selects-nothing, reason: later, expires: {day}}}\n")
    };
    let folder = folder(&[("one", "{}")], &config("2020-01-31"));
    let answer = json(&lint(folder.path(), &["-o", "json"]));
    let mut found = codes(&answer, "findings");
    found.sort();
    assert_eq!(found, ["expired-suppression", "selects-nothing"]);
    fs::write(folder.path().join("weir.yaml"), config("2999-12-31")).unwrap();
    assert_eq!(lint(folder.path(), &[]).status.code(), Some(0));
}

#[test]
fn a_configuration_with_a_mistake_is_an_error() {
    for (config, why) in [
        ("lint:\n  ignore: [{code: no-dns}]\n", "reason"),
        ("lint:\n  ignore: [{code: no-dns, reason: ''}]\n", "reason"),
        ("lint:\n  ignore: [{reason: all}]\n", "a code, an object or a path"),
        ("lint:\n  ignore: [{code: no-dns, reason: a, until: 2027-01-01}]\n", "until"),
        ("lint:\n  ignore: [{code: no-dns, reason: a, expires: soon}]\n", "2027-01-31"),
        ("lint: [\n", "weir.yaml"),
        ("lint: 1\n", "expected a mapping with the key `ignore`"),
        ("lint:\n  ignore: [no-dns]\n", "expected an entry with a reason"),
    ] {
        let folder = folder(&[("one", "{}")], config);
        let output = lint(folder.path(), &[]);
        assert_eq!(output.status.code(), Some(2), "{config}");
        assert!(stderr(&output).contains(why), "{config}: {}", stderr(&output));
    }
}

#[test]
fn the_configuration_is_given_or_in_the_current_folder() {
    let config = "lint:\n  ignore: [{code: selects-nothing, reason: known}]\n";
    let policies = folder(&[("one", "{}")], "");
    let other = tempfile::tempdir().unwrap();
    let file = other.path().join("weir.yaml");
    fs::write(&file, config).unwrap();
    assert_eq!(lint(policies.path(), &[]).status.code(), Some(1));
    let given = lint(policies.path(), &["--config", file.to_str().unwrap()]);
    assert_eq!(given.status.code(), Some(0));
    let mut there = command();
    there.current_dir(&other).arg("lint").arg("-f").arg(policies.path());
    assert_eq!(there.output().unwrap().status.code(), Some(0));
    assert_eq!(lint(policies.path(), &["--config", "/nowhere"]).status.code(), Some(2));
}

#[test]
fn other_commands_read_a_folder_with_a_configuration() {
    let config = "lint:\n  ignore: [{code: selects-nothing, reason: known}]\n";
    let folder = folder(&[("one", ANNOTATED)], config);
    let output = command().arg("matrix").arg("-f").arg(folder.path()).output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
    // A manifest of this name stays a manifest.
    fs::write(folder.path().join("weir.yaml"), policy("three", "{}")).unwrap();
    let answer = json(&lint(folder.path(), &["-o", "json"]));
    assert_eq!(answer["findings"][0]["object"], "NetworkPolicy shop/three");
}

#[test]
fn a_baseline_contains_no_suppressed_findings() {
    let folder = folder(&[("one", ANNOTATED), ("two", "{}")], "");
    let other = tempfile::tempdir().unwrap();
    let known = other.path().join("known.json");
    fs::write(&known, lint(folder.path(), &["-o", "json"]).stdout).unwrap();
    let arguments = ["--baseline", known.to_str().unwrap()];
    let output = lint(folder.path(), &arguments);
    assert_eq!(stdout(&output), "nothing found; not reported: 1 of the baseline, 1 suppressed\n");
    assert_eq!(output.status.code(), Some(0));
    fs::write(folder.path().join("old/one.yaml"), policy("one", "{}")).unwrap();
    assert_eq!(lint(folder.path(), &arguments).status.code(), Some(1));
}

#[test]
fn unselected_pods_are_reported_on_request() {
    let folder = folder(&[("one", ANNOTATED)], "");
    assert_eq!(lint(folder.path(), &[]).status.code(), Some(0));
    let answer = json(&lint(folder.path(), &["--unselected-pods", "-o", "json"]));
    assert_eq!(codes(&answer, "findings"), ["unselected-pod"]);
}
