//! How dropped packets are reported. Whoever listens needs these words, and so does whoever reads the rules.

use weir_model::Direction;

/// The netlink group that packets are reported to: that of kube-router.
pub const GROUP: u16 = 100;

/// So many packets are reported per second, in each direction and family.
pub(crate) const PER_SECOND: u32 = 100;

/// So many may be reported at once after some silence.
pub(crate) const BURST: u32 = 100;

/// So many bytes of each: enough for addresses and ports behind a few extension headers.
pub(crate) const SNAPLEN: u32 = 128;

/// What a reported packet is marked with: whose rules dropped it.
pub fn prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "weir ingress",
        Direction::Egress => "weir egress",
    }
}
