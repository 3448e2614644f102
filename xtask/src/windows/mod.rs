//! `cargo xtask test windows`: builds weir for Windows and tests it under Wine.
//!
//! ```text
//!  Debian: mingw, wine64, rust-src ─► a standard library for Windows, in the cache
//!                                        └─► weir.exe, and the fake HNS as computenetwork.dll
//!  a Wine prefix in target/wine ◄── both ──► tests: weir.exe, the fake HNS, a real API server
//! ```

mod library;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{cluster, image::programs, shell};

/// The target triple of the build.
pub(crate) const TARGET: &str = "x86_64-pc-windows-gnu";
/// The packages of the linker and of Wine, and a program of each.
const PACKAGES: [(&str, &str); 2] = [
    ("gcc-mingw-w64-x86-64-posix", "/usr/bin/x86_64-w64-mingw32-gcc-posix"),
    ("wine64", "/usr/lib/wine/wine64"),
];
const WINE: &str = PACKAGES[1].1;

/// Builds for Windows and runs the tests under Wine. Passes their output to `on_line` and returns
/// whether all passed.
pub(crate) fn run(on_line: impl FnMut(&str)) -> Result<bool> {
    let start = Instant::now();
    install_packages(&PACKAGES)?;
    cluster::build()?;
    let flags = library::flags()?;
    let mut build = cargo(
        &["build", "--locked", "--target", TARGET, "-p", "weir", "-p", "weir-hns-fake"],
        &flags,
    );
    build.env("CARGO_TERM_COLOR", "never");
    shell::run(build)?;
    let built = target().join(TARGET).join("debug");
    let prefix = prefix(&built)?;

    // Lint the code that only Windows compiles.
    let lint = [
        "clippy",
        "--locked",
        "--target",
        TARGET,
        "-p",
        "weir-hcn",
        "-p",
        "weir-hns-fake",
        "--no-deps",
        "--",
        "-D",
        "warnings",
    ];
    shell::run(cargo(&lint, &flags))?;
    let lint = [
        "clippy",
        "--locked",
        "-p",
        "weir-hns-fake",
        "--features",
        "wine",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    shell::run(cargo(&lint, ""))?;

    let tests = [
        "test",
        "--locked",
        "-p",
        "weir-hns-fake",
        "--features",
        "wine",
        "--test",
        "wine",
        "--",
        "--test-threads=1",
    ];
    let mut tests = cargo(&tests, "");
    tests.env("WEIR_WINE", WINE).env("WEIR_EXE", built.join("weir.exe"));
    environment(&mut tests, &prefix);
    let passed = shell::run_with_output(tests, on_line)?;
    run_ignoring_failure(Command::new("/usr/lib/wine/wineserver64").arg("-k"), &prefix);
    eprintln!("The tests for Windows took {} s.", start.elapsed().as_secs());
    Ok(passed)
}

/// Builds `weir.exe` for a release, and returns its path.
pub(crate) fn build_release() -> Result<PathBuf> {
    install_packages(&PACKAGES[..1])?;
    let mut build = programs::reproducible(&shell::root(), TARGET)?;
    build.args(["--release", "--package", "weir"]);
    // The standard library that `library` builds has no bitcode, which the linker would need.
    build.env("CARGO_PROFILE_RELEASE_LTO", "off");
    build.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS", library::flags()?);
    shell::run(build)?;
    Ok(target().join(TARGET).join("release/weir.exe"))
}

/// Installs missing packages.
fn install_packages(packages: &[(&str, &str)]) -> Result<()> {
    for (package, program) in packages {
        if !Path::new(program).exists() {
            eprintln!(
                "Installing {package}: it builds the agent for Windows, or runs it under Wine."
            );
            shell::run(shell::command("apt-get", &["update"]))?;
            let install = ["install", "-y", "--no-install-recommends", package];
            shell::run(shell::command("apt-get", &install))
                .with_context(|| format!("cannot install {package}; install it yourself"))?;
        }
    }
    Ok(())
}

fn cargo(arguments: &[&str], flags: &str) -> Command {
    let mut command = shell::command("cargo", arguments);
    if !flags.is_empty() {
        command.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS", flags);
    }
    command
}

fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    shell::root().join(named.unwrap_or_else(|| "target".into()))
}

/// Creates a Wine prefix with the fake HNS and with a library that Wine lacks.
fn prefix(built: &Path) -> Result<PathBuf> {
    let prefix = target().join("wine");
    let system = prefix.join("drive_c/windows/system32");
    if !system.join("kernel32.dll").exists() {
        fs::create_dir_all(&prefix)?;
        eprintln!("Creating a Wine prefix in {}: this takes half a minute.", prefix.display());
        let mut boot = Command::new(WINE);
        environment(boot.args(["wineboot", "-i"]), &prefix);
        shell::run(boot)?;
        // Wine's server keeps writing the prefix for a while.
        run_ignoring_failure(Command::new("/usr/lib/wine/wineserver64").arg("-w"), &prefix);
    }
    let source = prefix.join("bcryptprimitives.c");
    fs::write(&source, include_str!("bcryptprimitives.c"))?;
    let mut compile = Command::new(PACKAGES[0].1);
    compile.args(["-O2", "-shared", "-nostdlib", "-Wl,-e,DllMain", "-o"]);
    compile
        .arg(system.join("bcryptprimitives.dll"))
        .arg(&source)
        .args(["-ladvapi32", "-lkernel32"]);
    shell::run(compile)?;
    for name in ["computenetwork.dll", "vmcompute.dll"] {
        fs::copy(built.join("weir_hns_fake.dll"), system.join(name))
            .with_context(|| format!("cannot copy the fake HNS to {name}"))?;
    }
    if !system.join("icacls.exe").exists() {
        bail!("{} is an incomplete Wine prefix; remove it and try again", prefix.display());
    }
    Ok(prefix)
}

fn environment<'a>(command: &'a mut Command, prefix: &Path) -> &'a mut Command {
    command
        .env("WINEPREFIX", prefix)
        .env("WINEARCH", "win64")
        .env("WINEDEBUG", "-all")
        .env("WINEDLLOVERRIDES", "mscoree,mshtml=")
        .env_remove("DISPLAY")
}

/// Runs a command and ignores its failure.
fn run_ignoring_failure(command: &mut Command, prefix: &Path) {
    _ = environment(command, prefix).status();
}
