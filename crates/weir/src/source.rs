//! Where the world comes from, the same for all read-only commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use weir_api::{Case, Manifests};
use weir_model::{Finding, PodId, World};
use weir_source::LoadError;

use crate::{failure::Failure, present};

/// Where to read the cluster from.
#[derive(Args)]
pub(crate) struct Source {
    /// Manifests to read: a file, a directory, or `-` for standard input [repeatable]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// The kubeconfig of the cluster to read, without -f
    #[arg(long, value_name = "PATH", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    context: Option<String>,
    /// The namespace to look at
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

/// A world as it was read.
pub(crate) struct Loaded {
    /// The cluster.
    pub(crate) world: World,
    /// What reading it found.
    pub(crate) findings: Vec<Finding>,
    /// The workload that made a pod, as `namespace/deployment/name`: the outermost that is known.
    pub(crate) owners: BTreeMap<PodId, String>,
    /// The pods of each workload, under all of its names.
    pub(crate) workloads: BTreeMap<String, Vec<PodId>>,
    /// The addresses that were made up for pods that had none.
    pub(crate) made_up: BTreeSet<IpAddr>,
}

impl Loaded {
    /// What lint has to say about the world as it was written: addresses that were made up are nobody's mistake.
    pub(crate) fn lint(&self) -> Vec<Finding> {
        let mut world = self.world.clone();
        for pod in world.pods.values_mut() {
            pod.addresses.retain(|address| !self.made_up.contains(address));
        }
        weir_lint::lint(&world)
    }
}

impl Source {
    /// Reads the world.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        if self.files.is_empty() {
            return Err(Failure::new(
                "this build cannot read a live cluster",
                "give manifests with -f PATH, for example from `kubectl get pods,namespaces,networkpolicies -A -o yaml`",
            )
            .into());
        }
        load_paths(&self.files)
    }

    /// Reads the world and says on standard error what is wrong with it.
    pub(crate) fn load_and_mention(&self) -> anyhow::Result<Loaded> {
        let loaded = self.load()?;
        present::findings::mention(&loaded.findings);
        Ok(loaded)
    }

    /// The namespace to look at, if one was given.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// Reads the world from files and directories.
pub(crate) fn load_paths(paths: &[PathBuf]) -> anyhow::Result<Loaded> {
    let manifests = weir_source::manifests::load(paths, &mut io::stdin().lock()).map_err(failed)?;
    Ok(Loaded::from(manifests))
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match file.as_os_str() == "-" {
        true => io::stdin().lock().read_to_end(&mut bytes).map_err(LoadError::Stdin),
        false => weir_source::read(file).map(|all| {
            bytes = all;
            bytes.len()
        }),
    }
    .map_err(failed)?;
    Ok(bytes)
}

/// The files that policy tests are in.
pub(crate) fn case_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        match path.as_os_str() == "-" {
            true => files.push(path.clone()),
            false => {
                files.extend(weir_source::case_files(std::slice::from_ref(path)).map_err(failed)?)
            }
        }
    }
    Ok(files)
}

/// The manifests that a policy test asks for.
pub(crate) fn manifests_of(case: &Case) -> anyhow::Result<Manifests> {
    weir_source::manifests::of_case(case).map_err(failed)
}

/// An error of loading, with its way out.
fn failed(error: LoadError) -> anyhow::Error {
    let hint = error.hint();
    Failure::new(error, hint).into()
}

/// Fails for a datapath that a command does not have in this build.
pub(crate) fn known_datapath(name: &str, known: &[&str]) -> Result<(), Failure> {
    if known.contains(&name) {
        return Ok(());
    }
    let hint = format!("use `--datapath {}`", known.join("` or `--datapath "));
    Err(Failure::new(format!("this build has no datapath `{name}` here"), hint))
}

impl From<Manifests> for Loaded {
    fn from(manifests: Manifests) -> Self {
        let Manifests { objects, findings, owners, made_up } = manifests;
        let mut names: BTreeMap<PodId, String> = BTreeMap::new();
        let mut workloads = BTreeMap::new();
        for (owner, pods) in owners {
            let name = format!("{}/{}/{}", owner.namespace, owner.kind, owner.name);
            for id in &pods {
                let known = names.entry(id.clone()).or_insert_with(|| name.clone());
                // A ReplicaSet is only the hand of its Deployment.
                if known.contains("/replicaset/") {
                    known.clone_from(&name);
                }
            }
            workloads.insert(name, pods);
        }
        let world = objects.into_iter().collect();
        Loaded { world, findings, owners: names, workloads, made_up }
    }
}
