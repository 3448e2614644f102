//! The kernel settings that make a bridge pass packets through the rules.
//!
//! A bridge forwards frames without netfilter, unless `br_netfilter` is loaded and enabled.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What to do about a wrong setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sysctls {
    /// Report it.
    Report,
    /// Correct it.
    Manage,
}

/// The folders of the kernel's bridge settings and links.
pub(crate) struct Bridges {
    settings: PathBuf,
    links: PathBuf,
}

impl Bridges {
    /// Those of this machine. Unit tests see no bridges, on any machine.
    pub(crate) fn here() -> Self {
        #[cfg(test)]
        return Bridges { settings: "/nowhere".into(), links: "/nowhere".into() };
        #[cfg(not(test))]
        Bridges { settings: "/proc/sys/net/bridge".into(), links: "/sys/class/net".into() }
    }

    /// Those of a test.
    #[cfg(test)]
    pub(crate) fn at(settings: PathBuf, links: PathBuf) -> Self {
        Bridges { settings, links }
    }

    /// Checks the settings, corrects them if allowed, and returns warnings about the rest.
    pub(crate) fn check(&self, sysctls: Sysctls) -> Vec<String> {
        if !self.exist() {
            return Vec::new();
        }
        if !self.settings.exists() {
            return vec![
                "there are bridges and br_netfilter is not loaded: connections between pods on one bridge bypass the rules; load it with `modprobe br_netfilter`"
                    .into(),
            ];
        }
        let names = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
        names
            .iter()
            .filter_map(|name| check_setting(&self.settings.join(name), name, sysctls))
            .collect()
    }

    fn exist(&self) -> bool {
        let links = fs::read_dir(&self.links).into_iter().flatten();
        links.flatten().any(|link| link.path().join("bridge").is_dir())
    }
}

/// Checks a setting. Returns a warning if it is wrong and was not corrected.
fn check_setting(path: &Path, name: &str, sysctls: Sysctls) -> Option<String> {
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
        "net.bridge.{name} {why}: connections between pods on one bridge bypass the rules; set it to 1, or use --manage-sysctls"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_need_their_settings() {
        let disk = tempfile::tempdir().unwrap();
        let (settings, links) = (disk.path().join("settings"), disk.path().join("links"));
        let bridges = Bridges { settings: settings.clone(), links: links.clone() };
        assert_eq!(bridges.check(Sysctls::Report), [""; 0], "without bridges there is no warning");
        fs::create_dir_all(links.join("cni0/bridge")).unwrap();
        assert!(bridges.check(Sysctls::Report)[0].contains("br_netfilter is not loaded"));
        fs::create_dir(&settings).unwrap();
        let four = settings.join("bridge-nf-call-iptables");
        fs::write(&four, "0\n").unwrap();
        fs::write(settings.join("bridge-nf-call-ip6tables"), "1\n").unwrap();
        let said = bridges.check(Sysctls::Report);
        assert!(said.len() == 1 && said[0].contains("bridge-nf-call-iptables is 0"), "{said:?}");
        assert_eq!(fs::read_to_string(&four).unwrap(), "0\n", "it only reports");
        assert_eq!(bridges.check(Sysctls::Manage), [""; 0]);
        assert_eq!(fs::read_to_string(&four).unwrap(), "1");
    }
}
