//! Rust's standard library for Windows: rustup's if it is installed, or else built once from Debian's
//! source.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::TARGET;
use crate::shell;

/// The compiler version that Debian has the library's source for, and that package.
const RUSTC: &str = "1.95.0";
const PACKAGE: &str = "rust-src=1.95.0+dfsg1-2~bpo13+1";
const SHA256: &str = "7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b";
const SUITE: &str = "trixie-backports";

/// The compiler flags that select the library. Builds it if it is missing.
pub(crate) fn flags() -> Result<String> {
    let sysroot = output(shell::command("rustc", &["--print", "sysroot"]))?;
    if has_library(Path::new(&sysroot)) {
        return Ok(String::new());
    }
    let version = output(shell::command("rustc", &["--version"]))?;
    if version.split(' ').nth(1) != Some(RUSTC) {
        bail!(
            "Debian has the source of the Windows library for {RUSTC} only, and this is {version}; \
             with rustup, run `rustup target add {TARGET}`"
        );
    }
    let cache = weir_programs::cache()
        .context("neither XDG_CACHE_HOME nor HOME names a folder for the cache")?;
    let library = cache.join(format!("windows-{RUSTC}"));
    if !has_library(&library) {
        eprintln!(
            "Building Rust's standard library for Windows into {}: this takes two minutes, once.",
            library.display()
        );
        let scratch = library.with_file_name(format!("windows-build-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let built = build(&scratch);
        let moved = built.and_then(|built| {
            // Another process may have built the same library in the meantime.
            match fs::rename(&built, &library) {
                Err(error) if !has_library(&library) => Err(error.into()),
                _ => Ok(()),
            }
        });
        _ = fs::remove_dir_all(&scratch);
        moved?;
    }
    Ok(format!("--sysroot={}", library.display()))
}

fn has_library(sysroot: &Path) -> bool {
    let files = fs::read_dir(sysroot.join("lib/rustlib").join(TARGET).join("lib"));
    let names = files.into_iter().flatten().flatten().map(|file| file.file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with("libstd-"))
}

/// Builds the library inside a folder. Returns the new sysroot, which is in that folder.
fn build(folder: &Path) -> Result<PathBuf> {
    let source = download_source(folder)?;
    let seed = folder.join("seed");
    fs::create_dir_all(seed.join("src"))?;
    fs::write(seed.join("src/lib.rs"), "#![no_std]\n")?;
    let manifest =
        "[package]\nname = \"seed\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n";
    fs::write(seed.join("Cargo.toml"), manifest)?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--target", TARGET]);
    cargo.arg("-Zbuild-std=core,alloc,std,proc_macro,panic_unwind,panic_abort,test");
    cargo.current_dir(&seed).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    // The library uses unstable features, and its source is not where rustup would put it.
    cargo.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", &source);
    shell::run(cargo)?;

    let sysroot = folder.join("sysroot");
    let library = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    fs::create_dir_all(&library)?;
    for file in fs::read_dir(seed.join("target").join(TARGET).join("release/deps"))? {
        let file = file?;
        let name = file.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rlib") && !name.starts_with("libseed-") {
            fs::copy(file.path(), library.join(name))?;
        }
    }
    Ok(sysroot)
}

/// Downloads and unpacks the source of the library. Returns its folder.
fn download_source(folder: &Path) -> Result<PathBuf> {
    for path in ["sources", "lists/partial", "archives/partial"] {
        fs::create_dir_all(folder.join(path))?;
    }
    let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let mirrors = output(shell::command("apt-get", &targets))?;
    let mirror = mirrors.lines().find(|mirror| !mirror.contains("security"));
    let mirror = mirror.context("apt has no package sources; run `apt-get update`")?;
    // This system may lack the keys of another release. The checksum below is verified instead.
    let list = format!("deb [trusted=yes] {mirror} {SUITE} main\n");
    fs::write(folder.join("sources/weir.list"), list)?;
    for arguments in [&["update"][..], &["download", PACKAGE]] {
        let mut apt = Command::new("apt-get");
        for (name, value) in [
            ("Dir::Etc::sourcelist", Path::new("/dev/null")),
            ("Dir::Etc::sourceparts", &folder.join("sources")),
            ("Dir::State::lists", &folder.join("lists")),
            ("Dir::Cache", folder),
        ] {
            apt.arg("-o").arg(format!("{name}={}", value.display()));
        }
        apt.args(["-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-q"]);
        apt.args(arguments).current_dir(folder);
        shell::run(apt).with_context(|| {
            format!(
                "cannot download {PACKAGE} of {SUITE}; with rustup, run `rustup target add {TARGET}`"
            )
        })?;
    }
    let files = fs::read_dir(folder)?.flatten().map(|file| file.path());
    let mut packages = files.filter(|file| file.extension().is_some_and(|end| end == "deb"));
    let package = packages.next().context("apt-get downloaded no package")?;
    let mut sum = Command::new("sha256sum");
    sum.arg(&package);
    if !output(sum)?.starts_with(SHA256) {
        bail!("{} has another checksum than expected", package.display());
    }
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(&package).arg(folder.join("root"));
    shell::run(unpack)?;
    Ok(folder.join(format!("root/usr/src/rustc-{RUSTC}/library")))
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
