//! Policies that are small as text, and large if their peers, exceptions, ports and rules are
//! multiplied.

mod admin;
mod mixture;

use std::fmt;

pub use admin::HostileAdminShape;
pub use mixture::HostileMixture;
use weir_model::Direction;

/// A shape of a hostile policy. The parts of each shape grow with the size of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostileShape {
    /// One rule with many blocks and many ports.
    BlocksByPorts,
    /// One rule with many selectors and many ports.
    SelectorsByPorts,
    /// One rule with many selectors and many named ports.
    SelectorsByNames,
    /// Many rules, each with its own exceptions from all addresses, and with its own port.
    RulesByExceptions,
    /// A few rules with many exceptions from all addresses, for all ports.
    Exceptions,
    /// Many rules with nested port ranges, each with its own block.
    RangesByBlocks,
    /// Many rules with nested port ranges, each with its own selector.
    RangesBySelectors,
    /// Many rules with nested blocks, each with its own port.
    NestedBlocks,
    /// Many rules with the same selector, each with its own port.
    OnePeer,
    /// One rule for all blocks with many ports, and a rule with its own port for each of them.
    WideAndNarrow,
    /// All addresses with many ports, and a rule with its own port for each of many blocks.
    AnyoneAndNarrow,
    /// Many rules, each with a few overlapping blocks and a few ports of its own.
    SmallLists,
    /// Many rules, each with its own selector and its own port, and a block.
    SelectorsWithPorts,
    /// Many rules, each with its own block and two ranges of ports.
    BlocksWithRanges,
    /// Many rules, each with its own block and two ports.
    BlocksWithPairs,
    /// Many rules, each with separate exceptions from all addresses, and with two ports.
    SeparateExceptions,
    /// Many policies for the same pod, each with one rule of 500 blocks and 500 ports.
    ManyPolicies,
}

impl HostileShape {
    /// All shapes.
    pub const ALL: [HostileShape; 17] = [
        HostileShape::BlocksByPorts,
        HostileShape::SelectorsByPorts,
        HostileShape::SelectorsByNames,
        HostileShape::RulesByExceptions,
        HostileShape::Exceptions,
        HostileShape::RangesByBlocks,
        HostileShape::RangesBySelectors,
        HostileShape::NestedBlocks,
        HostileShape::OnePeer,
        HostileShape::WideAndNarrow,
        HostileShape::AnyoneAndNarrow,
        HostileShape::SmallLists,
        HostileShape::SelectorsWithPorts,
        HostileShape::BlocksWithRanges,
        HostileShape::BlocksWithPairs,
        HostileShape::SeparateExceptions,
        HostileShape::ManyPolicies,
    ];

    /// The name, in lower case with hyphens.
    pub fn name(self) -> &'static str {
        match self {
            HostileShape::BlocksByPorts => "blocks-by-ports",
            HostileShape::SelectorsByPorts => "selectors-by-ports",
            HostileShape::SelectorsByNames => "selectors-by-names",
            HostileShape::RulesByExceptions => "rules-by-exceptions",
            HostileShape::Exceptions => "exceptions",
            HostileShape::RangesByBlocks => "ranges-by-blocks",
            HostileShape::RangesBySelectors => "ranges-by-selectors",
            HostileShape::NestedBlocks => "nested-blocks",
            HostileShape::OnePeer => "one-peer",
            HostileShape::WideAndNarrow => "wide-and-narrow",
            HostileShape::AnyoneAndNarrow => "anyone-and-narrow",
            HostileShape::SmallLists => "small-lists",
            HostileShape::SelectorsWithPorts => "selectors-with-ports",
            HostileShape::BlocksWithRanges => "blocks-with-ranges",
            HostileShape::BlocksWithPairs => "blocks-with-pairs",
            HostileShape::SeparateExceptions => "separate-exceptions",
            HostileShape::ManyPolicies => "many-policies",
        }
    }

    /// Manifests of a namespace `evil` with pods on the node `here`, and of policies of about this
    /// many bytes that select the pods `a` and `b`.
    pub fn manifests(self, direction: Direction, bytes: usize) -> String {
        let mut text = WORLD.to_owned();
        text.extend((0..20_u8).map(pod));
        let parts = if self == HostileShape::ManyPolicies { bytes.div_ceil(27_000) } else { 1 };
        for number in 0..parts {
            let rules = self.rules(direction, bytes / parts, number);
            text.push_str(&policy(number, &[(direction, rules)]));
        }
        text
    }

    fn rules(self, direction: Direction, bytes: usize, number: usize) -> Vec<String> {
        let rule = |peers: Vec<String>, ports: Vec<String>| rule(direction, &peers, &ports);
        match self {
            HostileShape::BlocksByPorts | HostileShape::ManyPolicies => {
                let count = bytes / 52;
                let ports = (0..count).map(|port| single_port(port + 2 * number));
                vec![rule((0..count).map(host).collect(), ports.collect())]
            }
            HostileShape::SelectorsByPorts => {
                let count = bytes / 62;
                vec![rule(
                    (0..count).map(selector).collect(),
                    (0..count).map(single_port).collect(),
                )]
            }
            HostileShape::SelectorsByNames => {
                let count = bytes / 62;
                vec![rule((0..count).map(selector).collect(), (0..count).map(named_port).collect())]
            }
            HostileShape::RulesByExceptions => {
                let rules = 0..bytes / 235;
                let except = |at| (0..10).map(|one| address(10 * at + one)).collect::<Vec<_>>();
                rules.map(|at| rule(vec![all_except(&except(at))], vec![single_port(at)])).collect()
            }
            HostileShape::Exceptions => {
                let count = bytes / 30 / 20;
                let except = |at| (0..count).map(|one| address(30 * one + at)).collect::<Vec<_>>();
                (0..30).map(|at| rule(vec![all_except(&except(at))], Vec::new())).collect()
            }
            HostileShape::RangesByBlocks => {
                let rules = 0..bytes / 92;
                rules.map(|at| rule(vec![host(at)], vec![nested_range(at)])).collect()
            }
            HostileShape::RangesBySelectors => {
                let rules = 0..bytes / 102;
                rules.map(|at| rule(vec![selector(at)], vec![nested_range(at)])).collect()
            }
            HostileShape::NestedBlocks => {
                let rules = 0..bytes / 78;
                rules.map(|at| rule(vec![nested_block(at)], vec![single_port(at)])).collect()
            }
            HostileShape::OnePeer => {
                let rules = 0..bytes / 84;
                rules.map(|at| rule(vec![selector(7)], vec![single_port(at)])).collect()
            }
            HostileShape::WideAndNarrow => {
                let count = bytes / 128;
                let wide =
                    rule((0..count).map(host).collect(), (0..count).map(even_port).collect());
                let narrow = (0..count).map(|at| rule(vec![host(at)], vec![single_port(at)]));
                [wide].into_iter().chain(narrow).collect()
            }
            HostileShape::AnyoneAndNarrow => {
                let count = bytes / 94;
                let wide = rule(Vec::new(), (0..count).map(even_port).collect());
                let narrow = (0..count).map(|at| rule(vec![host(at)], vec![single_port(at)]));
                [wide].into_iter().chain(narrow).collect()
            }
            HostileShape::SmallLists => {
                let blocks = |at| (0..6).map(|one| nested_block(at + 97 * one)).collect();
                let ports = |at| (0..6).map(|one| single_port(at + 1009 * one)).collect();
                (0..bytes / 345).map(|at| rule(blocks(at), ports(at))).collect()
            }
            HostileShape::SelectorsWithPorts => {
                let rules = 0..bytes / 88;
                let rules = rules.map(|at| rule(vec![selector(at)], vec![single_port(at)]));
                // With a block, the allowed peers and ports cannot be listed.
                rules.chain([rule(vec![host(0)], vec![single_port(0)])]).collect()
            }
            HostileShape::BlocksWithRanges => {
                let ranges = |at| vec![small_range(at), small_range(at + 7_000)];
                let rules = 0..bytes / 116;
                rules.map(|at| rule(vec![host(at)], ranges(at))).collect()
            }
            HostileShape::BlocksWithPairs => {
                let rules = 0..bytes / 92;
                rules.map(|at| rule(vec![host(at)], port_pair(at))).collect()
            }
            HostileShape::SeparateExceptions => {
                let except = |at| (0..4).map(|one| address(8 * at + 2 * one)).collect::<Vec<_>>();
                let rules = 0..bytes / 165;
                rules.map(|at| rule(vec![all_except(&except(at))], port_pair(at))).collect()
            }
        }
    }
}

impl fmt::Display for HostileShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const WORLD: &str =
    "{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{\"name\":\"evil\"}}\n";

/// A pod of the node. The first two are selected by the policies, the others are peers.
fn pod(number: u8) -> String {
    let name = char::from(b'a' + number);
    let role = if number < 2 { "victim" } else { "peer" };
    format!(
        "---\n{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{name}\",\
         \"namespace\":\"evil\",\"labels\":{{\"role\":\"{role}\",\"a\":\"{number}\"}}}},\
         \"spec\":{{\"nodeName\":\"here\",\"containers\":[{{\"name\":\"c\",\"ports\":[\
         {{\"name\":\"n{number}\",\"containerPort\":{}}}]}}]}},\
         \"status\":{{\"podIP\":\"10.9.0.{}\"}}}}\n",
        8000 + u16::from(number),
        1 + number,
    )
}

/// A policy for the first two pods with the rules of some directions.
fn policy(number: usize, lists: &[(Direction, Vec<String>)]) -> String {
    let kinds = lists.iter().map(|(direction, _)| match direction {
        Direction::Ingress => "\"Ingress\"",
        Direction::Egress => "\"Egress\"",
    });
    let kinds = kinds.collect::<Vec<_>>().join(",");
    let rules = lists.iter().map(|(direction, rules)| {
        let list = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        format!(",\"{list}\":[{}]", rules.join(","))
    });
    format!(
        "---\n{{\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"NetworkPolicy\",\
         \"metadata\":{{\"name\":\"p{number}\",\"namespace\":\"evil\"}},\
         \"spec\":{{\"podSelector\":{{\"matchLabels\":{{\"role\":\"victim\"}}}},\
         \"policyTypes\":[{kinds}]{}}}}}\n",
        rules.collect::<String>()
    )
}

fn rule(direction: Direction, peers: &[String], ports: &[String]) -> String {
    let peer_list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let lists = [(peer_list, peers), ("ports", ports)].into_iter();
    let lists = lists.filter(|(_, list)| !list.is_empty());
    let lists = lists.map(|(name, list)| format!("\"{name}\":[{}]", list.join(",")));
    format!("{{{}}}", lists.collect::<Vec<_>>().join(","))
}

/// A block of one address. No two of them are adjacent.
fn host(number: usize) -> String {
    format!("{{\"ipBlock\":{{\"cidr\":{}}}}}", address(2 * number))
}

/// All addresses, with exceptions.
fn all_except(except: &[String]) -> String {
    format!("{{\"ipBlock\":{{\"cidr\":\"0.0.0.0/0\",\"except\":[{}]}}}}", except.join(","))
}

/// A block of 2^0 to 2^23 addresses. Many of them contain others.
fn nested_block(number: usize) -> String {
    let length = 9 + number % 24;
    let net = (number >> (32 - length)) << (32 - length);
    let net = address(net).replace("/32", &format!("/{length}"));
    format!("{{\"ipBlock\":{{\"cidr\":{net}}}}}")
}

/// A network of one address from 11.0.0.0 on.
fn address(number: usize) -> String {
    let [.., a, b, c] = number.to_be_bytes();
    format!("\"11.{a}.{b}.{c}/32\"")
}

/// A selector of its own, which matches one pod or none.
fn selector(number: usize) -> String {
    format!("{{\"podSelector\":{{\"matchLabels\":{{\"a\":\"{number}\"}}}}}}")
}

/// An odd port. No two of them are adjacent.
fn single_port(number: usize) -> String {
    port(1 + 2 * (number % MAX_PORTS), number / MAX_PORTS)
}

/// An even port.
fn even_port(number: usize) -> String {
    port(2 + 2 * (number % MAX_PORTS), number / MAX_PORTS)
}

const MAX_PORTS: usize = 32_000;

fn port(port: usize, protocol: usize) -> String {
    match protocol {
        0 => format!("{{\"port\":{port}}}"),
        1 => format!("{{\"port\":{port},\"protocol\":\"UDP\"}}"),
        _ => format!("{{\"port\":{port},\"protocol\":\"SCTP\"}}"),
    }
}

/// Two odd ports.
fn port_pair(number: usize) -> Vec<String> {
    vec![single_port(number), single_port(number + 7_001)]
}

/// A range of three ports. No two of the first 16,000 are adjacent.
fn small_range(number: usize) -> String {
    let first = 1 + 4 * (number % 16_000);
    format!("{{\"port\":{first},\"endPort\":{}}}", first + 2)
}

fn named_port(number: usize) -> String {
    format!("{{\"port\":\"n{number}\"}}")
}

/// A range that contains all ranges of higher numbers.
fn nested_range(number: usize) -> String {
    let number = number % MAX_PORTS;
    format!("{{\"port\":{},\"endPort\":{}}}", 1 + number, 65_535 - number)
}
