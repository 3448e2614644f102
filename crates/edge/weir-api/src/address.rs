use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net};
use weir_model::{IpFamily, Name, Node, Pod, PodId, World};

/// The network of synthetic addresses, unless the user gives the networks of the pods.
const DEFAULT: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 9));

/// The networks of synthetic addresses. A pod gets an address of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetworks(Vec<IpNet>);

impl Default for PodNetworks {
    fn default() -> Self {
        PodNetworks(vec![DEFAULT])
    }
}

impl PodNetworks {
    /// These networks. `None` unless there is one, or one of each family.
    pub fn new(networks: &[IpNet]) -> Option<Self> {
        match networks {
            [_] => Some(PodNetworks(networks.to_vec())),
            [one, two] if IpFamily::from(one.addr()) != IpFamily::from(two.addr()) => {
                Some(PodNetworks(networks.to_vec()))
            }
            _ => None,
        }
    }

    /// Replaces the synthetic addresses of a world by addresses of these networks, and returns
    /// these. Fails with the first network that has too few addresses.
    pub fn readdress(
        &self,
        world: &mut World,
        synthetic: &BTreeSet<IpAddr>,
    ) -> Result<BTreeSet<IpAddr>, IpNet> {
        let nodes = world.nodes.values().flat_map(|node| &node.addresses);
        let mut taken: BTreeSet<IpAddr> = nodes.copied().collect();
        let mut pods = Vec::new();
        for pod in world.pods.values_mut() {
            if pod.addresses.iter().any(|address| synthetic.contains(address)) {
                pods.push(pod);
            } else {
                taken.extend(&pod.addresses);
            }
        }
        let mut assigned = BTreeSet::new();
        for pod in pods {
            pod.addresses = self.take(&pod.id, &mut taken)?;
            assigned.extend(&pod.addresses);
        }
        Ok(assigned)
    }

    /// A free address of each network for a pod. Fails with the first network that has none.
    fn take(&self, pod: &PodId, taken: &mut BTreeSet<IpAddr>) -> Result<Vec<IpAddr>, IpNet> {
        let mut free = |network: &IpNet| {
            candidates(pod, *network).find(|address| taken.insert(*address)).ok_or(*network)
        };
        self.0.iter().map(&mut free).collect()
    }
}

/// Assigns addresses to pods: those of their node to host-network pods, synthetic ones to the
/// others.
///
/// A synthetic address follows from the pod's name alone, unless it is taken. Then the pod gets the
/// next free one, in the order of ids. Returns the synthetic addresses.
pub(crate) fn assign<'p>(
    pods: impl IntoIterator<Item = &'p mut Pod>,
    node: impl Fn(&Name) -> Option<Node>,
    taken: &mut BTreeSet<IpAddr>,
) -> BTreeSet<IpAddr> {
    let networks = PodNetworks::default();
    let mut pods: Vec<&mut Pod> = pods.into_iter().collect();
    pods.sort_by(|a, b| a.id.cmp(&b.id));
    let mut synthetic = BTreeSet::new();
    for pod in pods {
        if pod.host_network
            && let Some(node) = pod.node.as_ref().and_then(&node)
            && !node.addresses.is_empty()
        {
            pod.addresses = node.addresses;
            continue;
        }
        pod.addresses = networks.take(&pod.id, taken).unwrap_or_default();
        synthetic.extend(&pod.addresses);
    }
    synthetic
}

/// All synthetic addresses of a network, beginning with the pod's own.
fn candidates(pod: &PodId, network: IpNet) -> impl Iterator<Item = IpAddr> {
    let bits = u32::from(network.max_prefix_len() - network.prefix_len());
    let count = 1_u64 << bits.min(32);
    let start = u64::from(hash(pod)) % count;
    let at = move |offset: u64| -> IpAddr {
        match network.network() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + offset as u32).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(offset)).into(),
        }
    };
    let is_usable = move |address: &IpAddr| match address {
        IpAddr::V4(v4) if bits >= 8 => !matches!(v4.octets()[3], 0 | 0xff),
        _ => bits < 2 || (*address != network.network() && *address != network.broadcast()),
    };
    (0..count).map(move |step| at((start + step) % count)).filter(is_usable)
}

/// FNV-1a, folded to 32 bits: the same on every machine and in every version.
fn hash(pod: &PodId) -> u32 {
    let bytes = pod.namespace.bytes().chain([b'/']).chain(pod.name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash >> 32) ^ (hash & 0xffff_ffff)) as u32
}

#[cfg(test)]
mod tests {
    use weir_model::Claim;

    use super::*;

    fn pod(name: &str) -> Pod {
        Pod {
            id: PodId::new("shop", name),
            labels: Default::default(),
            addresses: Vec::new(),
            node: None,
            ports: Vec::new(),
            host_network: false,
            finished: false,
            claim: Claim::Running,
            uid: None,
            owner: None,
            location: None,
        }
    }

    fn addresses(pods: &mut [Pod], taken: &[IpAddr]) -> Vec<IpAddr> {
        let mut taken = taken.iter().copied().collect();
        assign(&mut *pods, |_| None, &mut taken);
        pods.iter().flat_map(|pod| pod.addresses.clone()).collect()
    }

    #[test]
    fn a_synthetic_address_depends_on_the_name_alone() {
        let one = addresses(&mut [pod("api"), pod("db")], &[]);
        let two = addresses(&mut [pod("db"), pod("web"), pod("api")], &[]);
        assert_eq!((one[0], one[1]), (two[2], two[0]));
        assert_eq!(one[0], IpAddr::from([10, 192, 4, 42]));
    }

    #[test]
    fn a_taken_address_is_not_assigned() {
        let own = addresses(&mut [pod("api")], &[])[0];
        let other = addresses(&mut [pod("api")], &[own])[0];
        assert_ne!(own, other);
    }

    #[test]
    fn a_host_network_pod_has_the_addresses_of_its_node() {
        let address = IpAddr::from([192, 168, 0, 1]);
        let mut pod = pod("agent");
        pod.host_network = true;
        pod.node = Some("n1".into());
        let node = |name: &Name| {
            Some(Node {
                name: name.clone(),
                labels: Default::default(),
                addresses: vec![address],
                location: None,
            })
        };
        let synthetic = assign([&mut pod], node, &mut BTreeSet::new());
        assert_eq!((pod.addresses, synthetic.len()), (vec![address], 0));
    }

    #[test]
    fn a_pod_gets_an_address_of_each_network() {
        let networks: Vec<IpNet> =
            ["192.168.0.0/30", "fd00::/64"].iter().map(|net| net.parse().unwrap()).collect();
        let mut world = World::default();
        for name in ["a", "b", "real"] {
            world.pods.insert(PodId::new("shop", name), pod(name));
        }
        let synthetic = crate::assign_addresses(&mut world);
        let real = world.pods.values_mut().last().unwrap();
        real.addresses = vec!["10.0.0.1".parse().unwrap()];
        let pods = PodNetworks::new(&networks).unwrap();
        let moved = pods.readdress(&mut world, &synthetic).unwrap();
        assert_eq!(moved.len(), 4);
        for address in &moved {
            assert!(networks.iter().any(|net| net.contains(address)), "{address}");
        }
        let counts: Vec<usize> = world.pods.values().map(|pod| pod.addresses.len()).collect();
        assert_eq!(counts, [2, 2, 1]);

        world.pods.insert(
            PodId::new("shop", "c"),
            Pod { addresses: moved.iter().copied().collect(), ..pod("c") },
        );
        assert_eq!(pods.readdress(&mut world, &moved), Err(networks[0]), "it has two addresses");
        assert_eq!(PodNetworks::new(&[networks[0], networks[0]]), None);
        assert_eq!(PodNetworks::new(&[]), None);
    }
}
