//! The checks on the packets of pods that no policy can relax.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use weir_model::Name;

use crate::{ApplyError, Records};

/// What a node denies its pods, whatever policies allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// The node's links to its pods, each with the addresses that may be the source of a packet
    /// from there. Packets from other links are not checked.
    pub links: BTreeMap<Name, BTreeSet<IpAddr>>,
    /// The encapsulated packets that pods may not send.
    pub tunnels: BTreeSet<Tunnel>,
    /// The addresses of the node's pods, whose packets are checked for encapsulation.
    pub pods: BTreeSet<IpAddr>,
    /// Texts that the machine keeps for the next agent.
    pub records: Records,
}

/// How a tunnel of the node recognises its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tunnel {
    /// UDP to this port: VXLAN or Geneve.
    Udp(u16),
    /// This IP protocol: IPIP, SIT or GRE.
    Protocol(u8),
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tunnel::Udp(port) => write!(f, "UDP port {port}"),
            Tunnel::Protocol(number) => write!(f, "IP protocol {number}"),
        }
    }
}

/// The links of a machine that a guard depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLinks {
    /// The local ends of pairs of links, which can lead to pods, with their indexes.
    pub pairs: BTreeMap<Name, u32>,
    /// The tunnels.
    pub tunnels: BTreeSet<Tunnel>,
}

/// A machine that enforces a guard.
pub trait EnforceGuard {
    /// Lists the links of the machine, if they changed since the previous call or may have.
    fn changed_links(&mut self) -> Result<Option<NodeLinks>, ApplyError>;

    /// Reads the records that an earlier agent left.
    fn records(&mut self) -> Result<Records, ApplyError>;

    /// Enforces a guard instead of the installed one. A guard that is already in force costs no
    /// write. Returns the parts that this machine cannot enforce.
    fn enforce(&mut self, guard: &Guard) -> Result<Vec<String>, ApplyError>;

    /// Whether another program changed the installed guard since the previous call, or may have.
    fn guard_drifted(&mut self, guard: &Guard) -> Result<bool, ApplyError>;
}

/// The pieces of a record, for machines that keep short texts only.
pub fn pieces(record: &str, length: usize) -> impl Iterator<Item = &str> {
    record.as_bytes().chunks(length).filter_map(|piece| str::from_utf8(piece).ok())
}

/// Joins the pieces of records, each with the number of its record and its position. A record with
/// a gap is left out.
pub fn join_pieces(pieces: BTreeMap<(u32, u32), &str>) -> Records {
    let mut records: BTreeMap<u32, Vec<(u32, &str)>> = BTreeMap::new();
    for ((number, position), piece) in pieces {
        records.entry(number).or_default().push((position, piece));
    }
    let is_whole =
        |pieces: &[(u32, &str)]| pieces.iter().map(|(at, _)| *at).eq(0..pieces.len() as u32);
    records.retain(|_, pieces| is_whole(pieces));
    let join = |pieces: Vec<(u32, &str)>| pieces.into_iter().map(|(_, piece)| piece).collect();
    records.into_iter().map(|(number, pieces)| (number, join(pieces))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_joined_from_their_pieces() {
        let record = "shop/web uid 7 addresses 10.0.0.1";
        let cut: Vec<&str> = pieces(record, 10).collect();
        assert_eq!(cut.len(), 4);
        let all = |number: u32| {
            let positions = 0_u32..;
            positions.zip(&cut).map(move |(position, piece)| ((number, position), *piece))
        };
        let mut stored: BTreeMap<(u32, u32), &str> = all(1).chain(all(2)).chain(all(3)).collect();
        stored.remove(&(2, 1));
        stored.remove(&(3, 0));
        assert_eq!(join_pieces(stored), [(1, record.to_owned())].into());
    }
}
