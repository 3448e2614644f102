//! Records the commit and the compiler for `weir version`. Equal sources give equal values.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let commit = match env::var("WEIR_COMMIT") {
        // For packagers, who build without a repository.
        Ok(commit) => Some(commit),
        Err(_) => commit_of_repository(),
    };
    if let Some(commit) = commit.filter(|commit| !commit.is_empty()) {
        println!("cargo::rustc-env=WEIR_COMMIT={commit}");
    }
    for (name, from) in [("WEIR_TARGET", "TARGET"), ("WEIR_PROFILE", "PROFILE")] {
        println!("cargo::rustc-env={name}={}", env::var(from).unwrap_or_default());
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = output(Command::new(rustc).arg("--version")).unwrap_or_default();
    println!("cargo::rustc-env=WEIR_RUSTC={rustc}");
}

/// The commit of the repository that contains this file. `None` if the files were unpacked elsewhere,
/// also if that is inside another repository.
fn commit_of_repository() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    // A commit or a checkout changes both; the second is missing in some repositories.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    output(Command::new("git").args(arguments))
}

/// The output of a command, or `None` if it is missing or fails.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
