//! The parameters by which rules report dropped packets, shared by backends and readers.

use weir_datapath::{DropCause, Dropped};
use weir_model::Direction;

use crate::Logged;

/// The netlink group of the reports: that of kube-router.
pub const GROUP: u16 = 100;

/// The rate limit of each rule that reports, in packets per second.
pub const PER_SECOND: u32 = 100;

/// The burst of the rate limit, in packets.
pub const BURST: u32 = 100;

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
