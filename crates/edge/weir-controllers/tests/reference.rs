//! The tests that `docs/reference/clusterset.md` and `docs/reference/memcached.md` name exist.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All Rust sources below a directory, as one text.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    let mut folders: Vec<PathBuf> = vec![folder.into()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(path).unwrap();
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    text
}

#[test]
fn every_test_that_the_reference_names_exists() {
    let folders = ["core/weir-clusterset", "edge/weir-controllers", "bin/weir/tests/clusterset"];
    check("clusterset.md", &folders, 60);
}

#[test]
fn every_test_that_the_memcached_reference_names_exists() {
    check("memcached.md", &["edge/weir-api", "edge/weir-controllers", "bin/weir/tests/cli"], 40);
}

/// A page of the reference names at least this many tests, and all of them exist in the folders.
fn check(page: &str, folders: &[&str], at_least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = fs::read_to_string(root.join("docs/reference").join(page)).unwrap();
    let is_test = |word: &&str| {
        word.contains('_')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(names.len() > at_least, "{}", names.len());
    let text: String =
        folders.iter().map(|folder| sources(&root.join("crates").join(folder))).collect();
    for name in names {
        // A test function, or the name of a trial.
        let exists = text.contains(&format!("fn {name}(")) || text.contains(&format!("\"{name}\""));
        assert!(exists, "there is no test {name}");
    }
}
