use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use weir_model::{Name, Node, Pod, PodId};

/// Made-up addresses are in 10.128.0.0/9.
const FIRST: u32 = 0x0a80_0000;
const COUNT: u32 = 1 << 23;

/// Gives addresses to the pods that need some: those of their node to host network pods, made-up ones to the others.
///
/// An address depends on the pod's name alone unless it is taken; then the next free one is, in the order of ids.
/// Returns the made-up ones.
pub(crate) fn make_up<'p>(
    pods: impl IntoIterator<Item = &'p mut Pod>,
    node: impl Fn(&Name) -> Option<Node>,
    taken: &mut BTreeSet<IpAddr>,
) -> BTreeSet<IpAddr> {
    let mut pods: Vec<&mut Pod> = pods.into_iter().collect();
    pods.sort_by(|a, b| a.id.cmp(&b.id));
    let mut made_up = BTreeSet::new();
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
        made_up.extend(free);
    }
    made_up
}

/// All made-up addresses, beginning with the pod's own.
fn candidates(pod: &PodId) -> impl Iterator<Item = IpAddr> {
    let start = hash(pod) % COUNT;
    (0..COUNT)
        .map(move |step| FIRST + (start + step) % COUNT)
        .filter(|number| !matches!(number & 0xff, 0 | 0xff))
        .map(|number| Ipv4Addr::from(number).into())
}

/// FNV-1a, folded to 32 bits: the same on every machine and for ever.
fn hash(pod: &PodId) -> u32 {
    let bytes = pod.namespace.bytes().chain([b'/']).chain(pod.name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash >> 32) ^ (hash & 0xffff_ffff)) as u32
}

#[cfg(test)]
mod tests {
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
            born: 0,
            uid: None,
            location: None,
        }
    }

    fn addresses(pods: &mut [Pod], taken: &[IpAddr]) -> Vec<IpAddr> {
        let mut taken = taken.iter().copied().collect();
        make_up(&mut *pods, |_| None, &mut taken);
        pods.iter().flat_map(|pod| pod.addresses.clone()).collect()
    }

    #[test]
    fn a_made_up_address_depends_on_the_name_alone() {
        let one = addresses(&mut [pod("api"), pod("db")], &[]);
        let two = addresses(&mut [pod("db"), pod("web"), pod("api")], &[]);
        assert_eq!((one[0], one[1]), (two[2], two[0]));
        assert_eq!(one[0], IpAddr::from([10, 192, 4, 42]));
    }

    #[test]
    fn an_address_that_is_taken_is_not_made_up() {
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
        let made_up = make_up([&mut pod], node, &mut BTreeSet::new());
        assert_eq!((pod.addresses, made_up.len()), (vec![address], 0));
    }
}
