//! A web server and a database on one node.

use std::net::{IpAddr, Ipv4Addr};

use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::PodId;

pub(crate) const WEB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const DB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The node and its pods, as network namespaces.
pub(crate) fn lab() -> Lab {
    let pod = |name: &str, address| LabPod {
        id: PodId::new("shop", name),
        addresses: vec![address],
        node: "n1".into(),
        host_network: false,
    };
    let nodes = vec![LabNode { name: "n1".into(), addresses: Vec::new() }];
    let pods = vec![pod("web", WEB), pod("db", DB)];
    Lab::build(&Layout { nodes, pods, ..Layout::default() }).unwrap()
}
