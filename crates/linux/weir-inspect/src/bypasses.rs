//! Pods whose packets the rules do not see, or see without a pod's address.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use weir_model::PodId;

use crate::node_links::{Link, Neighbour, Route, RouteSocket};

/// The addresses of a pod that policies select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses<'a> {
    /// The pod.
    pub pod: &'a PodId,
    /// The addresses in its status.
    pub addresses: &'a [IpAddr],
}

/// A reason why rules do not apply to a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// The node reaches the pod over a link that no packet of a local pod passes, such as a
    /// physical one: the pod has an own way to the network, as with macvlan.
    Elsewhere {
        /// The name of the link.
        link: String,
    },
    /// The link of the pod belongs to eBPF programs, which forward packets before netfilter.
    Netkit,
    /// The node has no route to the pod.
    NoRoute,
    /// A station with an address of the pod has a further address.
    UndeclaredAddress(IpAddr),
}

/// Finds the bypasses of pods. `declared` contains the addresses of all pods of the node.
pub fn find_bypasses<'a>(
    pods: &[PodAddresses<'a>],
    declared: &BTreeSet<IpAddr>,
) -> io::Result<BTreeSet<(Bypass, &'a PodId)>> {
    if pods.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut socket = RouteSocket::open()?;
    let links = socket.links()?;
    let routes = socket.routes(pods.iter().flat_map(|pod| pod.addresses).copied())?;
    let neighbours = socket.neighbours()?;
    let neighbours = NeighbourIndex::new(&neighbours);
    Ok(pods
        .iter()
        .flat_map(|pod| {
            let bypass = bypass(pod, &links, &routes);
            let undeclared = undeclared(pod, &links, &routes, &neighbours, declared);
            let undeclared = undeclared.into_iter().map(Bypass::UndeclaredAddress);
            let all = bypass.into_iter().chain(undeclared);
            all.map(|spot| (spot, pod.pod)).collect::<Vec<_>>()
        })
        .collect())
}

/// Why the packets of a pod bypass netfilter.
fn bypass(
    pod: &PodAddresses<'_>,
    links: &BTreeMap<u32, Link>,
    routes: &BTreeMap<IpAddr, Route>,
) -> Option<Bypass> {
    let routes = pod.addresses.iter().filter_map(|address| routes.get(address));
    let spots = routes.filter_map(|route| match route {
        Route::Own => None,
        Route::Missing => Some(Bypass::NoRoute),
        Route::Over(index) => {
            let link = links.get(index)?;
            match &*link.kind {
                "netkit" => Some(Bypass::Netkit),
                "veth" | "bridge" | "tun" | "vrf" => None,
                _ => Some(Bypass::Elsewhere { link: link.name.clone() }),
            }
        }
    });
    spots.min()
}

/// The neighbours of the node, by what they are looked up by.
#[derive(Default)]
struct NeighbourIndex<'a> {
    by_address: BTreeMap<IpAddr, Vec<&'a Neighbour>>,
    by_link: BTreeMap<u32, Vec<&'a Neighbour>>,
    by_station: BTreeMap<(u32, &'a [u8]), Vec<&'a Neighbour>>,
}

impl<'a> NeighbourIndex<'a> {
    fn new(neighbours: &'a [Neighbour]) -> Self {
        let mut index = NeighbourIndex::default();
        for one in neighbours {
            index.by_address.entry(one.address).or_default().push(one);
            index.by_link.entry(one.link).or_default().push(one);
            index.by_station.entry((one.link, &one.station)).or_default().push(one);
        }
        index
    }
}

/// The most undeclared addresses of a pod that are reported. A pod can claim any number, also in the
/// name of the station of another pod.
const MAX_UNDECLARED: usize = 8;

/// The addresses that a pod uses and that no pod declares.
fn undeclared(
    pod: &PodAddresses<'_>,
    links: &BTreeMap<u32, Link>,
    routes: &BTreeMap<IpAddr, Route>,
    neighbours: &NeighbourIndex<'_>,
    declared: &BTreeSet<IpAddr>,
) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    for address in pod.addresses {
        // A routed link belongs to one pod.
        let own_link = routes.get(address).and_then(|route| match route {
            Route::Over(link) if links.get(link)?.kind == "veth" => neighbours.by_link.get(link),
            _ => None,
        });
        // On a bridge, the pod is the station that has its address.
        let stations = neighbours.by_address.get(address).into_iter().flatten();
        let own_station =
            stations.filter_map(|one| neighbours.by_station.get(&(one.link, &*one.station)));
        let own = own_link.into_iter().chain(own_station).flatten().map(|one| one.address);
        let room = MAX_UNDECLARED - found.len();
        found.extend(own.filter(|one| !declared.contains(one)).take(room));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn links() -> BTreeMap<u32, Link> {
        let link = |name: &str, kind: &str| Link {
            name: name.into(),
            kind: kind.into(),
            ..Link::default()
        };
        let all = [
            (2, link("eth0", "")),
            (3, link("cni0", "bridge")),
            (4, link("vethA", "veth")),
            (5, link("nkB", "netkit")),
            (6, link("br-int", "openvswitch")),
        ];
        all.into()
    }

    #[test]
    fn a_pod_behind_a_physical_link_is_not_filtered() {
        let pod = PodId::new("shop", "db");
        let one = [address("10.0.0.2")];
        let of = |route| {
            let pod = PodAddresses { pod: &pod, addresses: &one };
            bypass(&pod, &links(), &[(one[0], route)].into())
        };
        assert_eq!(of(Route::Over(2)), Some(Bypass::Elsewhere { link: "eth0".into() }));
        assert_eq!(of(Route::Over(6)), Some(Bypass::Elsewhere { link: "br-int".into() }));
        assert_eq!(of(Route::Over(5)), Some(Bypass::Netkit));
        assert_eq!(of(Route::Missing), Some(Bypass::NoRoute));
        for judged in [Route::Over(3), Route::Over(4), Route::Own] {
            assert_eq!(of(judged), None, "{judged:?}");
        }
    }

    #[test]
    fn a_further_address_of_a_pods_station_is_undeclared() {
        let pod = PodId::new("shop", "db");
        let neighbour = |link, text: &str, station: u8| Neighbour {
            link,
            address: address(text),
            station: vec![station; 6],
        };
        let found = |pods: &[IpAddr], route, neighbours: &[Neighbour], declared: &[&str]| {
            let routes = pods.iter().map(|one| (*one, route)).collect();
            let pod = PodAddresses { pod: &pod, addresses: pods };
            let declared = declared.iter().map(|one| address(one)).collect();
            let neighbours = NeighbourIndex::new(neighbours);
            undeclared(&pod, &links(), &routes, &neighbours, &declared)
                .into_iter()
                .collect::<Vec<_>>()
        };
        let own = [address("10.0.0.2")];
        // On a bridge, the station shows which address is the pod's.
        let bridged =
            [neighbour(3, "10.0.0.2", 2), neighbour(3, "fd00::2", 2), neighbour(3, "fd00::7", 7)];
        let declared = ["10.0.0.2"];
        assert_eq!(found(&own, Route::Over(3), &bridged, &declared), [address("fd00::2")]);
        assert!(found(&own, Route::Over(3), &bridged, &["10.0.0.2", "fd00::2"]).is_empty());
        // A routed link belongs to one pod.
        let routed = [neighbour(4, "fd00::9", 9)];
        assert_eq!(found(&own, Route::Over(4), &routed, &declared), [address("fd00::9")]);
        assert!(found(&own, Route::Over(2), &[neighbour(2, "fd00::9", 9)], &declared).is_empty());
        // A pod that claims a whole network.
        let claimed = (0..=255).map(|last| neighbour(3, &format!("10.0.0.{last}"), 2));
        let claimed: Vec<Neighbour> = claimed.collect();
        assert_eq!(found(&own, Route::Over(3), &claimed, &declared).len(), MAX_UNDECLARED);
    }
}
