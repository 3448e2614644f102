//! The table in the syntax of nft, as `nft list` prints it.

use std::fmt;

use weir_datapath::ANSWERS_PER_SECOND;
use weir_model::{IpFamily, PortRange, Protocol};
use weir_netfilter::report::{
    BURST, GROUP, NEW_SOURCES_PER_SECOND, PER_SECOND, SNAPLEN, SOURCE_TIMEOUT_SECONDS, prefix,
};

use crate::{
    Answer, ElementKey, Field, Hook, Match, NftChain, NftRule, NftSet, NftTable, NftVerdict,
    SetKind, Statement, TableId, expr::first_group, intervals, names, uapi::NF_IP_PRI_FILTER,
};

impl fmt::Display for NftTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {{", self.id)?;
        for (name, set) in &self.sets {
            set.write(f, name)?;
        }
        for (name, chain) in &self.chains {
            chain.write(f, name)?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self {
            TableId::Policies | TableId::Guard | TableId::Journal => "inet",
            TableId::BridgeGuard => "bridge",
        };
        write!(f, "{family} {}", self.name())
    }
}

impl NftSet {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let word = if self.kind.is_map() { "map" } else { "set" };
        writeln!(f, "\t{word} {name} {{\n\t\ttype {}", self.kind)?;
        if let Some(size) = self.kind.max_elements() {
            writeln!(f, "\t\tsize {size}")?;
        }
        if let Some(flags) = self.kind.flags() {
            writeln!(f, "\t\tflags {flags}")?;
        }
        if self.kind.max_elements().is_some() {
            writeln!(f, "\t\ttimeout {SOURCE_TIMEOUT_SECONDS}s")?;
        }
        writeln!(f, "\t\tcomment \"{}\"", self.comment)?;
        if !self.elements.is_empty() {
            let elements: Vec<String> =
                self.elements.iter().map(|(key, data)| element(key, data.as_deref())).collect();
            writeln!(f, "\t\telements = {{ {} }}", elements.join(",\n\t\t\t     "))?;
        }
        writeln!(f, "\t}}\n")
    }
}

/// An element of a list of elements.
pub(crate) fn element(key: &ElementKey, data: Option<&crate::ElementData>) -> String {
    match data {
        None => key.to_string(),
        Some(data) if data.comment.is_empty() => format!("{key} : {}", data.verdict),
        Some(data) => format!("{key} comment \"{}\" : {}", data.comment, data.verdict),
    }
}

impl SetKind {
    /// Whether keys have verdicts.
    pub fn is_map(self) -> bool {
        matches!(
            self,
            SetKind::Chains(_)
                | SetKind::BlockChains(_)
                | SetKind::ServiceChains
                | SetKind::ServiceRangeChains
                | SetKind::LinkAddresses(_)
                | SetKind::Links
                | SetKind::Records
        )
    }

    /// The flags of the declaration.
    pub(crate) fn flags(self) -> Option<&'static str> {
        match self {
            SetKind::Blocks(_)
            | SetKind::BlockChains(_)
            | SetKind::ServiceRanges
            | SetKind::ServiceRangeChains
            | SetKind::NumberedBlocks(_)
            | SetKind::NumberedServiceRanges => Some("interval"),
            SetKind::Cut(_) | SetKind::CutPairs(_) | SetKind::CutSenders(_) => Some("timeout"),
            SetKind::Sources(_) | SetKind::ReportLinks => Some("dynamic,timeout"),
            SetKind::Addresses(_)
            | SetKind::Pairs(_)
            | SetKind::Ports(_)
            | SetKind::Grants(_)
            | SetKind::Chains(_)
            | SetKind::Services
            | SetKind::NumberedAddresses(_)
            | SetKind::NumberedPorts(_)
            | SetKind::NumberedServices
            | SetKind::ServiceChains
            | SetKind::Families
            | SetKind::LinkAddresses(_)
            | SetKind::Links
            | SetKind::Records => None,
        }
    }
}

/// The type of the keys and, for a map, the word `verdict`.
impl fmt::Display for SetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |family: IpFamily| match family {
            IpFamily::V4 => "ipv4_addr",
            IpFamily::V6 => "ipv6_addr",
        };
        match *self {
            SetKind::Addresses(family)
            | SetKind::Blocks(family)
            | SetKind::CutSenders(family)
            | SetKind::Sources(family) => write!(f, "{}", address(family)),
            SetKind::ReportLinks => f.write_str("iface_index"),
            SetKind::Pairs(family) => write!(f, "{0} . {0}", address(family)),
            SetKind::Ports(family) => write!(f, "{} . inet_proto . inet_service", address(family)),
            SetKind::Grants(family) => {
                write!(f, "{0} . {0} . inet_proto . inet_service", address(family))
            }
            SetKind::Chains(family) | SetKind::BlockChains(family) => {
                write!(f, "{} : verdict", address(family))
            }
            SetKind::Services | SetKind::ServiceRanges => f.write_str("inet_proto . inet_service"),
            SetKind::NumberedAddresses(family) | SetKind::NumberedBlocks(family) => {
                write!(f, "mark . {}", address(family))
            }
            SetKind::NumberedPorts(family) => {
                write!(f, "mark . {} . inet_proto . inet_service", address(family))
            }
            SetKind::NumberedServices | SetKind::NumberedServiceRanges => {
                f.write_str("mark . inet_proto . inet_service")
            }
            SetKind::ServiceChains | SetKind::ServiceRangeChains => {
                f.write_str("inet_proto . inet_service : verdict")
            }
            SetKind::Families => f.write_str("nf_proto"),
            SetKind::LinkAddresses(family) => {
                write!(f, "ifname . {} : verdict", address(family))
            }
            SetKind::Links => f.write_str("ifname : verdict"),
            SetKind::Records => f.write_str("mark . mark : verdict"),
            SetKind::CutPairs(family) => write!(f, "{0} . {0} . inet_proto", address(family)),
            SetKind::Cut(family) => {
                let address = address(family);
                write!(f, "{address} . inet_service . {address} . inet_service . inet_proto")
            }
        }
    }
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementKey::Address(address) => write!(f, "{address}"),
            ElementKey::Pair(one, other) => write!(f, "{one} . {other}"),
            ElementKey::Port(address, protocol, port) => {
                write!(f, "{address} . {} . {port}", word(*protocol))
            }
            ElementKey::Grant(pod, peer, protocol, port) => {
                write!(f, "{pod} . {peer} . {} . {port}", word(*protocol))
            }
            ElementKey::Block(first, last) => f.write_str(&intervals::text(*first, *last)),
            ElementKey::Service(range) => write!(f, "{} . {}", word(range.protocol), ports(range)),
            ElementKey::NumberedAddress(number, address) => {
                write!(f, "{number:#010x} . {address}")
            }
            ElementKey::NumberedPort(number, address, protocol, port) => {
                write!(f, "{number:#010x} . {address} . {} . {port}", word(*protocol))
            }
            ElementKey::NumberedBlock(number, first, last) => {
                write!(f, "{number:#010x} . {}", intervals::text(*first, *last))
            }
            ElementKey::NumberedService(number, range) => {
                write!(f, "{number:#010x} . {} . {}", word(range.protocol), ports(range))
            }
            ElementKey::Family(family) => f.write_str(family_word(*family)),
            ElementKey::LinkAddress(link, address) => write!(f, "\"{link}\" . {address}"),
            ElementKey::Link(link) => write!(f, "\"{link}\""),
            ElementKey::Record(number, position) => write!(f, "{number:#010x} . {position:#010x}"),
        }
    }
}

impl fmt::Display for NftVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NftVerdict::Jump(chain) => write!(f, "jump {chain}"),
            NftVerdict::Goto(chain) => write!(f, "goto {chain}"),
            NftVerdict::Return => f.write_str("return"),
            NftVerdict::Accept => f.write_str("accept"),
        }
    }
}

impl NftChain {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        writeln!(f, "\tchain {name} {{")?;
        if let Some(hook) = self.hook {
            writeln!(f, "\t\t{hook}")?;
        }
        for rule in &self.rules {
            writeln!(f, "\t\t{rule}")?;
        }
        writeln!(f, "\t}}\n")
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = self.chain();
        match self.priority() {
            NF_IP_PRI_FILTER => {
                write!(f, "type filter hook {hook} priority filter; policy accept;")
            }
            number => write!(f, "type filter hook {hook} priority {number}; policy accept;"),
        }
    }
}

impl fmt::Display for NftRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.matches {
            write!(f, "{one} ")?;
        }
        write!(f, "{}", self.statement)?;
        match &*self.comment {
            "" => Ok(()),
            comment => write!(f, " comment \"{comment}\""),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Established => f.write_str("ct state established,related"),
            Match::Translated => f.write_str("ct status dnat"),
            Match::Of(family) => write!(f, "meta nfproto {}", family_word(*family)),
            Match::NeighbourDiscovery => f.write_str("ip6 hoplimit 255 icmpv6 type 133-137"),
            Match::ToStations => f.write_str("meta pkttype != host"),
            Match::ToGroup(family) => {
                let first = first_group(*family);
                write!(f, "{} >= {first}", Field::Destination(*family))
            }
            Match::Protocol(number) => write!(f, "meta l4proto {number}"),
            Match::Icmpv6 { first, last } if first == last => write!(f, "icmpv6 type {first}"),
            Match::Icmpv6 { first, last } => write!(f, "icmpv6 type {first}-{last}"),
            Match::Udp { from, to } => write!(f, "udp sport {from} udp dport {to}"),
            Match::In(key, set) => write!(f, "{} @{set}", joined(key)),
            Match::NotIn(key, set) => write!(f, "{} != @{set}", joined(key)),
            Match::To(range) if *range == PortRange::all(range.protocol) => {
                write!(f, "meta l4proto {}", word(range.protocol))
            }
            Match::Between(field, first, last) => {
                write!(f, "{} {first}", joined(&[*field]))?;
                // nft would turn a prefix into another comparison than this one.
                if first == last { Ok(()) } else { write!(f, "-{last}") }
            }
            Match::To(range) => write!(f, "{} dport {}", word(range.protocol), ports(range)),
            Match::Reply => f.write_str("ct direction reply"),
            Match::FromLinkLocal => f.write_str("ip6 saddr fe80::/10"),
            Match::FromNowhere(IpFamily::V4) => f.write_str("ip saddr 0.0.0.0"),
            Match::FromNowhere(IpFamily::V6) => f.write_str("ip6 saddr ::"),
            Match::ArpProbe => f.write_str("arp saddr ip 0.0.0.0"),
            Match::ExcessLink => write!(
                f,
                "add @{} {{ iif limit rate over {PER_SECOND}/second burst {BURST} packets }}",
                names::REPORTED_LINKS
            ),
            Match::ExcessAnswers => write!(
                f,
                "limit rate over {ANSWERS_PER_SECOND}/second burst {ANSWERS_PER_SECOND} packets"
            ),
            Match::ExcessSource(family) => write!(
                f,
                "{} != @{} add @{} {{ iif limit rate over {NEW_SOURCES_PER_SECOND}/second burst {NEW_SOURCES_PER_SECOND} packets }}",
                Field::Source(*family),
                names::reported_set(*family),
                names::REPORTED_LINKS
            ),
        }
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Accept => f.write_str("accept"),
            Statement::Return => f.write_str("return"),
            Statement::Count => f.write_str("counter"),
            Statement::CountDrop => f.write_str("counter drop"),
            Statement::Drop => f.write_str("drop"),
            Statement::Reject(Answer::Reset) => f.write_str("reject with tcp reset"),
            Statement::Reject(Answer::Prohibited) => {
                f.write_str("reject with icmpx type admin-prohibited")
            }
            Statement::Goto(chain) => write!(f, "goto {chain}"),
            Statement::Jump(chain) => write!(f, "jump {chain}"),
            Statement::Map(key, map) => write!(f, "{} vmap @{map}", joined(key)),
            Statement::AddSource(family) => {
                let (source, set) = (Field::Source(*family), names::reported_set(*family));
                write!(
                    f,
                    "{source} != @{set} add @{set} {{ {source} limit rate over {PER_SECOND}/second burst {BURST} packets }}"
                )
            }
            Statement::Log(cause) => {
                let prefix = prefix(*cause);
                write!(f, "log prefix \"{prefix}\" group {GROUP} snaplen {SNAPLEN}")
            }
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            // nft has no syntax for a constant in a key. This is the number, whatever the mark is.
            Field::Number(number) | Field::IntervalNumber(number) => {
                return write!(f, "meta mark & {number:#010x} | {number:#010x}");
            }
            Field::Family => "meta nfproto",
            Field::Link => "iifname",
            Field::ArpSender => "arp saddr ip",
            Field::Source(IpFamily::V4) | Field::FrameSource(IpFamily::V4) => "ip saddr",
            Field::Source(IpFamily::V6) | Field::FrameSource(IpFamily::V6) => "ip6 saddr",
            Field::Destination(IpFamily::V4) => "ip daddr",
            Field::Destination(IpFamily::V6) => "ip6 daddr",
            Field::Protocol => "meta l4proto",
            Field::SourcePort => "th sport",
            Field::DestinationPort => "th dport",
        })
    }
}

fn joined(fields: &[Field]) -> String {
    fields.iter().map(Field::to_string).collect::<Vec<_>>().join(" . ")
}

fn family_word(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn ports(range: &PortRange) -> String {
    match (range.first, range.last) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}
