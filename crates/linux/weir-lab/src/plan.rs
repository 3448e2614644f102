//! A layout, checked and numbered: nothing is left to decide when it is built.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use weir_model::{Flow, Name};

use crate::{LabError, Layout, Wiring};

/// One of the namespaces of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spot {
    /// All that is not the cluster.
    Outside,
    /// The node with this index.
    Node(usize),
    /// The pod with this index.
    Pod(usize),
}

/// The namespaces to build.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<PlannedNode>,
    pub(crate) pods: Vec<PlannedPod>,
    pub(crate) wiring: Wiring,
    /// What pods of a bridge send to that is for someone else: an address that each bridge has.
    pub(crate) gateway: IpAddr,
    /// An address outside that nobody asked for, to see how quick the machine is.
    pub(crate) spare: IpAddr,
    owners: BTreeMap<IpAddr, Spot>,
}

/// A node; its host network pods are part of it.
#[derive(Debug)]
pub(crate) struct PlannedNode {
    pub(crate) name: Name,
    pub(crate) addresses: Vec<IpAddr>,
}

/// A pod with a network of its own.
#[derive(Debug)]
pub(crate) struct PlannedPod {
    pub(crate) node: usize,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Plan {
    pub(crate) fn new(layout: &Layout) -> Result<Plan, LabError> {
        let mut claims = Claims::default();
        let mut nodes = Vec::with_capacity(layout.nodes.len());
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, node) in layout.nodes.iter().enumerate() {
            if index.insert(&node.name, number).is_some() {
                return Err(LabError::TwoNodes(node.name.clone()));
            }
            claims.add(&node.addresses, Spot::Node(number), || format!("node {}", node.name))?;
            nodes.push(PlannedNode { name: node.name.clone(), addresses: node.addresses.clone() });
        }
        let mut pods = Vec::with_capacity(layout.pods.len());
        for pod in &layout.pods {
            let &node =
                index.get(&*pod.node).ok_or_else(|| LabError::NoNode(pod.node.to_string()))?;
            let spot = if pod.host_network { Spot::Node(node) } else { Spot::Pod(pods.len()) };
            claims.add(&pod.addresses, spot, || format!("pod {}", pod.id))?;
            if pod.host_network {
                nodes[node].addresses.extend(&pod.addresses);
            } else {
                pods.push(PlannedPod { node, addresses: pod.addresses.clone() });
            }
        }
        let outside: BTreeSet<IpAddr> = layout.outside.iter().copied().collect();
        let mut free = made_up().filter(|address| !outside.contains(address));
        for (number, node) in nodes.iter_mut().enumerate().filter(|(_, n)| n.addresses.is_empty()) {
            let unclaimed = |address: &IpAddr| !claims.owners.contains_key(address);
            node.addresses.extend(free.by_ref().filter(unclaimed).take(2));
            node.addresses.iter().for_each(|address| {
                claims.owners.insert(*address, Spot::Node(number));
            });
        }
        for node in &mut nodes {
            node.addresses.sort();
            node.addresses.dedup();
        }
        let owners = claims.owners;
        let mut free = free.filter(|address| address.is_ipv4() && !owners.contains_key(address));
        // There are always two; and if not, somebody's address reaches itself just as well.
        let mut next = || free.next().unwrap_or(Ipv4Addr::new(198, 18, 0, 1).into());
        let (spare, gateway) = (next(), next());
        Ok(Plan { nodes, pods, wiring: layout.wiring, gateway, spare, owners })
    }

    /// Where an address is: all that are nobody's are outside.
    pub(crate) fn spot(&self, address: IpAddr) -> Spot {
        self.owners.get(&address).copied().unwrap_or(Spot::Outside)
    }

    /// Gives addresses to one more pod. Returns those that were nobody's before; an address stays on the node it is on.
    pub(crate) fn adopt(
        &mut self,
        node: usize,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, LabError> {
        let pod = self.pods.len();
        let who = |spot: Spot| match spot {
            Spot::Outside => "the outside".to_owned(),
            Spot::Node(node) => format!("node {}", self.nodes[node].name),
            Spot::Pod(pod) => format!("a pod of node {}", self.nodes[self.pods[pod].node].name),
        };
        let mut new = Vec::new();
        for &address in addresses {
            if let Some(why) = special(address) {
                return Err(LabError::Unusable { address, owner: "a pod".into(), why });
            }
            match self.spot(address) {
                Spot::Outside => new.push(address),
                Spot::Pod(other) if self.pods[other].node == node => (),
                spot => {
                    let second = format!("a pod of node {}", self.nodes[node].name);
                    return Err(LabError::Taken { address, first: who(spot), second });
                }
            }
        }
        self.owners.extend(addresses.iter().map(|address| (*address, Spot::Pod(pod))));
        self.pods.push(PlannedPod { node, addresses: addresses.to_vec() });
        Ok(new)
    }

    /// The number of a node.
    pub(crate) fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| &*node.name == name)
    }
}

/// Whether packets can be sent for a flow at all.
pub(crate) fn check(flow: &Flow) -> Result<(), LabError> {
    let no_port = (flow.port == 0).then_some("nobody can listen on port 0");
    match obstacle(flow.from, flow.to).or(no_port) {
        Some(why) => Err(LabError::Impossible { flow: *flow, why }),
        None => Ok(()),
    }
}

/// What keeps packets from going from the one address to the other.
pub(crate) fn obstacle(from: IpAddr, to: IpAddr) -> Option<&'static str> {
    if from.is_ipv4() != to.is_ipv4() {
        return Some("its ends are of different address families");
    }
    special(from).or(special(to))
}

/// Addresses that were given out, and to whom.
#[derive(Default)]
struct Claims {
    owners: BTreeMap<IpAddr, Spot>,
    words: BTreeMap<IpAddr, String>,
}

impl Claims {
    fn add(
        &mut self,
        addresses: &[IpAddr],
        spot: Spot,
        who: impl Fn() -> String,
    ) -> Result<(), LabError> {
        for &address in addresses {
            if let Some(why) = special(address) {
                return Err(LabError::Unusable { address, owner: who(), why });
            }
            match self.owners.insert(address, spot) {
                Some(other) if other != spot => {
                    let first = self.words.remove(&address).unwrap_or_default();
                    return Err(LabError::Taken { address, first, second: who() });
                }
                _ => drop(self.words.insert(address, who())),
            }
        }
        Ok(())
    }
}

/// What keeps an address from being somebody's in a routed network.
fn special(address: IpAddr) -> Option<&'static str> {
    let link_local = |address: Ipv6Addr| address.segments()[0] & 0xffc0 == 0xfe80;
    match address {
        _ if address.is_unspecified() => Some("it is the unspecified address"),
        _ if address.is_loopback() => Some("loopback addresses never leave a machine"),
        _ if address.is_multicast() => Some("it is a multicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("it is the broadcast address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Some("it is an IPv4 address in disguise")
        }
        IpAddr::V6(v6) if link_local(v6) => Some("link-local addresses are not routed"),
        _ => None,
    }
}

/// Addresses for whoever has none, IPv4 and IPv6 in turn: of the block for benchmarks, and of a private one.
fn made_up() -> impl Iterator<Item = IpAddr> {
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
        Plan::new(&Layout { nodes, pods, ..Layout::default() }).unwrap_err().to_string()
    }

    #[test]
    fn made_up_addresses_are_nobody_elses() {
        let layout = Layout {
            nodes: vec![node("n1", &[]), node("n2", &["198.18.0.2"])],
            pods: vec![
                pod("a", "n1", &["198.18.0.1", "fd77:6569:7200::1"]),
                LabPod { host_network: true, ..pod("h", "n2", &["198.18.0.2", "fd00::2"]) },
            ],
            outside: parse(&["fd77:6569:7200::2"]),
            wiring: Wiring::Bridged,
        };
        let plan = Plan::new(&layout).unwrap();
        assert_eq!(plan.nodes[0].addresses, parse(&["198.18.0.3", "fd77:6569:7200::3"]));
        assert_eq!(plan.nodes[1].addresses, parse(&["198.18.0.2", "fd00::2"]));
        assert_eq!(plan.spot("198.18.0.3".parse().unwrap()), Spot::Node(0));
        assert_eq!(plan.spot("198.18.0.1".parse().unwrap()), Spot::Pod(0));
        assert_eq!(plan.spot("8.8.8.8".parse().unwrap()), Spot::Outside);
        assert_eq!(plan.spot(plan.spare), Spot::Outside);
        assert_eq!(plan.spot(plan.gateway), Spot::Outside);
        assert_ne!(plan.spare, plan.gateway);
    }

    #[test]
    fn what_cannot_be_built_is_refused() {
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
    fn what_cannot_be_sent_is_refused() {
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
        assert!(refusal("::ffff:10.0.0.1", "fd00::1", 80).unwrap().contains("disguise"));
    }
}
