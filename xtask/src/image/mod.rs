//! `cargo xtask image`: writes the images of Linux nodes without a container engine.
//!
//! ```text
//!  static programs ─┐
//!  certificates ────┼─► Image ─► OCI layout (all processors), docker archive (each)
//!  bill of materials┘     └─ with Debian's iptables: the variant `-iptables`
//! ```
//!
//! *Invariant*: an image depends on the commit alone. Times, users and paths of this machine do not
//! reach it, and all packages are pinned.

pub(crate) mod iptables;
pub(crate) mod programs;
pub(crate) mod sbom;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use programs::{PROGRAMS, TOOLCHAINS, Toolchain};
use weir_testbed::{Image, write_layout};

use crate::shell::{self, root};

/// The repository of the image, as in the chart's default values.
const REPOSITORY: &str = "localhost/weir";

/// The names of shells. No image has one.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "busybox"];

/// The largest archive.
const MAX_BYTES: u64 = 35_000_000;

/// A kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Agent with nftables, CNI plugin and controllers.
    Plain,
    /// Agent with iptables, which starts the iptables programs.
    Iptables,
}

impl Variant {
    fn suffix(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::Iptables => "-iptables",
        }
    }

    /// The name of the image without its repository.
    fn tag(self) -> String {
        format!("{}{}", env!("CARGO_PKG_VERSION"), self.suffix())
    }

    /// The name of the docker archive for a processor.
    fn archive(self, architecture: &str) -> String {
        format!("weir-{}-{architecture}.tar", self.tag())
    }
}

/// Writes the images of the processors that the arguments select.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let toolchains: Vec<&Toolchain> = match arguments {
        [] => TOOLCHAINS.iter().collect(),
        ["--arch", name] => {
            let found = TOOLCHAINS.iter().find(|one| one.architecture.as_str() == *name);
            vec![found.with_context(|| format!("{name} is not amd64 or arm64"))?]
        }
        _ => bail!("unknown arguments; use --arch amd64 or --arch arm64"),
    };
    let folder = programs::target_folder(&root()).join("images");
    write_all(&toolchains, &folder).map(|_| ())
}

/// The images of this tree for this machine, and the program that they contain.
pub(crate) struct NativeImages {
    /// Docker archives: for nftables, and for iptables.
    pub(crate) archives: Vec<PathBuf>,
    pub(crate) weir: PathBuf,
}

/// Writes the images of this tree for this machine. If nothing changed, that takes seconds.
pub(crate) fn write_native() -> Result<NativeImages> {
    let native = TOOLCHAINS.iter().find(|one| one.is_native());
    let native = native.context("images are built on amd64 or arm64")?;
    let target = programs::target_folder(&root());
    let folder = target.join("cluster-images");
    write_all(&[native], &folder)?;
    let architecture = native.architecture.as_str();
    let archive = |variant: Variant| folder.join(variant.archive(architecture));
    Ok(NativeImages {
        archives: [Variant::Plain, Variant::Iptables].map(archive).into(),
        weir: target.join("programs").join(architecture).join("weir"),
    })
}

/// Builds the programs and writes all images into a folder. Returns the roots of the iptables packages.
pub(crate) fn write_all(toolchains: &[&Toolchain], folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut roots = Vec::new();
    let mut images: [Vec<Image>; 2] = Default::default();
    for toolchain in toolchains {
        toolchain.ensure()?;
        let programs = toolchain.build(&root(), &PROGRAMS)?;
        start(toolchain, &programs)?;
        let packages = iptables::unpack(toolchain.architecture)?;
        for (list, variant) in images.iter_mut().zip([Variant::Plain, Variant::Iptables]) {
            let image = compose(variant, toolchain, &programs, &packages, folder)?;
            check_contents(&image, toolchain)?;
            let archive = folder.join(variant.archive(image.architecture.as_str()));
            image.write(&archive)?;
            let size = fs::metadata(&archive)?.len();
            eprintln!("{}: {:.1} MB", archive.display(), size as f64 / 1e6);
            if size > MAX_BYTES {
                bail!("{} is larger than {} MB", archive.display(), MAX_BYTES / 1_000_000);
            }
            list.push(image);
        }
        roots.push(packages);
    }
    for (images, variant) in images.iter().zip([Variant::Plain, Variant::Iptables]) {
        let layout = folder.join(format!("weir-{}.oci", variant.tag()));
        let digest = write_layout(images, &layout)?;
        eprintln!("{}: {digest}", layout.display());
        fs::write(layout.with_extension("oci.digest"), format!("{digest}\n"))?;
    }
    Ok(roots)
}

/// The contents of an image. Writes its generated files into a folder.
fn compose(
    variant: Variant,
    toolchain: &Toolchain,
    programs: &Path,
    packages: &Path,
    folder: &Path,
) -> Result<Image> {
    let architecture = toolchain.architecture;
    let name = format!("weir-{}-{}", variant.tag(), architecture.as_str());
    let certificates = folder.join("ca-certificates.crt");
    iptables::write_certificates(packages, &certificates)?;
    let (mut files, mut links, mut debian) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    debian.push((&iptables::CERTIFICATES, "all"));
    if variant == Variant::Iptables {
        (files, links) = iptables::contents(packages)?;
        debian.extend(iptables::IPTABLES.iter().map(|one| (one, architecture.as_str())));
    }
    let bill = folder.join(format!("{name}.cdx.json"));
    sbom::write(&sbom::generate(toolchain.target, &PROGRAMS, &debian)?, &bill)?;
    for program in PROGRAMS {
        files.insert(format!("/usr/local/bin/{program}"), programs.join(program));
    }
    // For a broker whose kubeconfig names no certificate authority.
    files.insert("/etc/ssl/certs/ca-certificates.crt".into(), certificates);
    files.insert("/usr/share/doc/weir/sbom.cdx.json".into(), bill);
    files.insert("/usr/share/doc/weir/LICENSE".into(), root().join("LICENSE"));
    Ok(Image {
        name: format!("{REPOSITORY}:{}", variant.tag()),
        architecture,
        files,
        links,
        entrypoint: vec!["/usr/local/bin/weir".into()],
        // Kubernetes adds capabilities to root only: the chart runs agents as root with one or two of
        // them. Controllers need none, and the programs of iptables are of no use to another user.
        user: if variant == Variant::Plain { "65532:65532" } else { "0" }.into(),
        labels: labels()?,
    })
}

/// Fails if an image has a shell, or a program of weir that needs libraries.
fn check_contents(image: &Image, toolchain: &Toolchain) -> Result<()> {
    if let Some(shell) = shell_of(image) {
        bail!("the image {} contains {shell}", image.name);
    }
    for program in PROGRAMS {
        let file = &image.files[&format!("/usr/local/bin/{program}")];
        let libraries = toolchain.libraries(file)?;
        if !libraries.is_empty() {
            bail!("{} is not static: {}", file.display(), libraries.join(", "));
        }
    }
    Ok(())
}

/// The path of a shell in an image.
fn shell_of(image: &Image) -> Option<&str> {
    let is_shell =
        |path: &&String| path.rsplit_once('/').is_some_and(|(_, name)| SHELLS.contains(&name));
    let mut paths = image.files.keys().chain(image.links.keys());
    paths.find(is_shell).map(String::as_str)
}

/// The standard labels.
fn labels() -> Result<BTreeMap<String, String>> {
    let commit = shell::command("git", &["rev-parse", "HEAD"]).output();
    let commit = commit.ok().filter(|output| output.status.success());
    let commit = match (std::env::var("WEIR_COMMIT"), commit) {
        (Ok(commit), _) => commit,
        (Err(_), Some(output)) => String::from_utf8(output.stdout)?.trim().to_owned(),
        (Err(_), None) => "unknown".into(),
    };
    let labels = [
        ("title", "weir"),
        ("description", "Enforces Kubernetes network policy on every node"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("licenses", "Apache-2.0"),
        ("revision", &commit),
    ];
    let key = |name: &str| format!("org.opencontainers.image.{name}");
    Ok(labels.map(|(name, value)| (key(name), value.to_owned())).into())
}

/// Starts each program of a folder once, in an emulator if necessary.
fn start(toolchain: &Toolchain, folder: &Path) -> Result<()> {
    let program = folder.join("weir");
    let output = text(toolchain.command(&program).args(["version", "-o", "json"]))?;
    let version: serde_json::Value = serde_json::from_str(&output)?;
    if version["build"]["target"] != toolchain.target {
        bail!("{} is not a program for {}: {output}", program.display(), toolchain.target);
    }
    start_plugin(toolchain.command(&folder.join("weir-cni")))
}

/// Starts the CNI plugin as a container runtime does that asks for its versions.
fn start_plugin(mut plugin: Command) -> Result<()> {
    const VERSION: &str = "1.0.0";
    plugin.env("CNI_COMMAND", "VERSION").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = plugin.spawn().with_context(|| format!("cannot run {plugin:?}"))?;
    let mut input = child.stdin.take().context("the input is piped")?;
    // If the program has ended early, its output says why.
    _ = write!(input, r#"{{"cniVersion": "{VERSION}"}}"#);
    drop(input);
    let output = child.wait_with_output()?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let versions: serde_json::Value = serde_json::from_str(&answer)
        .with_context(|| format!("{plugin:?} failed: {}: {answer}", output.status))?;
    let mut versions = versions["supportedVersions"].as_array().into_iter().flatten();
    if !output.status.success() || !versions.any(|version| version == VERSION) {
        bail!("{plugin:?} failed: {}: {answer}", output.status);
    }
    Ok(())
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// `cargo xtask test image`: builds all images and checks their contents.
pub(crate) fn test() -> Result<()> {
    let changes = text(&mut shell::command("git", &["status", "--porcelain"]))?;
    if !changes.is_empty() {
        bail!(
            "commit these changes first; the test compares with a build of the last commit:\n{changes}"
        );
    }
    let folder = programs::target_folder(&root()).join("images");
    let toolchains: Vec<&Toolchain> = TOOLCHAINS.iter().collect();
    let roots = write_all(&toolchains, &folder)?;
    let digest = |variant: Variant| {
        fs::read_to_string(folder.join(format!("weir-{}.oci.digest", variant.tag())))
    };
    let before = [digest(Variant::Plain)?, digest(Variant::Iptables)?];
    for (toolchain, packages) in TOOLCHAINS.iter().zip(&roots) {
        let mut programs = vec![("xtables-legacy-multi", "(legacy)")];
        // The program that `iptables` links to does not start in an emulator, which has no nftables.
        if toolchain.is_native() {
            programs.push(("xtables-nft-multi", "(nf_tables)"));
        }
        for (program, variant) in programs {
            let version = text(&mut iptables::version_command(toolchain, packages, program))?;
            if !version.contains(variant) {
                bail!("{program} prints an unexpected version: {version}");
            }
        }
    }
    same_in_another_folder()?;
    write_all(&toolchains, &folder)?;
    if before != [digest(Variant::Plain)?, digest(Variant::Iptables)?] {
        bail!("a second run wrote other images");
    }
    eprintln!(
        "The images are complete, start on both processors, and a second run wrote the same. The programs \
         have the same bytes if they are built in another folder."
    );
    Ok(())
}

/// Builds the programs of one processor from a clone of the last commit in another folder, and compares
/// the bytes.
fn same_in_another_folder() -> Result<()> {
    let [toolchain, ..] = &TOOLCHAINS;
    let build = |source: &Path| -> Result<Vec<Vec<u8>>> {
        let folder = toolchain.build(source, &PROGRAMS)?;
        let read = |program: &&str| fs::read(folder.join(program));
        Ok(PROGRAMS.iter().map(read).collect::<Result<_, _>>()?)
    };
    let here = build(&root())?;
    let clone = programs::target_folder(&root()).join("elsewhere");
    _ = fs::remove_dir_all(&clone);
    let mut git = shell::command("git", &["clone", "--quiet", "--local", "."]);
    git.arg(&clone);
    shell::run(git)?;
    let there = build(&clone);
    fs::remove_dir_all(&clone)?;
    for ((program, here), there) in PROGRAMS.iter().zip(here).zip(there?) {
        if here != there {
            bail!("{program} has other bytes if the last commit is built in another folder");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_in_an_image_is_found() {
        let found = |path: &str| {
            let links = [(path.to_owned(), "xtables-nft-multi".to_owned())].into();
            shell_of(&Image { links, ..Image::default() }).map(str::to_owned)
        };
        assert_eq!(found("/usr/bin/sh").as_deref(), Some("/usr/bin/sh"));
        assert_eq!(found("/usr/sbin/iptables"), None);
        let files = [("/bin/bash".to_owned(), PathBuf::new())].into();
        assert_eq!(shell_of(&Image { files, ..Image::default() }), Some("/bin/bash"));
    }

    #[test]
    fn the_chart_uses_these_names() {
        let values = fs::read_to_string(root().join("charts/weir/values.yaml")).unwrap();
        assert!(values.contains(&format!("repository: {REPOSITORY}\n")));
        assert!(values.contains("the suffix -iptables is added"));
        assert_eq!(Variant::Iptables.tag(), concat!(env!("CARGO_PKG_VERSION"), "-iptables"));
    }
}
