//! The NetworkPolicies that ClusterSetNetworkPolicies and Memcacheds become.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use ipnet::IpNet;
use serde::Serialize;
use weir_clusterset::{
    ClusterSet, ClusterSetOptions, Interest, Merging, Publication, RemoteCluster,
};
use weir_model::{Name, Policy, PolicyId, PolicyKind, Selector, World};

use crate::{
    present::{self, Format, Schema, plain::Plain},
    source::Loaded,
};

/// The default of `weir controller --shard-size`.
const SHARD_SIZE: usize = 500;

/// The clusters of a set, each with its own world.
pub(crate) type Worlds = BTreeMap<Name, World>;

/// An object and the NetworkPolicies that a controller writes for it.
struct Translation {
    /// The cluster, if there are several.
    cluster: Option<Name>,
    /// The object, by kind and name.
    object: String,
    namespace: Name,
    network_policies: Vec<Policy>,
}

#[derive(Serialize)]
struct RenderClusterOutput<'a> {
    policies: Vec<TranslationJson<'a>>,
}

#[derive(Serialize)]
struct TranslationJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    policy: &'a str,
    #[serde(rename = "networkPolicies")]
    network_policies: Vec<serde_json::Value>,
}

/// Where and how to print.
pub(crate) struct TranslationOutput<'a> {
    /// Only objects of this namespace.
    pub(crate) namespace: Option<&'a str>,
    /// The format.
    pub(crate) format: Format,
}

/// Prints the NetworkPolicies of all ClusterSetNetworkPolicies and Memcacheds in the clusters.
pub(crate) fn write_clusters(
    loaded: &Loaded,
    worlds: &Worlds,
    output: &TranslationOutput<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut all = translate(worlds);
    for (id, object) in of_memcacheds(loaded) {
        let Some((cluster, world)) = id.cluster().and_then(|name| worlds.get_key_value(name))
        else {
            continue;
        };
        let policy = world.policies.get(&id.in_own_cluster());
        all.extend(policy.map(|policy| requested(Some(cluster), object, policy)));
    }
    all.sort_by(|one, two| (&one.cluster, &one.object).cmp(&(&two.cluster, &two.object)));
    write(all, "ClusterSetNetworkPolicies and no Memcacheds", output, out)
}

/// Prints the NetworkPolicies of all Memcacheds.
pub(crate) fn write_generated(
    loaded: &Loaded,
    output: &TranslationOutput<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let policies = of_memcacheds(loaded).filter_map(|(id, object)| {
        let policy = loaded.world.policies.get(id)?;
        Some(requested(None, object, policy))
    });
    write(policies.collect(), "Memcacheds with a policy", output, out)
}

/// The policies that a controller writes for Memcacheds, with these.
fn of_memcacheds(loaded: &Loaded) -> impl Iterator<Item = (&PolicyId, &Name)> {
    loaded.generated_for.iter().filter(|(_, object)| object.starts_with("Memcached "))
}

fn requested(cluster: Option<&Name>, object: &Name, policy: &Policy) -> Translation {
    Translation {
        cluster: cluster.cloned(),
        object: object.to_string(),
        namespace: policy.id.namespace.clone(),
        network_policies: vec![policy.clone()],
    }
}

fn write(
    mut all: Vec<Translation>,
    kinds: &str,
    output: &TranslationOutput<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    all.retain(|one| output.namespace.is_none_or(|name| *one.namespace == *name));
    if let Some(form) = output.format.structured() {
        let policies = all.iter().map(Translation::to_json).collect();
        return present::value(out, form, Schema::RenderCluster, &RenderClusterOutput { policies });
    }
    if all.is_empty() {
        writeln!(out, "# there are no {kinds}")?;
    }
    for Translation { cluster, object, network_policies, .. } in &all {
        let cluster = cluster.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        writeln!(out, "# {}", Plain(format_args!("{cluster}{object}")))?;
        for policy in network_policies {
            write!(out, "---\n{}", weir_api::manifest(policy))?;
        }
    }
    Ok(())
}

impl Translation {
    fn to_json(&self) -> TranslationJson<'_> {
        TranslationJson {
            cluster: self.cluster.as_deref(),
            policy: &self.object,
            network_policies: self.network_policies.iter().map(weir_api::manifest_json).collect(),
        }
    }
}

/// Translates the policies of all clusters, as their controllers would once all pods are published.
fn translate(worlds: &Worlds) -> Vec<Translation> {
    let mut all = Vec::new();
    for (cluster, world) in worlds {
        let is_shared = |policy: &&Policy| policy.id.kind == PolicyKind::ClusterSetNetworkPolicy;
        let policies: Vec<&Policy> = world.policies.values().filter(is_shared).collect();
        let mut set = ClusterSet::new(ClusterSetOptions {
            cluster: cluster.clone(),
            networks: addresses(world),
            accepted: BTreeMap::new(),
            max_pods: usize::MAX,
            max_namespaces: usize::MAX,
            shard_size: SHARD_SIZE,
            merging: Merging::None,
        });
        for policy in &policies {
            // The API server assigns uids; the name stands for it.
            set.put_policy((*policy).clone(), &policy.id.name);
        }
        let interests: BTreeSet<Interest> = set.interests().cloned().collect();
        for (other, world) in worlds.iter().filter(|(other, _)| *other != cluster) {
            publish(&mut set, other, world, cluster, &interests);
        }
        all.extend(policies.into_iter().map(|policy| Translation {
            cluster: Some(cluster.clone()),
            object: policy.id.to_string(),
            namespace: policy.id.namespace.clone(),
            network_policies: set.translate(&policy.id),
        }));
    }
    all
}

/// Adds the pods and namespaces to a set that another cluster publishes for its interests.
fn publish(
    set: &mut ClusterSet,
    other: &Name,
    world: &World,
    cluster: &Name,
    interests: &BTreeSet<Interest>,
) {
    let mut publication = Publication::new(other.clone(), Selector::everything());
    world.namespaces.values().for_each(|namespace| publication.put_namespace(namespace));
    world.pods.values().for_each(|pod| publication.put_pod(pod));
    publication.set_interests(cluster, interests.clone());
    set.set_member(other, Some(RemoteCluster { networks: addresses(world) }));
    for namespace in publication.namespaces() {
        set.set_namespace(other, namespace, publication.namespace(namespace).cloned());
        publication.pods_of(namespace).for_each(|pod| set.put_pod(pod.clone()));
    }
}

/// The addresses of a world's pods: manifests do not contain the networks of a cluster.
fn addresses(world: &World) -> Vec<IpNet> {
    let pods = world.pods.values().flat_map(|pod| pod.own_addresses());
    pods.map(|address| IpNet::from(*address)).collect()
}
