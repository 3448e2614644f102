//! Checks that the tables about kube-router's design in docs/reference/iptables.md name tests that
//! exist.

use std::{fs, path::Path};

/// The tenets, in the order of the design.
const TENETS: [&str; 10] = [
    "full compliance with NetworkPolicy v1",
    "any CNI plugin",
    "stateful",
    "packets do not need the agent",
    "authoritative for pods",
    "pods only",
    "insight into drops",
    "in place before the first packet",
    "tolerant of what others change",
    "stateless",
];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    fs::read_to_string(root.join(path)).expect(path)
}

/// The rows of a table, with the tests that each of them names.
fn check_rows(head: &str) -> Vec<String> {
    let page = read("docs/reference/iptables.md");
    let head = format!("| {head} | status | tests |\n| --- | --- | --- |\n");
    let (_, table) = page.split_once(&head).expect("the table");
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| {
        let [clause, status, tests] = row.split(" | ").collect::<Vec<_>>()[..] else {
            unreachable!("{row}")
        };
        assert!(!status.is_empty(), "{clause}");
        tests.split("; ").for_each(check_tests);
        clause.to_owned()
    })
    .collect()
}

/// Checks that a file has the tests.
fn check_tests(group: &str) {
    let (file, names) = group.split_once(": ").expect("a file and its tests");
    let path = match file.trim_matches('`') {
        "kernel" => "crates/backends/weir-iptables/tests/kernel/main.rs".to_owned(),
        "trials" => "crates/test/weir-trials/src/lib.rs".to_owned(),
        file => match file.strip_prefix("weir-iptables/") {
            Some(file) => format!("crates/backends/weir-iptables/tests/{file}"),
            None => format!("crates/bin/weir/tests/{file}"),
        },
    };
    let source = read(&path);
    let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
    assert!(!names.is_empty(), "{group}");
    for name in names {
        let is_there = [format!("\"{name}"), format!("::{name}_"), format!("fn {name}(")];
        assert!(is_there.iter().any(|one| source.contains(one)), "no {name} in {path}");
    }
}

#[test]
fn every_tenet_has_tests_that_exist() {
    assert_eq!(check_rows("tenet"), TENETS);
}

#[test]
fn every_clause_has_tests_that_exist() {
    assert_eq!(check_rows("clause").len(), 10);
}
