//! `cargo xtask cluster build`: builds the programs of a cluster for tests from Debian's packages.
//!
//! ```text
//!  the system's package sources ─► private package lists ─► golang-1.19, source of kubernetes ─go build─► cache
//!                                                       └─► etcd, containerd, runc, CNI plugins ──copy──► cache
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
use weir_programs::{cluster_cache, find_cni_plugin, find_program, garbage_collector, lacking};
use weir_testbed::{CNI_PLUGINS, KUBERNETES_PROGRAMS, kubernetes_folder};

use crate::{
    debian::{self, Packages, Scratch},
    shell,
};

/// The source of Kubernetes, with all its dependencies.
const SOURCE: &str = "kubernetes_1.20.5+really1.20.2.orig.tar.gz";
const SOURCE_SHA256: &str = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc";
const VERSION: &str = "v1.20.2";
/// The Go toolchain, and a dependency.
const GO_PACKAGES: [&str; 3] =
    ["golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"];
/// A dependency that is too old for this Go: the API server would crash when it reads a custom
/// resource. A Debian package has a newer version.
const REPLACED: &str = "github.com/modern-go/reflect2";
/// The import path of the source.
const MODULE: &str = "k8s.io/kubernetes";

/// The programs of Debian's packages: name, package, folder in the package.
const PACKAGED: [(&str, &str, &str); 5] = [
    ("etcd", "etcd-server", "usr/bin"),
    ("containerd", "containerd", "usr/bin"),
    ("containerd-shim-runc-v2", "containerd", "usr/bin"),
    ("ctr", "containerd", "usr/bin"),
    ("runc", "runc", "usr/sbin"),
];
const PLUGIN_PACKAGE: &str = "containernetworking-plugins";

/// Builds the programs of a cluster that the tests cannot find.
pub(crate) fn run() -> Result<()> {
    let built = missing_built();
    let is_missing = |name: &&'static str| find_program(None, name).is_err();
    let packaged: Vec<_> = PACKAGED.into_iter().filter(|(name, ..)| is_missing(name)).collect();
    let is_missing = |name: &&'static str| find_cni_plugin(None, name).is_err();
    let plugins: Vec<&str> = CNI_PLUGINS.into_iter().filter(is_missing).collect();
    if built.is_empty() && packaged.is_empty() && plugins.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> =
        built.iter().copied().chain(packaged.iter().map(|one| one.0)).collect();
    let missing = missing.join(", ");
    let tools = [("apt-get", "--version"), ("dpkg-deb", "--version"), ("tar", "--version")];
    if let Some((tool, _)) = tools.iter().find(|(tool, flag)| !shell::exists(tool, &[flag])) {
        bail!(
            "{tool} is missing: on systems other than Debian, set KUBEBUILDER_ASSETS to a folder with \
             {missing} (garbage-collector: xtask/src/cluster/garbage-collector.go)"
        );
    }
    let cache =
        cluster_cache().context("neither XDG_CACHE_HOME nor HOME names a folder for the cache")?;
    eprintln!(
        "Cluster tests need {missing}. Making them from Debian's packages into {}: all of them take \
         about eight minutes, once.",
        cache.display()
    );
    let start = Instant::now();
    let folder = Scratch::beside(&cache)?;
    let mut packages: BTreeSet<&str> = packaged.iter().map(|(_, package, _)| *package).collect();
    if !built.is_empty() {
        packages.extend(GO_PACKAGES);
    }
    if !plugins.is_empty() {
        packages.insert(PLUGIN_PACKAGE);
    }
    download(&folder.0, &packages, !built.is_empty())?;
    debian::unpack(&folder.0)?;
    let finished = folder.0.join("finished");
    fs::create_dir(&finished)?;
    let copied = packaged.iter().map(|(name, _, path)| (*path, *name, finished.join(name)));
    let cni = finished.join("cni");
    fs::create_dir(&cni)?;
    let copied = copied.chain(plugins.iter().map(|name| ("usr/lib/cni", *name, cni.join(name))));
    for (path, name, to) in copied {
        let from = folder.0.join("root").join(path).join(name);
        fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    if !built.is_empty() {
        let source = unpack_source(&folder.0)?;
        compile(&folder.0, &source, &finished, &built)?;
    }
    move_files(&cni, &cache.join("cni"))?;
    move_files(&finished, &cache)?;
    eprintln!("Built the programs in {} s.", start.elapsed().as_secs());
    Ok(())
}

/// The programs that must be built from source. If no folder has all programs of Kubernetes, the cache
/// gets all: they must have one version.
fn missing_built() -> Vec<&'static str> {
    let mut missing = match (kubernetes_folder(None), cluster_cache()) {
        (Ok(_), _) => Vec::new(),
        (Err(_), Some(cache)) => lacking(&cache, &KUBERNETES_PROGRAMS),
        (Err(missing), None) => missing.programs,
    };
    if garbage_collector().is_err() {
        missing.push("garbage-collector");
    }
    missing
}

/// Moves the files of a folder. A rename is atomic: another process never finds an incomplete program.
fn move_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for program in fs::read_dir(from)? {
        let program = program?;
        let path = to.join(program.file_name());
        if program.file_type()?.is_file() {
            fs::rename(program.path(), &path)
                .with_context(|| format!("cannot move a program to {}", path.display()))?;
        }
    }
    Ok(())
}

/// Unpacks the source. Returns its folder.
fn unpack_source(folder: &Path) -> Result<PathBuf> {
    let at = |name: &str| folder.join(name);
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

/// Compiles programs. One command compiles the packages that they share only once.
fn compile(folder: &Path, source: &Path, finished: &Path, names: &[&str]) -> Result<()> {
    if names.contains(&"kube-apiserver") {
        generate_openapi(folder, source)?;
    }
    // A small program around one controller of Kubernetes.
    let collector = source.join("cmd/garbage-collector");
    fs::create_dir_all(&collector)?;
    fs::write(collector.join("main.go"), include_str!("garbage-collector.go"))?;

    let set = |name: &str, value: &str| {
        format!("-X {MODULE}/vendor/k8s.io/component-base/version.{name}={value}")
    };
    let flags =
        ["-s -w".into(), set("gitVersion", VERSION), set("gitMajor", "1"), set("gitMinor", "20")];
    let mut compile = go(folder, source, "go");
    compile.args(["build", "-trimpath", "-ldflags", &flags.join(" "), "-o"]);
    // With a slash at the end, it is a folder also for a single program.
    compile.arg(format!("{}/", finished.display()));
    compile.args(names.iter().map(|name| format!("{MODULE}/cmd/{name}")));
    shell::run(compile)
}

/// Generates the files that Debian's source lacks.
fn generate_openapi(folder: &Path, source: &Path) -> Result<()> {
    let at = |name: &str| folder.join(name);
    let generator = at("openapi-gen");
    let mut compile = go(folder, source, "go");
    compile.args(["build", "-trimpath", "-o"]).arg(&generator);
    compile.arg(format!("{MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen"));
    shell::run(compile)?;
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
    Ok(())
}

/// Downloads packages and, if needed, the source.
fn download(folder: &Path, names: &BTreeSet<&str>, needs_source: bool) -> Result<()> {
    let packages = Packages::with_sources(folder, with_sources, with_source_lines, None)?;
    let names: Vec<&str> = names.iter().copied().collect();
    packages.apt(&[&["download"], &names[..]].concat())?;
    if !needs_source {
        return Ok(());
    }
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
