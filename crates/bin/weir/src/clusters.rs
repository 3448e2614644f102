//! Several clusters in one world, for policies that span clusters.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

use clap::Args;
use weir_model::{Finding, Name, Object, PodId, QualifiedName, World};

use crate::{
    failure::Failure,
    source::{Loaded, load_paths},
};

/// The clusters of a ClusterSet.
#[derive(Args)]
pub(crate) struct ClustersArgs {
    /// A cluster of a ClusterSet and its manifests [repeatable]
    ///
    /// Its pods are named `NAME:namespace/pod`. ClusterSetNetworkPolicies select pods of all given
    /// clusters.
    #[arg(long = "cluster", value_name = "NAME=PATH")]
    clusters: Vec<ClusterArg>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClusterArg {
    name: String,
    path: PathBuf,
}

impl FromStr for ClusterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, path) = text.split_once('=').unwrap_or((text, ""));
        if !is_label(name) {
            return Err(format!("{name:?} is not a valid cluster name: use a-z, 0-9 and `-`"));
        }
        if path.is_empty() {
            return Err("expected NAME=PATH, as in `east=clusters/east`".into());
        }
        Ok(ClusterArg { name: name.into(), path: path.into() })
    }
}

/// Whether a name is a DNS label, as the name of a cluster must be.
pub(crate) fn is_label(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

impl ClustersArgs {
    /// Whether no cluster was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// Loads all clusters into one world.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        let mut paths: BTreeMap<Name, Vec<PathBuf>> = BTreeMap::new();
        for ClusterArg { name, path } in &self.clusters {
            if path.as_os_str() == "-" && self.clusters.len() > 1 {
                let hint = "give a file or a folder for each cluster";
                return Err(Failure::new("standard input can hold only one cluster", hint).into());
            }
            paths.entry(name.as_str().into()).or_default().push(path.clone());
        }
        let mut loaded = BTreeMap::new();
        for (name, paths) in paths {
            loaded.insert(name, load_paths(&paths)?);
        }
        Ok(joined(loaded))
    }

    /// The objects of all clusters and the findings from reading them. Fails if the input is
    /// incomplete.
    pub(crate) fn objects(&self) -> anyhow::Result<(Vec<Object>, Vec<Finding>)> {
        let mut loaded = self.load()?;
        if !loaded.missing.is_empty() {
            loaded = loaded.complete()?;
        }
        let objects = loaded.world.changes().filter_map(|change| match change {
            weir_model::Change::Put(object) => Some(object),
            weir_model::Change::Remove(_) => None,
        });
        Ok((objects.collect(), loaded.findings))
    }
}

/// Joins clusters that were read separately.
fn joined(clusters: BTreeMap<Name, Loaded>) -> Loaded {
    let mut worlds: BTreeMap<Name, World> = BTreeMap::new();
    let (mut findings, mut missing) = (Vec::new(), Vec::new());
    let (mut owners, mut workloads) = (BTreeMap::new(), BTreeMap::new());
    let mut generated_for = BTreeMap::new();
    for (cluster, mut loaded) in clusters {
        let id = |id: &PodId| id.in_cluster(&cluster);
        // Synthetic addresses of one cluster may collide with addresses of another: assign them
        // again below.
        for pod in loaded.world.pods.values_mut() {
            pod.addresses.retain(|address| !loaded.synthetic.contains(address));
        }
        findings.append(&mut loaded.findings);
        missing.append(&mut loaded.missing);
        let named = loaded
            .owners
            .iter()
            .map(|(pod, owner)| (id(pod), QualifiedName::new(&cluster, owner).to_string()));
        owners.extend(named);
        let pods = |pods: &Vec<PodId>| pods.iter().map(id).collect::<Vec<PodId>>();
        let named = loaded
            .workloads
            .iter()
            .map(|(name, all)| (QualifiedName::new(&cluster, name).to_string(), pods(all)));
        workloads.extend(named);
        let made = loaded
            .generated_for
            .into_iter()
            .map(|(policy, owner)| (policy.in_cluster(&cluster), owner));
        generated_for.extend(made);
        worlds.insert(cluster.clone(), loaded.world);
    }
    let mut world = weir_clusterset::union(&worlds);
    let synthetic = weir_api::assign_addresses(&mut world);
    Loaded { world, findings, missing, owners, workloads, generated_for, synthetic }
}
