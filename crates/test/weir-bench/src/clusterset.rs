//! A simulated ClusterSet: the size and load of its broker, and the cost of a change from the pod to the
//! policy.
//!
//! Sources, interests, publication and translation are those of the controller. The broker is a map that
//! counts. The cost of API servers and networks is not included.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use weir_clusterset::{
    ClusterSet, ClusterSetOptions, Interest, Merging, Publication, RemoteCluster, RemotePod,
};
use weir_model::{
    Action, Labels, Name, Namespace, Peer, PodId, Policy, PolicyId, PolicyKind, PolicyRule,
    Requirement, Scope, Selector, Spec, Subject, Tier, Who,
};

use crate::{docs, measure, workload};

/// Pods in a namespace.
const PODS_PER_NAMESPACE: usize = 100;
/// Apps in a namespace.
const APPS_PER_NAMESPACE: usize = 10;
/// The batch windows of the publisher and of the translator.
const BATCH_WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(50)];
/// The number of pods in an aggregated object.
const PODS_PER_SLICE: usize = 100;

/// A simulated ClusterSet.
#[derive(Debug, Args)]
pub(crate) struct ClusterSetBench {
    /// The number of clusters.
    #[arg(long, default_value_t = 40)]
    clusters: usize,
    /// The number of pods in each cluster.
    #[arg(long, default_value_t = 5_000)]
    pods: usize,
    /// The number of pods replaced per second in the whole set.
    #[arg(long, default_value_t = 50)]
    churn: usize,
    /// The simulated time in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: usize,
    /// Write the table to docs/performance.md.
    #[arg(long)]
    write_docs: bool,
}

/// One cluster of the set.
struct MemberCluster {
    name: Name,
    number: usize,
    publication: Publication,
    /// How often each pod was replaced, by its index.
    lives: Vec<usize>,
}

impl ClusterSetBench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut table = String::from(
            "| | all pods are selected | one app of ten is |\n| --- | ---: | ---: |\n",
        );
        // Only the first run can measure memory: the second reuses memory that the first has freed.
        let columns = [self.simulate(APPS_PER_NAMESPACE)?, self.simulate(1)?];
        for (all, one) in columns[0].iter().zip(&columns[1]) {
            writeln!(table, "| {} | {} | {} |", all.0, all.1, one.1)?;
        }
        write!(out, "{table}")?;
        if self.write_docs { docs::put("clusterset", &table) } else { Ok(()) }
    }

    /// Simulates a set whose policies select `apps` apps.
    fn simulate(&self, apps: usize) -> Result<Vec<(&'static str, String)>> {
        eprintln!(
            "{} clusters of {} pods, {apps} of {APPS_PER_NAMESPACE} apps are selected",
            self.clusters, self.pods
        );
        let mut reader = self.reader(apps);
        let interests: BTreeSet<Interest> = reader.interests().cloned().collect();
        let mut sources: Vec<MemberCluster> =
            (1..=self.clusters).map(|number| self.source(number, &interests)).collect();
        let mut broker: BTreeMap<String, usize> = BTreeMap::new();
        let mut all = Vec::new();
        for (name, published) in sources.iter_mut().flat_map(MemberCluster::drain_changes) {
            broker.insert(name, published.as_ref().map_or(0, size));
            all.extend(published);
        }
        // The reader shares no memory with the publisher.
        let all: Vec<RemotePod> = all.iter().map(deep_copy).collect();
        let (count, before) = (all.len(), measure::resident()?);
        let (first, _) = measure::cpu(|| {
            all.iter().for_each(|pod| reader.put_pod(deep_copy(pod)));
            for source in &sources {
                for at in 0..self.pods / PODS_PER_NAMESPACE {
                    reader.set_namespace(
                        &source.name,
                        &namespace(at),
                        Some(labels_of(&namespace(at))),
                    );
                }
            }
            reader.take_changed()
        });
        let memory = measure::resident()?;
        let each = memory.saturating_sub(before) / count.max(1) as u64;
        drop(all);
        let (mut writes, mut bytes) = (0, 0);
        let (mut slices, mut policies_written) = (0, Vec::new());
        let (mut source_cost, mut reader_cost) = (Vec::new(), Vec::new());
        let mut delays = Vec::new();
        let mut dice = Dice(7);
        for _ in 0..self.seconds {
            let mut touched_slices: BTreeSet<(usize, usize)> = BTreeSet::new();
            for _ in 0..self.churn {
                let source = &mut sources[dice.below(self.clusters)];
                let at = dice.below(self.pods);
                let start = Instant::now();
                let (cost, published) = measure::cpu(|| {
                    source.replace(at);
                    source.drain_changes()
                });
                source_cost.push(micros(cost));
                let (cost, written) = measure::cpu(|| {
                    for (name, pod) in &published {
                        match pod {
                            Some(pod) => reader.put_pod(pod.clone()),
                            None => reader.remove_pod(&id_of(name)),
                        }
                    }
                    let touched = reader.take_changed();
                    let parts = touched.iter().flat_map(|(id, shards)| {
                        shards.iter().filter_map(|key| reader.shard(id, key)).collect::<Vec<_>>()
                    });
                    let texts: Vec<String> = parts.map(|part| weir_api::manifest(&part)).collect();
                    texts.len()
                });
                reader_cost.push(micros(cost));
                delays.push(
                    (start.elapsed() + BATCH_WINDOWS[0] + BATCH_WINDOWS[1]).as_secs_f64() * 1e3,
                );
                if !published.is_empty() {
                    policies_written.push(written as f64);
                    touched_slices.insert((source.number, at / PODS_PER_SLICE));
                }
                for (name, pod) in published {
                    writes += 1;
                    let new = pod.as_ref().map_or(0, size);
                    bytes += new.max(broker.get(&name).copied().unwrap_or_default().min(300));
                    match pod {
                        Some(_) => drop(broker.insert(name, new)),
                        None => drop(broker.remove(&name)),
                    }
                }
            }
            slices += touched_slices.len();
        }
        let seconds = self.seconds as f64;
        let others = (self.clusters - 1) as f64;
        let stored: usize = broker.values().sum();
        let per_pod = stored as f64 / broker.len().max(1) as f64;
        // An aggregated object has each label set once, and in a namespace each app has one label set.
        let slice_bytes =
            (PODS_PER_SLICE * 58) as f64 * broker.len() as f64 / (self.clusters * self.pods) as f64;
        let namespaces = self.clusters * self.pods / PODS_PER_NAMESPACE;
        let leases = self.clusters as f64 / 10.0;
        let spread = |values: Vec<f64>| measure::Spread::from_values(values);
        let (source_cost, reader_cost) = (spread(source_cost), spread(reader_cost));
        let (delays, parts) = (spread(delays), spread(policies_written));
        Ok(vec![
            ("pods in the set", format!("{}", self.clusters * self.pods)),
            ("objects on the broker: RemotePod", format!("{}", broker.len())),
            (
                "… RemoteNamespace, ClusterSetMember, Lease",
                format!("{}", namespaces + 2 * self.clusters),
            ),
            ("… together", format!("{:.0} MB", stored as f64 / 1e6)),
            ("pods replaced a second", format!("{}", self.churn)),
            ("writes to the broker a second, for pods", format!("{:.1}", writes as f64 / seconds)),
            ("… for lease renewals", format!("{leases:.1}")),
            ("bytes written a second", format!("{:.0} kB", bytes as f64 / seconds / 1e3)),
            (
                "bytes sent to watchers a second",
                format!("{:.1} MB", bytes as f64 / seconds * others / 1e6),
            ),
            (
                "aggregated by 100 pods instead, at 58 bytes a pod: objects",
                format!("{:.0}", (self.clusters * self.pods / PODS_PER_SLICE) as f64),
            ),
            (
                "… writes a second, in batches of one second",
                format!("{:.1}", slices as f64 / seconds),
            ),
            (
                "… bytes sent to watchers a second",
                format!("{:.1} MB", slices as f64 / seconds * slice_bytes * others / 1e6),
            ),
            (
                "… together",
                format!(
                    "{:.0} MB",
                    slice_bytes * (self.clusters * self.pods / PODS_PER_SLICE) as f64 / 1e6
                ),
            ),
            ("one RemotePod", format!("{per_pod:.0} bytes")),
            ("a cluster reads the whole set: CPU", format!("{:.1} s", first.as_secs_f64())),
            (
                "… memory for each published pod",
                if apps == APPS_PER_NAMESPACE { format!("{each} bytes") } else { "–".into() },
            ),
            ("a pod is replaced: CPU of its cluster", source_cost.text(0, " µs")),
            (
                "… CPU of each other cluster, to the text of the NetworkPolicies",
                reader_cost.text(0, " µs"),
            ),
            ("… NetworkPolicies that change in each", parts.text(0, "")),
            (
                "… from the change to the policy, with 150 ms of batch windows",
                delays.text(0, " ms"),
            ),
        ])
    }

    fn source(&self, number: usize, interests: &BTreeSet<Interest>) -> MemberCluster {
        let name = Name::from(format!("cluster-{number}"));
        let mut publication = Publication::new(name.clone(), Selector::everything());
        publication.set_interests(&"reader".into(), interests.clone());
        for at in 0..self.pods / PODS_PER_NAMESPACE {
            let (name, location) = (namespace(at), None);
            let labels = labels_of(&name);
            publication.put_namespace(&Namespace { name, labels, location });
        }
        let mut source = MemberCluster { name, number, publication, lives: vec![0; self.pods] };
        (0..self.pods).for_each(|at| source.put(at));
        source
    }

    /// A cluster with one policy for each of `apps` apps, which selects its pods in all namespaces of all
    /// clusters.
    fn reader(&self, apps: usize) -> ClusterSet {
        let mut reader = ClusterSet::new(ClusterSetOptions {
            cluster: "reader".into(),
            networks: Vec::new(),
            accepted: BTreeMap::new(),
            max_pods: usize::MAX,
            max_namespaces: usize::MAX,
            shard_size: 500,
            merging: Merging::None,
        });
        for number in 1..=self.clusters {
            let first = Ipv4Addr::from(0x0a00_0000 + ((number as u32) << 16));
            let network = ipnet::Ipv4Net::new_assert(first, 16);
            let member = RemoteCluster { networks: vec![network.into()] };
            reader.set_member(&format!("cluster-{number}").into(), Some(member));
        }
        for app in 0..apps {
            let pods = Selector::from_iter([Requirement::equals("app", format!("app-{app}"))]);
            let scope = Scope::Matching(Selector::everything());
            let peer = Peer { index: 0, line: 0, who: Who::Pods { scope, pods } };
            let rule = PolicyRule {
                index: 0,
                name: None,
                line: 0,
                action: Action::Allow,
                peers: Some(vec![peer]),
                ports: None,
            };
            let subject = Subject { scope: Scope::Own, pods: Selector::everything() };
            let spec =
                Spec { tier: Tier::Namespace, subject, ingress: Some(vec![rule]), egress: None };
            let id = PolicyId {
                kind: PolicyKind::ClusterSetNetworkPolicy,
                namespace: "shop".into(),
                name: format!("policy-{app}").into(),
            };
            let uid = format!("00000000-0000-0000-0000-{app:012}");
            reader.put_policy(
                Policy { id, location: None, spec: Arc::new(spec), staged: false },
                &uid,
            );
        }
        reader
    }
}

impl MemberCluster {
    fn id(&self, at: usize) -> PodId {
        PodId::new(
            namespace(at / PODS_PER_NAMESPACE),
            format!("app-{}-{:x}-{:x}", at % APPS_PER_NAMESPACE, at, self.lives[at]),
        )
    }

    fn put(&mut self, at: usize) {
        // Addresses are reused: a new pod gets the address of a deleted one.
        let address = Ipv4Addr::from(
            0x0a00_0000
                + ((self.number as u32) << 16)
                + at as u32
                + (self.lives[at] as u32 % 7) * 8000,
        );
        let app = format!("app-{}", at % APPS_PER_NAMESPACE);
        let labels = [
            ("app", app.as_str()),
            ("app.kubernetes.io/instance", "production"),
            ("pod-template-hash", "5f6d8c9b7d"),
            ("tier", "backend"),
        ];
        let labels = labels.into_iter().collect();
        let pod = workload::pod(self.id(at), labels, IpAddr::from(address), None);
        self.publication.put_pod(&pod);
    }

    /// Replaces a pod with a new one.
    fn replace(&mut self, at: usize) {
        self.publication.remove_pod(&self.id(at));
        self.lives[at] += 1;
        self.put(at);
    }

    /// Drains the changes to publish, by object name, deletions first.
    fn drain_changes(&mut self) -> Vec<(String, Option<RemotePod>)> {
        let (pods, _) = self.publication.take_changed();
        let name = |id: &PodId| format!("{}.{}.{}", self.name, id.namespace, id.name);
        let mut published: Vec<_> =
            pods.iter().map(|id| (name(id), self.publication.pod(id).cloned())).collect();
        published.sort_by_key(|(_, pod)| pod.is_some());
        published
    }
}

/// The size of a pod's object on the broker, including the fields that the API server adds.
pub(crate) fn size(pod: &RemotePod) -> usize {
    let labels: BTreeMap<&str, &str> = pod.labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
    let object = json!({
        "apiVersion": "submariner.io/v1alpha1",
        "kind": "RemotePod",
        "metadata": {
            "name": format!("{}.{}.{}", pod.id.cluster, pod.id.namespace, pod.id.name),
            "namespace": "submariner-k8s-broker",
            "uid": "00000000-0000-0000-0000-000000000000",
            "resourceVersion": "12345678",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
        },
        "spec": {
            "clusterID": &*pod.id.cluster,
            "podIPs": addresses,
            "remoteNamespace": &*pod.id.namespace,
            "podName": &*pod.id.name,
        },
    });
    // The label of the cluster.
    object.to_string().len() + "\"submariner-io/clusterID\":\"\",".len() + pod.id.cluster.len()
}

/// A copy of the pod that shares no memory with it.
fn deep_copy(pod: &RemotePod) -> RemotePod {
    let copy = |name: &Name| Name::from(&**name);
    let weir_clusterset::RemoteId { namespace, cluster, name } = &pod.id;
    RemotePod {
        id: weir_clusterset::RemoteId {
            namespace: copy(namespace),
            cluster: copy(cluster),
            name: copy(name),
        },
        labels: pod.labels.iter().map(|(key, value)| (copy(key), copy(value))).collect(),
        addresses: pod.addresses.clone(),
        ports: pod.ports.clone(),
    }
}

fn id_of(name: &str) -> weir_clusterset::RemoteId {
    let mut parts = name.splitn(3, '.');
    let mut next = || Name::from(parts.next().unwrap_or_default());
    let (cluster, namespace, name) = (next(), next(), next());
    weir_clusterset::RemoteId { namespace, cluster, name }
}

fn namespace(at: usize) -> Name {
    format!("namespace-{at}").into()
}

fn labels_of(namespace: &Name) -> Labels {
    [("kubernetes.io/metadata.name", &**namespace), ("team", "one")].into_iter().collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A deterministic random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_set_has_the_expected_figures() {
        let small =
            ClusterSetBench { clusters: 3, pods: 200, churn: 5, seconds: 2, write_docs: false };
        let rows = small.simulate(APPS_PER_NAMESPACE).expect("it runs");
        let row =
            |what: &str| rows.iter().find(|(name, _)| name.contains(what)).map(|(_, v)| v.clone());
        assert_eq!(row("pods in the set").as_deref(), Some("600"));
        assert_eq!(row("RemotePod").as_deref(), Some("600"));
        assert_eq!(row("for pods").as_deref(), Some("10.0"), "one deletion and one creation");
        assert_eq!(row("NetworkPolicies that change").as_deref(), Some("1 (1–1)"));
    }

    #[test]
    fn the_page_has_marks_for_the_table() {
        assert!(docs::has("clusterset"));
    }
}
