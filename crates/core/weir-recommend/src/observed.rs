use std::net::IpAddr;

use weir_model::{PodId, Protocol};

use crate::Evidence;

/// A connection that the recommended policies must allow, after service translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFlow {
    /// The source.
    pub from: ObservedEnd,
    /// The destination.
    pub to: ObservedEnd,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
    /// Why it must be allowed.
    pub evidence: Evidence,
}

/// One end of an observed flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObservedEnd {
    /// A pod of the world, which stands for its workload.
    Pod(PodId),
    /// An address of no pod.
    Address(IpAddr),
}

impl ObservedEnd {
    /// The pod, if it is one.
    pub(crate) fn pod(&self) -> Option<&PodId> {
        match self {
            ObservedEnd::Pod(id) => Some(id),
            ObservedEnd::Address(_) => None,
        }
    }
}
