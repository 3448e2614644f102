//! The NetworkPolicies that ClusterSetNetworkPolicies become in their clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use ipnet::IpNet;
use serde::Serialize;
use weir_clusterset::{
    ClusterSet, ClusterSetOptions, Interest, Merging, Publication, RemoteCluster,
};
use weir_model::{Name, Policy, PolicyKind, Selector, World};

use crate::present::{self, Format, Schema};

/// The default of `weir controller --shard-size`.
const SHARD_SIZE: usize = 500;

/// The clusters of a set, each with its own world.
pub(crate) type Worlds = BTreeMap<Name, World>;

/// A ClusterSetNetworkPolicy and its NetworkPolicies.
struct Translation<'a> {
    cluster: &'a Name,
    policy: &'a Policy,
    network_policies: Vec<Policy>,
}

#[derive(Serialize)]
struct RenderClusterOutput<'a> {
    policies: Vec<TranslationJson<'a>>,
}

#[derive(Serialize)]
struct TranslationJson<'a> {
    cluster: &'a str,
    policy: String,
    #[serde(rename = "networkPolicies")]
    network_policies: Vec<serde_json::Value>,
}

/// Prints the NetworkPolicies of all ClusterSetNetworkPolicies in the clusters, or in one namespace.
pub(crate) fn write(
    worlds: &Worlds,
    namespace: Option<&str>,
    output: Format,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut all = translate(worlds);
    all.retain(|one| namespace.is_none_or(|name| *one.policy.id.namespace == *name));
    if let Some(form) = output.structured() {
        let all: Vec<TranslationJson> = all.iter().map(Translation::to_json).collect();
        let output = RenderClusterOutput { policies: all };
        return present::value(out, form, Schema::RenderCluster, &output);
    }
    if all.is_empty() {
        writeln!(out, "# there are no ClusterSetNetworkPolicies")?;
    }
    for Translation { cluster, policy, network_policies } in &all {
        writeln!(out, "# {cluster}: {}", policy.id)?;
        for policy in network_policies {
            write!(out, "---\n{}", weir_api::manifest(policy))?;
        }
    }
    Ok(())
}

impl Translation<'_> {
    fn to_json(&self) -> TranslationJson<'_> {
        TranslationJson {
            cluster: self.cluster,
            policy: self.policy.id.to_string(),
            network_policies: self.network_policies.iter().map(weir_api::manifest_json).collect(),
        }
    }
}

/// Translates the policies of all clusters, as their controllers would once all pods are published.
fn translate(worlds: &Worlds) -> Vec<Translation<'_>> {
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
            cluster,
            policy,
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
