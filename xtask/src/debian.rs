//! Downloads and unpacks Debian packages without installing them, so this needs no root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::shell;

/// A folder beside the cache that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Creates one.
    pub(crate) fn beside(cache: &Path) -> Result<Self> {
        let path = cache.with_file_name(format!("cluster-build-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Go makes folders read-only in module mode alone, which no build here uses.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The system's package sources, edited, with private package lists. The system's own lists need
/// root and lack source packages.
pub(crate) struct Packages<'a> {
    folder: &'a Path,
    sources: PathBuf,
    /// The processor of the packages, if it is not this machine's.
    architecture: Option<&'a str>,
}

impl<'a> Packages<'a> {
    /// Edits the sources with two functions, one per file format, and downloads the package lists.
    pub(crate) fn with_sources(
        folder: &'a Path,
        stanzas: impl Fn(&str) -> String,
        lines: impl Fn(&str) -> String,
        architecture: Option<&'a str>,
    ) -> Result<Self> {
        let sources = folder.join("sources");
        for path in ["sources", "lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(path))?;
        }
        let mut found = 0;
        let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        for file in parts.map(|part| part.path()).chain(["/etc/apt/sources.list".into()]) {
            let (Some(name), Ok(text)) = (file.file_name(), fs::read_to_string(&file)) else {
                continue;
            };
            let text = match file.extension().and_then(|extension| extension.to_str()) {
                Some("sources") => stanzas(&text),
                Some("list") => lines(&text),
                _ => continue,
            };
            fs::write(sources.join(name), text)?;
            found += 1;
        }
        if found == 0 {
            bail!("/etc/apt has no package sources; set KUBEBUILDER_ASSETS instead");
        }
        let packages = Packages { folder, sources, architecture };
        packages.apt(&["update"])?;
        Ok(packages)
    }

    /// Runs `apt-get` with these sources.
    pub(crate) fn apt(&self, arguments: &[&str]) -> Result<()> {
        shell::run(self.command(arguments))
    }

    /// An `apt-get` command with these sources that runs in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut apt = Command::new("apt-get");
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = [
            option("Dir::Etc::sourcelist", Path::new("/dev/null")),
            option("Dir::Etc::sourceparts", &self.sources),
            option("Dir::State::lists", &self.folder.join("lists")),
            option("Dir::Cache", self.folder),
            // Otherwise apt downloads as a user who cannot read the folder.
            "APT::Sandbox::User=".into(),
            "Acquire::Languages=none".into(),
        ];
        for option in &options {
            apt.args(["-o", option]);
        }
        if let Some(architecture) = self.architecture {
            for name in ["APT::Architecture", "APT::Architectures"] {
                apt.args(["-o", &format!("{name}={architecture}")]);
            }
        }
        apt.args(["-q"]).args(arguments).current_dir(self.folder).stdout(std::io::stderr());
        apt
    }
}

/// Unpacks the packages of a folder into its subfolder `root`.
pub(crate) fn unpack(folder: &Path) -> Result<()> {
    for package in fs::read_dir(folder)? {
        let package = package?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(package).arg(folder.join("root"));
            let status = unpack.status().context("cannot run dpkg-deb")?;
            if !status.success() {
                bail!("dpkg-deb failed: {status}");
            }
        }
    }
    Ok(())
}
