//! `cargo xtask test crds`: tests the CustomResourceDefinitions with an API server that evaluates CEL.
//!
//! Debian stable has none, so this builds one from Debian unstable. `cargo xtask test` does not include
//! it, because the packages of unstable change every day.

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, bail};
use weir_programs::{cluster_cache, definitions_server};

use crate::{
    cluster,
    debian::{self, Packages, Scratch},
    shell,
};

/// The import path of the program.
const MODULE: &str = "k8s.io/apiextensions-apiserver";
/// The packages with the source and the compiler. Their dependencies have the rest.
const PACKAGES: [&str; 2] = ["golang-go", "golang-k8s-apiextensions-apiserver-dev"];

/// Runs the tests of the definitions. Returns whether all passed.
pub(crate) fn run(on_line: impl FnMut(&str)) -> Result<bool> {
    cluster::build()?;
    build_server()?;
    let tests =
        ["test", "-p", "weir-controllers", "--locked", "--test", "definitions", "--", "api_server"];
    shell::run_with_output(shell::command("cargo", &tests), on_line)
}

/// Builds the server unless the tests can already find it.
fn build_server() -> Result<()> {
    if let Ok(server) = definitions_server() {
        eprintln!("Testing definitions with {}.", server.display());
        return Ok(());
    }
    let cache =
        cluster_cache().context("neither XDG_CACHE_HOME nor HOME names a folder for the cache")?;
    eprintln!(
        "Building an API server that evaluates CEL from Debian unstable into {}. This downloads 350 MB \
         and takes about five minutes, once.",
        cache.display()
    );
    let start = Instant::now();
    let folder = Scratch::beside(&cache)?;
    download(&folder.0)?;
    debian::unpack(&folder.0)?;
    let built = folder.0.join("apiextensions-apiserver");
    let usr = folder.0.join("root/usr");
    let mut compile = Command::new("nice");
    compile
        .args(["-n", "10"])
        .arg(usr.join("lib/go/bin/go"))
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&built)
        .arg(MODULE)
        .current_dir(usr.join("share/gocode/src").join(MODULE))
        .env("GOROOT", usr.join("lib/go"))
        .env("GOPATH", usr.join("share/gocode"))
        .env("GOCACHE", folder.0.join("go-cache"))
        .env("GOFLAGS", "")
        .env("GO111MODULE", "off")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0");
    shell::run(compile)?;
    let path = cache.join("apiextensions-apiserver");
    fs::rename(&built, &path).with_context(|| format!("cannot move it to {}", path.display()))?;
    eprintln!("Built the API server in {} s.", start.elapsed().as_secs());
    Ok(())
}

/// Downloads the packages and the Go packages that they need.
fn download(folder: &Path) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let stable = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let stable = stable.context("/etc/os-release does not name the Debian release")?;
    let packages = Packages::with_sources(
        folder,
        |text| unstable(text, stable),
        |text| unstable_lines(text, stable),
        None,
    )?;
    // apt lists only missing packages: with an empty status file, that is all of them.
    let nothing = folder.join("nothing-installed");
    fs::write(&nothing, "")?;
    let nothing = format!("Dir::State::status={}", nothing.display());
    let install = ["-o", &nothing, "--no-install-recommends", "--print-uris", "install"];
    let mut install = packages.command(&[&install[..], &PACKAGES[..]].concat());
    let output = install.output().context("cannot run apt-get")?;
    if !output.status.success() {
        bail!(
            "Debian unstable cannot provide {}: {}",
            PACKAGES.join(" and "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = printed.lines().filter_map(go_package).collect();
    packages.apt(&[&["download"], &names[..]].concat())
}

/// The package in a line that `apt-get --print-uris` prints, if it is a Go package.
fn go_package(line: &str) -> Option<&str> {
    let file = line.strip_prefix('\'')?.split_whitespace().nth(1)?;
    let (name, _) = file.split_once('_')?;
    name.starts_with("golang-").then_some(name)
}

/// The stanzas of the stable release, changed to the unstable one.
fn unstable(text: &str, stable: &str) -> String {
    let is_stable = |line: &str| {
        let (key, suites) = line.split_once(':').unwrap_or_default();
        key.eq_ignore_ascii_case("Suites") && suites.split_whitespace().any(|suite| suite == stable)
    };
    let mut all = String::new();
    for stanza in text.split("\n\n").filter(|stanza| stanza.lines().any(is_stable)) {
        for line in stanza.lines() {
            all.push_str(if is_stable(line) { "Suites: sid" } else { line });
            all.push('\n');
        }
        all.push('\n');
    }
    all
}

/// The same for a file of lines.
fn unstable_lines(text: &str, stable: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("deb "));
    let stable = format!(" {stable} ");
    let lines = lines.filter(|line| line.contains(&stable));
    lines.map(|line| line.replacen(&stable, " sid ", 1) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_main_archive_is_changed_to_unstable() {
        let stanzas = "Types: deb\nURIs: main\nSuites: bookworm bookworm-updates\n\nTypes: deb\nURIs: security\nSuites: bookworm-security\n";
        assert_eq!(unstable(stanzas, "bookworm"), "Types: deb\nURIs: main\nSuites: sid\n\n");
        let lines = "deb [arch=amd64] main bookworm main\ndeb-src main bookworm main\ndeb security bookworm-security main\ndeb other stable main\n";
        assert_eq!(unstable_lines(lines, "bookworm"), "deb [arch=amd64] main sid main\n");
    }

    #[test]
    fn only_go_packages_are_downloaded() {
        let line = "'mirror/golang-k8s-api-dev_0.36.4-1_all.deb' golang-k8s-api-dev_0.36.4-1_all.deb 1 SHA256:0";
        assert_eq!(go_package(line), Some("golang-k8s-api-dev"));
        assert_eq!(go_package("'mirror/libc6_2_amd64.deb' libc6_2_amd64.deb 1 SHA256:0"), None);
        assert_eq!(go_package("Reading package lists..."), None);
    }
}
