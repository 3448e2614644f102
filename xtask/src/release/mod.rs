//! `cargo xtask release`: everything that a release page needs, in one folder.
//!
//! ```text
//!  programs for Linux and Windows ─┐
//!  man pages, completions ─────────┼─► archives ─► krew manifest
//!  images, bills of materials ─────┤        └────► SHA256SUMS
//!  chart, release notes ───────────┘
//! ```
//!
//! *Invariant*: the files depend on the commit alone.

mod archive;
mod notes;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use archive::Entries;
use weir_testbed::sha256;

use crate::{
    image::{
        self,
        programs::{self, PROGRAMS, TOOLCHAINS, Toolchain},
        sbom,
    },
    shell::{self, root},
    tools::{self, HELM},
    windows,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The reason why there are no programs for macOS.
const NO_MACOS: &str = "There are no programs for macOS: linking them needs Apple's SDK, which exists \
                        only on macOS. There, run `cargo install --path crates/bin/weir`.";

/// A platform of the command line.
struct Platform {
    /// As in the names of archives.
    system: &'static str,
    architecture: &'static str,
    target: String,
    archive: PathBuf,
}

/// Makes the files of a release. `--base-url URL` is the address of the release page's files, for the
/// krew manifest.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let base_url = match arguments {
        [] => None,
        ["--base-url", url] => Some(url.trim_end_matches('/')),
        _ => bail!("unknown arguments; use --base-url URL"),
    };
    let target = programs::target_folder(&root());
    let folder = target.join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // First, because it fails early if the changelog has no entry.
    let notes = notes::generate(&fs::read_to_string(root().join("CHANGELOG.md"))?, VERSION)?;
    fs::write(folder.join("RELEASE-NOTES.md"), format!("{notes}\n{NO_MACOS}\n"))?;
    tools::run()?;

    let toolchains: Vec<&Toolchain> = TOOLCHAINS.iter().collect();
    let images = target.join("images");
    image::write_all(&toolchains, &images)?;
    let native = toolchains.iter().find(|one| one.is_native());
    let native = native.context("releases are built on amd64 or arm64")?;
    let weir = target.join("programs").join(native.architecture.as_str()).join("weir");
    let documents = documents(&weir)?;

    let mut platforms = Vec::new();
    for toolchain in &toolchains {
        let architecture = toolchain.architecture.as_str();
        let mut entries = documents.clone();
        for program in PROGRAMS {
            let path = target.join("programs").join(architecture).join(program);
            entries.add(program, fs::read(path)?, 0o755);
        }
        let platform = Platform {
            system: "linux",
            architecture,
            target: toolchain.target.into(),
            archive: PathBuf::new(),
        };
        platforms.push(platform.write(&folder, &entries)?);
    }
    let mut entries = documents.clone();
    entries.add("weir.exe", fs::read(windows::build_release()?)?, 0o755);
    let platform = Platform {
        system: "windows",
        architecture: "amd64",
        target: windows::TARGET.into(),
        archive: PathBuf::new(),
    };
    platforms.push(platform.write(&folder, &entries)?);
    eprintln!("{NO_MACOS}");

    copy_images(&images, &folder)?;
    chart(&folder)?;
    match base_url {
        Some(url) => fs::write(folder.join("weir-krew.yaml"), krew(&platforms, url)?)?,
        None => {
            eprintln!("There is no krew manifest: it needs --base-url, the address of the files.")
        }
    }
    let sums = checksums(&folder)?;
    fs::write(folder.join("SHA256SUMS"), &sums)?;
    eprintln!("{}:\n{sums}", folder.display());
    Ok(())
}

impl Platform {
    /// Writes the archive and the bill of materials.
    fn write(mut self, folder: &Path, entries: &Entries) -> Result<Self> {
        let name = format!("weir-{VERSION}-{}-{}", self.system, self.architecture);
        let packages = if self.system == "linux" { &PROGRAMS[..] } else { &PROGRAMS[..1] };
        sbom::write(
            &sbom::generate(&self.target, packages, &[])?,
            &folder.join(format!("{name}.cdx.json")),
        )?;
        self.archive = folder.join(format!("{name}.tar.gz"));
        entries.write(&self.archive)?;
        Ok(self)
    }
}

/// The licence, manual pages and completions.
fn documents(weir: &Path) -> Result<Entries> {
    let output = |arguments: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new(weir).args(arguments).output()?;
        if !output.status.success() {
            bail!("weir {} failed", arguments.join(" "));
        }
        Ok(output.stdout)
    };
    let mut entries = Entries::default();
    entries.add("LICENSE", fs::read(root().join("LICENSE"))?, 0o644);
    entries.add("man/weir.1", output(&["man"])?, 0o644);
    for command in commands(&String::from_utf8(output(&["--help"])?)?) {
        entries.add(&format!("man/weir-{command}.1"), output(&["man", &command])?, 0o644);
    }
    for (shell, file) in [
        ("bash", "weir.bash"),
        ("elvish", "weir.elv"),
        ("fish", "weir.fish"),
        ("powershell", "weir.ps1"),
        ("zsh", "_weir"),
    ] {
        entries.add(&format!("completions/{file}"), output(&["completions", shell])?, 0o644);
    }
    Ok(entries)
}

/// The commands in a help text.
fn commands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty());
    // A longer description continues on lines that are indented further.
    let names = list
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Copies the docker archives, compressed, and packs the OCI layouts.
fn copy_images(images: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(images)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some(stem) = name.strip_suffix(".oci") {
            let mut entries = Entries::default();
            entries.add_folder(&path)?;
            entries.write(&folder.join(format!("{stem}-image.oci.tar.gz")))?;
        } else if let Some(stem) = name.strip_suffix(".tar") {
            archive::compress(&fs::read(&path)?, &folder.join(format!("{stem}-image.tar.gz")))?;
        }
    }
    Ok(())
}

/// Packs the chart, and lets helm read the package.
fn chart(folder: &Path) -> Result<()> {
    let package = folder.join(format!("weir-chart-{VERSION}.tgz"));
    let mut entries = Entries::below("weir");
    entries.add_folder(&root().join("charts/weir"))?;
    entries.write(&package)?;
    let mut helm = HELM.command()?;
    helm.args(["lint", "--quiet"]).arg(&package);
    shell::run(helm)
}

/// The manifest of the kubectl plugin.
fn krew(platforms: &[Platform], url: &str) -> Result<String> {
    let mut text = format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2\n\
         kind: Plugin\n\
         metadata:\n  name: weir\n\
         spec:\n  version: v{VERSION}\n  \
           shortDescription: Test, explain and enforce network policies\n  \
           description: |\n    \
             Tests, explains, compares and draws network policies, of manifests or of the\n    \
             current cluster, and installs agents that enforce them.\n  \
           platforms:\n"
    );
    for Platform { system, architecture, archive, .. } in platforms {
        let name = archive.file_name().and_then(|name| name.to_str()).context("a name")?;
        let sum = sha256(&fs::read(archive)?);
        let program = if *system == "windows" { "weir.exe" } else { "weir" };
        text.push_str(&format!(
            "  - selector: {{matchLabels: {{os: {system}, arch: {architecture}}}}}\n    \
               uri: {url}/{name}\n    \
               sha256: {sum}\n    \
               bin: {program}\n    \
               files:\n    \
               - {{from: {program}, to: .}}\n    \
               - {{from: LICENSE, to: .}}\n"
        ));
    }
    Ok(text)
}

/// The checksums of all files of a folder, as sha256sum prints them.
fn checksums(folder: &Path) -> Result<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let sum = sha256(&fs::read(entry.path())?);
        lines.push((entry.file_name(), sum));
    }
    lines.sort();
    Ok(lines.iter().map(|(name, sum)| format!("{sum}  {}\n", name.display())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_help_text_are_found() {
        let help = "About\n\nUsage: weir\n\nCommands:\n  test     Run\n           more\n  status   Show\n  help     Print\n\nOptions:\n  -h  Help\n";
        assert_eq!(commands(help), ["test", "status"]);
    }

    #[test]
    fn the_krew_manifest_names_every_platform() {
        let folder = tempfile::tempdir().unwrap();
        let platform = |system, architecture| {
            let archive = folder.path().join(format!("weir-{system}.tar.gz"));
            fs::write(&archive, system).unwrap();
            Platform { system, architecture, target: String::new(), archive }
        };
        let platforms = [platform("linux", "arm64"), platform("windows", "amd64")];
        let text = krew(&platforms, "https://example.test/v1").unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let windows = &manifest["spec"]["platforms"][1];
        assert_eq!(windows["uri"], "https://example.test/v1/weir-windows.tar.gz");
        assert_eq!(windows["bin"], "weir.exe");
        assert_eq!(windows["selector"]["matchLabels"]["os"], "windows");
        assert_eq!(windows["sha256"], sha256(b"windows"));
        assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    }

    #[test]
    fn checksums_are_sorted_and_sha256sum_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let sums = checksums(folder.path()).unwrap();
        assert!(sums.lines().next().unwrap().ends_with("  a"), "{sums}");
        fs::write(folder.path().join("SHA256SUMS"), &sums).unwrap();
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder.path());
        assert!(check.output().unwrap().status.success());
    }

    #[test]
    fn the_workflow_runs_this_task_and_pins_its_actions() {
        let text = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
        let workflow: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let steps = workflow["jobs"]["release"]["steps"].as_array().unwrap();
        assert!(steps.iter().any(|step| step["run"].to_string().contains("cargo xtask release")));
        for action in steps.iter().filter_map(|step| step["uses"].as_str()) {
            let (_, commit) = action.split_once('@').unwrap();
            let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(is_commit, "{action} is not pinned to a commit");
        }
    }
}
