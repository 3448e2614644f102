use std::{fmt, net::IpAddr};

use weir_model::{Flow, IpFamily, Pod, PodId, Protocol, Verdict, World};

/// A connection that a policy test evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The line of the probe.
    pub line: u32,
    /// The client.
    pub from: ProbeEnd,
    /// The server.
    pub to: ProbeEnd,
    /// The destination port.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The expected verdict.
    pub expect: Verdict,
    /// The family of the pods' addresses, if it does not follow from the ends.
    pub family: Option<IpFamily>,
    /// The author's comment.
    pub note: Option<String>,
}

/// One end of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeEnd {
    /// A pod.
    Pod(PodId),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for ProbeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeEnd::Pod(id) => id.fmt(f),
            ProbeEnd::Address(address) => address.fmt(f),
        }
    }
}

/// Why a probe does not describe a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The pod does not exist.
    #[error("there is no pod {0}")]
    UnknownPod(PodId),
    /// The pod has no address at all.
    #[error("the pod {0} has no address")]
    NoAddress(PodId),
    /// The pod has no address of the family.
    #[error("the pod {0} has no {1} address")]
    NoAddressOf(PodId, IpFamily),
    /// The address is of the other family.
    #[error("{0} is not an {1} address")]
    OtherFamily(IpAddr, IpFamily),
}

impl Probe {
    /// The probe's connection in a world.
    ///
    /// The address family is the probe's, else that of an address among its ends, else that of the
    /// server pod's first address.
    pub fn flow(&self, world: &World) -> Result<Flow, ProbeError> {
        let family = match (self.family, &self.to, &self.from) {
            (Some(family), _, _) => family,
            (None, ProbeEnd::Address(address), _)
            | (None, ProbeEnd::Pod(_), ProbeEnd::Address(address)) => family_of(*address),
            (None, ProbeEnd::Pod(to), ProbeEnd::Pod(_)) => {
                let first = find(world, to)?.addresses.first();
                family_of(*first.ok_or_else(|| ProbeError::NoAddress(to.clone()))?)
            }
        };
        Ok(Flow {
            from: address(world, &self.from, family)?,
            to: address(world, &self.to, family)?,
            protocol: self.protocol,
            port: self.port,
        })
    }
}

fn find<'w>(world: &'w World, id: &PodId) -> Result<&'w Pod, ProbeError> {
    world.pods.get(id).ok_or_else(|| ProbeError::UnknownPod(id.clone()))
}

fn address(world: &World, end: &ProbeEnd, family: IpFamily) -> Result<IpAddr, ProbeError> {
    match end {
        ProbeEnd::Address(address) if family_of(*address) == family => Ok(address.to_canonical()),
        ProbeEnd::Address(address) => Err(ProbeError::OtherFamily(*address, family)),
        ProbeEnd::Pod(id) => {
            let addresses = &find(world, id)?.addresses;
            let fitting = addresses.iter().find(|address| family_of(**address) == family);
            fitting.copied().ok_or_else(|| {
                if addresses.is_empty() {
                    ProbeError::NoAddress(id.clone())
                } else {
                    ProbeError::NoAddressOf(id.clone(), family)
                }
            })
        }
    }
}

/// The family of an address on the wire: an IPv4-mapped IPv6 address is IPv4.
fn family_of(address: IpAddr) -> IpFamily {
    address.to_canonical().into()
}
