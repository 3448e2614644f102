//! The guard: checks of packets from pods that no policy can relax.
//!
//! ```text
//!   prerouting ─► link and source in own4/own6? accept
//!              ─► link in links? ─► spoofed: neighbour discovery, DHCP? accept
//!                                   └► report, drop
//!   forward, input ─► for a tunnel? ─► encapsulated ─► a reply? accept
//!                                                   └► from a pod? report, drop
//! ```
//!
//! The first check runs before the node tracks connections, so a forged packet never belongs to
//! one. A bridge shows only itself to the family `inet`, so a table of the family `bridge` repeats
//! that check for frames. A part without content has no chains, and costs packets nothing.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use weir_datapath::{DropCause, Guard, Mode, Records, Tunnel, join_pieces, pieces};
use weir_model::{IpFamily, Name, PortRange, Protocol};

use crate::{
    ElementData, ElementKey, Field, Hook, Installed, Match, NftChain, NftRule, NftSet, NftTable,
    NftVerdict, SetKind, Statement, TableId,
    names::{self, MAX_COMMENT_BYTES},
    wire,
};

/// The ICMPv6 messages of a host that has no address yet: multicast listener reports, router and
/// neighbour solicitations.
const WITHOUT_ADDRESS: [(u8, u8); 4] = [(131, 132), (133, 133), (135, 135), (143, 143)];
/// The ports of DHCP.
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;

const RECORDS: &str = "records";
const LINKS: &str = "links";
const SPOOFED: &str = "spoofed";
const ENCAPSULATED: &str = "encapsulated";
const FROM_POD: &str = "encapsulated-by-pod";

/// The tables that enforce a guard. Those without content need not exist.
pub fn guard_tables(guard: &Guard, mode: Mode) -> [NftTable; 2] {
    let mut inet = NftTable { id: TableId::Guard, ..NftTable::default() };
    let mut bridge = NftTable { id: TableId::BridgeGuard, ..NftTable::default() };
    if !guard.links.is_empty() {
        add_links(&mut inet, guard, mode);
        add_links(&mut bridge, guard, mode);
    }
    if !guard.tunnels.is_empty() {
        add_tunnels(&mut inet, guard, mode);
    }
    add_records(&mut inet, &guard.records, "pods that the CNI plugin reported, for the next agent");
    [inet, bridge]
}

/// The table that keeps records for the next agent.
pub(crate) fn journal_table(records: &Records) -> NftTable {
    let mut table = NftTable { id: TableId::Journal, ..NftTable::default() };
    add_records(&mut table, records, "policies that agents compiled when they ended");
    table
}

/// Adds the set that keeps records, if there are any.
fn add_records(table: &mut NftTable, records: &Records, comment: &str) {
    if records.is_empty() {
        return;
    }
    let elements = records.iter().flat_map(|(number, record)| {
        let pieces = (0..).zip(pieces(record, MAX_COMMENT_BYTES));
        pieces.map(|(position, piece)| {
            let data = ElementData { verdict: NftVerdict::Accept, comment: piece.into() };
            (ElementKey::Record(*number, position), Some(Arc::new(data)))
        })
    });
    let (kind, comment) = (SetKind::Records, names::comment(comment));
    let set = NftSet { kind, comment, elements: elements.collect() };
    table.sets.insert(RECORDS.into(), set);
}

/// The records in the installed table.
pub(crate) fn records(installed: &Installed) -> Records {
    let set = installed.sets.get(RECORDS);
    let set = set.filter(|set| set.declared == SetKind::Records.declared());
    let elements = set.into_iter().flat_map(|set| &set.elements);
    let pieces = elements.filter_map(|element| match wire::key(SetKind::Records, element)? {
        ElementKey::Record(number, position) => {
            Some(((number, position), wire::comment(&element.userdata)?))
        }
        _ => None,
    });
    join_pieces(pieces.collect())
}

/// The chains that count denied packets.
pub(crate) fn denied_chains() -> [(TableId, Name); 3] {
    let all =
        [(TableId::Guard, SPOOFED), (TableId::BridgeGuard, SPOOFED), (TableId::Guard, FROM_POD)];
    all.map(|(table, chain)| (table, chain.into()))
}

/// Adds the check of source addresses.
fn add_links(table: &mut NftTable, guard: &Guard, mode: Mode) {
    let mut checks = Vec::new();
    for family in IpFamily::BOTH {
        let name = Name::from(format!("own{}", family.digit()));
        let own = guard.links.iter().flat_map(|(link, addresses)| {
            let own = addresses.iter().filter(|address| IpFamily::from(**address) == family);
            own.map(|address| ElementKey::LinkAddress(link.clone(), *address))
        });
        add_map(table, &name, SetKind::LinkAddresses(family), own, NftVerdict::Accept);
        checks.push((Field::FrameSource(family), name.clone()));
        if family == IpFamily::V4 && table.id == TableId::BridgeGuard {
            checks.push((Field::ArpSender, name));
        }
    }
    let links = guard.links.keys().cloned().map(ElementKey::Link);
    add_map(table, LINKS, SetKind::Links, links, NftVerdict::Goto(SPOOFED.into()));
    let own = checks.into_iter();
    let own = own.map(|(source, map)| Statement::Map(vec![Field::Link, source], map));
    let rules = own.chain([Statement::Map(vec![Field::Link], LINKS.into())]);
    let rules = rules.map(|statement| NftRule::new([], statement)).collect();
    add_base_chain(table, Hook::Prerouting, rules);

    let mut accepted = vec![
        vec![Match::FromLinkLocal],
        vec![Match::FromNowhere(IpFamily::V4), Match::Udp { from: DHCP_CLIENT, to: DHCP_SERVER }],
    ];
    accepted.extend(WITHOUT_ADDRESS.map(|(first, last)| {
        vec![Match::FromNowhere(IpFamily::V6), Match::Icmpv6 { first, last }]
    }));
    if table.id == TableId::BridgeGuard {
        accepted.push(vec![Match::ArpProbe]);
    }
    let accepted = accepted.into_iter().map(|matches| NftRule::new(matches, Statement::Accept));
    add_denied_chain(table, SPOOFED, accepted.collect(), DropCause::SpoofedSource, mode);
}

/// Adds the check of packets for tunnels.
fn add_tunnels(table: &mut NftTable, guard: &Guard, mode: Mode) {
    let rules = guard.tunnels.iter().map(|tunnel| {
        let is_for_it = match *tunnel {
            Tunnel::Udp(port) => {
                Match::To(PortRange { protocol: Protocol::Udp, first: port, last: port })
            }
            Tunnel::Protocol(number) => Match::Protocol(number),
        };
        NftRule::new([is_for_it], Statement::Goto(ENCAPSULATED.into()))
    });
    let rules: Vec<NftRule> = rules.collect();
    add_base_chain(table, Hook::Forward, rules.clone());
    add_base_chain(table, Hook::Input, rules);
    // A packet that is not tracked is no reply.
    let mut rules = vec![NftRule::new([Match::Reply], Statement::Accept)];
    for family in IpFamily::BOTH {
        let name = Name::from(format!("pods{}", family.digit()));
        let kind = SetKind::Addresses(family);
        let pods =
            guard.pods.iter().filter(|address: &&IpAddr| IpFamily::from(**address) == family);
        let elements = pods.map(|address| (ElementKey::Address(*address), None)).collect();
        let set = NftSet { kind, comment: "pods of this node".into(), elements };
        table.sets.insert(name.clone(), set);
        let from_pod = Match::In(vec![Field::Source(family)], name);
        rules.push(NftRule::new([from_pod], Statement::Goto(FROM_POD.into())));
    }
    table.chains.insert(ENCAPSULATED.into(), NftChain { hook: None, rules });
    add_denied_chain(table, FROM_POD, Vec::new(), DropCause::Encapsulation, mode);
}

fn add_map(
    table: &mut NftTable,
    name: &str,
    kind: SetKind,
    keys: impl Iterator<Item = ElementKey>,
    verdict: NftVerdict,
) {
    let comment = match kind {
        SetKind::LinkAddresses(_) => "links to pods, and the addresses of these pods",
        _ => "links to pods",
    };
    let data = Arc::new(ElementData { verdict, comment: "".into() });
    let elements = keys.map(|key| (key, Some(data.clone()))).collect();
    table.sets.insert(name.into(), NftSet { kind, comment: comment.into(), elements });
}

fn add_base_chain(table: &mut NftTable, hook: Hook, rules: Vec<NftRule>) {
    table.chains.insert(hook.chain().into(), NftChain { hook: Some(hook), rules });
}

/// Adds the chain of packets to drop, after some rules. Each link has a rate limit of its reports,
/// because the source address of these packets can be false.
fn add_denied_chain(
    table: &mut NftTable,
    name: &str,
    accepted: Vec<NftRule>,
    cause: DropCause,
    mode: Mode,
) {
    let report = Name::from(format!("{name}-report"));
    let end = match mode {
        Mode::Enforce => Statement::CountDrop,
        Mode::Audit => Statement::Count,
    };
    let denied = [Statement::Jump(report.clone()), end];
    let denied = denied.map(|statement| NftRule::new([], statement));
    let rules = accepted.into_iter().chain(denied).collect();
    table.chains.insert(name.into(), NftChain { hook: None, rules });
    let rules = vec![
        NftRule::new([Match::ExcessLink], Statement::Return),
        NftRule::new([], Statement::Log(cause)),
    ];
    table.chains.insert(report, NftChain { hook: None, rules });
    let (kind, comment) = (SetKind::ReportLinks, "links of reported packets".into());
    let links = NftSet { kind, comment, elements: BTreeMap::new() };
    table.sets.insert(names::REPORTED_LINKS.into(), links);
}
