use ipnet::IpNet;
use weir_model::{Direction, IpFamily};

/// The most answers per second to denied packets of one direction, and the burst.
pub const ANSWERS_PER_SECOND: u32 = 100;

/// Which senders of denied packets get an answer: a TCP reset, or an ICMP error that says that
/// communication is administratively prohibited. By default none does, and packets are dropped
/// without a sign.
///
/// A packet that a pod of this node must not send is always answered, because its sender is that
/// pod. One that a pod must not receive is answered only if its sender is in the cluster, so that
/// weir sends nothing to other machines: the source address may be forged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// The directions in which denied packets are answered.
    pub directions: Vec<Direction>,
    /// The networks of the cluster, besides the pods of this node.
    pub networks: Vec<IpNet>,
}

impl Rejection {
    /// Whether denied packets of a direction are answered.
    pub fn answers(&self, direction: Direction) -> bool {
        self.directions.contains(&direction)
    }

    /// The networks of a family.
    pub fn networks(&self, family: IpFamily) -> impl Iterator<Item = IpNet> {
        self.networks.iter().copied().filter(move |net| IpFamily::from(net.addr()) == family)
    }
}
