//! The kernel settings on which the rules depend.
//!
//! A bridge forwards frames without netfilter, unless `br_netfilter` is loaded and enabled. A packet
//! with a source route has the address of the node as its destination while the rules see it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use weir_model::Program;

use crate::surroundings::{Inspection, Leftover, Surroundings, lines};

/// What to do about a wrong setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sysctls {
    /// Report it.
    Report,
    /// Correct it.
    Manage,
}

/// What keeps a node from enforcing policies: kernel settings, and rules of other policy engines that
/// also filter packets of pods.
pub fn check_node(surroundings: &dyn Surroundings) -> Vec<String> {
    let mut lacks = KernelSettings::here().check(Sysctls::Report);
    match surroundings.inspect(&Program::default()) {
        Ok(Inspection { leftovers, blind_spots }) => {
            lacks.extend(leftovers.iter().map(Leftover::line));
            lacks.extend(lines(blind_spots.iter()));
        }
        Err(error) => lacks.push(format!("cannot inspect the rules of this node: {error}")),
    }
    lacks
}

/// The folders of the kernel's settings and links.
pub(crate) struct KernelSettings {
    bridges: PathBuf,
    /// `None` if there are no links.
    links: Option<PathBuf>,
    ipv4: PathBuf,
}

impl KernelSettings {
    /// Those of this machine. Unit tests see none, on any machine.
    pub(crate) fn here() -> Self {
        #[cfg(test)]
        return KernelSettings { links: None, ..Self::at(Path::new("/nowhere")) };
        #[cfg(not(test))]
        KernelSettings {
            bridges: "/proc/sys/net/bridge".into(),
            links: cfg!(target_os = "linux").then(|| "/sys/class/net".into()),
            ipv4: "/proc/sys/net/ipv4/conf".into(),
        }
    }

    /// Those of a test.
    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Self {
        let [bridges, links, ipv4] = ["bridges", "links", "ipv4"].map(|name| folder.join(name));
        KernelSettings { bridges, links: Some(links), ipv4 }
    }

    /// Checks the settings, corrects them if allowed, and returns warnings about the rest.
    pub(crate) fn check(&self, sysctls: Sysctls) -> Vec<String> {
        let mut warnings = self.check_bridges(sysctls);
        warnings.extend(self.check_source_routes());
        warnings
    }

    /// Warns if the node forwards packets with a source route. It does so if the setting is on for
    /// all interfaces and for one of them.
    fn check_source_routes(&self) -> Option<String> {
        let is_on = |name: &Path| is_set(&name.join("accept_source_route")).unwrap_or(false);
        if !is_on(&self.ipv4.join("all")) {
            return None;
        }
        let interfaces = fs::read_dir(&self.ipv4).into_iter().flatten().flatten();
        let mut interfaces = interfaces.map(|entry| entry.file_name());
        let is_real = |name: &std::ffi::OsString| name != "all" && name != "default";
        let on = interfaces.find(|name| is_real(name) && is_on(&self.ipv4.join(name)))?;
        Some(format!(
            "net.ipv4.conf.all.accept_source_route and that of {} are on: a pod can reach an isolated pod with a source route through this node; set net.ipv4.conf.all.accept_source_route to 0",
            on.to_string_lossy()
        ))
    }

    fn check_bridges(&self, sysctls: Sysctls) -> Vec<String> {
        let bridges = match self.bridges() {
            Ok(bridges) => bridges,
            Err(error) => {
                return vec![format!(
                    "cannot list the links of this node: {error}; connections between pods on one bridge may bypass the rules; mount /sys"
                )];
            }
        };
        if bridges.is_empty() {
            return Vec::new();
        }
        match is_loaded(&self.bridges) {
            Ok(true) => (),
            Ok(false) => {
                return vec![
                    "there are bridges and br_netfilter is not loaded: connections between pods on one bridge bypass the rules; load it with `modprobe br_netfilter`"
                        .into(),
                ];
            }
            Err(error) => {
                return vec![format!(
                    "there are bridges, and whether br_netfilter is loaded is unknown: {error}; connections between pods on one bridge may bypass the rules; make {} readable",
                    self.bridges.display()
                )];
            }
        }
        // A bridge's own setting suffices, too.
        let all_have =
            |own: &str| bridges.iter().all(|bridge| is_set(&bridge.join(own)).unwrap_or(false));
        let names = [
            ("bridge-nf-call-iptables", "nf_call_iptables"),
            ("bridge-nf-call-ip6tables", "nf_call_ip6tables"),
        ];
        let wrong = names.into_iter().filter(|(_, own)| !all_have(own));
        wrong
            .filter_map(|(name, _)| check_setting(&self.bridges.join(name), name, sysctls))
            .collect()
    }

    /// The folders of the settings of each bridge.
    fn bridges(&self) -> io::Result<Vec<PathBuf>> {
        let Some(links) = &self.links else { return Ok(Vec::new()) };
        let mut bridges = Vec::new();
        for link in fs::read_dir(links)? {
            let path = link?.path().join("bridge");
            if path.is_dir() {
                bridges.push(path);
            }
        }
        Ok(bridges)
    }
}

/// Whether the module is loaded that has its settings in this folder.
fn is_loaded(folder: &Path) -> io::Result<bool> {
    // Without /proc/sys, the folder is missing, too.
    if let Some(parent) = folder.parent() {
        fs::read_dir(parent)?;
    }
    match fs::read_dir(folder) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_set(path: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(path)?.trim() != "0")
}

/// Checks a setting. Returns a warning if it is wrong and was not corrected.
fn check_setting(path: &Path, name: &str, sysctls: Sysctls) -> Option<String> {
    let why = match (is_set(path), sysctls) {
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
        let kernel = KernelSettings::at(disk.path());
        assert!(kernel.check(Sysctls::Report)[0].contains("cannot list the links of this node"));
        fs::create_dir(disk.path().join("links")).unwrap();
        assert_eq!(kernel.check(Sysctls::Report), [""; 0], "without bridges there is no warning");
        let own = disk.path().join("links/cni0/bridge");
        fs::create_dir_all(&own).unwrap();
        assert!(kernel.check(Sysctls::Report)[0].contains("br_netfilter is not loaded"));
        fs::write(&kernel.bridges, "not a folder").unwrap();
        assert!(kernel.check(Sysctls::Report)[0].contains("br_netfilter is loaded is unknown"));
        fs::remove_file(&kernel.bridges).unwrap();
        fs::create_dir(&kernel.bridges).unwrap();
        let four = kernel.bridges.join("bridge-nf-call-iptables");
        fs::write(&four, "0\n").unwrap();
        fs::write(kernel.bridges.join("bridge-nf-call-ip6tables"), "1\n").unwrap();
        let said = kernel.check(Sysctls::Report);
        assert!(said.len() == 1 && said[0].contains("bridge-nf-call-iptables is 0"), "{said:?}");
        fs::write(own.join("nf_call_iptables"), "1\n").unwrap();
        assert_eq!(kernel.check(Sysctls::Report), [""; 0], "the bridge has its own setting");
        fs::write(own.join("nf_call_iptables"), "0\n").unwrap();
        assert_eq!(fs::read_to_string(&four).unwrap(), "0\n", "it only reports");
        assert_eq!(kernel.check(Sysctls::Manage), [""; 0]);
        assert_eq!(fs::read_to_string(&four).unwrap(), "1");
    }

    #[test]
    fn source_routes_are_reported() {
        let disk = tempfile::tempdir().unwrap();
        fs::create_dir(disk.path().join("links")).unwrap();
        let kernel = KernelSettings::at(disk.path());
        let set = |interface: &str, value: &str| {
            let folder = kernel.ipv4.join(interface);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("accept_source_route"), value).unwrap();
            kernel.check(Sysctls::Report)
        };
        assert_eq!(set("default", "1\n"), [""; 0]);
        assert_eq!(set("eth0", "1\n"), [""; 0]);
        let said = set("all", "1\n");
        assert!(said.len() == 1 && said[0].contains("that of eth0"), "{said:?}");
        assert_eq!(set("eth0", "0\n"), [""; 0]);
    }
}
