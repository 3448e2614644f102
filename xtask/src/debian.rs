//! What Debian has, for those who build from it without touching the system: nothing is installed, and no rights are needed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::shell;

/// A folder beside the cache that vanishes when it is no longer needed.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// A new one.
    pub(crate) fn beside(cache: &Path) -> Result<Self> {
        let path = cache.with_file_name(format!("cluster-build-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Go makes some of its folders read-only only in module mode, which nobody here uses.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The package sources of the system, changed, with lists of their own: the system's know less, and need rights.
pub(crate) struct Packages<'a> {
    folder: &'a Path,
    sources: PathBuf,
}

impl<'a> Packages<'a> {
    /// The sources as two functions change them, one for files of stanzas and one for files of lines; and what there is.
    pub(crate) fn of(
        folder: &'a Path,
        stanzas: impl Fn(&str) -> String,
        lines: impl Fn(&str) -> String,
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
            bail!(
                "the system names no package sources in /etc/apt; set KUBEBUILDER_ASSETS instead"
            );
        }
        let packages = Packages { folder, sources };
        packages.apt(&["update"])?;
        Ok(packages)
    }

    /// Runs `apt-get` with them.
    pub(crate) fn apt(&self, arguments: &[&str]) -> Result<()> {
        shell::run(self.command(arguments))
    }

    /// `apt-get` with them, in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut apt = Command::new("apt-get");
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = [
            option("Dir::Etc::sourcelist", Path::new("/dev/null")),
            option("Dir::Etc::sourceparts", &self.sources),
            option("Dir::State::lists", &self.folder.join("lists")),
            option("Dir::Cache", self.folder),
            // Otherwise root's downloads are done by a user who may not read the folder.
            "APT::Sandbox::User=".into(),
            "Acquire::Languages=none".into(),
        ];
        for option in &options {
            apt.args(["-o", option]);
        }
        apt.args(["-q"]).args(arguments).current_dir(self.folder);
        apt
    }
}

/// Unpacks the packages in a folder into `root` in it.
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
