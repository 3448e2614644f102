//! A checked and numbered layout. It leaves nothing to decide when the lab is built.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use weir_model::{Flow, Name};

use crate::{LabError, Layout, Wiring};

/// One of the namespaces of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LabNamespace {
    /// Everything outside the cluster.
    Outside,
    /// The node with this index.
    Node(usize),
    /// The pod with this index.
    Pod(usize),
}

/// The namespaces to build.
#[derive(Debug)]
pub(crate) struct LabPlan {
    pub(crate) nodes: Vec<PlannedNode>,
    pub(crate) pods: Vec<PlannedPod>,
    pub(crate) wiring: Wiring,
    /// The gateway address of each bridge, for packets that leave the bridge.
    pub(crate) gateway: IpAddr,
    /// An unused address outside, for measuring the speed of the machine.
    pub(crate) spare: IpAddr,
    owners: BTreeMap<IpAddr, LabNamespace>,
}

/// A node. Its host-network pods are part of it.
#[derive(Debug)]
pub(crate) struct PlannedNode {
    pub(crate) name: Name,
    pub(crate) addresses: Vec<IpAddr>,
}

/// A pod with a separate network namespace.
#[derive(Debug)]
pub(crate) struct PlannedPod {
    pub(crate) node: usize,
    pub(crate) addresses: Vec<IpAddr>,
}

impl LabPlan {
    pub(crate) fn new(layout: &Layout) -> Result<LabPlan, LabError> {
        let mut claims = Claims::default();
        let mut nodes = Vec::with_capacity(layout.nodes.len());
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, node) in layout.nodes.iter().enumerate() {
            if index.insert(&node.name, number).is_some() {
                return Err(LabError::TwoNodes(node.name.clone()));
            }
            claims.add(&node.addresses, LabNamespace::Node(number), || {
                format!("node {}", node.name)
            })?;
            nodes.push(PlannedNode { name: node.name.clone(), addresses: node.addresses.clone() });
        }
        let mut pods = Vec::with_capacity(layout.pods.len());
        for pod in &layout.pods {
            let &node =
                index.get(&*pod.node).ok_or_else(|| LabError::NoNode(pod.node.to_string()))?;
            let namespace = if pod.host_network {
                LabNamespace::Node(node)
            } else {
                LabNamespace::Pod(pods.len())
            };
            claims.add(&pod.addresses, namespace, || format!("pod {}", pod.id))?;
            if pod.host_network {
                nodes[node].addresses.extend(&pod.addresses);
            } else {
                pods.push(PlannedPod { node, addresses: pod.addresses.clone() });
            }
        }
        let outside: BTreeSet<IpAddr> = layout.outside.iter().copied().collect();
        let mut free = synthetic_addresses().filter(|address| !outside.contains(address));
        for (number, node) in nodes.iter_mut().enumerate().filter(|(_, n)| n.addresses.is_empty()) {
            let unclaimed = |address: &IpAddr| !claims.owners.contains_key(address);
            node.addresses.extend(free.by_ref().filter(unclaimed).take(2));
            node.addresses.iter().for_each(|address| {
                claims.owners.insert(*address, LabNamespace::Node(number));
            });
        }
        for node in &mut nodes {
            node.addresses.sort();
            node.addresses.dedup();
        }
        let owners = claims.owners;
        let mut free = free.filter(|address| address.is_ipv4() && !owners.contains_key(address));
        // The generator has more than two free addresses. The fallback would still reach itself.
        let mut next = || free.next().unwrap_or(Ipv4Addr::new(198, 18, 0, 1).into());
        let (spare, gateway) = (next(), next());
        Ok(LabPlan { nodes, pods, wiring: layout.wiring, gateway, spare, owners })
    }

    /// The namespace of an address. Addresses without an owner are outside.
    pub(crate) fn namespace_of(&self, address: IpAddr) -> LabNamespace {
        self.owners.get(&address).copied().unwrap_or(LabNamespace::Outside)
    }

    /// Adds a pod with these addresses, and returns the ones without a previous owner. An address
    /// cannot move to another node.
    pub(crate) fn adopt(
        &mut self,
        node: usize,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, LabError> {
        let pod = self.pods.len();
        let who = |namespace: LabNamespace| match namespace {
            LabNamespace::Outside => "the outside".to_owned(),
            LabNamespace::Node(node) => format!("node {}", self.nodes[node].name),
            LabNamespace::Pod(pod) => {
                format!("a pod of node {}", self.nodes[self.pods[pod].node].name)
            }
        };
        let mut new = Vec::new();
        for &address in addresses {
            if let Some(why) = special(address) {
                return Err(LabError::Unusable { address, owner: "a pod".into(), why });
            }
            match self.namespace_of(address) {
                LabNamespace::Outside => new.push(address),
                LabNamespace::Pod(other) if self.pods[other].node == node => (),
                namespace => {
                    let second = format!("a pod of node {}", self.nodes[node].name);
                    return Err(LabError::Taken { address, first: who(namespace), second });
                }
            }
        }
        self.owners.extend(addresses.iter().map(|address| (*address, LabNamespace::Pod(pod))));
        self.pods.push(PlannedPod { node, addresses: addresses.to_vec() });
        Ok(new)
    }

    /// The index of a node.
    pub(crate) fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| &*node.name == name)
    }
}

/// Checks that packets can be sent for a flow.
pub(crate) fn check(flow: &Flow) -> Result<(), LabError> {
    let no_port = (flow.port == 0).then_some("port 0 cannot be listened on");
    match obstacle(flow.from, flow.to).or(no_port) {
        Some(why) => Err(LabError::Impossible { flow: *flow, why }),
        None => Ok(()),
    }
}

/// The reason why packets cannot go from one address to the other.
pub(crate) fn obstacle(from: IpAddr, to: IpAddr) -> Option<&'static str> {
    if from.is_ipv4() != to.is_ipv4() {
        return Some("its ends are of different address families");
    }
    special(from).or(special(to))
}

/// The assigned addresses and their owners.
#[derive(Default)]
struct Claims {
    owners: BTreeMap<IpAddr, LabNamespace>,
    descriptions: BTreeMap<IpAddr, String>,
}

impl Claims {
    fn add(
        &mut self,
        addresses: &[IpAddr],
        namespace: LabNamespace,
        who: impl Fn() -> String,
    ) -> Result<(), LabError> {
        for &address in addresses {
            if let Some(why) = special(address) {
                return Err(LabError::Unusable { address, owner: who(), why });
            }
            match self.owners.insert(address, namespace) {
                Some(other) if other != namespace => {
                    let first = self.descriptions.remove(&address).unwrap_or_default();
                    return Err(LabError::Taken { address, first, second: who() });
                }
                _ => {
                    self.descriptions.insert(address, who());
                }
            }
        }
        Ok(())
    }
}

/// The reason why an address cannot have an owner in a routed network.
fn special(address: IpAddr) -> Option<&'static str> {
    let link_local = |address: Ipv6Addr| address.segments()[0] & 0xffc0 == 0xfe80;
    match address {
        _ if address.is_unspecified() => Some("it is the unspecified address"),
        _ if address.is_loopback() => Some("loopback addresses never leave a machine"),
        _ if address.is_multicast() => Some("it is a multicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("it is the broadcast address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("it is an IPv4-mapped address"),
        IpAddr::V6(v6) if link_local(v6) => Some("link-local addresses are not routed"),
        _ => None,
    }
}

/// Synthetic addresses, alternating IPv4 from the benchmark block and IPv6 from a private block.
fn synthetic_addresses() -> impl Iterator<Item = IpAddr> {
    let v4 = |low: u16| IpAddr::from([198, 18, (low >> 8) as u8, low as u8]);
    let v6 = |low: u16| IpAddr::from([0xfd77, 0x6569, 0x7200, 0, 0, 0, 0, low]);
    (1..u16::MAX).flat_map(move |low| [v4(low), v6(low)])
}

#[cfg(test)]
mod tests {
    use weir_model::{PodId, Protocol};

    use super::*;
    use crate::{LabNode, LabPod};

    fn node(name: &str, addresses: &[&str]) -> LabNode {
        LabNode { name: name.into(), addresses: parse(addresses) }
    }

    fn pod(name: &str, node: &str, addresses: &[&str]) -> LabPod {
        LabPod {
            id: PodId::new("shop", name),
            addresses: parse(addresses),
            node: node.into(),
            host_network: false,
        }
    }

    fn parse(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn refusal(nodes: Vec<LabNode>, pods: Vec<LabPod>) -> String {
        LabPlan::new(&Layout { nodes, pods, ..Layout::default() }).unwrap_err().to_string()
    }

    #[test]
    fn generated_addresses_are_unique() {
        let layout = Layout {
            nodes: vec![node("n1", &[]), node("n2", &["198.18.0.2"])],
            pods: vec![
                pod("a", "n1", &["198.18.0.1", "fd77:6569:7200::1"]),
                LabPod { host_network: true, ..pod("h", "n2", &["198.18.0.2", "fd00::2"]) },
            ],
            outside: parse(&["fd77:6569:7200::2"]),
            wiring: Wiring::Bridged,
        };
        let plan = LabPlan::new(&layout).unwrap();
        assert_eq!(plan.nodes[0].addresses, parse(&["198.18.0.3", "fd77:6569:7200::3"]));
        assert_eq!(plan.nodes[1].addresses, parse(&["198.18.0.2", "fd00::2"]));
        assert_eq!(plan.namespace_of("198.18.0.3".parse().unwrap()), LabNamespace::Node(0));
        assert_eq!(plan.namespace_of("198.18.0.1".parse().unwrap()), LabNamespace::Pod(0));
        assert_eq!(plan.namespace_of("8.8.8.8".parse().unwrap()), LabNamespace::Outside);
        assert_eq!(plan.namespace_of(plan.spare), LabNamespace::Outside);
        assert_eq!(plan.namespace_of(plan.gateway), LabNamespace::Outside);
        assert_ne!(plan.spare, plan.gateway);
    }

    #[test]
    fn an_invalid_layout_is_rejected() {
        let n1 = || vec![node("n1", &["192.168.0.1"])];
        assert_eq!(
            refusal(n1(), vec![pod("a", "n1", &["10.0.0.1"]), pod("b", "n1", &["10.0.0.1"])]),
            "10.0.0.1 belongs to pod shop/a and to pod shop/b"
        );
        assert_eq!(
            refusal(n1(), vec![pod("a", "n1", &["192.168.0.1"])]),
            "192.168.0.1 belongs to node n1 and to pod shop/a"
        );
        assert_eq!(refusal(n1(), vec![pod("a", "n2", &[])]), "the lab has no node `n2`");
        assert_eq!(refusal([n1(), n1()].concat(), vec![]), "two nodes are called `n1`");
        assert_eq!(
            refusal(n1(), vec![pod("a", "n1", &["127.0.0.1"])]),
            "127.0.0.1 cannot be the address of pod shop/a: loopback addresses never leave a machine"
        );
    }

    #[test]
    fn an_impossible_flow_is_rejected() {
        let refusal = |from: &str, to: &str, port| {
            let flow = Flow {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                protocol: Protocol::Tcp,
                port,
            };
            check(&flow).err().map(|error| error.to_string())
        };
        assert_eq!(refusal("10.0.0.1", "10.0.0.2", 80), None);
        assert!(refusal("10.0.0.1", "fd00::1", 80).unwrap().contains("different address families"));
        assert!(refusal("10.0.0.1", "10.0.0.2", 0).unwrap().contains("port 0"));
        assert!(refusal("10.0.0.1", "224.0.0.1", 80).unwrap().contains("multicast"));
        assert!(refusal("fe80::1", "fd00::1", 80).unwrap().contains("not routed"));
        assert!(refusal("::ffff:10.0.0.1", "fd00::1", 80).unwrap().contains("IPv4-mapped"));
    }
}
