use std::{fmt, net::IpAddr};

use crate::{Location, Name, Protocol, Selector};

/// The id of a Service or an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId {
    /// The namespace.
    pub namespace: Name,
    /// The name in the namespace.
    pub name: Name,
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Service with addresses of its own. Policies apply to its backends, so only datapaths that
/// judge a packet before it is load-balanced need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// The id.
    pub id: ServiceId,
    /// The cluster IPs and the addresses of its load balancer.
    pub addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// The pods behind it; `None` if others write its EndpointSlices.
    pub selector: Option<Selector>,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// The name, by which EndpointSlices refer to it; empty if the Service has one port.
    pub name: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number at the addresses of the Service.
    pub port: u16,
    /// The port of the backends.
    pub target: TargetPort,
}

/// The port of a Service's backends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TargetPort {
    /// The same number on every backend.
    Number(u16),
    /// The number that each backend declares under this name.
    Name(Name),
}

/// Some backends of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// The id.
    pub id: ServiceId,
    /// The name of the Service, in the same namespace.
    pub service: Name,
    /// The addresses of the backends, ready or not.
    pub addresses: Vec<IpAddr>,
    /// The ports of the backends.
    pub ports: Vec<EndpointPort>,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}

/// A port of the backends in an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointPort {
    /// The name of the Service's port.
    pub name: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number at the addresses of the backends.
    pub port: u16,
}
