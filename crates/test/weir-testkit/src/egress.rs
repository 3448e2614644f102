//! Egress rules of NetworkPolicies with many peers and ports, as YAML.

/// A rule with these peers and ports.
pub fn rule(peers: impl Iterator<Item = String>, ports: impl Iterator<Item = String>) -> String {
    let list = |all: Vec<String>| all.join(", ");
    format!("{{to: [{}], ports: [{}]}}", list(peers.collect()), list(ports.collect()))
}

/// A block of one address. No two of them are adjacent.
pub fn block(number: u32) -> String {
    let [_, b, c, d] = (4 * number).to_be_bytes();
    format!("{{ipBlock: {{cidr: 20.{b}.{c}.{d}/32}}}}")
}

/// An odd TCP port. No two of them are adjacent.
pub fn port(number: u32) -> String {
    format!("{{port: {}}}", 1 + 2 * number)
}
