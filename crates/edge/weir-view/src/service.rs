//! Services as destinations. Policies apply to the backends, after load balancing, so a connection
//! to a Service stands for one connection to each backend.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{
    ExternalTraffic, IpFamily, Name, PodId, PortRange, Protocol, Service, ServiceBackend,
    ServiceId, ServiceKind, ServicePort, TargetPort, World,
};
use weir_reach::PortQuery;

use crate::{
    failure::{Failure, nearest},
    flow_end::FlowEnd,
};

/// A port of a Service, and the backends behind it.
pub struct ServiceTarget<'w> {
    /// The Service.
    pub service: &'w Service,
    /// The name of the port; empty if it has none.
    pub port_name: Name,
    /// The port that clients use.
    pub port: PortRange,
    /// The backends that receive connections; at least one.
    pub backends: Vec<BackendEnd>,
    /// Remarks about the Service.
    pub notes: Vec<String>,
}

/// A backend of a Service, as the destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendEnd {
    /// The pod, if it is one.
    pub pod: Option<PodId>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The port at these addresses.
    pub port: u16,
}

/// The way in which a client finds the backends of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// By its name: a headless Service then translates no ports.
    Pod,
    /// By its EndpointSlices, as ingress controllers do.
    Proxy,
}

/// The Service that has this address, if no pod has it.
pub fn at_address(world: &World, address: IpAddr) -> Option<&Service> {
    let service = world.services.values().find(|service| service.addresses.contains(&address))?;
    let is_of_pod = world.pods.values().any(|pod| pod.addresses.contains(&address));
    (!is_of_pod).then_some(service)
}

/// The Service whose node port this is, at the address of a node.
pub fn at_node_port<'w>(
    world: &'w World,
    address: IpAddr,
    query: &PortQuery,
) -> Option<&'w Service> {
    world.nodes.values().find(|node| node.addresses.contains(&address))?;
    world.services.values().find(|service| node_port(service, query).is_some())
}

/// Finds a Service by its name.
pub fn find<'w>(world: &'w World, id: &ServiceId) -> Result<&'w Service, Failure> {
    world.services.get(id).ok_or_else(|| {
        let known: Vec<String> = world.services.keys().map(name).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let hint = match nearest(&name(id), &known).as_slice() {
            [] => "the input has no Services".to_owned(),
            near => format!("did you mean {}?", near.join(" or ")),
        };
        Failure::new(format!("there is no Service {id}"), hint)
    })
}

/// The name of a Service on the command line.
pub fn name(id: &ServiceId) -> String {
    format!("{}/svc/{}", id.namespace, id.name)
}

impl<'w> ServiceTarget<'w> {
    /// Finds the backends of a port of a Service.
    pub fn find(
        world: &'w World,
        service: &'w Service,
        query: &PortQuery,
        client: Client,
    ) -> Result<Self, Failure> {
        let id = &service.id;
        if let ServiceKind::ExternalName(domain) = &service.kind {
            let hint = "policies apply to the address that the client resolves; names are not \
                        looked up, so give that address";
            let what = format!("Service {id} is an alias for {domain} and has no backends");
            return Err(Failure::new(what, hint));
        }
        if query.is_any() {
            let hint = format!("its ports are {}", ports_of(service));
            return Err(Failure::new("a connection has one port", hint));
        }
        let is_direct = service.kind == ServiceKind::Headless && client == Client::Pod;
        let (port, at, notes) = match query.at(None).first() {
            Some(number) if is_direct => untranslated(service, *number),
            _ => port_of(service, query)?,
        };
        let mut backends = service.backends(&port, world);
        if is_direct && !query.at(None).is_empty() {
            backends.iter_mut().for_each(|backend| backend.port = Some(at.first));
        }
        let is_usable = |one: &ServiceBackend| one.port.is_some() && !one.addresses.is_empty();
        if !backends.iter().any(is_usable) {
            return Err(without_backends(service, &port, &backends, world));
        }
        let mut target = ServiceTarget {
            service,
            port_name: port.name.clone(),
            port: at,
            backends: Vec::new(),
            notes,
        };
        for ServiceBackend { pod, addresses, port: number } in backends {
            match (number, &pod) {
                (Some(port), _) if !addresses.is_empty() => {
                    target.backends.push(BackendEnd { pod, addresses, port });
                }
                (None, Some(pod)) => {
                    let TargetPort::Name(name) = &port.target else { continue };
                    target.notes.push(format!(
                        "{pod} has no {} port named {name}, so the Service sends it no connections",
                        port.protocol
                    ));
                }
                _ => (),
            }
        }
        Ok(target)
    }
}

/// The port of a headless Service: clients connect to the pods, so its number stays.
fn untranslated(service: &Service, number: PortRange) -> (ServicePort, PortRange, Vec<String>) {
    let fits = |port: &&ServicePort| port.port == number.first && port.protocol == number.protocol;
    let own = service.ports.iter().find(fits);
    let is_translated = |port: &&ServicePort| port.target != TargetPort::Number(number.first);
    let note = own.filter(is_translated).map(|port| {
        let target = match &port.target {
            TargetPort::Number(number) => number.to_string(),
            TargetPort::Name(name) => format!("named {name}"),
        };
        format!(
            "Service {} is headless: clients connect to its pods at port {}, and not at the target \
             port {target}",
            service.id, number.first
        )
    });
    let any = ServicePort {
        name: Name::default(),
        protocol: number.protocol,
        port: number.first,
        target: TargetPort::Number(number.first),
        node_port: None,
    };
    let port = own.or(service.ports.first()).cloned().unwrap_or(any);
    (port, number, note.into_iter().collect())
}

/// The port of a Service, by its number, its name or its node port.
fn port_of(
    service: &Service,
    query: &PortQuery,
) -> Result<(ServicePort, PortRange, Vec<String>), Failure> {
    let ports = query.of_service(service);
    if let [port] = ports[..] {
        return Ok((port.clone(), PortRange::one(port.protocol, port.port), Vec::new()));
    }
    if let Some((port, number)) = node_port(service, query) {
        let note = format!("{number} is the node port of port {}", described(port));
        return Ok((port.clone(), PortRange::one(port.protocol, number), vec![note]));
    }
    let id = &service.id;
    if let [first, ..] = ports[..] {
        let hint = format!("add the protocol: `--port {query}/{}`", first.protocol);
        return Err(Failure::new(format!("Service {id} has several ports {query}"), hint));
    }
    let mut hint = match service.ports.is_empty() {
        true => "it has no ports".to_owned(),
        false => format!("its ports are {}", ports_of(service)),
    };
    let is_target = |port: &&ServicePort| match (&port.target, query.at(None).first()) {
        (TargetPort::Number(number), Some(asked)) => *number == asked.first,
        (TargetPort::Name(name), None) => **name == *query.to_string(),
        _ => false,
    };
    if let Some(port) = service.ports.iter().find(is_target) {
        hint = format!("{query} is the port of its pods; clients use {}", described(port));
    }
    Err(Failure::new(format!("Service {id} has no port {query}"), hint))
}

fn node_port<'s>(service: &'s Service, query: &PortQuery) -> Option<(&'s ServicePort, u16)> {
    let asked = *query.at(None).first()?;
    service.ports.iter().find_map(|port| {
        let number = port.node_port.filter(|number| *number == asked.first)?;
        (port.protocol == asked.protocol).then_some((port, number))
    })
}

/// The error for a Service without backends that could receive a connection.
fn without_backends(
    service: &Service,
    port: &ServicePort,
    backends: &[ServiceBackend],
    world: &World,
) -> Failure {
    let id = &service.id;
    if !backends.is_empty() {
        let TargetPort::Name(name) = &port.target else {
            let hint = "a pod needs an address to receive connections; it may still be starting";
            return Failure::new(format!("no backend of Service {id} has an address"), hint);
        };
        let pods = backends.iter().filter_map(|backend| world.pods.get(backend.pod.as_ref()?));
        let names: BTreeSet<&str> =
            pods.flat_map(|pod| &pod.ports).map(|port| &*port.name).collect();
        let hint = match names.is_empty() {
            true => "its pods name no ports".to_owned(),
            false => format!("its pods name {}", Vec::from_iter(names).join(", ")),
        };
        return Failure::new(format!("no backend of Service {id} has a port named {name}"), hint);
    }
    match &service.selector {
        Some(selector) => Failure::new(
            format!("Service {id} has no backends"),
            format!("no pod of namespace {} has {selector}", id.namespace),
        ),
        None => Failure::new(
            format!("Service {id} has no selector, and the input has no EndpointSlices of it"),
            "add its EndpointSlices or Endpoints, or give the address of a backend",
        ),
    }
}

/// The sources that policies see for connections to a Service.
pub struct Sources {
    /// The sources; at least one.
    pub ends: Vec<FlowEnd>,
    /// A remark about them, if they are not the client.
    pub note: Option<String>,
}

impl Sources {
    /// The sources for a client of a Service.
    pub fn find(world: &World, client: &FlowEnd, service: &Service) -> Self {
        let own = |note: Option<String>| Sources { ends: vec![client.clone()], note };
        let FlowEnd::Address(address) = client else { return own(None) };
        let is_inside = !world.holders(*address).is_empty()
            || world.nodes.values().any(|node| node.addresses.contains(address));
        if is_inside {
            return own(None);
        }
        let id = &service.id;
        match (&service.kind, service.external_traffic) {
            (ServiceKind::NodePort | ServiceKind::LoadBalancer, ExternalTraffic::Local) => {
                own(Some(format!(
                    "externalTrafficPolicy of {id} is Local: policies see the client's address, \
                     unless a load balancer replaced it"
                )))
            }
            (ServiceKind::NodePort | ServiceKind::LoadBalancer, ExternalTraffic::Cluster) => {
                let family = IpFamily::from(*address);
                let all = world.nodes.values().flat_map(|node| &node.addresses);
                let nodes: BTreeSet<IpAddr> =
                    all.copied().filter(|address| IpFamily::from(*address) == family).collect();
                let rule = format!(
                    "externalTrafficPolicy of {id} is Cluster: nodes replace the client's address \
                     by one of their own"
                );
                if nodes.is_empty() {
                    return own(Some(format!(
                        "{rule}; the input has no nodes with an {family} address, so the verdict \
                         is that for {address} itself, and may be another one"
                    )));
                }
                let ends = nodes.into_iter().map(FlowEnd::Address).collect();
                let note = format!("{rule}, and policies see that; evaluated for each node");
                Sources { ends, note: Some(note) }
            }
            _ => own(Some(format!(
                "{id} is a {} Service: only routes to its addresses or pods lead clients outside \
                 the cluster to it",
                service.kind
            ))),
        }
    }
}

/// The ports of a Service, as clients use them.
fn ports_of(service: &Service) -> String {
    let ports: Vec<String> = service.ports.iter().map(described).collect();
    ports.join(", ")
}

/// `80/TCP (http)`.
fn described(port: &ServicePort) -> String {
    let ServicePort { name, protocol, port, .. } = port;
    match &**name {
        "" => spelled(*protocol, *port),
        name => format!("{} ({name})", spelled(*protocol, *port)),
    }
}

fn spelled(protocol: Protocol, port: u16) -> String {
    format!("{port}/{protocol}")
}
