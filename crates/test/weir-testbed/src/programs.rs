//! The programs of a testbed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use weir_programs::{Missing, find_cni_plugin, find_program};

/// The programs of the control plane.
pub const CONTROL_PROGRAMS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// The programs of a node.
pub const NODE_PROGRAMS: [&str; 6] =
    ["kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "runc"];
/// The CNI plugins of a node.
pub const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// The programs of a testbed, and their version.
#[derive(Clone, Debug)]
pub struct NodePrograms {
    paths: BTreeMap<&'static str, PathBuf>,
    /// The minor version of Kubernetes: 20 for `v1.20.2`.
    pub(crate) minor: u32,
}

impl NodePrograms {
    /// Finds all programs, at first in a given folder.
    pub fn find(first: Option<&Path>) -> Result<Self, Missing> {
        let programs = CONTROL_PROGRAMS.iter().chain(&NODE_PROGRAMS);
        let programs = programs.map(|name| Ok((*name, find_program(first, name)?)));
        let plugins = CNI_PLUGINS.iter().map(|name| Ok((*name, find_cni_plugin(first, name)?)));
        let paths: BTreeMap<_, _> = programs.chain(plugins).collect::<Result<_, Missing>>()?;
        let minor = minor_version(&paths["kubelet"]).unwrap_or(u32::MAX);
        Ok(NodePrograms { paths, minor })
    }

    pub(crate) fn path(&self, name: &str) -> &Path {
        &self.paths[name]
    }

    /// The programs that nodes mount at `/opt/weir`: a line with name and path for each.
    pub(crate) fn mounts(&self) -> String {
        let names = NODE_PROGRAMS.iter().chain(&CNI_PLUGINS);
        names.map(|name| format!("{name} {}\n", self.path(name).display())).collect()
    }
}

fn minor_version(kubelet: &Path) -> Option<u32> {
    let output = Command::new(kubelet).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().strip_prefix("Kubernetes v1.")?.split('.').next()?.parse().ok()
}
