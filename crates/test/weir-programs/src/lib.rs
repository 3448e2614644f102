//! Finds the external programs that tests run: etcd, kube-apiserver and others.
//!
//! `cargo xtask cluster build` builds them into a cache and weir-cluster runs them. Both use this crate, so
//! that they search the same folders. It has no dependencies: xtask must build in seconds.

use std::{
    env, error, fmt,
    path::{Path, PathBuf},
    process::Command,
};

/// The programs of a cluster's control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The store of the API server.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
}

impl Programs {
    /// Finds both programs. They need not be in the same folder.
    pub fn find() -> Result<Self, Missing> {
        Ok(Programs { etcd: find("etcd")?, kube_apiserver: find("kube-apiserver")? })
    }

    /// The minor version of the API server: 20 for `v1.20.2`.
    pub fn minor_version(&self) -> Option<u32> {
        let output = Command::new(&self.kube_apiserver).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().strip_prefix("Kubernetes v1.")?.split('.').next()?.parse().ok()
    }
}

/// Finds Kubernetes' garbage collector. Only `cargo xtask cluster build` builds it as a program.
pub fn garbage_collector() -> Result<PathBuf, Missing> {
    find("garbage-collector")
}

/// Finds the API server for CustomResourceDefinitions. `cargo xtask test crds` builds it.
pub fn definitions_server() -> Result<PathBuf, Missing> {
    find("apiextensions-apiserver")
}

fn find(name: &'static str) -> Result<PathBuf, Missing> {
    find_program(None, name)
}

/// Searches a given folder, then the one that `KUBEBUILDER_ASSETS` names, then `PATH`, then `/usr/sbin`,
/// then the cache.
pub fn find_program(first: Option<&Path>, name: &'static str) -> Result<PathBuf, Missing> {
    search(first.map(Path::to_path_buf).into_iter().chain(program_folders()), name)
}

/// The folders that [`find_program`] searches after the given one.
pub fn program_folders() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system: Vec<PathBuf> = env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
    assets().into_iter().chain(system).chain(cluster_cache())
}

/// Searches a given folder, then the one that `KUBEBUILDER_ASSETS` names, then those of the system, then
/// the cache. A CNI plugin can have the name of another program: `bridge`.
pub fn find_cni_plugin(first: Option<&Path>, name: &'static str) -> Result<PathBuf, Missing> {
    let given = first.map(Path::to_path_buf).into_iter().chain(assets());
    let system = ["/usr/lib/cni", "/opt/cni/bin"].into_iter().map(PathBuf::from);
    search(given.chain(system).chain(cni_cache()), name)
}

fn search(folders: impl Iterator<Item = PathBuf>, name: &'static str) -> Result<PathBuf, Missing> {
    let mut folders = folders.filter(|folder| !folder.as_os_str().is_empty());
    let found = folders.find(|folder| lacking(folder, &[name]).is_empty());
    found.map(|folder| folder.join(name)).ok_or(Missing { programs: vec![name], folder: None })
}

/// The first folder that has all of these programs, which must have the same version. If there is a
/// given folder, only that one counts.
pub fn find_together(
    given: Option<&Path>,
    mut folders: impl Iterator<Item = PathBuf>,
    names: &[&'static str],
) -> Result<PathBuf, Missing> {
    let Some(given) = given else {
        let complete =
            |folder: &PathBuf| !folder.as_os_str().is_empty() && lacking(folder, names).is_empty();
        let missing = || Missing { programs: names.to_vec(), folder: None };
        return folders.find(complete).ok_or_else(missing);
    };
    let programs = lacking(given, names);
    if programs.is_empty() {
        return Ok(given.to_path_buf());
    }
    Err(Missing { programs, folder: Some(given.to_path_buf()) })
}

/// The programs that a folder lacks.
pub fn lacking(folder: &Path, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().copied().filter(|name| !is_program(&folder.join(name))).collect()
}

/// The folder that `KUBEBUILDER_ASSETS` names.
pub fn assets() -> Option<PathBuf> {
    let folder = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)?;
    (!folder.as_os_str().is_empty()).then_some(folder)
}

/// The folder that `cargo xtask cluster build` installs CNI plugins into.
pub fn cni_cache() -> Option<PathBuf> {
    Some(cluster_cache()?.join("cni"))
}

/// The folder that `cargo xtask cluster build` installs programs into. The last number of its name changes
/// with the build recipe, so that an old cache is not used.
pub fn cluster_cache() -> Option<PathBuf> {
    Some(cache()?.join("cluster-1.20.2-3"))
}

/// The cache folder of this repository: `weir` in the user's cache folder.
pub fn cache() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("weir"))
}

/// Required programs that no searched folder contains, or that are in different folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Their names.
    pub programs: Vec<&'static str>,
    /// The folder that must have them; `None` if any of the searched folders can.
    pub folder: Option<PathBuf>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.programs.join(", ");
        if let Some(folder) = &self.folder {
            return write!(
                f,
                "{} lacks {names}: it must have all programs of Kubernetes, in one version",
                folder.display()
            );
        }
        let [what, verb] = match *self.programs {
            [_] => ["", "is"],
            _ => ["one folder of ", "are"],
        };
        write!(
            f,
            "{names} {verb} not in {what}KUBEBUILDER_ASSETS, PATH or the cache: run \
             `cargo xtask cluster build`"
        )
    }
}

impl error::Error for Missing {}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    file.is_file()
}
