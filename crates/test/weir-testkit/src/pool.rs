//! The names, addresses, labels and ports that generators choose from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::{prelude::*, sample::select};
use weir_model::{Block, Claim, Name, Protocol};

/// The namespaces of pods and policies. They need not exist.
pub const NAMESPACES: &[&str] = &["alpha", "beta", "gamma", "delta"];
/// The names of pods.
pub const PODS: &[&str] = &["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
/// The nodes of pods. They need not exist.
pub const NODES: &[&str] = &["n1", "n2", "n3"];
/// The claims of pods to their addresses. Pods with equal claims contest an address.
pub const CLAIMS: &[Claim] = &[
    Claim::Running,
    Claim::Attached(1),
    Claim::Terminating,
    Claim::Running,
    Claim::Attached(2),
    Claim::Attached(3),
    Claim::Attached(4),
];
/// The names of policies.
pub const POLICIES: &[&str] = &["one", "two", "three"];
/// The names of cluster-wide policies. Several can select one pod, and their order matters.
pub const CLUSTER_POLICIES: &[&str] =
    &["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
/// The keys of labels.
pub const LABEL_KEYS: &[&str] = &["app", "env"];
/// The values of labels, including the empty value.
pub const LABEL_VALUES: &[&str] = &["x", "y", ""];
/// The names of ports.
pub const PORT_NAMES: &[&str] = &["http", "dns"];
/// The numbers of container ports.
pub const CONTAINER_PORTS: &[u16] = &[80, 81, 8080];
/// The ports of rules and flows: container ports, their neighbours, the lowest and the highest port.
pub const PORTS: &[u16] = &[80, 81, 8080, 79, 82, 8079, 8081, 1, 65535];
/// Domain names, including a parent and one that only looks like a subdomain.
pub const DOMAINS: &[&str] =
    &["example.com", "a.example.com", "b.a.example.com", "badexample.com", "com"];

/// Networks of both families that overlap with the addresses of the pool.
pub const NETS: &[&str] = &[
    "10.0.0.0/24",
    "10.0.0.0/29",
    "10.0.0.0/30",
    "10.0.0.2/31",
    "10.0.0.3/32",
    "10.0.0.4/30",
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "192.168.0.0/16",
    "203.0.113.0/24",
    "fd00::/64",
    "fd00::/126",
    "fd00::2/127",
    "fd00::3/128",
    "::/0",
    "2001:db8::/32",
];

/// IPv4 addresses that pods have.
pub const POD_V4: &[IpAddr] = &v4_from::<7>([10, 0, 0, 1]);
/// IPv6 addresses that pods have.
pub const POD_V6: &[IpAddr] = &v6_from::<4>(0xfd00, 0, 1);
/// IPv4 addresses that nodes have.
pub const NODE_V4: &[IpAddr] = &v4_from::<3>([192, 168, 0, 1]);
/// IPv6 addresses that nodes have.
pub const NODE_V6: &[IpAddr] = &v6_from::<2>(0xfd01, 0, 1);
/// IPv4 addresses that neither pods nor nodes have.
pub const OUTSIDE_V4: &[IpAddr] = &v4_from::<3>([203, 0, 113, 0]);
/// IPv6 addresses that neither pods nor nodes have.
pub const OUTSIDE_V6: &[IpAddr] = &v6_from::<2>(0x2001, 0xdb8, 0);

const fn v4_from<const N: usize>(first: [u8; 4]) -> [IpAddr; N] {
    let [a, b, c, d] = first;
    let mut all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); N];
    let mut at = 0;
    while at < N {
        all[at] = IpAddr::V4(Ipv4Addr::new(a, b, c, d + at as u8));
        at += 1;
    }
    all
}

const fn v6_from<const N: usize>(a: u16, b: u16, first: u16) -> [IpAddr; N] {
    let mut all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED); N];
    let mut at = 0;
    while at < N {
        all[at] = IpAddr::V6(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, first + at as u16));
        at += 1;
    }
    all
}

/// The priorities of cluster-wide policies. Some are equal.
pub const PRIORITIES: &[u32] = &[5, 5, 6, 0, 1000, 1, 4, 7, 999];

/// A network of the pool.
pub(crate) fn net(text: &str) -> IpNet {
    text.parse().expect("the pool holds networks")
}

/// A block of `net` with those of the exceptions that are inside it.
pub(crate) fn block(net: IpNet, except: Vec<IpNet>) -> Block {
    Block::new(net, except.into_iter().filter(|e| *e != net && net.contains(e)))
}

/// One of the names.
pub fn name(names: &'static [&'static str]) -> impl Strategy<Value = Name> {
    select(names).prop_map(Name::from)
}

/// Any protocol.
pub fn protocol() -> impl Strategy<Value = Protocol> {
    select(&Protocol::ALL[..])
}

/// An IPv4 address, most often of a pod.
pub fn v4() -> impl Strategy<Value = IpAddr> {
    prop_oneof![8 => select(POD_V4), 1 => select(NODE_V4), 1 => select(OUTSIDE_V4)]
}

/// An IPv6 address, most often of a pod.
pub fn v6() -> impl Strategy<Value = IpAddr> {
    prop_oneof![8 => select(POD_V6), 1 => select(NODE_V6), 1 => select(OUTSIDE_V6)]
}
