//! The variants of iptables, whichever of them is the machine's own.

use std::{env, ffi::OsString, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

/// The program that iptables-nft is a name of.
pub(crate) const NFT: &str = "xtables-nft-multi";
/// The program that iptables-legacy is a name of.
pub(crate) const LEGACY: &str = "xtables-legacy-multi";

/// A folder in which `iptables` and its siblings are names of this program.
pub(crate) fn programs(program: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["iptables", "ip6tables"] {
        for what in ["", "-save", "-restore"] {
            let target = Path::new("/usr/sbin").join(program);
            assert!(target.exists(), "{} is not installed", target.display());
            symlink(target, folder.path().join(format!("{name}{what}"))).unwrap();
        }
    }
    folder
}

/// Where programs are looked for, with this folder first.
pub(crate) fn path(first: &Path) -> OsString {
    let mut all = first.as_os_str().to_owned();
    all.push(":");
    all.push(env::var_os("PATH").unwrap_or_default());
    all.push(":/usr/sbin:/sbin");
    all
}
