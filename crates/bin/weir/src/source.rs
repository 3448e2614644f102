//! Where the world comes from, the same for all read-only commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use weir_api::{Case, Manifests};
use weir_engine::Locality;
use weir_kube::{Access, ReadError};
use weir_model::{Change, Finding, Name, Object, ObjectRef, PodId, PolicyId, Severity, World};
use weir_reach::State;
use weir_source::LoadError;

use crate::{
    clusters::Clusters,
    failure::{Failure, nearest},
    present::{self, progress::Progress},
    test::without_tests,
};

/// Where to read the cluster from.
#[derive(Args)]
pub(crate) struct Source {
    /// Manifests to read: a file, a directory, or `-` for standard input [repeatable] [default: the current cluster]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    live: Live,
    /// The namespace to look at
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

/// Which cluster to read.
#[derive(Args)]
pub(crate) struct Live {
    /// The kubeconfig of the cluster to read, without -f
    #[arg(long, value_name = "PATH", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    context: Option<String>,
}

impl Live {
    /// Reads the cluster, once. If none is known, `instead` is what else helps.
    pub(crate) fn load(&self, instead: &str) -> anyhow::Result<Loaded> {
        let access = Access::new(self.kubeconfig.as_deref(), self.context.as_deref());
        let mut progress = Progress::new("reading the cluster");
        let manifests = weir_kube::read_cluster(&access, |step| progress.at(step.done, step.all));
        drop(progress);
        let manifests = manifests.map_err(|error| {
            let hint = match &error {
                ReadError::NoKubeconfig => format!("{instead}, or {}", error.hint()),
                _ => error.hint(),
            };
            Failure::new(error, hint)
        })?;
        Ok(Loaded::from(manifests))
    }
}

/// A world as it was read.
pub(crate) struct Loaded {
    /// The cluster.
    pub(crate) world: World,
    /// What reading it found.
    pub(crate) findings: Vec<Finding>,
    /// Those of the findings that mean that something is missing from the world.
    pub(crate) missing: Vec<Finding>,
    /// The workload that made a pod, as `namespace/deployment/name`: the outermost that is known.
    pub(crate) owners: BTreeMap<PodId, String>,
    /// The pods of each workload, under all of its names.
    pub(crate) workloads: BTreeMap<String, Vec<PodId>>,
    /// The policies that a controller made, and for which object.
    pub(crate) makers: BTreeMap<PolicyId, Name>,
    /// The addresses that were made up for pods that had none.
    pub(crate) made_up: BTreeSet<IpAddr>,
}

impl Loaded {
    /// What lint has to say about the world as it was written: addresses that were made up are nobody's mistake. Policies that a
    /// controller made are not for users to improve; what lint says about them is said about what they were made for.
    pub(crate) fn lint(&self) -> Vec<Finding> {
        let made: BTreeSet<ObjectRef> = self.makers.keys().map(ObjectRef::from).collect();
        let mut findings = weir_lint::lint(&self.without_made_up());
        findings.retain(|finding| {
            finding.severity == Severity::Error
                || finding.object.as_ref().is_none_or(|object| !made.contains(object))
        });
        findings
    }

    /// The world as it was written: pods that have no address have none.
    pub(crate) fn without_made_up(&self) -> World {
        let mut world = self.world.clone();
        for pod in world.pods.values_mut() {
            pod.addresses.retain(|address| !self.made_up.contains(address));
        }
        world
    }

    /// The world for an answer about it: what reading found is said on standard error, and if something is missing, that
    /// is a failure. A policy that was not read would otherwise be a policy that allows everything.
    pub(crate) fn complete(self) -> Result<Self, Failure> {
        present::findings::mention(self.findings.iter().chain(&self.missing));
        match self.missing.is_empty() {
            true => Ok(self),
            false => Err(incomplete()),
        }
    }

    /// The world after these manifests are applied to it. What they do not speak of stays.
    pub(crate) fn with(&self, manifests: Loaded) -> Loaded {
        let mut world = self.world.clone();
        for change in manifests.world.changes() {
            // A namespace that is only mentioned says nothing about its labels.
            let is_mentioned = matches!(&change, Change::Put(Object::Namespace(namespace))
                if namespace.location.is_none() && world.namespaces.contains_key(&namespace.name));
            if !is_mentioned {
                world.apply(change);
            }
        }
        let mut owners = self.owners.clone();
        owners.extend(manifests.owners);
        let mut workloads = self.workloads.clone();
        workloads.extend(manifests.workloads);
        let mut makers = self.makers.clone();
        makers.extend(manifests.makers);
        Loaded { world, owners, workloads, makers, ..manifests }
    }

    /// Fails for a namespace that nothing is in.
    fn knows(&self, namespace: &str) -> Result<(), Failure> {
        // What could not be read may have been all there is of it.
        let mentioned = self.findings.iter().any(|finding| is_about(finding, namespace));
        if self.world.namespaces.contains_key(namespace) || mentioned || !self.missing.is_empty() {
            return Ok(());
        }
        let known: Vec<&str> = self.world.namespaces.keys().map(|name| &**name).collect();
        let hint = match nearest(namespace, &known).as_slice() {
            [] => "no object of the input is in a namespace".to_owned(),
            near => format!("did you mean {}?", near.join(" or ")),
        };
        Err(Failure::new(format!("there is no namespace {namespace}"), hint))
    }
}

/// Compiles a world for all nodes.
pub(crate) fn compile(world: World) -> State {
    let program = weir_engine::compile(&world, Locality::Everywhere);
    State { world, program }
}

/// Why there is no answer.
pub(crate) fn incomplete() -> Failure {
    Failure::new(
        "part of the input could not be read, so no answer would be safe",
        "repair what is named above; `weir lint` lists everything that is wrong",
    )
}

/// Whether a finding is about an object of the namespace.
pub(crate) fn is_about(finding: &Finding, namespace: &str) -> bool {
    finding.object.as_ref().is_some_and(|object| *object.namespace == *namespace)
}

impl Source {
    /// Reads the world.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        let loaded = match self.files.is_empty() {
            true => self.live.load("give manifests with -f PATH")?,
            false => load_paths(&self.files)?,
        };
        if let Some(namespace) = self.namespace() {
            loaded.knows(namespace)?;
        }
        Ok(loaded)
    }

    /// Reads the clusters of a set if there are any, else the world, as [`load_complete`](Source::load_complete) does.
    pub(crate) fn load_clusters(&self, clusters: &Clusters) -> anyhow::Result<Loaded> {
        if clusters.is_empty() {
            return self.load_complete();
        }
        if !self.files.is_empty() || self.live.kubeconfig.is_some() || self.live.context.is_some() {
            let what = "--cluster says where everything is; -f, --kubeconfig and --context do not go with it";
            return Err(Failure::new(what, "give each cluster with --cluster NAME=PATH").into());
        }
        let loaded = clusters.load()?;
        if let Some(namespace) = self.namespace() {
            loaded.knows(namespace)?;
        }
        Ok(loaded.complete()?)
    }

    /// Reads the world, says on standard error what is wrong with it, and fails if something is missing from it.
    pub(crate) fn load_complete(&self) -> anyhow::Result<Loaded> {
        Ok(self.load()?.complete()?)
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
            false => match weir_source::case_files(std::slice::from_ref(path)) {
                Ok(found) => files.extend(found),
                Err(LoadError::Empty { path }) => return Err(without_tests(&[path]).into()),
                Err(error) => return Err(failed(error)),
            },
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

impl From<Manifests> for Loaded {
    fn from(manifests: Manifests) -> Self {
        let missing = manifests.missing().cloned().collect();
        let Manifests { objects, findings, owners, makers, made_up, .. } = manifests;
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
        Loaded { world, findings, missing, owners: names, workloads, makers, made_up }
    }
}
