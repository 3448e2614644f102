use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Flow, Name, Pod, PodId, World};

/// The nodes and pods of a lab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The nodes. Names are unique.
    pub nodes: Vec<LabNode>,
    /// The pods.
    pub pods: Vec<LabPod>,
    /// Addresses outside the cluster that will be probed. The lab does not use them when it
    /// generates addresses. All addresses without an owner are outside anyway.
    pub outside: Vec<IpAddr>,
    /// The links between pods and their nodes.
    pub wiring: Wiring,
}

/// The links between the pods of a node, and between them and the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wiring {
    /// Each pod has a separate link. The node forwards every packet between pods.
    #[default]
    Routed,
    /// All pods are on a bridge that passes its packets to the node's firewall:
    /// `net.bridge.bridge-nf-call-iptables` and `net.bridge.bridge-nf-call-ip6tables` are on.
    Bridged,
    /// All pods are on a bridge, with these two settings off. The node's firewall never sees
    /// packets between its pods.
    BridgedUnseen,
}

/// A node of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabNode {
    /// The name.
    pub name: Name,
    /// The addresses. If empty, the lab generates some.
    pub addresses: Vec<IpAddr>,
}

/// A pod of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabPod {
    /// The id of the pod.
    pub id: PodId,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The node that it runs on.
    pub node: Name,
    /// Whether it shares the namespace and the addresses of the node.
    pub host_network: bool,
}

/// The node of pods without one. No real node has such a name.
const NO_NODE: &str = "(no node)";
/// The node of host-network pods without one. It is separate, because policies never apply between
/// a pod and its node.
const NO_HOST: &str = "(no host)";

impl Layout {
    /// The layout of a world, for probing these flows.
    ///
    /// Nodes that only pods mention exist. Finished pods do not. If several claim an address, the
    /// owner gets it: a pod with the strongest claim, then a node that declares it, then a host-network pod of
    /// another node.
    pub fn from_world(world: &World, flows: &[Flow]) -> Layout {
        let mut nodes: BTreeMap<Name, Vec<IpAddr>> =
            world.nodes.values().map(|node| (node.name.clone(), node.addresses.clone())).collect();
        let mut pods: Vec<&Pod> = world.pods.values().filter(|pod| !pod.finished).collect();
        pods.sort_by_key(|pod| std::cmp::Reverse((pod.claim, &pod.id)));
        for pod in &pods {
            nodes.entry(node_of(pod)).or_default();
        }

        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        let mut claim = |addresses: &[IpAddr]| -> Vec<IpAddr> {
            addresses.iter().copied().filter(|address| taken.insert(*address)).collect()
        };
        let mut lab_pods: Vec<LabPod> = Vec::with_capacity(pods.len());
        for pod in pods.iter().filter(|pod| !pod.host_network) {
            lab_pods.push(lab_pod(pod, claim(&pod.addresses)));
        }
        let nodes: Vec<LabNode> = nodes
            .into_iter()
            .map(|(name, addresses)| LabNode { name, addresses: claim(&addresses) })
            .collect();
        for pod in pods.iter().filter(|pod| pod.host_network) {
            lab_pods.push(lab_pod(pod, claim(&pod.addresses)));
        }
        lab_pods.sort_by(|a, b| a.id.cmp(&b.id));

        let ends: BTreeSet<IpAddr> = flows.iter().flat_map(|flow| [flow.from, flow.to]).collect();
        let outside = ends.difference(&taken).copied().collect();
        Layout { nodes, pods: lab_pods, outside, wiring: Wiring::default() }
    }
}

/// Assigns the node of [`Layout::from_world`] to every pod without one, so that an agent handles
/// it.
pub fn assign_nodes(world: &mut World) {
    world.pods.values_mut().for_each(|pod| pod.node = Some(node_of(pod)));
}

fn node_of(pod: &Pod) -> Name {
    let fallback = if pod.host_network { NO_HOST } else { NO_NODE };
    pod.node.clone().unwrap_or_else(|| fallback.into())
}

fn lab_pod(pod: &Pod, addresses: Vec<IpAddr>) -> LabPod {
    LabPod { id: pod.id.clone(), addresses, node: node_of(pod), host_network: pod.host_network }
}

#[cfg(test)]
mod tests {
    use weir_model::{Claim, Node, Object, Protocol};

    use super::*;

    fn pod(name: &str, address: &str, node: Option<&str>, claim: Claim) -> Pod {
        Pod {
            id: PodId::new("shop", name),
            labels: Default::default(),
            addresses: vec![address.parse().unwrap()],
            node: node.map(Into::into),
            ports: Vec::new(),
            host_network: false,
            finished: false,
            claim,
            uid: None,
            owner: None,
            location: None,
        }
    }

    #[test]
    fn every_pod_has_a_node_and_every_address_one_owner() {
        let declared = Node {
            name: "n1".into(),
            labels: Default::default(),
            addresses: vec!["192.168.0.1".parse().unwrap()],
            location: None,
        };
        let mut world: World = [
            Object::Node(declared),
            Object::Pod(pod("old", "10.0.0.1", Some("n1"), Claim::Terminating)),
            Object::Pod(pod("new", "10.0.0.1", Some("n2"), Claim::Running)),
            Object::Pod(Pod { finished: true, ..pod("gone", "10.0.0.3", None, Claim::Running) }),
            Object::Pod(Pod {
                host_network: true,
                ..pod("host", "192.168.0.1", Some("n1"), Claim::Running)
            }),
            Object::Pod(Pod {
                host_network: true,
                ..pod("lost", "192.168.0.9", None, Claim::Running)
            }),
            Object::Pod(pod("free", "10.0.0.4", None, Claim::Running)),
        ]
        .into_iter()
        .collect();
        let flow = Flow {
            from: "203.0.113.7".parse().unwrap(),
            to: "10.0.0.1".parse().unwrap(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let layout = Layout::from_world(&world, &[flow]);
        let nodes: Vec<&str> = layout.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(nodes, ["(no host)", "(no node)", "n1", "n2"]);
        let pods: Vec<String> = layout
            .pods
            .iter()
            .map(|pod| format!("{} {:?} {}", pod.id.name, pod.addresses, pod.node))
            .collect();
        assert_eq!(
            pods,
            [
                "free [10.0.0.4] (no node)",
                "host [] n1",
                "lost [192.168.0.9] (no host)",
                "new [10.0.0.1] n2",
                "old [] n1",
            ]
        );
        assert_eq!(layout.outside, ["203.0.113.7".parse::<IpAddr>().unwrap()]);

        assign_nodes(&mut world);
        assert_eq!(Layout::from_world(&world, &[flow]), layout);
    }
}
