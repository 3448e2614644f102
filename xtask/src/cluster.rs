//! `cargo xtask cluster`: builds an API server and its store for tests from Debian's packages.
//!
//! ```text
//!  the system's package sources ─► private package lists ─► etcd-server, golang-1.19, source of kubernetes
//!                                                                  go build ─► cache
//! ```
//!
//! It unpacks packages beside the cache and installs none, so it needs no root and starts no service.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use weir_programs::{Programs, cluster_cache, garbage_collector};

use crate::{
    debian::{self, Packages, Scratch},
    shell,
};

/// The source of the API server, with all its dependencies.
const SOURCE: &str = "kubernetes_1.20.5+really1.20.2.orig.tar.gz";
const SOURCE_SHA256: &str = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc";
const VERSION: &str = "v1.20.2";
const PACKAGES: [&str; 4] =
    ["etcd-server", "golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"];
/// A dependency that is too old for this Go: the API server would crash when it reads a custom
/// resource. A Debian package has a newer version.
const REPLACED: &str = "github.com/modern-go/reflect2";
/// The import path of the source.
const MODULE: &str = "k8s.io/kubernetes";

/// Builds the programs of a cluster unless the tests can already find them.
pub(crate) fn run() -> Result<()> {
    if let (Ok(Programs { etcd, kube_apiserver }), Ok(collector)) =
        (Programs::find(), garbage_collector())
    {
        let [etcd, kube_apiserver, collector] =
            [etcd, kube_apiserver, collector].map(|program| program.display().to_string());
        eprintln!("API tests use {kube_apiserver}, {etcd} and {collector}.");
        return Ok(());
    }
    let tools = [("apt-get", "--version"), ("dpkg-deb", "--version"), ("tar", "--version")];
    if let Some((tool, _)) = tools.iter().find(|(tool, flag)| !shell::exists(tool, &[flag])) {
        bail!(
            "{tool} is missing: on systems other than Debian, set KUBEBUILDER_ASSETS to a folder with \
             etcd, kube-apiserver and garbage-collector (xtask/src/garbage-collector.go)"
        );
    }
    let cache =
        cluster_cache().context("neither XDG_CACHE_HOME nor HOME names a folder for the cache")?;
    eprintln!(
        "API tests need kube-apiserver, etcd and Kubernetes' garbage collector. Building them from \
         Debian's source into {}: this takes about five minutes, once.",
        cache.display()
    );
    let start = Instant::now();
    let folder = Scratch::beside(&cache)?;
    let source = unpack(&folder.0)?;
    let finished = folder.0.join("finished");
    fs::create_dir(&finished)?;
    // The user may have installed both.
    if Programs::find().is_err() {
        build_server(&folder.0, &source, &finished)?;
    }
    build_collector(&folder.0, &source, &finished)?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    for program in fs::read_dir(&finished)? {
        let program = program?;
        let path = cache.join(program.file_name());
        // A rename is atomic: another process never finds an incomplete program.
        fs::rename(program.path(), &path)
            .with_context(|| format!("cannot move a program to {}", path.display()))?;
    }
    eprintln!("Built the programs in {} s.", start.elapsed().as_secs());
    Ok(())
}

/// Downloads everything into a folder and unpacks it. Returns the folder of the source.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let at = |name: &str| folder.join(name);
    download(folder)?;
    debian::unpack(folder)?;
    let source = at("go/src").join(MODULE);
    fs::create_dir_all(&source)?;
    let mut unpack = shell::command("tar", &["-xz", "--strip-components=1", "-f"]);
    unpack.arg(at(SOURCE)).arg("-C").arg(&source);
    shell::run(unpack)?;

    let old = source.join("vendor").join(REPLACED);
    fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    fs::rename(at("root/usr/share/gocode/src").join(REPLACED), old)
        .with_context(|| format!("cannot replace {REPLACED}"))?;
    Ok(source)
}

/// Builds the API server and copies etcd beside it.
fn build_server(folder: &Path, source: &Path, finished: &Path) -> Result<()> {
    let at = |name: &str| folder.join(name);
    let generator = at("openapi-gen");
    let mut compile = go(folder, source, "go");
    compile.args(["build", "-o"]).arg(&generator);
    compile.arg(format!("{MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen"));
    shell::run(compile)?;
    // Debian's source lacks the generated files.
    let mut generate = go(folder, source, &generator.to_string_lossy());
    generate.arg("-i").arg(packages_with_openapi(source)?.join(","));
    generate.args(["-p", "k8s.io/kubernetes/pkg/generated/openapi", "-O", "zz_generated.openapi"]);
    generate.args(["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r"]);
    generate.arg(at("violations"));
    eprintln!("$ openapi-gen …");
    let generated = generate.output().context("cannot run openapi-gen")?;
    if !generated.status.success() {
        bail!("openapi-gen failed: {}", String::from_utf8_lossy(&generated.stderr));
    }

    let server = finished.join("kube-apiserver");
    let set = |name: &str, value: &str| {
        format!("-X {MODULE}/vendor/k8s.io/component-base/version.{name}={value}")
    };
    let flags =
        ["-s -w".into(), set("gitVersion", VERSION), set("gitMajor", "1"), set("gitMinor", "20")];
    let mut compile = go(folder, source, "go");
    compile.args(["build", "-trimpath", "-ldflags", &flags.join(" "), "-o"]).arg(&server);
    compile.arg(format!("{MODULE}/cmd/kube-apiserver"));
    shell::run(compile)?;
    fs::copy(at("root/usr/bin/etcd"), finished.join("etcd")).context("cannot copy etcd")?;
    for program in ["kube-apiserver", "etcd"] {
        let mut version = Command::new(finished.join(program));
        version.arg("--version");
        shell::run(version)?;
    }
    Ok(())
}

/// Builds the garbage collector: a small program around one controller of Kubernetes. The whole
/// controller manager would take as long to build as the API server.
fn build_collector(folder: &Path, source: &Path, finished: &Path) -> Result<()> {
    let main = source.join("cmd/garbage-collector");
    fs::create_dir_all(&main)?;
    fs::write(main.join("main.go"), include_str!("garbage-collector.go"))?;
    let mut compile = go(folder, source, "go");
    compile.args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]);
    compile.arg(finished.join("garbage-collector")).arg(format!("{MODULE}/cmd/garbage-collector"));
    shell::run(compile)
}

/// Downloads the packages and the source.
fn download(folder: &Path) -> Result<()> {
    let packages = Packages::with_sources(folder, with_sources, with_source_lines)?;
    packages.apt(&[&["download"], &PACKAGES[..]].concat())?;
    packages.apt(&["source", "--download-only", "kubernetes"])?;
    let sum = Command::new("sha256sum").arg(SOURCE).current_dir(folder).output();
    let sum = sum.context("cannot run sha256sum")?;
    if !String::from_utf8_lossy(&sum.stdout).starts_with(SOURCE_SHA256) {
        bail!("{SOURCE} is missing or has another checksum; Debian 12 has the right one");
    }
    Ok(())
}

/// Adds source packages to a sources file of stanzas.
fn with_sources(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(':') {
        Some((key, _)) if key.eq_ignore_ascii_case("Types") => "Types: deb deb-src",
        _ => line,
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Adds source packages to a sources file of lines.
fn with_source_lines(text: &str) -> String {
    let mut all = String::new();
    for line in text.lines().map(str::trim) {
        let Some(rest) = line.strip_prefix("deb ").or_else(|| line.strip_prefix("deb\t")) else {
            continue;
        };
        all.push_str(&format!("deb {rest}\ndeb-src {rest}\n"));
    }
    all
}

/// A command that runs at low priority with Debian's Go and without the user's Go settings.
fn go(folder: &Path, source: &Path, program: &str) -> Command {
    let root = folder.join("root/usr/lib/go-1.19");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("nice");
    command
        .args(["-n", "10"])
        .arg(if program == "go" { root.join("bin/go") } else { program.into() })
        .current_dir(source)
        .env("PATH", format!("{}:{path}", root.join("bin").display()))
        .env("GOROOT", root)
        .env("GOPATH", folder.join("go"))
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOFLAGS", "")
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "0");
    command
}

/// The packages whose types need an OpenAPI description.
fn packages_with_openapi(source: &Path) -> Result<Vec<String>> {
    let mut packages = BTreeSet::new();
    let mut folders = vec![source.join("pkg"), source.join("staging/src/k8s.io")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            let name = entry.file_name().to_string_lossy().into_owned();
            if kind.is_dir() && !["code-generator", "sample-apiserver"].contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(".go") && !name.ends_with("_test.go") {
                let text = fs::read(&path)?;
                let tag = b"+k8s:openapi-gen=";
                if text.windows(tag.len()).any(|part| part == tag) {
                    let package = folder.strip_prefix(source)?.to_string_lossy();
                    let package = package.replacen("staging/src", "vendor", 1);
                    packages.insert(format!("{MODULE}/{package}"));
                }
            }
        }
    }
    Ok(packages.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_are_added_to_both_formats() {
        let stanza = "Types: deb\nURIs: mirror\nSuites: bookworm\n";
        assert_eq!(with_sources(stanza), "Types: deb deb-src\nURIs: mirror\nSuites: bookworm\n");
        let lines =
            "# a comment\ndeb [arch=amd64] mirror bookworm main\ndeb-src other bookworm main\n";
        assert_eq!(
            with_source_lines(lines),
            "deb [arch=amd64] mirror bookworm main\ndeb-src [arch=amd64] mirror bookworm main\n"
        );
    }
}
