//! Tests of the Dockerfiles that need no image builder.

use std::{fs, process::Command};

use crate::{shell::root, tools::HADOLINT};

const FILES: [&str; 2] = ["deploy/docker/Dockerfile", "deploy/docker/Dockerfile.windows"];

/// The instructions of a file, one per line.
fn instructions(file: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(file)).expect("a file");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    joined.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn hadolint_reports_nothing() {
    for file in FILES {
        let output = HADOLINT.command().expect("hadolint").arg(file).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn images_use_the_workspace_toolchain_and_packages() {
    let toolchain = fs::read_to_string(root().join("Cargo.toml")).expect("a file");
    let version = toolchain.split("rust-version = \"").nth(1).expect("a version");
    let version = version.split('"').next().expect("a version");
    for file in FILES {
        let all = instructions(file);
        let from = all.iter().find(|line| line.starts_with("FROM")).expect("a base");
        assert!(from.contains(&format!(" rust:{version}-")), "{file}: {from}");
        let run = all.iter().find(|line| line.contains("cargo build")).expect("a build");
        let packages: Vec<&str> = run
            .split("--package ")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next())
            .collect();
        assert!(packages.contains(&"weir"), "{file}: {packages:?}");
        for package in packages {
            let known = Command::new(env!("CARGO"))
                .args(["metadata", "--no-deps", "--locked", "--format-version=1"])
                .current_dir(root())
                .output()
                .expect("cargo runs");
            let known = String::from_utf8_lossy(&known.stdout).into_owned();
            assert!(known.contains(&format!("\"name\":\"{package}\"")), "no package {package}");
        }
        let is_optimized = run.contains("--release") || run.contains("--profile symbols");
        assert!(is_optimized && run.contains("--locked"), "{file}: {run}");
    }
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

#[test]
fn the_default_image_does_not_run_as_root() {
    let all = instructions(FILES[0]);
    let last = all.iter().rposition(|line| line.starts_with("FROM")).expect("a stage");
    assert!(
        all[last].starts_with("FROM scratch"),
        "the default image is empty apart from the programs"
    );
    assert!(all[last..].iter().any(|line| line == "USER 65532:65532"));
}
