//! The parameters by which rules report dropped packets, shared by backends and readers.

use weir_datapath::{DropCause, Dropped};
use weir_model::Direction;

use crate::Logged;

/// The netlink group of the reports: that of kube-router.
pub const GROUP: u16 = 100;

/// The rate limit of the reports about packets from one source address, in packets per second.
pub const PER_SECOND: u32 = 20;

/// The burst of this limit, in packets.
pub const BURST: u32 = 50;

/// The most source addresses that have a rate limit of their own at a time.
pub const MAX_SOURCES: u32 = 16_384;

/// How long the kernel remembers a source address, in seconds.
pub const SOURCE_TIMEOUT_SECONDS: u32 = 10;

/// The rate at which new source addresses are reported, per second, and its burst. It bounds the
/// memory that a sender of false addresses can take up.
pub const NEW_SOURCES_PER_SECOND: u32 = 100;

/// The most links that have a limit of new source addresses of their own at a time.
pub const MAX_LINKS: u32 = 4096;

/// The reported bytes per packet: enough for the ports behind a few extension headers.
pub const SNAPLEN: u32 = 128;

/// The log prefix for a cause.
pub fn prefix(cause: DropCause) -> &'static str {
    match cause {
        DropCause::Rules(Direction::Ingress) => "weir ingress",
        DropCause::Rules(Direction::Egress) => "weir egress",
        DropCause::Answer => "weir answer",
        DropCause::SpoofedSource => "weir spoofed source",
        DropCause::Encapsulation => "weir encapsulation",
    }
}

/// Converts a reported packet. `None` if a rule of another program reported it to the same group.
pub fn dropped(packet: &Logged) -> Option<Dropped> {
    let has_prefix = |cause: &DropCause| prefix(*cause) == packet.prefix;
    Some(Dropped {
        time: packet.time,
        cause: DropCause::ALL.into_iter().find(has_prefix)?,
        from: packet.source,
        to: packet.destination,
        protocol: packet.protocol,
        ports: packet.source_port.zip(packet.destination_port),
        link: packet.input,
    })
}
