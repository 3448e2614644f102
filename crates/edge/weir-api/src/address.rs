use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use weir_model::{Name, Node, Pod, PodId};

/// Synthetic addresses are in 10.128.0.0/9: this is the first one.
const FIRST: u32 = 0x0a80_0000;
/// The number of addresses in that network.
const COUNT: u32 = 1 << 23;

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
        let free = candidates(&pod.id).find(|address| taken.insert(*address));
        pod.addresses = free.into_iter().collect();
        synthetic.extend(free);
    }
    synthetic
}

/// All synthetic addresses, beginning with the pod's own.
fn candidates(pod: &PodId) -> impl Iterator<Item = IpAddr> {
    let start = hash(pod) % COUNT;
    (0..COUNT)
        .map(move |step| FIRST + (start + step) % COUNT)
        .filter(|number| !matches!(number & 0xff, 0 | 0xff))
        .map(|number| Ipv4Addr::from(number).into())
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
}
