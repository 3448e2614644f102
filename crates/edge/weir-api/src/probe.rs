use std::{fmt, net::IpAddr};

use weir_model::{Flow, IpFamily, Name, Pod, PodId, Protocol, ServiceId, Verdict, World};

use crate::WorkloadRef;

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
    pub port: ProbePort,
    /// The transport protocol, if the probe names one.
    pub protocol: Option<Protocol>,
    /// The expected verdict.
    pub expect: Verdict,
    /// The family of the pods' addresses, if it does not follow from the ends.
    pub family: Option<IpFamily>,
    /// The author's comment.
    pub note: Option<String>,
}

/// The port of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbePort {
    /// A number.
    Number(u16),
    /// The name of a container port or of a port of a Service.
    Name(Name),
}

impl fmt::Display for ProbePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbePort::Number(number) => number.fmt(f),
            ProbePort::Name(name) => name.fmt(f),
        }
    }
}

/// One end of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeEnd {
    /// A pod.
    Pod(PodId),
    /// An address.
    Address(IpAddr),
    /// All pods of a workload.
    Workload(WorkloadRef),
    /// All backends of a Service; only as a server.
    Service(ServiceId),
}

impl fmt::Display for ProbeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeEnd::Pod(id) => id.fmt(f),
            ProbeEnd::Address(address) => address.fmt(f),
            ProbeEnd::Workload(WorkloadRef { namespace, kind, name }) => {
                write!(f, "{namespace}/{kind}/{name}")
            }
            ProbeEnd::Service(ServiceId { namespace, name }) => {
                write!(f, "{namespace}/svc/{name}")
            }
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
    /// The end stands for several pods.
    #[error("{0} is neither a pod nor an address")]
    Several(ProbeEnd),
    /// The port has a name.
    #[error("the port {0} is not a number")]
    NamedPort(Name),
}

impl Probe {
    /// The connection in a world of a probe between two pods or addresses, at the number of a port.
    ///
    /// The address family is the probe's, else that of an address among its ends, else that of the
    /// server pod's first address.
    pub fn flow(&self, world: &World) -> Result<Flow, ProbeError> {
        let port = match &self.port {
            ProbePort::Number(number) => *number,
            ProbePort::Name(name) => return Err(ProbeError::NamedPort(name.clone())),
        };
        let family = match (self.family, &self.to, &self.from) {
            (Some(family), _, _) => family,
            (None, ProbeEnd::Address(address), _) | (None, _, ProbeEnd::Address(address)) => {
                family_of(*address)
            }
            (None, ProbeEnd::Pod(to), _) => {
                let first = find(world, to)?.addresses.first();
                family_of(*first.ok_or_else(|| ProbeError::NoAddress(to.clone()))?)
            }
            (None, to, _) => return Err(ProbeError::Several(to.clone())),
        };
        Ok(Flow {
            from: address(world, &self.from, family)?,
            to: address(world, &self.to, family)?,
            protocol: self.protocol.unwrap_or(Protocol::Tcp),
            port,
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
        ProbeEnd::Workload(_) | ProbeEnd::Service(_) => Err(ProbeError::Several(end.clone())),
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
