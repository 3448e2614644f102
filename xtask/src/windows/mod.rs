//! `cargo xtask test windows`: weir for Windows, built here and run under Wine.
//!
//! ```text
//!  Debian: mingw, wine64, rust-src ─► a standard library for Windows, in the cache
//!                                        └─► weir.exe, and the double of HNS as computenetwork.dll
//!  a Wine prefix in target/wine ◄── both ──► tests: the real program, the double, a real API server
//! ```

mod library;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{cluster, shell};

/// What it is built for.
pub(crate) const TARGET: &str = "x86_64-pc-windows-gnu";
/// The linker and Wine, with the programs that show that they are there.
const PACKAGES: [(&str, &str); 2] = [
    ("gcc-mingw-w64-x86-64-posix", "/usr/bin/x86_64-w64-mingw32-gcc-posix"),
    ("wine64", "/usr/lib/wine/wine64"),
];
const WINE: &str = PACKAGES[1].1;

/// Builds for Windows and runs the tests under Wine; shows every line of theirs to `look` and tells whether all passed.
pub(crate) fn run(look: impl FnMut(&str)) -> Result<bool> {
    let start = Instant::now();
    for (package, program) in PACKAGES {
        if !Path::new(program).exists() {
            eprintln!(
                "Installing {package}: the agent for Windows is built with it, and runs under it."
            );
            shell::run(shell::command("apt-get", &["update"]))?;
            let install = ["install", "-y", "--no-install-recommends", package];
            shell::run(shell::command("apt-get", &install))
                .with_context(|| format!("cannot install {package}; install it by hand"))?;
        }
    }
    cluster::run()?;
    let flags = library::flags()?;
    let mut build = cargo(
        &["build", "--locked", "--target", TARGET, "-p", "weir", "-p", "weir-hns-double"],
        &flags,
    );
    build.env("CARGO_TERM_COLOR", "never");
    shell::run(build)?;
    let built = target().join(TARGET).join("debug");
    let prefix = prefix(&built)?;

    // What only Windows has is linted and tested for Windows.
    let lint = [
        "clippy",
        "--locked",
        "--target",
        TARGET,
        "-p",
        "weir-hcn",
        "-p",
        "weir-hns-double",
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
        "weir-hns-double",
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
        "weir-hns-double",
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
    let passed = shell::watch(tests, look)?;
    quiet(Command::new("/usr/lib/wine/wineserver64").arg("-k"), &prefix);
    eprintln!("The tests for Windows took {} s.", start.elapsed().as_secs());
    Ok(passed)
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

/// A Wine prefix that has the double in place of HNS, and what Wine itself lacks.
fn prefix(built: &Path) -> Result<PathBuf> {
    let prefix = target().join("wine");
    let system = prefix.join("drive_c/windows/system32");
    if !system.join("kernel32.dll").exists() {
        fs::create_dir_all(&prefix)?;
        eprintln!("Making a Wine prefix in {}; this takes half a minute.", prefix.display());
        let mut boot = Command::new(WINE);
        environment(boot.args(["wineboot", "-i"]), &prefix);
        shell::run(boot)?;
        // The prefix is written by a server that goes on for a while.
        quiet(Command::new("/usr/lib/wine/wineserver64").arg("-w"), &prefix);
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
        fs::copy(built.join("weir_hns_double.dll"), system.join(name))
            .with_context(|| format!("cannot copy the double to {name}"))?;
    }
    if !system.join("icacls.exe").exists() {
        bail!("{} is not a whole Wine prefix; remove it and try again", prefix.display());
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

/// Runs something whose failure does not matter.
fn quiet(command: &mut Command, prefix: &Path) {
    _ = environment(command, prefix).status();
}
