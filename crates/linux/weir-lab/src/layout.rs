use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Flow, Name, Pod, PodId, World};

/// Who is where: what a lab is built from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The nodes, each with a name of its own.
    pub nodes: Vec<LabNode>,
    /// The pods.
    pub pods: Vec<LabPod>,
    /// Addresses beyond the cluster that will be probed. All that nobody else has are there anyway; these are kept free
    /// when addresses are made up.
    pub outside: Vec<IpAddr>,
    /// How pods are joined to their nodes.
    pub wiring: Wiring,
}

/// How the pods of a node are joined to it, and so to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wiring {
    /// Each by a link of its own. The node passes on every packet between them.
    #[default]
    Routed,
    /// All by a bridge, which shows what it switches to the filters of the node: `net.bridge.bridge-nf-call-iptables` and
    /// `net.bridge.bridge-nf-call-ip6tables` are on.
    Bridged,
    /// All by a bridge, with these two settings off: the filters of the node never see what goes from one of its pods to another.
    BridgedUnseen,
}

/// A node of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabNode {
    /// Its name.
    pub name: Name,
    /// Its addresses. If there are none, the lab makes some up.
    pub addresses: Vec<IpAddr>,
}

/// A pod of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabPod {
    /// Which pod.
    pub id: PodId,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The node it runs on.
    pub node: Name,
    /// It lives in the node's namespace, and its addresses are the node's.
    pub host_network: bool,
}

/// Where pods run that nobody gave a node. No real node has such a name.
const NOWHERE: &str = "(no node)";
/// The same for host network pods: on a node apart, for a pod's own node is never judged.
const NOWHERE_HOST: &str = "(no host)";

impl Layout {
    /// The layout of a world in which these flows will be tried.
    ///
    /// Nodes that pods merely mention exist. Pods that have finished do not, and of several that claim an address, the one
    /// that owns it has it: the youngest pod, before a node that declares it, before a host network pod elsewhere.
    pub fn of(world: &World, flows: &[Flow]) -> Layout {
        let mut nodes: BTreeMap<Name, Vec<IpAddr>> =
            world.nodes.values().map(|node| (node.name.clone(), node.addresses.clone())).collect();
        let mut pods: Vec<&Pod> = world.pods.values().filter(|pod| !pod.finished).collect();
        pods.sort_by_key(|pod| std::cmp::Reverse((pod.born, &pod.id)));
        for pod in &pods {
            nodes.entry(home(pod)).or_default();
        }

        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        let mut claim = |addresses: &[IpAddr]| -> Vec<IpAddr> {
            addresses.iter().copied().filter(|address| taken.insert(*address)).collect()
        };
        let mut settled: Vec<LabPod> = Vec::with_capacity(pods.len());
        for pod in pods.iter().filter(|pod| !pod.host_network) {
            settled.push(lab_pod(pod, claim(&pod.addresses)));
        }
        let nodes: Vec<LabNode> = nodes
            .into_iter()
            .map(|(name, addresses)| LabNode { name, addresses: claim(&addresses) })
            .collect();
        for pod in pods.iter().filter(|pod| pod.host_network) {
            settled.push(lab_pod(pod, claim(&pod.addresses)));
        }
        settled.sort_by(|a, b| a.id.cmp(&b.id));

        let ends: BTreeSet<IpAddr> = flows.iter().flat_map(|flow| [flow.from, flow.to]).collect();
        let outside = ends.difference(&taken).copied().collect();
        Layout { nodes, pods: settled, outside, wiring: Wiring::default() }
    }
}

/// Gives every pod of a world that has no node the one that [`Layout::of`] puts it on, so that an agent there takes care of it.
pub fn settle(world: &mut World) {
    world.pods.values_mut().for_each(|pod| pod.node = Some(home(pod)));
}

fn home(pod: &Pod) -> Name {
    let nowhere = if pod.host_network { NOWHERE_HOST } else { NOWHERE };
    pod.node.clone().unwrap_or_else(|| nowhere.into())
}

fn lab_pod(pod: &Pod, addresses: Vec<IpAddr>) -> LabPod {
    LabPod { id: pod.id.clone(), addresses, node: home(pod), host_network: pod.host_network }
}

#[cfg(test)]
mod tests {
    use weir_model::{Node, Object, Protocol};

    use super::*;

    fn pod(name: &str, address: &str, node: Option<&str>, born: u64) -> Pod {
        Pod {
            id: PodId::new("shop", name),
            labels: Default::default(),
            addresses: vec![address.parse().unwrap()],
            node: node.map(Into::into),
            ports: Vec::new(),
            host_network: false,
            finished: false,
            born,
            uid: None,
            location: None,
        }
    }

    #[test]
    fn everyone_has_a_place_and_every_address_one_owner() {
        let declared = Node {
            name: "n1".into(),
            labels: Default::default(),
            addresses: vec!["192.168.0.1".parse().unwrap()],
            location: None,
        };
        let mut world: World = [
            Object::Node(declared),
            Object::Pod(pod("old", "10.0.0.1", Some("n1"), 1)),
            Object::Pod(pod("young", "10.0.0.1", Some("n2"), 2)),
            Object::Pod(Pod { finished: true, ..pod("gone", "10.0.0.3", None, 9) }),
            Object::Pod(Pod { host_network: true, ..pod("host", "192.168.0.1", Some("n1"), 0) }),
            Object::Pod(Pod { host_network: true, ..pod("lost", "192.168.0.9", None, 0) }),
            Object::Pod(pod("free", "10.0.0.4", None, 0)),
        ]
        .into_iter()
        .collect();
        let flow = Flow {
            from: "203.0.113.7".parse().unwrap(),
            to: "10.0.0.1".parse().unwrap(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let layout = Layout::of(&world, &[flow]);
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
                "old [] n1",
                "young [10.0.0.1] n2",
            ]
        );
        assert_eq!(layout.outside, ["203.0.113.7".parse::<IpAddr>().unwrap()]);

        settle(&mut world);
        assert_eq!(Layout::of(&world, &[flow]), layout);
    }
}
