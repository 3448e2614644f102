//! The guard: checks of packets from pods that no policy can relax.
//!
//! ```text
//!   raw PREROUTING ─► WEIR-GUARD ─ link and source in weir-own? ─► return
//!                      └► tree of link names ─► WEIR-LINK-… ─ its own source? ─► return
//!                                                └► WEIR-SPOOFED: report, drop
//!   mangle FORWARD, INPUT ─► WEIR-GUARD ─ for a tunnel? ─► WEIR-TUNNEL ─ a reply? ─► return
//!                                                           └ from a pod? ─► report, drop
//! ```
//!
//! Sets match the link of a packet, but not the port of a bridge. So packets from a bridge are
//! looked up by the name of the port, in a tree of chains.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weir_datapath::{DropCause, Guard, Mode, Records, Tunnel, join_pieces, pieces};
use weir_model::{IpFamily, Name, Protocol};

use crate::{
    Entry, IpSet, IpSetKind, IptablesRule, IptablesTarget, Match, SrcDst,
    installed::InstalledSet,
    name::{hashed, in_family},
};

/// The prefix of our chains.
const CHAINS: &str = "WEIR-";
const GUARD: &str = "WEIR-GUARD";
const SPOOFED: &str = "WEIR-SPOOFED";
const TUNNEL: &str = "WEIR-TUNNEL";
const FROM_POD: &str = "WEIR-TUNNEL-POD";
/// The most links that a chain compares one by one.
const MAX_LINKS: usize = 8;
/// The longest piece of a record. ipset accepts comments of up to 255 bytes.
const MAX_PIECE: usize = 240;
/// The ICMPv6 messages of a host that has no address yet: multicast listener reports, router and
/// neighbour solicitations.
const WITHOUT_ADDRESS: [u8; 5] = [131, 132, 133, 135, 143];

/// A table that the guard uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuardTable {
    Raw,
    Mangle,
}

impl GuardTable {
    pub(crate) const ALL: [GuardTable; 2] = [GuardTable::Raw, GuardTable::Mangle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            GuardTable::Raw => "raw",
            GuardTable::Mangle => "mangle",
        }
    }

    /// The built-in chains that jump to ours.
    pub(crate) fn hooks(self) -> &'static [&'static str] {
        match self {
            GuardTable::Raw => &["PREROUTING"],
            GuardTable::Mangle => &["FORWARD", "INPUT"],
        }
    }

    /// The chain whose last rule denied packets reach.
    pub(crate) fn denied_chain(self) -> &'static str {
        match self {
            GuardTable::Raw => SPOOFED,
            GuardTable::Mangle => FROM_POD,
        }
    }
}

/// Whether the machine passes packets of bridges to iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bridges {
    /// It does. Matching the ports of bridges has no side effect.
    Seen,
    /// It does not. A rule with a port would load the module that does.
    Unseen,
}

/// The chains of one table in one family.
pub(crate) type Chains = BTreeMap<Name, Vec<IptablesRule>>;

/// The chains and sets of a guard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuardRules {
    pub(crate) chains: BTreeMap<(IpFamily, GuardTable), Chains>,
    pub(crate) sets: BTreeMap<Name, IpSet>,
    /// The links that iptables cannot name.
    pub(crate) unnamed: Vec<Name>,
}

impl GuardRules {
    pub(crate) fn new(guard: &Guard, mode: Mode, bridges: Bridges) -> Self {
        let mut rules = GuardRules::default();
        let (named, unnamed): (Vec<&Name>, Vec<&Name>) =
            guard.links.keys().partition(|link| is_nameable(link));
        rules.unnamed = unnamed.into_iter().cloned().collect();
        for family in IpFamily::BOTH {
            if !named.is_empty() {
                rules.add_links(guard, &named, family, mode, bridges);
            }
            if !guard.tunnels.is_empty() {
                rules.add_tunnels(guard, family, mode);
            }
        }
        if !guard.records.is_empty() {
            rules.sets.insert(records_set(), set_of_records(&guard.records));
        }
        rules
    }

    fn add_set(
        &mut self,
        name: Name,
        kind: IpSetKind,
        family: IpFamily,
        entries: BTreeMap<Entry, Name>,
    ) {
        self.sets.insert(name, IpSet { kind, family, entries });
    }

    /// Adds the check of source addresses.
    fn add_links(
        &mut self,
        guard: &Guard,
        links: &[&Name],
        family: IpFamily,
        mode: Mode,
        bridges: Bridges,
    ) {
        let own = |link: &Name| {
            let all = guard.links.get(link).into_iter().flatten();
            let of_family = all.filter(|address| IpFamily::from(**address) == family);
            of_family.map(|address| IpNet::from(*address)).collect::<Vec<IpNet>>()
        };
        let entries = links.iter().flat_map(|link| {
            let own = own(link).into_iter();
            own.map(|net| (Entry::Link(net, (*link).clone()), Name::from("")))
        });
        let set = own_set(family);
        self.add_set(set.clone(), IpSetKind::Links, family, entries.collect());
        let is_own = Match::In(set, vec![SrcDst::Source, SrcDst::Source]);
        let mut chains = Chains::new();
        let mut rules = vec![IptablesRule::new([is_own], IptablesTarget::Return)];
        rules.extend(tree(Match::Link, links, &mut chains));
        if bridges == Bridges::Seen {
            rules.extend(tree(Match::BridgePort, links, &mut chains));
        }
        chains.insert(GUARD.into(), rules);
        for link in links {
            let own = own(link).into_iter().map(|net| {
                IptablesRule::new([Match::At(SrcDst::Source, net)], IptablesTarget::Return)
            });
            let spoofed = IptablesRule::new([], IptablesTarget::Goto(SPOOFED.into()));
            chains.insert(link_chain(link), own.chain([spoofed]).collect());
        }
        let passed = without_address(family).into_iter();
        let passed = passed.map(|matches| IptablesRule::new(matches, IptablesTarget::Return));
        let rules = passed.chain(denied(DropCause::SpoofedSource, mode)).collect();
        chains.insert(SPOOFED.into(), rules);
        self.chains.insert((family, GuardTable::Raw), chains);
    }

    /// Adds the check of packets for tunnels.
    fn add_tunnels(&mut self, guard: &Guard, family: IpFamily, mode: Mode) {
        let set = pods_set(family);
        let pods = guard.pods.iter().filter(|address| IpFamily::from(**address) == family);
        let entries = pods.map(|address| (Entry::Address(*address), Name::from(""))).collect();
        self.add_set(set.clone(), IpSetKind::Addresses, family, entries);
        let rules = guard.tunnels.iter().map(|tunnel| {
            let is_for_it = match *tunnel {
                Tunnel::Udp(port) => Match::To(Protocol::Udp, vec![(port, port)]),
                Tunnel::Protocol(number) => Match::Protocol(number),
            };
            IptablesRule::new([is_for_it], IptablesTarget::Goto(TUNNEL.into()))
        });
        // A packet that is not tracked is no reply.
        let reply = IptablesRule::new([Match::Reply], IptablesTarget::Return);
        let from_pod = Match::In(set, vec![SrcDst::Source]);
        let from_pod = IptablesRule::new([from_pod], IptablesTarget::Goto(FROM_POD.into()));
        let chains = [
            (GUARD.into(), rules.collect()),
            (TUNNEL.into(), vec![reply, from_pod]),
            (FROM_POD.into(), denied(DropCause::Encapsulation, mode).into()),
        ];
        self.chains.insert((family, GuardTable::Mangle), chains.into());
    }
}

/// Rules that lead to the chain of the link that the packet came from. Many links become a tree of
/// chains, by the characters of their names.
fn tree(matching: fn(Name) -> Match, links: &[&Name], chains: &mut Chains) -> Vec<IptablesRule> {
    let leaf = |link: &Name| {
        IptablesRule::new([matching(link.clone())], IptablesTarget::Goto(link_chain(link)))
    };
    if links.len() <= MAX_LINKS {
        return links.iter().map(|link| leaf(link)).collect();
    }
    let common = common_prefix(links);
    let mut groups: BTreeMap<&str, Vec<&Name>> = BTreeMap::new();
    for link in links {
        groups.entry(link.get(..common + 1).unwrap_or(link)).or_default().push(link);
    }
    let mut branches = Vec::new();
    for (prefix, group) in groups {
        match &group[..] {
            [link] => branches.push(leaf(link)),
            several => {
                let wildcard = matching(format!("{prefix}+").into());
                let name = hashed(&format!("{CHAINS}TREE-"), &[&wildcard.to_string()]);
                let rules = tree(matching, several, chains);
                chains.insert(name.clone(), rules);
                branches.push(IptablesRule::new([wildcard], IptablesTarget::Goto(name)));
            }
        }
    }
    // One comparison sends packets of other links on.
    let all = matching(format!("{}+", &links[0][..common]).into());
    let name = hashed(&format!("{CHAINS}TREE-"), &["/", &all.to_string()]);
    chains.insert(name.clone(), branches);
    vec![IptablesRule::new([all], IptablesTarget::Goto(name))]
}

/// The length of the longest common prefix.
fn common_prefix(links: &[&Name]) -> usize {
    let first = links.first().map_or("", |link| link);
    let common = |link: &&Name| first.bytes().zip(link.bytes()).take_while(|(a, b)| a == b).count();
    links.iter().map(common).min().unwrap_or_default()
}

/// Whether a name means one link in a rule. The kernel accepts more characters.
fn is_nameable(link: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-@".contains(&byte);
    !link.is_empty() && !link.starts_with('-') && link.bytes().all(is_plain)
}

/// The packets of a host that has no address yet, and of link-local addresses.
fn without_address(family: IpFamily) -> Vec<Vec<Match>> {
    let from = |net: IpNet| Match::At(SrcDst::Source, net);
    let net4 = |address, length| Ipv4Net::new(address, length).map(IpNet::V4);
    let net6 = |address, length| Ipv6Net::new(address, length).map(IpNet::V6);
    match family {
        IpFamily::V4 => {
            let nowhere = net4(Ipv4Addr::UNSPECIFIED, 32).into_iter();
            nowhere.map(|nowhere| vec![from(nowhere), Match::Udp { from: 68, to: 67 }]).collect()
        }
        IpFamily::V6 => {
            let local = net6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10).into_iter();
            let nowhere = net6(Ipv6Addr::UNSPECIFIED, 128).into_iter();
            let nowhere = nowhere.flat_map(|nowhere| {
                WITHOUT_ADDRESS.map(|number| vec![from(nowhere), Match::Icmp6Type(number)])
            });
            local.map(|local| vec![from(local)]).chain(nowhere).collect()
        }
    }
}

/// The rules that report and drop a packet. A forged source says nothing about the sender, so all
/// sources share one rate limit.
fn denied(cause: DropCause, mode: Mode) -> [IptablesRule; 2] {
    let end = match mode {
        Mode::Enforce => IptablesTarget::Drop,
        Mode::Audit => IptablesTarget::Return,
    };
    [IptablesTarget::LogSome(cause), end].map(|target| IptablesRule::new([], target))
}

/// The set whose comments are these records.
pub(crate) fn set_of_records(records: &Records) -> IpSet {
    let entries = records.iter().flat_map(|(number, record)| {
        let pieces = (0..).zip(pieces(record, MAX_PIECE));
        pieces.map(|(position, piece)| (record_entry(*number, position), Name::from(piece)))
    });
    IpSet { kind: IpSetKind::Records, family: IpFamily::V4, entries: entries.collect() }
}

fn record_entry(number: u32, position: u16) -> Entry {
    Entry::Port(IpAddr::V4(Ipv4Addr::from_bits(number)), Protocol::Tcp, position)
}

/// The records in an installed set.
pub(crate) fn records(installed: &InstalledSet) -> Records {
    let pieces = installed.entries.iter().filter_map(|(entry, piece)| match entry {
        Entry::Port(IpAddr::V4(number), Protocol::Tcp, position) => {
            Some(((number.to_bits(), u32::from(*position)), &**piece))
        }
        _ => None,
    });
    join_pieces(pieces.collect())
}

/// The chain with the addresses of a link.
fn link_chain(link: &str) -> Name {
    hashed(&format!("{CHAINS}LINK-"), &[link])
}

/// The set of links, each with an address of its pod.
fn own_set(family: IpFamily) -> Name {
    in_family(family, "weir-own")
}

/// The set of the addresses of the node's pods.
fn pods_set(family: IpFamily) -> Name {
    in_family(family, "weir-pods")
}

/// The set whose comments are the records.
pub(crate) fn records_set() -> Name {
    "weir-records".into()
}

/// The set whose comments are the records of the journal.
pub(crate) fn journal_set() -> Name {
    "weir-journal".into()
}

/// The names of all sets that a guard can have.
pub(crate) fn all_sets() -> BTreeSet<Name> {
    let of_families = IpFamily::BOTH.into_iter().flat_map(|f| [own_set(f), pods_set(f)]);
    of_families.chain([records_set()]).collect()
}

/// Whether a chain belongs to the guard.
pub(crate) fn is_guard_chain(name: &str) -> bool {
    name.starts_with(CHAINS)
}

/// The rule of a built-in chain that leads to ours.
pub(crate) fn jump() -> String {
    format!("-j {GUARD}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chain that the rules for a link lead to.
    fn follow(chains: &Chains, rules: &[IptablesRule], link: &str) -> Option<Name> {
        let fits = |rule: &&IptablesRule| match &rule.matches[..] {
            [Match::Link(name)] => match name.strip_suffix('+') {
                Some(prefix) => link.starts_with(prefix),
                None => link == &**name,
            },
            _ => false,
        };
        match &rules.iter().find(fits)?.target {
            IptablesTarget::Goto(chain) => match chains.get(chain) {
                Some(rules) => follow(chains, rules, link),
                None => Some(chain.clone()),
            },
            _ => None,
        }
    }

    #[test]
    fn every_link_leads_to_its_chain_and_no_other_link_does() {
        let names = (0..500_u32).map(|n| format!("veth{:x}", n.wrapping_mul(2_654_435_761)));
        let more = ["veth", "veth1", "veth12", "cali0", "eni1"].map(str::to_owned);
        let links: Vec<Name> = names.chain(more).map(Name::from).collect();
        let links: Vec<&Name> = links.iter().collect();
        let mut chains = Chains::new();
        let root = tree(Match::Link, &links, &mut chains);
        for link in &links {
            assert_eq!(follow(&chains, &root, link), Some(link_chain(link)), "{link}");
        }
        for other in ["eth0", "vet", "vethx", "veth1-", "cali", "lo", "docker0"] {
            assert_eq!(follow(&chains, &root, other), None, "{other}");
        }
        let longest = chains.values().map(Vec::len).max();
        assert!(longest.is_some_and(|length| length <= 64), "{longest:?}");
    }

    #[test]
    fn a_link_that_a_rule_cannot_name_is_not_in_a_rule() {
        for bad in ["", "-j", "veth+", "a b", "a\"b", "!x", "ä"] {
            assert!(!is_nameable(bad), "{bad}");
        }
        let links = ["veth1", "veth+"].map(|link| (Name::from(link), BTreeSet::new()));
        let guard = Guard { links: links.into(), ..Guard::default() };
        let rules = GuardRules::new(&guard, Mode::Enforce, Bridges::Seen);
        assert_eq!(rules.unnamed, [Name::from("veth+")]);
    }
}
