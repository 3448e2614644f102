use std::{fmt, net::IpAddr};

use weir_model::{Flow, Pod, PodId, Protocol, Verdict, World};

/// A connection that a policy test tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The line it was written in.
    pub line: u32,
    /// Who opens it.
    pub from: End,
    /// Whom it should reach.
    pub to: End,
    /// The port at the destination.
    pub port: u16,
    /// The transport.
    pub protocol: Protocol,
    /// What should happen.
    pub expect: Verdict,
    /// Which addresses of the pods are used, if not those that the ends suggest.
    pub family: Option<Family>,
    /// What its author wants to say about it.
    pub note: Option<String>,
}

/// One end of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// A pod.
    Pod(PodId),
    /// An address, whoever has it.
    Address(IpAddr),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Pod(id) => id.fmt(f),
            End::Address(address) => address.fmt(f),
        }
    }
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address. IPv4 written as IPv6 is IPv4.
    pub fn of(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// Why a probe is not a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// There is no such pod.
    #[error("there is no pod {0}")]
    UnknownPod(PodId),
    /// The pod has no address at all.
    #[error("the pod {0} has no address")]
    NoAddress(PodId),
    /// The pod has no address of the family.
    #[error("the pod {0} has no {1} address")]
    NoAddressOf(PodId, Family),
    /// The address is of the other family.
    #[error("{0} is not an {1} address")]
    OtherFamily(IpAddr, Family),
}

impl Probe {
    /// The connection it stands for in a world.
    ///
    /// The family is the one it asks for, else that of an address among its ends, else that of the first address of the
    /// pod it should reach.
    pub fn flow(&self, world: &World) -> Result<Flow, ProbeError> {
        let family = match (self.family, &self.to, &self.from) {
            (Some(family), _, _) => family,
            (None, End::Address(address), _) | (None, End::Pod(_), End::Address(address)) => {
                Family::of(*address)
            }
            (None, End::Pod(to), End::Pod(_)) => {
                let first = find(world, to)?.addresses.first();
                Family::of(*first.ok_or_else(|| ProbeError::NoAddress(to.clone()))?)
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

fn address(world: &World, end: &End, family: Family) -> Result<IpAddr, ProbeError> {
    match end {
        End::Address(address) if Family::of(*address) == family => Ok(address.to_canonical()),
        End::Address(address) => Err(ProbeError::OtherFamily(*address, family)),
        End::Pod(id) => {
            let addresses = &find(world, id)?.addresses;
            let fitting = addresses.iter().find(|address| Family::of(**address) == family);
            fitting.copied().ok_or_else(|| match addresses.is_empty() {
                true => ProbeError::NoAddress(id.clone()),
                false => ProbeError::NoAddressOf(id.clone(), family),
            })
        }
    }
}
