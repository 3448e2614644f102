//! Checks that the table of design tenets in docs/reference/iptables.md names tests that exist.

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

#[test]
fn every_tenet_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let page = read("docs/reference/iptables.md");
    let (_, table) = page.split_once("| tenet | tests |\n| --- | --- |\n").expect("the table");
    let rows: Vec<(&str, &str)> = table
        .lines()
        .map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .collect();
    assert_eq!(rows.iter().map(|(tenet, _)| *tenet).collect::<Vec<_>>(), TENETS);
    for (tenet, tests) in rows {
        for group in tests.split("; ") {
            let (file, names) = group.split_once(": ").expect("a file and its tests");
            let path = match file.trim_matches('`') {
                "kernel" => "crates/backends/weir-iptables/tests/kernel/main.rs".to_owned(),
                "trials" => "crates/test/weir-trials/src/lib.rs".to_owned(),
                file => format!("crates/bin/weir/tests/{file}"),
            };
            let source = read(&path);
            let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{tenet}: {group}");
            for name in names {
                let is_there = [format!("\"{name}\""), format!("::{name}_"), format!("fn {name}(")];
                assert!(is_there.iter().any(|one| source.contains(one)), "no {name} in {path}");
            }
        }
    }
}
