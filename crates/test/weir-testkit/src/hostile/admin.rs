//! Cluster-wide policies whose parts multiply. The API limits their rules, peers and ports.

use std::fmt;

use weir_model::Direction;

use super::{WORLD, address, pod};

/// The most rules, peers of a rule and ports of a rule of an AdminNetworkPolicy.
const MAX_ENTRIES: usize = 100;
/// The same for a ClusterNetworkPolicy, and the most networks of a peer.
const MAX_SHORT_ENTRIES: usize = 25;
const ACTIONS: [&str; 3] = ["Deny", "Allow", "Pass"];

/// A shape of a hostile cluster-wide policy. Its actions alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostileAdminShape {
    /// Many rules, each with its own selectors, overlapping ranges of ports and a named port.
    SelectorsByRanges,
    /// Many rules with the same selectors, and overlapping ranges of ports.
    SharedSelectors,
    /// Many rules, each with its own selectors and single ports.
    SelectorsByPorts,
    /// Many rules, each with its own selectors and named ports.
    SelectorsByNames,
    /// Many rules, each with nested blocks and overlapping ranges of ports.
    BlocksByRanges,
    /// Many rules, each with selectors and blocks in turn, and single ports.
    MixedPeers,
    /// A baseline policy with many selectors and overlapping ranges of ports.
    Baseline,
    /// Many ClusterNetworkPolicies, each with selectors and overlapping ranges of ports.
    ManyPolicies,
}

impl HostileAdminShape {
    /// All shapes.
    pub const ALL: [HostileAdminShape; 8] = [
        HostileAdminShape::SelectorsByRanges,
        HostileAdminShape::SharedSelectors,
        HostileAdminShape::SelectorsByPorts,
        HostileAdminShape::SelectorsByNames,
        HostileAdminShape::BlocksByRanges,
        HostileAdminShape::MixedPeers,
        HostileAdminShape::Baseline,
        HostileAdminShape::ManyPolicies,
    ];

    /// The name, in lower case with hyphens.
    pub fn name(self) -> &'static str {
        match self {
            HostileAdminShape::SelectorsByRanges => "admin-selectors-by-ranges",
            HostileAdminShape::SharedSelectors => "admin-shared-selectors",
            HostileAdminShape::SelectorsByPorts => "admin-selectors-by-ports",
            HostileAdminShape::SelectorsByNames => "admin-selectors-by-names",
            HostileAdminShape::BlocksByRanges => "admin-blocks-by-ranges",
            HostileAdminShape::MixedPeers => "admin-mixed-peers",
            HostileAdminShape::Baseline => "admin-baseline",
            HostileAdminShape::ManyPolicies => "admin-many-policies",
        }
    }

    /// The directions in which the API accepts such a policy: only egress rules have networks.
    pub fn directions(self) -> &'static [Direction] {
        match self {
            HostileAdminShape::BlocksByRanges | HostileAdminShape::MixedPeers => {
                &[Direction::Egress]
            }
            _ => &Direction::BOTH,
        }
    }

    /// Manifests of a namespace `evil` with pods on the node `here`, and of policies of about this
    /// many bytes, if the API allows as many, that select the pods `a` and `b`.
    pub fn manifests(self, direction: Direction, bytes: usize) -> String {
        let mut text = WORLD.to_owned();
        text.extend((0..20_u8).map(pod));
        if self == HostileAdminShape::ManyPolicies {
            let policies = bytes.div_ceil(88_000);
            let entries = side(bytes / policies).min(MAX_SHORT_ENTRIES);
            let all = (0..policies).map(|number| self.policy(direction, entries, number));
            text.extend(all);
        } else {
            text.push_str(&self.policy(direction, side(bytes).min(MAX_ENTRIES), 0));
        }
        text
    }

    /// A policy with this many rules, each with as many peers and ports.
    fn policy(self, direction: Direction, entries: usize, number: usize) -> String {
        let rules: Vec<String> = (0..entries)
            .map(|at| self.rule(direction, entries, number * MAX_SHORT_ENTRIES + at))
            .collect();
        let list = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        let (version, kind, name, more) = match self {
            HostileAdminShape::Baseline => {
                ("v1alpha1", "BaselineAdminNetworkPolicy", "default".to_owned(), String::new())
            }
            HostileAdminShape::ManyPolicies => {
                let more = format!("\"tier\":\"Admin\",\"priority\":{number},");
                ("v1alpha2", "ClusterNetworkPolicy", format!("p{number}"), more)
            }
            _ => ("v1alpha1", "AdminNetworkPolicy", "p".to_owned(), "\"priority\":1,".to_owned()),
        };
        format!(
            "---\n{{\"apiVersion\":\"policy.networking.k8s.io/{version}\",\"kind\":\"{kind}\",\
             \"metadata\":{{\"name\":\"{name}\"}},\"spec\":{{{more}\"subject\":{{\"pods\":{{\
             \"namespaceSelector\":{{}},\"podSelector\":{{\"matchLabels\":{{\"role\":\"victim\"}}}}\
             }}}},\"{list}\":[{}]}}}}\n",
            rules.join(",")
        )
    }

    fn rule(self, direction: Direction, entries: usize, at: usize) -> String {
        let own = |one: usize| selector(entries * at + one);
        let all = 0..entries;
        let peers: Vec<String> = match self {
            HostileAdminShape::SharedSelectors => all.clone().map(selector).collect(),
            HostileAdminShape::BlocksByRanges => {
                all.clone().map(|one| networks(entries * at + one)).collect()
            }
            HostileAdminShape::MixedPeers => {
                let peer = |one| if one % 2 == 0 { own(one) } else { networks(entries * at + one) };
                all.clone().map(peer).collect()
            }
            _ => all.clone().map(own).collect(),
        };
        let ports: Vec<String> = match self {
            HostileAdminShape::SelectorsByPorts | HostileAdminShape::MixedPeers => {
                all.map(|one| single_port(entries * at + one)).collect()
            }
            HostileAdminShape::SelectorsByNames => {
                all.map(|one| format!("{{\"namedPort\":\"n{}\"}}", one + at)).collect()
            }
            HostileAdminShape::SelectorsByRanges => {
                let ranges = all.skip(1).map(|one| old_range(at, one));
                ranges.chain([format!("{{\"namedPort\":\"n{at}\"}}")]).collect()
            }
            HostileAdminShape::ManyPolicies => all.map(|one| new_range(at, one)).collect(),
            _ => all.map(|one| old_range(at, one)).collect(),
        };
        let action = match self {
            HostileAdminShape::Baseline => ACTIONS[at % 2],
            HostileAdminShape::ManyPolicies => ["Deny", "Accept", "Pass"][at % 3],
            _ => ACTIONS[at % 3],
        };
        let peer_list = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let port_list = if self == HostileAdminShape::ManyPolicies { "protocols" } else { "ports" };
        format!(
            "{{\"action\":\"{action}\",\"{peer_list}\":[{}],\"{port_list}\":[{}]}}",
            peers.join(","),
            ports.join(",")
        )
    }
}

impl fmt::Display for HostileAdminShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number of rules, peers and ports for this many bytes.
fn side(bytes: usize) -> usize {
    (bytes / 125).isqrt().max(1)
}

/// A selector of its own, which matches one pod or none.
fn selector(number: usize) -> String {
    format!(
        "{{\"pods\":{{\"namespaceSelector\":{{}},\"podSelector\":{{\"matchLabels\":{{\"a\":\
         \"{number}\"}}}}}}}}"
    )
}

/// Blocks of 2^0 to 2^15 addresses. Many of them contain others.
fn networks(number: usize) -> String {
    let net = |one: usize| {
        let bits = (number + one) % 16;
        let first = (3 * number + one) >> bits << bits;
        address(first).replace("/32", &format!("/{}", 32 - bits))
    };
    let mut nets: Vec<String> = (0..5).map(|one| net(one * 40_000)).collect();
    nets.sort_unstable();
    nets.dedup();
    format!("{{\"networks\":[{}]}}", nets.join(","))
}

fn single_port(number: usize) -> String {
    let port = 1 + 2 * (number % 32_000);
    format!("{{\"portNumber\":{{\"protocol\":\"TCP\",\"port\":{port}}}}}")
}

/// The first and the last port of a range. Ranges of one rule are apart, those of two rules overlap.
fn range(rule: usize, number: usize) -> (usize, usize) {
    let first = 1 + 600 * (number % 100) + 5 * (rule % 100);
    (first, first + 99 + rule % 400)
}

fn old_range(rule: usize, number: usize) -> String {
    let (first, last) = range(rule, number);
    format!("{{\"portRange\":{{\"protocol\":\"TCP\",\"start\":{first},\"end\":{last}}}}}")
}

fn new_range(rule: usize, number: usize) -> String {
    let (first, last) = range(rule, number);
    format!(
        "{{\"tcp\":{{\"destinationPort\":{{\"range\":{{\"start\":{first},\"end\":{last}}}}}}}}}"
    )
}
