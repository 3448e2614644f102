//! The binary as its users see it: its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod aci;
mod addresses;
mod agent;
#[path = "../ui/agents.rs"]
#[allow(dead_code, reason = "tests of the page need more of it")]
mod agents;
#[cfg(target_os = "linux")]
mod check;
#[cfg(unix)]
mod ci;
mod clusters;
mod console;
mod contexts;
mod controller;
mod demo;
mod diff;
mod explain;
mod follow;
mod git;
mod guarantees;
mod inputs;
mod install;
mod lint;
mod live;
mod matrix;
mod networks;
mod observe;
mod recommend;
mod render;
mod review;
#[path = "../schema/mod.rs"]
mod schema;
mod schemas;
mod staged;
mod suppressions;
mod test;
mod transcript;
mod usage;
#[cfg(target_os = "linux")]
#[path = "../variant/mod.rs"]
mod variant;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use expect_test::Expect;

/// The root of the repository. All paths in these tests are relative to it.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.current_dir(root()).stdin(Stdio::null()).env_remove("CLICOLOR_FORCE");
    // No test may use the cluster of the user.
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nowhere");
    command
}

/// Runs weir with arguments that contain no spaces.
fn weir(arguments: &str) -> Output {
    command().args(arguments.split_whitespace()).output().unwrap()
}

/// Runs weir with a text as standard input.
fn weir_reading(arguments: &str, input: &str) -> Output {
    let mut child = command()
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Compares standard output, standard error and the exit code with the expected text.
#[track_caller]
fn check(output: &Output, expected: Expect) {
    expected.assert_eq(&text_of(output));
}

/// Standard output, standard error and the exit code as one text.
fn text_of(output: &Output) -> String {
    let (out, err) = (stdout(output), stderr(output));
    let err = if err.is_empty() { err } else { format!("--- stderr\n{err}") };
    format!("{out}{err}--- exit {}\n", output.status.code().unwrap())
}

/// Parses the output of a command as JSON, and validates it against its schema.
#[track_caller]
fn json(output: &Output) -> serde_json::Value {
    let value = unversioned_json(output);
    schema::check(&value);
    value
}

#[track_caller]
fn unversioned_json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

/// Parses the output of `-o sarif`, and validates it.
#[track_caller]
fn sarif(output: &Output) -> serde_json::Value {
    let value = unversioned_json(output);
    let problems = schema::differences(schema::SARIF, &value);
    assert!(problems.is_empty(), "{}\n{value:#}", problems.join("\n"));
    value
}
