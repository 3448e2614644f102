//! The iptables programs of Debian, for images of agents with `--datapath iptables`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use weir_testbed::{Architecture, sha256};

use super::programs::Toolchain;
use crate::{
    debian::{self, Packages, Scratch},
    shell,
};

/// A pinned package, so that an image depends on the commit alone.
#[derive(Debug)]
pub(crate) struct DebianPackage {
    name: &'static str,
    version: &'static str,
    /// The checksums for amd64 and arm64.
    sha256: [&'static str; 2],
}

/// The root certificates. Their package is the same for all processors.
pub(crate) const CERTIFICATES: DebianPackage = DebianPackage {
    name: "ca-certificates",
    version: "20250419~deb12u2",
    sha256: ["b9f76b5271a7ac373fd5e7e1b5b826a71ddd702b42a0d104955ecb1acfffc94b"; 2],
};

/// iptables and its libraries.
pub(crate) const IPTABLES: [DebianPackage; 9] = [
    DebianPackage {
        name: "iptables",
        version: "1.8.9-2",
        sha256: [
            "2928d3ca6ca8a3dc3f423f6752822b1f3614a5ba609ff7806bcba4449ffe90e1",
            "5cb1974950a07f89c2d61a20e62d2dbcd882acb6d522d36ad3c690f6f5d3c643",
        ],
    },
    DebianPackage {
        name: "libip4tc2",
        version: "1.8.9-2",
        sha256: [
            "f2c48b367f9ec13f9aa577e7ccf81b371ce5d5fe22dddf9d7aa99f1e0bb7cfc4",
            "fc5b488a30f697d13c8547ca32cebf53880141af77ec36c58b04f899b5708208",
        ],
    },
    DebianPackage {
        name: "libip6tc2",
        version: "1.8.9-2",
        sha256: [
            "be88db3dfa2fe3345ea343207f7c75345602686121e579023d021c348b9b4f4d",
            "f921206811bbda3dfa03995142ee704fd13f2bb07291ed418bd41fbea3a1d8cc",
        ],
    },
    DebianPackage {
        name: "libxtables12",
        version: "1.8.9-2",
        sha256: [
            "cb841d66950a43af4a398625313d2f3da9065299c9738538de6c2c3495857040",
            "8884a42f98b989e5ba2e91d931b5c6e9eb72568e5d3001d97d73d7913890a7b3",
        ],
    },
    DebianPackage {
        name: "libc6",
        version: "2.36-9+deb12u14",
        sha256: [
            "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf",
            "01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4",
        ],
    },
    DebianPackage {
        name: "libmnl0",
        version: "1.0.4-3",
        sha256: [
            "4581f42e3373cb72f9ea4e88163b17873afca614a6c6f54637e95aa75983ea7c",
            "d63aafb6f2c07db8fcb135b00ff915baf72ef8a3397e773c9c24d67950c6a46c",
        ],
    },
    DebianPackage {
        name: "libnetfilter-conntrack3",
        version: "1.0.9-3",
        sha256: [
            "65f1539238f60fcc85d115acd640474f45c77bfddcf402eb7d75965a783c2bc8",
            "837ebd84c43dc9f6c840695f64763ff4a3b7e5e83eedb37817e272e75fcc84bf",
        ],
    },
    DebianPackage {
        name: "libnfnetlink0",
        version: "1.0.2-2",
        sha256: [
            "ae5cbba417ea48f34c1f72c27e8146a81f20614c1296bca2cd7234c8215fddcc",
            "e2c85edf9015dc918ce190397fbbf059ad659941c5a650a250de67f2319a903b",
        ],
    },
    DebianPackage {
        name: "libnftnl11",
        version: "1.2.4-2",
        sha256: [
            "9e619e1470a1915264e906020f3bfc046fd8458043b1342686d997b5078213af",
            "fd8b6f2ea21d60e25b07dfee8804ece79c2b18309df7773b091a587135565b9f",
        ],
    },
];

impl DebianPackage {
    fn checksum(&self, architecture: Architecture) -> &'static str {
        let [amd64, arm64] = self.sha256;
        match architecture {
            Architecture::Amd64 => amd64,
            Architecture::Arm64 => arm64,
        }
    }

    /// Its entry in a bill of materials.
    pub(crate) fn component(&self, architecture: &str) -> Value {
        let DebianPackage { name, version, .. } = self;
        json!({
            "type": "library",
            "bom-ref": format!("deb:{name}@{version}"),
            "name": name,
            "version": version,
            "purl": format!("pkg:deb/debian/{name}@{version}?arch={architecture}"),
        })
    }
}

/// Downloads pinned packages for a processor and unpacks them into the cache. Returns their root.
pub(crate) fn unpack(architecture: Architecture) -> Result<PathBuf> {
    let all = || IPTABLES.iter().chain([&CERTIFICATES]);
    let pins: String = all().map(|package| package.checksum(architecture)).collect();
    let cache = weir_programs::cache().context("neither XDG_CACHE_HOME nor HOME names a folder")?;
    let name = architecture.as_str();
    let folder = cache.join(format!("image-{name}-{}", &sha256(pins.as_bytes())[..16]));
    if folder.exists() {
        return Ok(folder.join("root"));
    }
    eprintln!("Downloading iptables and certificates from Debian 12 for {name}.");
    let scratch = Scratch::beside(&folder)?;
    let packages = Packages::with_sources(&scratch.0, only_debian, |_| String::new(), Some(name))?;
    let work = scratch.0.join("packages");
    fs::create_dir_all(&work)?;
    for package in all() {
        let mut download = packages.command(&["download"]);
        download.arg(format!("{}={}", package.name, package.version)).current_dir(&work);
        shell::run(download).with_context(|| {
            format!(
                "cannot download {} {}; if Debian 12 has a newer version, pin it in \
                 xtask/src/image/iptables.rs",
                package.name, package.version
            )
        })?;
    }
    for file in fs::read_dir(&work)?.flatten() {
        let sum = sha256(&fs::read(file.path())?);
        if !all().any(|package| package.checksum(architecture) == sum) {
            bail!("{} does not have its pinned checksum", file.path().display());
        }
    }
    debian::unpack(&work)?;
    fs::rename(&work, &folder).context("cannot move the packages into the cache")?;
    Ok(folder.join("root"))
}

/// The stanzas of package sources that are Debian's own.
fn only_debian(text: &str) -> String {
    let is_debian = |stanza: &&str| stanza.contains("debian.org");
    text.split("\n\n").filter(is_debian).collect::<Vec<_>>().join("\n\n")
}

/// The names by which weir starts the programs. Debian's packages create these links on installation.
const COMMANDS: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// The files and links of iptables and its libraries: no shell, no script, no other program.
pub(crate) fn contents(
    root: &Path,
) -> Result<(BTreeMap<String, PathBuf>, BTreeMap<String, String>)> {
    let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let inside = format!("/{}", path.strip_prefix(root)?.display());
            if path.is_symlink() {
                if is_needed(&inside) {
                    let target = fs::read_link(&path)?.display().to_string();
                    links.insert(inside, target);
                }
            } else if path.is_dir() {
                folders.push(path);
            } else if is_needed(&inside) {
                files.insert(inside, path);
            }
        }
    }
    for command in COMMANDS {
        links.insert(format!("/usr/sbin/{command}"), "xtables-nft-multi".into());
    }
    Ok((files, links))
}

/// The libraries of libc6 that iptables and its extensions use.
const LIBC: [&str; 2] = ["libc.so.6", "libm.so.6"];

/// Whether an image needs a file of the packages.
fn is_needed(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    // Without the extensions of ebtables and arptables, which weir does not start.
    let is_library = path.starts_with("/usr/lib/")
        && name.contains(".so")
        && !name.starts_with("libebt_")
        && !name.starts_with("libarpt_");
    // libc6 has its libraries in /lib, and converters of character sets in /usr/lib.
    let is_libc =
        path.starts_with("/lib") && (LIBC.contains(&name) || name.starts_with("ld-linux"));
    let is_program = path.starts_with("/usr/sbin/")
        && (name.starts_with("xtables-")
            || (name.starts_with("iptables-") || name.starts_with("ip6tables-"))
                && (name.contains("-nft") || name.contains("-legacy")));
    let is_licence = path.starts_with("/usr/share/doc/") && name == "copyright";
    (is_library && !path.contains("/gconv/") && !path.contains("/audit/"))
        || is_libc
        || is_program
        || is_licence
}

/// Writes the root certificates as one file.
pub(crate) fn write_certificates(root: &Path, file: &Path) -> Result<()> {
    let folder = root.join("usr/share/ca-certificates/mozilla");
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut all = String::new();
    for path in paths {
        all.push_str(fs::read_to_string(path)?.trim_end());
        all.push('\n');
    }
    Ok(fs::write(file, all)?)
}

/// A command that starts a program of the unpacked packages as `iptables --version`.
pub(crate) fn version_command(toolchain: &Toolchain, root: &Path, program: &str) -> Command {
    let (loader, libraries) = match toolchain.architecture {
        Architecture::Amd64 => ("lib64/ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
        Architecture::Arm64 => ("lib/ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
    };
    let mut command = toolchain.command(&root.join(loader));
    let paths = ["lib", "usr/lib"].map(|folder| root.join(folder).join(libraries));
    let paths = paths.map(|path| path.display().to_string()).join(":");
    command.args(["--library-path", &paths]).arg(root.join("usr/sbin").join(program));
    command.args(["iptables", "--version"]);
    command
}
