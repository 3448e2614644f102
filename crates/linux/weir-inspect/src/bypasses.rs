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
    let mut routes = BTreeMap::new();
    for address in pods.iter().flat_map(|pod| pod.addresses) {
        routes.insert(*address, socket.route(*address)?);
    }
    let neighbours = socket.neighbours()?;
    Ok(pods
        .iter()
        .flat_map(|pod| {
            let bypass = bypass(pod, &links, &routes);
            let undeclared = undeclared(pod, &links, &routes, &neighbours, declared);
            let all = bypass.into_iter().chain(undeclared.map(Bypass::UndeclaredAddress));
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

/// The addresses that a pod uses and that no pod declares.
fn undeclared(
    pod: &PodAddresses<'_>,
    links: &BTreeMap<u32, Link>,
    routes: &BTreeMap<IpAddr, Route>,
    neighbours: &[Neighbour],
    declared: &BTreeSet<IpAddr>,
) -> impl Iterator<Item = IpAddr> {
    let is_own = |index: &u32| links.get(index).is_some_and(|link| link.kind == "veth");
    let over = |address: &IpAddr| match routes.get(address) {
        Some(Route::Over(link)) => Some(*link),
        _ => None,
    };
    let own_links: BTreeSet<u32> = pod.addresses.iter().filter_map(over).filter(is_own).collect();
    let stations: BTreeSet<(u32, &[u8])> = neighbours
        .iter()
        .filter(|one| pod.addresses.contains(&one.address))
        .map(|one| (one.link, &*one.station))
        .collect();
    let is_pods = |one: &&Neighbour| {
        own_links.contains(&one.link) || stations.contains(&(one.link, &*one.station))
    };
    let all: BTreeSet<IpAddr> = neighbours.iter().filter(is_pods).map(|one| one.address).collect();
    let new: Vec<IpAddr> = all.into_iter().filter(|one| !declared.contains(one)).collect();
    new.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn links() -> BTreeMap<u32, Link> {
        let link = |name: &str, kind: &str| Link { name: name.into(), kind: kind.into() };
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
            undeclared(&pod, &links(), &routes, neighbours, &declared).collect::<Vec<_>>()
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
    }
}
