//! The synthetic clusters of the benchmarks, generated object by object to save memory.

use std::{net::IpAddr, sync::Arc};

use weir_model::{
    Action, Change, Claim, Labels, Name, Namespace, Object, Peer, Pod, PodId, Policy, PolicyId,
    PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Requirement, Scope, Selector,
    Spec, Subject, Tier, Who,
};

/// The node under test.
pub(crate) const NODE: &str = "here";

/// The number of pods on the node under test, for every cluster size.
pub(crate) const LOCAL_PODS: usize = 100;

/// The shape of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterShape {
    /// Namespaces of 4 pods and 3 policies: a default deny and two that allow one app to reach another.
    Small(usize),
    /// Namespaces of 100 pods and 10 policies, each of which allows an app of ten namespaces: 100 peers.
    Cross(usize),
    /// One namespace in which every policy selects every pod.
    AllSelectAll(usize),
    /// One namespace with one policy for each pod.
    OnePolicyPerPod(usize),
}

impl std::fmt::Display for ClusterShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClusterShape::Small(n) => write!(f, "small-{n}"),
            ClusterShape::Cross(n) => write!(f, "cross-{n}"),
            ClusterShape::AllSelectAll(n) => write!(f, "all-select-all-{n}"),
            ClusterShape::OnePolicyPerPod(n) => write!(f, "one-policy-per-pod-{n}"),
        }
    }
}

impl std::str::FromStr for ClusterShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (shape, size) =
            text.rsplit_once('-').ok_or("expected a shape and a size, such as small-25000")?;
        let size = size.parse().map_err(|_| format!("`{size}` is not a number"))?;
        match shape {
            "small" => Ok(ClusterShape::Small(size)),
            "cross" => Ok(ClusterShape::Cross(size)),
            "all-select-all" => Ok(ClusterShape::AllSelectAll(size)),
            "one-policy-per-pod" => Ok(ClusterShape::OnePolicyPerPod(size)),
            other => Err(format!(
                "`{other}` is not a shape; expected small, cross, all-select-all or one-policy-per-pod"
            )),
        }
    }
}

impl ClusterShape {
    fn namespaces(self) -> usize {
        match self {
            ClusterShape::Small(n) | ClusterShape::Cross(n) => n,
            ClusterShape::AllSelectAll(_) | ClusterShape::OnePolicyPerPod(_) => 1,
        }
    }

    fn pods_per_namespace(self) -> usize {
        match self {
            ClusterShape::Small(_) => 4,
            ClusterShape::Cross(_) => 100,
            ClusterShape::AllSelectAll(n) | ClusterShape::OnePolicyPerPod(n) => n,
        }
    }

    fn policies_per_namespace(self) -> usize {
        match self {
            ClusterShape::Small(_) => 3,
            ClusterShape::Cross(_) => 10,
            ClusterShape::AllSelectAll(n) | ClusterShape::OnePolicyPerPod(n) => n,
        }
    }

    /// The number of pods.
    pub(crate) fn pods(self) -> usize {
        self.namespaces() * self.pods_per_namespace()
    }

    /// The number of policies.
    pub(crate) fn policies(self) -> usize {
        self.namespaces() * self.policies_per_namespace()
    }

    /// A pod that is a peer in the rules of the first local pod, which is the first pod of all.
    pub(crate) fn peer_of_first(self) -> usize {
        match self {
            ClusterShape::Small(_) | ClusterShape::Cross(_) => 2,
            ClusterShape::AllSelectAll(_) | ClusterShape::OnePolicyPerPod(_) => 1,
        }
    }

    /// A peer with a new selector, except in shapes where all policies have the same one.
    pub(crate) fn new_peer(self, round: usize) -> Who {
        let one_of = |key: &str, values: Vec<String>| {
            let values = values.into_iter().chain([format!("new-{round}")]).map(Name::from);
            Selector::from_iter([Requirement::In(key.into(), values.collect())])
        };
        match self {
            ClusterShape::Small(_) | ClusterShape::Cross(_) => {
                let companies =
                    one_of("company", (0..5).map(|company| format!("c{company}")).collect());
                Who::Pods {
                    scope: Scope::Matching(companies),
                    pods: one_of("app", vec!["app-0".to_owned()]),
                }
            }
            ClusterShape::AllSelectAll(_) => own(Selector::everything()),
            ClusterShape::OnePolicyPerPod(_) => {
                own(one_of("pod", (0..100).map(|pod| format!("p{pod}")).collect()))
            }
        }
    }

    /// Every object: namespaces, then pods, then policies.
    pub(crate) fn changes(self) -> impl Iterator<Item = Change> {
        let namespaces =
            (0..self.namespaces()).map(move |at| Object::Namespace(self.namespace(at)));
        let pods = (0..self.pods()).map(move |at| Object::Pod(self.pod(at)));
        let policies = (0..self.policies()).map(move |at| Object::Policy(self.policy(at)));
        namespaces.chain(pods).chain(policies).map(Change::Put)
    }

    /// A namespace by number.
    pub(crate) fn namespace(self, at: usize) -> Namespace {
        let name = namespace_name(at);
        let labels = [
            ("kubernetes.io/metadata.name", name.to_string()),
            ("company", format!("c{}", at / 10)),
        ];
        Namespace { labels: labels.into_iter().collect(), name, location: None }
    }

    /// A pod by number.
    pub(crate) fn pod(self, at: usize) -> Pod {
        let (namespace, index) = (at / self.pods_per_namespace(), at % self.pods_per_namespace());
        let labels: Labels = match self {
            ClusterShape::Small(_) => {
                [("app", format!("app-{}", index / 2)), ("tier", "backend".to_owned())]
                    .into_iter()
                    .collect()
            }
            ClusterShape::Cross(_) => {
                [("app", format!("app-{}", index / 10)), ("tier", "backend".to_owned())]
                    .into_iter()
                    .collect()
            }
            ClusterShape::AllSelectAll(_) => [("app", "web".to_owned())].into_iter().collect(),
            ClusterShape::OnePolicyPerPod(_) => {
                [("pod", format!("p{index}"))].into_iter().collect()
            }
        };
        // Each hundredth of the cluster has one local pod, at varying indexes of its namespace.
        let stride = (self.pods() / LOCAL_PODS).max(1);
        let here = at / stride < LOCAL_PODS && at % stride == (at / stride) % stride;
        let id = PodId::new(namespace_name(namespace), format!("pod-{index}"));
        let node = if here { NODE.into() } else { format!("node-{}", at % 1000) };
        pod(id, labels, address(at), Some(node.into()))
    }

    /// A policy by number.
    pub(crate) fn policy(self, at: usize) -> Policy {
        let (namespace, index) =
            (at / self.policies_per_namespace(), at % self.policies_per_namespace());
        let spec = match self {
            ClusterShape::Small(_) if index == 0 => spec(Selector::everything(), None, 0),
            ClusterShape::Small(_) => spec(app(index - 1), Some(own(app(2 - index))), 8080),
            ClusterShape::Cross(_) => {
                let company = Selector::from_iter([Requirement::equals(
                    "company",
                    format!("c{}", namespace / 10),
                )]);
                let peer = Who::Pods { scope: Scope::Matching(company), pods: app(index) };
                spec(app(index), Some(peer), 8080)
            }
            ClusterShape::AllSelectAll(_) => spec(
                Selector::everything(),
                Some(own(Selector::everything())),
                1 + (index % 60_000) as u16,
            ),
            ClusterShape::OnePolicyPerPod(n) => {
                spec(pod_label(index), Some(own(pod_label((index + 1) % n))), 8080)
            }
        };
        let id = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: namespace_name(namespace),
            name: format!("policy-{index}").into(),
        };
        Policy { id, location: None, spec: Arc::new(spec), staged: false }
    }
}

fn namespace_name(at: usize) -> Name {
    format!("namespace-{at}").into()
}

/// A running pod without named ports.
pub(crate) fn pod(id: PodId, labels: Labels, address: IpAddr, node: Option<Name>) -> Pod {
    Pod {
        id,
        labels,
        addresses: vec![address],
        node,
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }
}

/// The address of a pod by number.
pub(crate) fn address(at: usize) -> IpAddr {
    let [_, a, b, c] = u32::to_be_bytes(at as u32);
    IpAddr::from([10, a, b, c])
}

fn app(index: usize) -> Selector {
    Selector::from_iter([Requirement::equals("app", format!("app-{index}"))])
}

fn pod_label(index: usize) -> Selector {
    Selector::from_iter([Requirement::equals("pod", format!("p{index}"))])
}

fn own(pods: Selector) -> Who {
    Who::Pods { scope: Scope::Own, pods }
}

/// A NetworkPolicy that isolates in both directions and allows one peer on one port.
pub(crate) fn spec(pods: Selector, peer: Option<Who>, port: u16) -> Spec {
    let rules = || {
        let who = peer.clone()?;
        let ports = vec![PortSpec {
            line: 0,
            ports: PortMatch::Range(PortRange::one(Protocol::Tcp, port)),
        }];
        let peers = Some(vec![Peer { index: 0, line: 0, who }]);
        Some(PolicyRule {
            index: 0,
            name: None,
            line: 0,
            action: Action::Allow,
            peers,
            ports: Some(ports),
        })
    };
    let (ingress, egress) = (rules().into_iter().collect(), rules().into_iter().collect());
    Spec {
        tier: Tier::Namespace,
        subject: Subject { scope: Scope::Own, pods },
        ingress: Some(ingress),
        egress: Some(egress),
    }
}
