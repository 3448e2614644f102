//! How rules report the packets they drop. Whoever writes rules needs these words, and so does whoever listens.

use weir_datapath::{Cause, Dropped};
use weir_model::Direction;

use crate::Logged;

/// The netlink group that packets are reported to: that of kube-router.
pub const GROUP: u16 = 100;

/// So many packets are reported per second by each rule that reports.
pub const PER_SECOND: u32 = 100;

/// So many may be reported at once after some silence.
pub const BURST: u32 = 100;

/// So many bytes of each: enough for addresses and ports behind a few extension headers.
pub const SNAPLEN: u32 = 128;

/// What a reported packet is marked with.
pub fn prefix(cause: Cause) -> &'static str {
    match cause {
        Cause::Rules(Direction::Ingress) => "weir ingress",
        Cause::Rules(Direction::Egress) => "weir egress",
        Cause::Answer => "weir answer",
    }
}

/// A packet that our rules reported; `None` for those of others, who may report to the same group.
pub fn dropped(packet: &Logged) -> Option<Dropped> {
    let is_its_mark = |cause: &Cause| prefix(*cause) == packet.prefix;
    Some(Dropped {
        time: packet.time,
        cause: Cause::ALL.into_iter().find(is_its_mark)?,
        from: packet.source,
        to: packet.destination,
        protocol: packet.protocol,
        ports: packet.source_port.zip(packet.destination_port),
    })
}
