//! Whether rules see packets between pods on one bridge.
//!
//! A bridge forwards frames without asking netfilter, unless `br_netfilter` is loaded and told to.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What to do about a setting that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sysctls {
    /// Say so.
    Report,
    /// Set it.
    Manage,
}

/// Where the kernel shows its settings and links.
pub(crate) struct Bridges {
    settings: PathBuf,
    links: PathBuf,
}

impl Bridges {
    /// Those of this machine. Whatever machine runs the tests, they know of none.
    pub(crate) fn here() -> Self {
        #[cfg(test)]
        return Bridges { settings: "/nowhere".into(), links: "/nowhere".into() };
        #[cfg(not(test))]
        Bridges { settings: "/proc/sys/net/bridge".into(), links: "/sys/class/net".into() }
    }

    /// Those that a test makes up.
    #[cfg(test)]
    pub(crate) fn at(settings: PathBuf, links: PathBuf) -> Self {
        Bridges { settings, links }
    }

    /// Looks at the settings, corrects them if it may, and returns what is still wrong.
    pub(crate) fn check(&self, sysctls: Sysctls) -> Vec<String> {
        if !self.exist() {
            return Vec::new();
        }
        if !self.settings.exists() {
            return vec![
                "there are bridges and br_netfilter is not loaded: connections between pods on one bridge are not judged; load it with `modprobe br_netfilter`"
                    .into(),
            ];
        }
        let names = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
        names.iter().filter_map(|name| judge(&self.settings.join(name), name, sysctls)).collect()
    }

    fn exist(&self) -> bool {
        let links = fs::read_dir(&self.links).into_iter().flatten();
        links.flatten().any(|link| link.path().join("bridge").is_dir())
    }
}

/// What is wrong with a setting, if it cannot be corrected.
fn judge(path: &Path, name: &str, sysctls: Sysctls) -> Option<String> {
    let is_set = || Ok::<bool, io::Error>(fs::read_to_string(path)?.trim() != "0");
    let why = match (is_set(), sysctls) {
        (Ok(true), _) => return None,
        (Ok(false), Sysctls::Report) => "is 0".into(),
        (Ok(false), Sysctls::Manage) => match fs::write(path, "1") {
            Ok(()) => {
                tracing::info!("set net.bridge.{name} to 1");
                return None;
            }
            Err(error) => format!("is 0 and cannot be set: {error}"),
        },
        (Err(error), _) => format!("cannot be read: {error}"),
    };
    Some(format!(
        "net.bridge.{name} {why}: connections between pods on one bridge are not judged; set it to 1, or use --manage-sysctls"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_need_a_setting() {
        let disk = tempfile::tempdir().unwrap();
        let (settings, links) = (disk.path().join("settings"), disk.path().join("links"));
        let bridges = Bridges { settings: settings.clone(), links: links.clone() };
        assert_eq!(bridges.check(Sysctls::Report), [""; 0], "no bridge, no complaint");
        fs::create_dir_all(links.join("cni0/bridge")).unwrap();
        assert!(bridges.check(Sysctls::Report)[0].contains("br_netfilter is not loaded"));
        fs::create_dir(&settings).unwrap();
        let four = settings.join("bridge-nf-call-iptables");
        fs::write(&four, "0\n").unwrap();
        fs::write(settings.join("bridge-nf-call-ip6tables"), "1\n").unwrap();
        let said = bridges.check(Sysctls::Report);
        assert!(said.len() == 1 && said[0].contains("bridge-nf-call-iptables is 0"), "{said:?}");
        assert_eq!(fs::read_to_string(&four).unwrap(), "0\n", "nobody asked to set it");
        assert_eq!(bridges.check(Sysctls::Manage), [""; 0]);
        assert_eq!(fs::read_to_string(&four).unwrap(), "1");
    }
}
