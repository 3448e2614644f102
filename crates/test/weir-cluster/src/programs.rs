use std::{
    env, error, fmt,
    path::{Path, PathBuf},
};

/// What a cluster is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
}

impl Programs {
    /// Looks in the folder that `KUBEBUILDER_ASSETS` names, then along `PATH`, then in the cache. The two may come from
    /// different places.
    pub fn find() -> Result<Self, Missing> {
        Ok(Programs { etcd: find("etcd")?, kube_apiserver: find("kube-apiserver")? })
    }
}

/// Looks for Kubernetes' own garbage collector, which is no part of what others pack with an API server, in the same places.
pub fn garbage_collector() -> Result<PathBuf, Missing> {
    find("garbage-collector")
}

/// Looks for an API server for CustomResourceDefinitions alone, in the same places. `cargo xtask test crds` gets one.
pub fn definitions_server() -> Result<PathBuf, Missing> {
    find("apiextensions-apiserver")
}

/// Looks for a program in the folder that `KUBEBUILDER_ASSETS` names, then along `PATH`, then in the cache.
fn find(name: &'static str) -> Result<PathBuf, Missing> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = assets.into_iter().chain(env::split_paths(&path)).chain(cache());
    let folders = folders.filter(|folder| !folder.as_os_str().is_empty());
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|file| is_program(file)).ok_or(Missing { program: name })
}

/// The folder that `cargo xtask cluster` puts the programs into. Its name changes with the way they are made.
pub fn cache() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("weir").join("cluster-1.20.2-3"))
}

/// A program that is nowhere to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    program: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { program } = self;
        write!(
            f,
            "there is no {program} in KUBEBUILDER_ASSETS, in PATH or in the cache: run `cargo xtask cluster`, which gets it"
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
