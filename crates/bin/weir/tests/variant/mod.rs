//! Both variants of iptables, independent of the default of the machine.

use std::{env, ffi::OsString, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

/// The program behind iptables-nft.
pub(crate) const NFT: &str = "xtables-nft-multi";
/// The program behind iptables-legacy.
pub(crate) const LEGACY: &str = "xtables-legacy-multi";

/// A folder in which `iptables` and its siblings link to this program.
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

/// The PATH with this folder first.
pub(crate) fn path(first: &Path) -> OsString {
    let mut all = first.as_os_str().to_owned();
    all.push(":");
    all.push(env::var_os("PATH").unwrap_or_default());
    all.push(":/usr/sbin:/sbin");
    all
}
