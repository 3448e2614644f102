//! The links of the node to its pods.

use std::{collections::BTreeMap, io, net::IpAddr};

use crate::node_links::{Link, RouteSocket};

/// Finds the links to pods, in the network namespace of the thread that opened it.
pub struct PodLinks(RouteSocket);

impl std::fmt::Debug for PodLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodLinks")
    }
}

impl PodLinks {
    /// Opens a socket.
    pub fn open() -> io::Result<Self> {
        Ok(PodLinks(RouteSocket::open()?))
    }

    /// The links of addresses that are routed over a pair of links (veth) into another network
    /// namespace. Other addresses are left out, for example those of pods on a bridge.
    pub fn find(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> io::Result<BTreeMap<IpAddr, u32>> {
        let mut routes = self.0.own_routes(addresses)?;
        let links = self.0.links()?;
        routes.retain(|_, link| links.get(link).is_some_and(leads_to_pod));
        Ok(routes)
    }
}

fn leads_to_pod(link: &Link) -> bool {
    link.kind == "veth" && link.is_remote && !link.is_port
}
