//! Several clusters in one world, for policies that span clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use weir_api::{CaseObjects, Route};
use weir_kube::{Access, ClusterKinds};
use weir_model::{Finding, Name, PodId, PolicyKind, QualifiedName, World};

use crate::{
    failure::Failure,
    probe,
    source::{self, Loaded, load_cluster, load_paths},
};

/// The clusters of a ClusterSet.
#[derive(Args, Clone)]
pub(crate) struct ClustersArgs {
    /// A cluster of a ClusterSet: its manifests, or `context:` and a context of the kubeconfig
    /// [repeatable]
    ///
    /// Its pods are named `NAME:namespace/pod`. ClusterSetNetworkPolicies select pods of all given
    /// clusters. Manifests with the name of a live cluster are applied to it, as `kubectl apply`
    /// would.
    #[arg(long = "cluster", value_name = "NAME=PATH")]
    clusters: Vec<ClusterArg>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClusterArg {
    name: String,
    source: ClusterSource,
}

/// The source of a cluster's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClusterSource {
    /// Manifests.
    Path(PathBuf),
    /// A live cluster, by a context of the kubeconfig.
    Context(String),
}

impl FromStr for ClusterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, path) = text.split_once('=').unwrap_or((text, ""));
        if !is_label(name) {
            return Err(format!("{name:?} is not a valid cluster name: use a-z, 0-9 and `-`"));
        }
        let source = match path.strip_prefix("context:") {
            Some("") => return Err("expected a context, as in `east=context:prod-east`".into()),
            Some(context) => ClusterSource::Context(context.into()),
            None if path.is_empty() => {
                let expected = "expected NAME=PATH or NAME=context:CONTEXT, as in \
                                `east=clusters/east`";
                return Err(expected.into());
            }
            None => ClusterSource::Path(path.into()),
        };
        Ok(ClusterArg { name: name.into(), source })
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

    /// Whether a cluster is read with a context of the kubeconfig.
    pub(crate) fn has_context(&self) -> bool {
        self.clusters.iter().any(|one| matches!(one.source, ClusterSource::Context(_)))
    }

    /// The manifests of each cluster. Fails for a live one.
    pub(crate) fn paths(&self) -> Result<BTreeMap<Name, Vec<&Path>>, Failure> {
        let mut paths: BTreeMap<Name, Vec<&Path>> = BTreeMap::new();
        for ClusterArg { name, source } in &self.clusters {
            let ClusterSource::Path(path) = source else {
                let hint = "give NAME=PATH for each cluster, relative to both sides";
                return Err(Failure::new("weir diff compares manifests of clusters", hint));
            };
            paths.entry(name.as_str().into()).or_default().push(path);
        }
        Ok(paths)
    }

    /// Loads all clusters into one world.
    pub(crate) fn load(&self, kubeconfig: Option<&Path>) -> anyhow::Result<Loaded> {
        Ok(joined(self.load_each(kubeconfig)?))
    }

    /// Loads all clusters into one world, and also returns their own worlds, with the addresses of
    /// that one world.
    pub(crate) fn load_separately(
        &self,
        kubeconfig: Option<&Path>,
    ) -> anyhow::Result<(Loaded, BTreeMap<Name, World>)> {
        let each = self.load_each(kubeconfig)?;
        let mut worlds: BTreeMap<Name, World> =
            each.iter().map(|(cluster, loaded)| (cluster.clone(), loaded.world.clone())).collect();
        let joined = joined(each);
        for (cluster, world) in &mut worlds {
            for pod in world.pods.values_mut() {
                if let Some(same) = joined.world.pods.get(&pod.id.in_cluster(cluster)) {
                    pod.addresses.clone_from(&same.addresses);
                }
            }
        }
        Ok((joined, worlds))
    }

    fn load_each(&self, kubeconfig: Option<&Path>) -> anyhow::Result<BTreeMap<Name, Loaded>> {
        let mut paths: BTreeMap<Name, Vec<PathBuf>> = BTreeMap::new();
        let mut contexts: BTreeMap<Name, &str> = BTreeMap::new();
        for ClusterArg { name, source } in &self.clusters {
            let name = Name::from(name.as_str());
            match source {
                ClusterSource::Path(path) if path.as_os_str() == "-" && self.clusters.len() > 1 => {
                    let hint = "give a file or a folder for each cluster";
                    let what = "standard input can hold only one cluster";
                    return Err(Failure::new(what, hint).into());
                }
                ClusterSource::Path(path) => paths.entry(name).or_default().push(path.clone()),
                ClusterSource::Context(context) => {
                    if contexts.insert(name.clone(), context).is_some() {
                        let what = format!("cluster {name} has two contexts");
                        let hint = "give one context for each cluster";
                        return Err(Failure::new(what, hint).into());
                    }
                }
            }
        }
        let mut loaded = BTreeMap::new();
        for (name, context) in contexts {
            let access = Access::new(kubeconfig, Some(context));
            let instead = "give manifests with --cluster NAME=PATH";
            let live = load_cluster(&access, ClusterKinds::PoliciesOfClusterSet, instead)?;
            loaded.insert(name, live);
        }
        for (name, paths) in paths {
            let manifests = load_paths(&paths)?;
            let cluster = match loaded.remove(&name) {
                Some(live) => applied(live, manifests),
                None => manifests,
            };
            loaded.insert(name, cluster);
        }
        loaded.values_mut().for_each(drop_translations);
        Ok(loaded)
    }

    /// The objects of all clusters, and the findings from reading them. Fails if the input is
    /// incomplete.
    pub(crate) fn objects(&self) -> anyhow::Result<(CaseObjects, Vec<Finding>)> {
        let mut loaded = self.load(None)?;
        if !loaded.missing.is_empty() {
            loaded = source::complete(loaded)?;
        }
        Ok((probe::targets(&loaded), loaded.findings))
    }
}

/// Applies manifests to a live cluster.
fn applied(mut live: Loaded, mut manifests: Loaded) -> Loaded {
    // A synthetic address may belong to a live pod. The joined world gets new ones.
    manifests.drop_synthetic();
    let (findings, missing) = (mem::take(&mut live.findings), mem::take(&mut live.missing));
    let mut applied = live.with(manifests);
    applied.findings.splice(..0, findings);
    applied.missing.splice(..0, missing);
    applied
}

/// Removes the NetworkPolicies that the controller wrote for the ClusterSetNetworkPolicies of a
/// cluster. They may be out of date, and the ClusterSetNetworkPolicies themselves are evaluated.
pub(crate) fn drop_translations(loaded: &mut Loaded) {
    let policies = loaded.world.policies.keys();
    let shared = policies.filter(|id| id.kind == PolicyKind::ClusterSetNetworkPolicy);
    let shared: BTreeSet<Name> = shared.map(|id| id.to_string().into()).collect();
    let prefix = weir_clusterset::shard_name("", None);
    loaded.world.policies.retain(|id, _| {
        let by = loaded.generated_for.get(id);
        !(id.name.starts_with(&*prefix) && by.is_some_and(|by| shared.contains(by)))
    });
    loaded.generated_for.retain(|id, _| loaded.world.policies.contains_key(id));
}

/// A route whose namespaces carry the name of its cluster.
fn in_cluster(mut route: Route, cluster: &str) -> Route {
    let own = &mut route.id.namespace;
    let of_services = route.backends.iter_mut().map(|backend| &mut backend.service.namespace);
    let of_gateways = route.gateways.iter_mut().map(|(namespace, _)| namespace);
    for namespace in of_services.chain(of_gateways).chain([own]) {
        *namespace = QualifiedName::new(cluster, namespace).to_name();
    }
    route
}

/// Joins clusters that were read separately.
pub(crate) fn joined(clusters: BTreeMap<Name, Loaded>) -> Loaded {
    let mut worlds: BTreeMap<Name, World> = BTreeMap::new();
    let (mut findings, mut missing) = (Vec::new(), Vec::new());
    let (mut owners, mut workloads) = (BTreeMap::new(), BTreeMap::new());
    let (mut generated_for, mut declared) = (BTreeMap::new(), BTreeMap::new());
    let (mut attachments, mut routes) = (BTreeMap::new(), BTreeMap::new());
    let mut cluster_policy_version = None;
    let mut resolvers = BTreeMap::new();
    for (cluster, mut loaded) in clusters {
        cluster_policy_version = cluster_policy_version.or(loaded.cluster_policy_version.take());
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
        resolvers.extend(loaded.resolvers.iter().map(|(pod, all)| (id(pod), all.clone())));
        attachments.extend(loaded.attachments.iter().map(|(pod, one)| (id(pod), one.clone())));
        declared.extend(loaded.declared.iter().map(|(pod, ports)| (id(pod), ports.clone())));
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
        let named = loaded.routes.into_values().map(|route| in_cluster(route, &cluster));
        routes.extend(named.map(|route| (route.id.clone(), route)));
        worlds.insert(cluster.clone(), loaded.world);
    }
    let mut world = weir_clusterset::union(&worlds);
    let synthetic = weir_api::assign_addresses(&mut world);
    Loaded {
        world,
        findings,
        missing,
        owners,
        declared,
        workloads,
        generated_for,
        synthetic,
        // `weir lint` reads no clusters.
        ignores: Vec::new(),
        attachments,
        resolvers,
        // No command for several clusters needs them.
        hosts: BTreeMap::new(),
        routes,
        cluster_policy_version,
    }
}
