//! Builds the static programs of images and releases. Equal sources give equal programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use weir_testbed::Architecture;

use crate::shell::{self, root};

/// The programs of an image.
pub(crate) const PROGRAMS: [&str; 2] = ["weir", "weir-cni"];

/// The tools that build for one processor.
pub(crate) struct Toolchain {
    pub(crate) architecture: Architecture,
    /// The target triple. The C library is musl: programs with a static glibc load the name service
    /// libraries of the machine, which fit only their own version of it.
    pub(crate) target: &'static str,
    /// The C compiler, which is also the linker, and its package.
    compiler: (&'static str, &'static str),
    /// The prefix of the binutils.
    prefix: &'static str,
    /// Runs programs of this processor on others, and its package.
    emulator: (&'static str, &'static str),
}

/// The processors of released programs.
pub(crate) const TOOLCHAINS: [Toolchain; 2] = [
    Toolchain {
        architecture: Architecture::Amd64,
        target: "x86_64-unknown-linux-musl",
        compiler: ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
        prefix: "x86_64-linux-gnu-",
        emulator: ("qemu-x86_64-static", "qemu-user-static"),
    },
    Toolchain {
        architecture: Architecture::Arm64,
        target: "aarch64-unknown-linux-musl",
        compiler: ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        prefix: "aarch64-linux-gnu-",
        emulator: ("qemu-aarch64-static", "qemu-user-static"),
    },
];

impl Toolchain {
    /// Installs missing tools with apt and rustup.
    pub(crate) fn ensure(&self) -> Result<()> {
        let emulator = (!self.is_native()).then_some(self.emulator);
        for (program, package) in [self.compiler].into_iter().chain(emulator) {
            if !shell::exists(program, &["--version"]) {
                eprintln!("Installing {package}: it builds or starts programs of this processor.");
                shell::apt_install(package)?;
            }
        }
        add_target(self.target)
    }

    /// Builds packages of a repository, and returns the folder of the stripped programs. The programs
    /// with symbols are in its subfolder `symbols`.
    pub(crate) fn build(&self, source: &Path, packages: &[&str]) -> Result<PathBuf> {
        let (compiler, target) = (self.compiler.0, self.target);
        let variable = target.replace('-', "_");
        let mut cargo = reproducible(source, target)?;
        cargo.args(["--profile", "symbols"]);
        for package in packages {
            cargo.args(["--package", package]);
        }
        cargo.env(format!("CC_{variable}"), compiler);
        cargo.env(format!("AR_{variable}"), format!("{}ar", self.prefix));
        let linker = format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase());
        cargo.env(linker, compiler);
        shell::run(cargo)?;

        let built = target_folder(source).join(target).join("symbols");
        let folder = target_folder(source).join("programs").join(self.architecture.as_str());
        fs::create_dir_all(folder.join("symbols"))?;
        for package in packages {
            let program = built.join(package);
            fs::copy(&program, folder.join("symbols").join(package))
                .with_context(|| format!("cannot copy {}", program.display()))?;
            let mut strip = Command::new(format!("{}strip", self.prefix));
            strip.arg("-o").arg(folder.join(package)).arg(&program);
            shell::run(strip)?;
        }
        Ok(folder)
    }

    /// The dynamic libraries that a program of this processor needs, and its dynamic linker.
    pub(crate) fn libraries(&self, program: &Path) -> Result<Vec<String>> {
        let mut readelf = Command::new(format!("{}readelf", self.prefix));
        let output = readelf.args(["--wide", "--dynamic", "--program-headers"]).arg(program);
        let output = output.output().with_context(|| format!("cannot run {readelf:?}"))?;
        if !output.status.success() {
            bail!("{readelf:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let is_dynamic = |line: &&str| line.contains("(NEEDED)") || line.contains(" INTERP ");
        Ok(text.lines().filter(is_dynamic).map(|line| line.trim().to_owned()).collect())
    }

    /// A command that starts a program of this processor, in an emulator if the machine has another.
    pub(crate) fn command(&self, program: &Path) -> Command {
        if self.is_native() {
            return Command::new(program);
        }
        let mut command = Command::new(self.emulator.0);
        command.arg(program);
        command
    }

    /// Whether this machine has this processor.
    pub(crate) fn is_native(&self) -> bool {
        self.target.starts_with(env::consts::ARCH)
    }
}

/// Installs the standard library of a target.
pub(crate) fn add_target(target: &str) -> Result<()> {
    shell::run(shell::command("rustup", &["target", "add", target]))
        .with_context(|| format!("install Rust's standard library for {target} yourself"))
}

/// A `cargo build` for a target whose output does not contain paths of this machine.
pub(crate) fn reproducible(source: &Path, target: &str) -> Result<Command> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().context("there is no home folder")?.join(".cargo"),
    };
    let output = target_folder(source);
    // The last one that matches counts.
    let replaced = [(source, "/weir"), (&*output, "/weir/target"), (&*home, "/cargo")];
    let spaced = replaced.iter().find(|(path, _)| path.to_string_lossy().contains(' '));
    if let Some((path, _)) = spaced {
        bail!("{} contains a space, which flags of compilers cannot", path.display());
    }
    let flags = |name: &str| {
        let one = |(path, by): &(&Path, &str)| format!("{name}={}={by}", path.display());
        replaced.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--target", target]).current_dir(source);
    cargo.arg("--target-dir").arg(&output);
    cargo.env("RUSTC_WRAPPER", root().join("xtask/src/image/rustc-remap.sh"));
    cargo.env("WEIR_REMAP", flags("--remap-path-prefix"));
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), flags("-ffile-prefix-map"));
    // Flags of the user would change the programs.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(cargo)
}

/// The folder of build output. CARGO_TARGET_DIR is for this repository only: a clone in the same folder
/// would find its own programs up to date, and compare them with themselves.
pub(crate) fn target_folder(source: &Path) -> PathBuf {
    let given = env::var_os("CARGO_TARGET_DIR").filter(|_| source == root());
    source.join(given.unwrap_or_else(|| "target".into()))
}
