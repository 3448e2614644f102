//! Objects as in a real cluster, made one by one from their numbers.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

/// The pods of a namespace.
const PODS_PER_NAMESPACE: usize = 100;
/// The pods of a node.
const PODS_PER_NODE: usize = 100;
/// The replicas of the Deployments of a namespace. A StatefulSet and a DaemonSet have the other pods.
const DEPLOYMENTS: [usize; 20] = [20, 12, 10, 8, 6, 5, 5, 4, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1];
/// The replicas of the StatefulSet of a namespace.
const STATEFUL_REPLICAS: usize = 3;

const FIRST_WORDS: [&str; 20] = [
    "checkout",
    "payment",
    "catalog",
    "search",
    "account",
    "invoice",
    "shipping",
    "session",
    "inventory",
    "pricing",
    "review",
    "gateway",
    "profile",
    "report",
    "ledger",
    "notify",
    "audit",
    "cart",
    "offer",
    "media",
];
const SECOND_WORDS: [&str; 8] =
    ["api", "worker", "frontend", "cache", "service", "consumer", "proxy", "scheduler"];

/// A cluster with this many pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct RealisticWorld {
    /// The number of pods that exist.
    pub(super) pods: usize,
    /// The number of pods that the cluster has namespaces, nodes and policies for.
    pub(super) room: usize,
    pub(super) dual_stack: bool,
}

/// The facts about a pod that policies can see.
pub(super) struct PodFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) addresses: (Ipv4Addr, Option<Ipv6Addr>),
    node: String,
    /// The kind and the name of its owner.
    owner: (&'static str, String),
}

impl RealisticWorld {
    pub(super) fn namespaces(self) -> usize {
        self.room.div_ceil(PODS_PER_NAMESPACE)
    }

    pub(super) fn nodes(self) -> usize {
        self.room.div_ceil(PODS_PER_NODE)
    }

    /// One policy for ten pods.
    pub(super) fn policies(self) -> usize {
        self.room / 10
    }

    pub(super) fn namespace(self, at: usize) -> String {
        let name = namespace_name(at);
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{}","resourceVersion":"{at}","labels":{{"kubernetes.io/metadata.name":"{name}","team":"team-{}"}}}}}}"#,
            uid(at, 1),
            at % 20
        )
    }

    pub(super) fn node(self, at: usize) -> String {
        let [a, b] = u16::to_be_bytes(at as u16);
        let name = node_name(at);
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{}","resourceVersion":"{at}","labels":{{"kubernetes.io/hostname":"{name}","topology.kubernetes.io/zone":"zone-{}"}}}},"status":{{"addresses":[{{"type":"InternalIP","address":"172.16.{a}.{b}"}}]}}}}"#,
            uid(at, 2),
            at % 3
        )
    }

    /// Each policy selects an app of a namespace and allows another one of the team.
    pub(super) fn policy(self, at: usize) -> String {
        let (namespace, number) = (at / 10, at % 10);
        let [app, peer] = [number, number + 1].map(|workload| workload_name(namespace, workload));
        format!(
            r#"{{"metadata":{{"namespace":"{}","name":"{app}","uid":"{}","resourceVersion":"{at}"}},"spec":{{"podSelector":{{"matchLabels":{{"app.kubernetes.io/name":"{app}"}}}},"ingress":[{{"from":[{{"podSelector":{{"matchLabels":{{"app.kubernetes.io/name":"{peer}"}}}}}},{{"namespaceSelector":{{"matchLabels":{{"team":"team-{}"}}}},"podSelector":{{"matchLabels":{{"app.kubernetes.io/name":"{peer}"}}}}}}],"ports":[{{"port":8080}}]}}],"policyTypes":["Ingress"]}}}}"#,
            namespace_name(namespace),
            uid(at, 3),
            namespace % 20
        )
    }

    /// The facts about a pod.
    pub(super) fn facts(self, at: usize) -> PodFacts {
        let (namespace, mut within) = (at / PODS_PER_NAMESPACE, at % PODS_PER_NAMESPACE);
        let mut workload = 0;
        while workload < DEPLOYMENTS.len() && within >= DEPLOYMENTS[workload] {
            within -= DEPLOYMENTS[workload];
            workload += 1;
        }
        let is_stateful = workload == DEPLOYMENTS.len() && within < STATEFUL_REPLICAS;
        let is_daemon = workload == DEPLOYMENTS.len() && !is_stateful;
        workload += usize::from(is_daemon);
        let app = workload_name(namespace, workload);
        let hash = letters(namespace * 31 + workload, 9);
        let mut labels = vec![
            ("app.kubernetes.io/component", SECOND_WORDS[workload % SECOND_WORDS.len()].to_owned()),
            ("app.kubernetes.io/instance", format!("{app}-{}", namespace_name(namespace))),
            ("app.kubernetes.io/name", app.clone()),
            ("app.kubernetes.io/part-of", namespace_name(namespace)),
            ("app.kubernetes.io/version", format!("1.{}.{}", workload % 7, namespace % 11)),
        ];
        let (name, owner) = if is_stateful {
            let name = format!("{app}-{within}");
            labels.push(("apps.kubernetes.io/pod-index", within.to_string()));
            labels.push(("controller-revision-hash", format!("{app}-{hash}")));
            labels.push(("statefulset.kubernetes.io/pod-name", name.clone()));
            (name, ("StatefulSet", app))
        } else if is_daemon {
            labels.push(("controller-revision-hash", hash));
            labels.push(("pod-template-generation", "1".into()));
            (format!("{app}-{}", letters(at, 5)), ("DaemonSet", app))
        } else {
            labels.push(("pod-template-hash", hash.clone()));
            labels.push(("team", format!("team-{}", namespace % 20)));
            (format!("{app}-{hash}-{}", letters(at, 5)), ("ReplicaSet", format!("{app}-{hash}")))
        };
        let [a, b, c, d] = u32::to_be_bytes(at as u32);
        let v6 = Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, u16::from_be_bytes([a, b]), at as u16]);
        PodFacts {
            namespace: namespace_name(namespace),
            name,
            labels,
            addresses: (Ipv4Addr::new(10 + a, b, c, d), self.dual_stack.then_some(v6)),
            node: node_name(at * 7919 % self.nodes()),
            owner,
        }
    }

    pub(super) fn pod(self, at: usize) -> String {
        let PodFacts { namespace, name, labels, addresses, node, owner } = self.facts(at);
        let mut text = format!(
            r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{}","resourceVersion":"{at}","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"#,
            uid(at, 4)
        );
        for (number, (key, value)) in labels.iter().enumerate() {
            _ = write!(text, "{}\"{key}\":\"{value}\"", if number == 0 { "" } else { "," });
        }
        let (kind, owner) = owner;
        _ = write!(
            text,
            r#"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"{kind}","name":"{owner}","uid":"{}","controller":true}}]}},"spec":{{"nodeName":"{node}","containers":[{{"name":"main","image":"registry.example.com/app:1","ports":[{{"name":"http","containerPort":8080}},{{"name":"metrics","containerPort":9090}}]}}]}},"status":{{"phase":"Running","podIP":"{v4}","podIPs":[{{"ip":"{v4}"}}"#,
            uid(at, 5),
            v4 = addresses.0
        );
        if let Some(v6) = addresses.1 {
            _ = write!(text, r#",{{"ip":"{v6}"}}"#);
        }
        text.push_str("]}}");
        text
    }
}

fn namespace_name(at: usize) -> String {
    format!("{}-{}", SECOND_WORDS[at % SECOND_WORDS.len()], letters(at, 4))
}

pub(super) fn node_name(at: usize) -> String {
    let [a, b] = u16::to_be_bytes(at as u16);
    format!("ip-172-16-{a}-{b}.eu-west-1.compute.internal")
}

fn workload_name(namespace: usize, workload: usize) -> String {
    let number = namespace * 3 + workload;
    let first = FIRST_WORDS[number % FIRST_WORDS.len()];
    format!("{first}-{}", SECOND_WORDS[(number / 20 + workload) % SECOND_WORDS.len()])
}

/// Letters as Kubernetes generates them, the same ones for the same number.
fn letters(number: usize, count: usize) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut state = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        char::from(ALPHABET[(mixed >> 33) as usize % ALPHABET.len()])
    };
    (0..count).map(|_| next()).collect()
}

fn uid(at: usize, kind: usize) -> String {
    format!("{at:08x}-0000-4000-{kind:04x}-{:012x}", at.wrapping_mul(0x9e37_79b9) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn objects_are_valid_and_pods_are_distinct() {
        let world = RealisticWorld { pods: 300, room: 300, dual_stack: true };
        let parse = |text: String| serde_json::from_str::<Value>(&text).expect("valid JSON");
        parse(world.namespace(0));
        parse(world.node(0));
        parse(world.policy(0));
        let mut names = BTreeSet::new();
        for at in 0..world.pods {
            let pod = parse(world.pod(at));
            let (metadata, labels) = (&pod["metadata"], &pod["metadata"]["labels"]);
            assert!((5..=10).contains(&labels.as_object().map_or(0, |all| all.len())), "{labels}");
            assert!(names.insert(format!("{}/{}", metadata["namespace"], metadata["name"])));
        }
    }
}
