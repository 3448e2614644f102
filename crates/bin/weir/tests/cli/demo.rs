use std::process::Output;

use crate::{command, stderr, stdout, weir};

/// Fails if the demo could not run.
#[track_caller]
fn ran(output: Output) -> Output {
    let needs = "this test needs root or user namespaces";
    assert_ne!(output.status.code(), Some(2), "{needs}: {}", stderr(&output));
    output
}

/// It writes rules over netlink, and runs no other program.
#[test]
fn the_demo_needs_no_other_program() {
    assert!(!stdout(&weir("demo --help")).contains("nft"));
    ran(command().arg("demo").env("PATH", "/nonexistent").output().unwrap());
}

#[test]
fn the_demo_fits_into_80_columns() {
    let text = stdout(&ran(weir("demo")));
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:?}");
    assert!(!text.contains('\u{1b}'));
    let coloured = stdout(&command().arg("demo").env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(coloured.contains("\u{1b}[1m\u{1b}[31m✗-\u{1b}[0m"), "{coloured}");
}
