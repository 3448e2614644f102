//! Tests of the Dockerfile for Windows that need no image builder.

use std::{fs, process::Command};

use crate::{shell::root, tools::HADOLINT};

const FILE: &str = "deploy/docker/Dockerfile.windows";

/// The instructions of the file, one per line.
fn instructions() -> Vec<String> {
    let text = fs::read_to_string(root().join(FILE)).expect("a file");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    joined.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn hadolint_reports_nothing() {
    let output = HADOLINT.command().expect("hadolint").arg(FILE).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_image_uses_the_workspace_toolchain_and_package() {
    let toolchain = fs::read_to_string(root().join("Cargo.toml")).expect("a file");
    let version = toolchain.split("rust-version = \"").nth(1).expect("a version");
    let version = version.split('"').next().expect("a version");
    let all = instructions();
    let from = all.iter().find(|line| line.starts_with("FROM")).expect("a base");
    assert!(from.contains(&format!(" rust:{version}-")), "{from}");
    let run = all.iter().find(|line| line.contains("cargo build")).expect("a build");
    let packages = run.split("--package ").skip(1);
    let packages: Vec<&str> = packages.filter_map(|rest| rest.split_whitespace().next()).collect();
    assert_eq!(packages, ["weir"]);
    assert!(run.contains("--release") && run.contains("--locked"), "{run}");
}

#[test]
fn included_files_are_not_in_dockerignore() {
    let ignored = fs::read_to_string(root().join(".dockerignore")).expect("a file");
    let ignored: Vec<&str> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    let output = Command::new("git")
        .args(["grep", "-hoE", "include_(str|bytes)!\\(\"[^\"]+\"", "--", "crates/*.rs"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let included = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(included.lines().count() > 0);
    for line in included.lines() {
        let path = line.split('"').nth(1).expect("a path").trim_start_matches("../");
        let is_ignored = ignored.iter().any(|folder| path.starts_with(&format!("{folder}/")));
        assert!(!is_ignored, "a program includes {path}, and .dockerignore excludes it");
    }
}
