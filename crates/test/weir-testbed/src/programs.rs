//! The programs of a testbed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use weir_programs::{
    Missing, assets, find_cni_plugin, find_program, find_together, lacking, program_folders,
};

/// The programs of Kubernetes. All are from one folder, because their flags depend on the version.
pub const KUBERNETES_PROGRAMS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];
/// The other programs, which can be anywhere.
const OTHER_PROGRAMS: [&str; 5] = ["etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc"];
/// The programs of a node.
const NODE_PROGRAMS: [&str; 6] =
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
    /// Finds all programs. A given folder must have those of Kubernetes; the others are searched there
    /// first.
    pub fn find(given: Option<&Path>) -> Result<Self, Missing> {
        let folder = kubernetes_folder(given)?;
        let unused = assets().filter(|_| given.is_none());
        if let Some(note) = passed_over(unused.as_deref(), &folder) {
            eprintln!("{note}");
        }
        let kubernetes = KUBERNETES_PROGRAMS.iter().map(|name| Ok((*name, folder.join(name))));
        let others = OTHER_PROGRAMS.iter().map(|name| Ok((*name, find_program(given, name)?)));
        let plugins = CNI_PLUGINS.iter().map(|name| Ok((*name, find_cni_plugin(given, name)?)));
        let paths = kubernetes.chain(others).chain(plugins);
        let paths: BTreeMap<_, _> = paths.collect::<Result<_, Missing>>()?;
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

/// The folder of the programs of Kubernetes: the given one, or the first that has all of them.
pub fn kubernetes_folder(given: Option<&Path>) -> Result<PathBuf, Missing> {
    find_together(given, program_folders(), &KUBERNETES_PROGRAMS)
}

/// The message that the programs of Kubernetes in `KUBEBUILDER_ASSETS` are not used, if it has some.
fn passed_over(assets: Option<&Path>, used: &Path) -> Option<String> {
    let missing = lacking(assets?, &KUBERNETES_PROGRAMS);
    let has_some = !missing.is_empty() && missing.len() < KUBERNETES_PROGRAMS.len();
    has_some.then(|| {
        format!(
            "KUBEBUILDER_ASSETS lacks {}: using the programs of Kubernetes in {}, which have one \
             version",
            missing.join(", "),
            used.display()
        )
    })
}

fn minor_version(kubelet: &Path) -> Option<u32> {
    let output = Command::new(kubelet).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().strip_prefix("Kubernetes v1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use tempfile::TempDir;

    use super::*;

    /// A folder with empty programs.
    fn folder(names: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    /// The folder of the programs of Kubernetes, if the searched folders are these.
    fn find(given: Option<&TempDir>, searched: &[&TempDir]) -> Result<PathBuf, Missing> {
        let searched = searched.iter().map(|folder| folder.path().to_path_buf());
        find_together(given.map(TempDir::path), searched, &KUBERNETES_PROGRAMS)
    }

    #[test]
    fn all_programs_of_kubernetes_are_from_one_folder() {
        let envtest = folder(&["etcd", "kube-apiserver", "kubectl"]);
        let [cache, other] = [(); 2].map(|()| folder(&KUBERNETES_PROGRAMS));
        assert_eq!(find(None, &[&envtest, &cache, &other]).unwrap(), cache.path());
        let note = passed_over(Some(envtest.path()), cache.path()).unwrap();
        assert!(note.starts_with("KUBEBUILDER_ASSETS lacks kube-controller-manager, "), "{note}");
        assert!(note.contains(&cache.path().display().to_string()), "{note}");
        // No program of these is used, or all are.
        let unrelated = folder(&["etcd"]);
        for assets in [None, Some(unrelated.path()), Some(cache.path())] {
            assert_eq!(passed_over(assets, cache.path()), None);
        }
        let missing = find(None, &[&envtest]).unwrap_err();
        assert_eq!(missing.programs, KUBERNETES_PROGRAMS);
        assert!(missing.to_string().contains("are not in one folder of KUBEBUILDER_ASSETS"));
    }

    #[test]
    fn a_given_folder_must_have_all_programs_of_kubernetes() {
        let [given, cache] = [&KUBERNETES_PROGRAMS[..3], &KUBERNETES_PROGRAMS].map(folder);
        let missing = find(Some(&given), &[&cache]).unwrap_err();
        let text = missing.to_string();
        assert!(text.contains(&given.path().display().to_string()), "{text}");
        assert!(text.contains(" lacks kubelet, kube-proxy: "), "{text}");
        let given = folder(&KUBERNETES_PROGRAMS);
        assert_eq!(find(Some(&given), &[&cache]).unwrap(), given.path());
    }
}
