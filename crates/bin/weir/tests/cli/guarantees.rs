//! What the command line guarantees: `docs/reference/guarantees.md` names a test for each.

use std::{collections::BTreeSet, fs};

use crate::{root, stderr, stdout, weir_reading};

const PAGE: &str = "docs/reference/guarantees.md";

/// The tests of a row: `path`: `name`, `name`; `path`: `name`.
fn tests_of(cell: &str) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    let mut path = String::new();
    for word in cell.split('`').skip(1).step_by(2) {
        if word.contains('/') || word.contains('.') {
            path = format!("crates/{word}");
        } else {
            tests.push((path.clone(), word.to_owned()));
        }
    }
    tests
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let mut rows = rows.filter(|row| !row.starts_with("| guarantee"));
    let mut seen = BTreeSet::new();
    let mut count = 0;
    rows.try_for_each(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [guarantee, tests] = cells[..] else { return Err(format!("two cells: {row}")) };
        count += 1;
        if !seen.insert(guarantee) {
            return Err(format!("twice: {guarantee}"));
        }
        let tests = tests_of(tests);
        if tests.is_empty() {
            return Err(format!("no test: {guarantee}"));
        }
        tests.iter().try_for_each(|(path, name)| {
            let path = path.replace("crates/xtask/", "xtask/");
            let text =
                fs::read_to_string(root().join(&path)).map_err(|e| format!("{path}: {e}"))?;
            // A transcript is a test as a whole.
            let is_there = match path.ends_with(".txt") {
                true => text.contains("$ weir "),
                false => text.contains(&format!("fn {name}(")),
            };
            is_there.then_some(()).ok_or(format!("{path} has no test {name}"))
        })
    })
    .unwrap();
    assert!(count >= 26, "{count} guarantees");
}

/// A shop whose names are as long as Kubernetes allows in practice.
fn long_names() -> String {
    let name = |kind: &str| format!("{kind}-{}", "with-a-rather-long-name".repeat(2));
    let mut manifests = String::new();
    for app in ["frontend", "backend", "database"] {
        let name = name(app);
        manifests.push_str(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}, \
             spec: {{containers: [{{name: main, ports: [{{containerPort: 80}}, {{containerPort: 443}}, {{containerPort: 9100}}]}}]}}}}\n---\n\
             {{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, \
             spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: frontend}}}}}}], ports: [{{port: 80}}]}}]}}}}\n---\n"
        ));
    }
    manifests
}

#[test]
fn text_fits_into_80_columns_unless_a_word_is_longer() {
    let manifests = long_names();
    let names: Vec<String> = ["frontend", "backend", "database"]
        .map(|app| format!("shop/{app}-{}", "with-a-rather-long-name".repeat(2)))
        .into();
    let [frontend, backend, database] = &names[..] else { panic!("three names") };
    for command in [
        "matrix -f -".to_owned(),
        "matrix -f - -n shop --exposure".to_owned(),
        format!("explain -f - --from {backend} --to {database} --port 80"),
        format!("explain -f - --from {frontend} --to {database} --port 80"),
    ] {
        let output = weir_reading(&command, &manifests);
        let text = stdout(&output);
        assert!(!text.is_empty(), "{command}: {}", stderr(&output));
        // The YAML of a remedy must stay as it is.
        let text = text.split("apiVersion:").next().unwrap_or_default();
        for line in text.lines().filter(|line| line.chars().count() > 80) {
            let longest = line.split_whitespace().map(|word| word.chars().count()).max();
            let words = line.split_whitespace().count();
            assert!(
                words <= 4 && longest.unwrap_or(0) > 35,
                "{command}: {} columns: {line}",
                line.chars().count()
            );
        }
    }
}

#[test]
fn the_installation_guide_names_the_version_of_helm_that_its_options_need() {
    let guide = fs::read_to_string(root().join("docs/guides/install.md")).unwrap();
    assert!(guide.contains("--reset-then-reuse-values"));
    assert!(guide.contains("Helm 3.14 or later"), "the option is new in Helm 3.14");
}
