//! The decision which tracked connections end.

use std::{collections::BTreeSet, net::IpAddr};

use weir_datapath::EndingFlows;
use weir_model::Protocol;

use crate::{Connection, Tuple};

/// The connections that end.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    pub(crate) all: BTreeSet<Connection>,
    /// Those whose replies must not pass as new connections.
    pub(crate) to_block: BTreeSet<Connection>,
    /// The connections that continue.
    kept: Vec<Tuple>,
    /// Forbidden connections that a helper expected, each with its master. They continue as long as
    /// the master does.
    expected: Vec<(Connection, Tuple)>,
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The first port that Linux gives to clients, by default.
const FIRST_CLIENT_PORT: u16 = 32_768;

impl Endings {
    /// Decides about a connection. `own` are the addresses of the machine.
    pub(crate) fn add(
        &mut self,
        connection: Connection,
        ending: &EndingFlows<'_>,
        own: &BTreeSet<IpAddr>,
    ) {
        let (from, to) = connection.ends();
        if !ending.concern(from, to) {
            return;
        }
        if ending.are_of_released(from, to) {
            // Rules apply to the next packet of either side. A reply is a new connection.
            self.all.insert(connection);
            return;
        }
        // A node always reaches its pods, from each of its addresses.
        let is_forbidden =
            !own.contains(&from) && ending.are_forbidden(from, to, connection.port());
        if let (true, Some(master)) = (is_forbidden, connection.master) {
            self.expected.push((connection, master));
            return;
        }
        let is_reverse_allowed = || !ending.are_forbidden(to, from, connection.reverse_port());
        if !is_forbidden || is_reversed(&connection) && is_reverse_allowed() {
            self.kept.push(connection.original);
            return;
        }
        self.all.insert(connection);
        // With equal ports, a datagram of the other side can be a reply or a flow of its own, as with
        // gossip protocols. If policies allow such a flow, it must not be blocked. A client of TCP
        // could use its server's port to escape, and no server connects from its own port.
        let is_ambiguous = connection.port().is_some_and(|(protocol, _)| protocol == Protocol::Udp)
            && connection.original.source_port == connection.reply.source_port
            && is_reverse_allowed();
        // A reply of ICMP never opens a connection.
        let is_icmp = matches!(connection.protocol, ICMP | ICMPV6);
        if !is_ambiguous && !is_icmp {
            self.to_block.insert(connection);
        }
    }

    /// Adds the expected connections whose master does not continue.
    pub(crate) fn add_expected(&mut self) {
        if self.expected.is_empty() {
            return;
        }
        let kept: BTreeSet<&Tuple> = self.kept.iter().collect();
        for (connection, master) in self.expected.drain(..) {
            if !kept.contains(&master) {
                self.all.insert(connection);
                self.to_block.insert(connection);
            }
        }
    }
}

/// Whether the original sender is probably the server: the kernel picked the connection up, and the
/// ports are those of a reply. The ports matter, because a client can make the kernel pick any
/// connection up, but it cannot choose the port of the server.
fn is_reversed(connection: &Connection) -> bool {
    connection.is_picked_up
        && connection.original.source_port < FIRST_CLIENT_PORT
        && connection.reply.source_port >= FIRST_CLIENT_PORT
}
