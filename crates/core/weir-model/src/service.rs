use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use crate::{IpFamily, Location, Name, NamedPort, Pod, PodId, Protocol, Selector, World};

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

/// A Service. Policies apply to its backends, so only datapaths that judge a packet before it is
/// load-balanced need it, and users who name it as the destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// The id.
    pub id: ServiceId,
    /// Its type.
    pub kind: ServiceKind,
    /// The address that policies see for clients outside the cluster.
    pub external_traffic: ExternalTraffic,
    /// The cluster IPs and the addresses of its load balancer.
    pub addresses: Vec<IpAddr>,
    /// The IP families of its backends; empty if the cluster decides.
    pub families: Vec<IpFamily>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// The pods behind it; `None` if others write its EndpointSlices.
    pub selector: Option<Selector>,
    /// Where the manifest defines it.
    pub location: Option<Location>,
}

/// The type of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// Clients inside the cluster use its cluster IP.
    #[default]
    ClusterIp,
    /// Its name resolves to the addresses of its backends, so ports are not translated.
    Headless,
    /// Clients outside the cluster also use a port of every node.
    NodePort,
    /// Clients outside the cluster also use the address of a load balancer.
    LoadBalancer,
    /// It is an alias for a domain name and has no backends.
    ExternalName(Name),
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceKind::ClusterIp => "ClusterIP",
            ServiceKind::Headless => "headless",
            ServiceKind::NodePort => "NodePort",
            ServiceKind::LoadBalancer => "LoadBalancer",
            ServiceKind::ExternalName(_) => "ExternalName",
        })
    }
}

/// The externalTrafficPolicy of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExternalTraffic {
    /// A node may forward a connection to another node, and replaces the address of the client.
    #[default]
    Cluster,
    /// A node forwards connections only to its own pods, and keeps the address of the client.
    Local,
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
    /// The number at the addresses of all nodes.
    pub node_port: Option<u16>,
}

impl ServicePort {
    /// The number at a pod behind the Service; `None` if the pod has no port of that name.
    pub fn number_at(&self, pod: &Pod) -> Option<u16> {
        match &self.target {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Name(name) => {
                let fits = |port: &&NamedPort| port.name == *name && port.protocol == self.protocol;
                pod.ports.iter().find(fits).map(|port| port.port)
            }
        }
    }
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

/// A backend of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBackend {
    /// The pod; `None` if no pod has the address.
    pub pod: Option<PodId>,
    /// The addresses of the families that the Service uses.
    pub addresses: Vec<IpAddr>,
    /// The number of the port; `None` if the pod has no port of the name.
    pub port: Option<u16>,
}

impl Service {
    /// Whether a pod is behind the Service.
    pub fn selects(&self, pod: &Pod) -> bool {
        let is_selected = |selector: &Selector| selector.matches(&pod.labels);
        pod.id.namespace == self.id.namespace
            && !pod.finished
            && self.selector.as_ref().is_some_and(is_selected)
    }

    /// The backends of one of its ports, by its EndpointSlices. If there are none, the backends are
    /// those that the cluster would write into them.
    pub fn backends(&self, port: &ServicePort, world: &World) -> Vec<ServiceBackend> {
        let is_used = |address: &IpAddr| {
            self.families.is_empty() || self.families.contains(&IpFamily::from(*address))
        };
        let is_own = |id: &ServiceId, name: &Name| {
            id.namespace == self.id.namespace && *name == self.id.name
        };
        let mut slices =
            world.slices.values().filter(|slice| is_own(&slice.id, &slice.service)).peekable();
        if slices.peek().is_none() {
            let pods = world.pods.values().filter(|pod| self.selects(pod));
            let backend = |pod: &Pod| ServiceBackend {
                pod: Some(pod.id.clone()),
                addresses: pod.addresses.iter().copied().filter(is_used).collect(),
                port: port.number_at(pod),
            };
            return pods.map(backend).collect();
        }
        let slices: Vec<&EndpointSlice> = slices.collect();
        let pods = holders(world, slices.iter().flat_map(|slice| &slice.addresses).collect());
        let mut backends: Vec<ServiceBackend> = Vec::new();
        for slice in slices {
            let is_this =
                |own: &&EndpointPort| own.name == port.name && own.protocol == port.protocol;
            let number = slice.ports.iter().find(is_this).map(|own| own.port);
            for address in slice.addresses.iter().copied().filter(is_used) {
                let pod = pods.get(&address).map(|pod| pod.id.clone());
                let is_same = |known: &&mut ServiceBackend| {
                    let is_same_end = match &pod {
                        Some(_) => known.pod == pod,
                        None => known.addresses.contains(&address),
                    };
                    is_same_end && known.port == number
                };
                match backends.iter_mut().find(is_same) {
                    Some(known) if known.addresses.contains(&address) => (),
                    Some(known) => known.addresses.push(address),
                    None => backends.push(ServiceBackend {
                        pod,
                        addresses: vec![address],
                        port: number,
                    }),
                }
            }
        }
        backends
    }
}

/// The pod with the strongest claim to each of these addresses.
fn holders<'w>(world: &'w World, addresses: BTreeSet<&IpAddr>) -> BTreeMap<IpAddr, &'w Pod> {
    let mut holders: BTreeMap<IpAddr, &Pod> = BTreeMap::new();
    for pod in world.pods.values() {
        for address in pod.own_addresses().iter().filter(|address| addresses.contains(address)) {
            let holder = holders.entry(*address).or_insert(pod);
            if pod.claim > holder.claim {
                *holder = pod;
            }
        }
    }
    holders
}

#[cfg(test)]
mod tests;
