//! Connections that manifests declare: hosts in the environment and the arguments of containers,
//! routes, and Services that clients outside the cluster use.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use weir_api::HostReference;
use weir_model::{
    ExternalTraffic, Location, Name, PodId, Protocol, Service, ServiceId, ServiceKind, ServicePort,
    World,
};
use weir_recommend::{Evidence, EvidenceKind, ObservedEnd, ObservedFlow};

use super::workloads;
use crate::{
    failure::Failure,
    ingress::{self, IngressArgs, RouteTargets},
    present::plain::Plain,
    source::Loaded,
};

/// Addresses that stand for all clients outside the cluster.
const CLIENTS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// The most notes about hosts.
const MAX_NOTES: usize = 20;

/// The connections that manifests declare, and remarks about those that they do not show.
#[derive(Default)]
pub(super) struct DeclaredFlows {
    pub(super) flows: Vec<ObservedFlow>,
    pub(super) notes: BTreeSet<String>,
}

/// Finds the declared connections.
pub(super) fn find(
    loaded: &Loaded,
    ingress: &IngressArgs,
    namespace: Option<&str>,
) -> Result<DeclaredFlows, Failure> {
    let mut declared = DeclaredFlows::default();
    for (pod, hosts) in &loaded.hosts {
        for host in hosts {
            declared.add_host(loaded, pod, host);
        }
    }
    declared.add_routes(loaded, ingress, namespace)?;
    for service in loaded.world.services.values() {
        declared.add_published(loaded, service);
    }
    Ok(declared)
}

impl DeclaredFlows {
    /// Adds the connections to a host that a container names.
    fn add_host(&mut self, loaded: &Loaded, from: &PodId, host: &HostReference) {
        let world = &loaded.world;
        if let Ok(address) = host.host.parse::<IpAddr>() {
            let mut services = world.services.values();
            match services.find(|one| one.addresses.contains(&address)) {
                Some(service) => self.add_service(loaded, from, host, service),
                None => self.add_address(loaded, from, host, address),
            }
            return;
        }
        let found = service_id(&host.host, &from.namespace).and_then(|id| world.services.get(&id));
        match found {
            Some(service) => self.add_service(loaded, from, host, service),
            None if host.is_certain && host.host.contains('.') => self.note(format!(
                "{} names {} ({}), which is not a Service of the input: a NetworkPolicy cannot name \
                 a domain, so the policies deny connections to it",
                workloads::name_of(loaded, from),
                Plain(&host.host),
                Plain(&host.field),
            )),
            None => (),
        }
    }

    fn add_address(
        &mut self,
        loaded: &Loaded,
        from: &PodId,
        host: &HostReference,
        address: IpAddr,
    ) {
        let Some(port) = host.port.or(host.scheme_port) else { return };
        if address.is_unspecified() || address.is_loopback() {
            return;
        }
        let ends = (ObservedEnd::Pod(from.clone()), ObservedEnd::Address(address));
        let why = format!("{} names it", host.field);
        self.add_flow(loaded, ends, (Protocol::Tcp, port), &why, host.location.as_ref());
    }

    fn add_service(
        &mut self,
        loaded: &Loaded,
        from: &PodId,
        host: &HostReference,
        service: &Service,
    ) {
        if let ServiceKind::ExternalName(target) = &service.kind {
            let name = workloads::name_of(loaded, from);
            return self.note(format!(
                "{name} names Service {}, an alias for {}: a NetworkPolicy cannot name a domain, so \
                 the policies deny connections to it",
                service.id,
                Plain(target)
            ));
        }
        let has = |port: u16| service.ports.iter().any(|one| one.port == port);
        let wanted = host.port.or(host.scheme_port.filter(|port| has(*port)));
        let ports: Vec<&ServicePort> =
            service.ports.iter().filter(|one| wanted.is_none_or(|port| one.port == port)).collect();
        if ports.is_empty() {
            let name = workloads::name_of(loaded, from);
            let port = wanted.map(|port| format!(" port {port} of")).unwrap_or_default();
            return self.note(format!(
                "{name} names{port} Service {} ({}), which does not have it",
                service.id,
                Plain(&host.field)
            ));
        }
        let why = format!("{} names Service {}", host.field, service.id);
        for port in ports {
            let from = ObservedEnd::Pod(from.clone());
            self.add_backends(loaded, &from, service, port, &why, host.location.as_ref());
        }
    }

    /// Adds the connections to the backends of a port of a Service.
    fn add_backends(
        &mut self,
        loaded: &Loaded,
        from: &ObservedEnd,
        service: &Service,
        port: &ServicePort,
        why: &str,
        location: Option<&Location>,
    ) {
        for backend in service.backends(port, &loaded.world) {
            let Some(number) = backend.port else { continue };
            let to = match (backend.pod, backend.addresses.first()) {
                (Some(pod), _) => ObservedEnd::Pod(pod),
                (None, Some(address)) => ObservedEnd::Address(*address),
                (None, None) => continue,
            };
            let flow = (port.protocol, number);
            self.add_flow(loaded, (from.clone(), to), flow, why, location);
        }
    }

    fn add_flow(
        &mut self,
        loaded: &Loaded,
        (from, to): (ObservedEnd, ObservedEnd),
        (protocol, port): (Protocol, u16),
        why: &str,
        location: Option<&Location>,
    ) {
        let names = [&from, &to].map(|end| end_name(loaded, end));
        let what = format!("{} to {}, port {port}/{protocol}: {why}", names[0], names[1]);
        let evidence = Evidence {
            kind: EvidenceKind::Manifest,
            what: what.into(),
            connections: 0,
            last_seen: None,
            location: location.cloned(),
        };
        self.flows.push(ObservedFlow { from, to, protocol, port, evidence });
    }

    /// Adds the connections of the pods that serve Ingresses and Gateway routes.
    fn add_routes(
        &mut self,
        loaded: &Loaded,
        ingress: &IngressArgs,
        namespace: Option<&str>,
    ) -> Result<(), Failure> {
        for route in loaded.routes.values() {
            let name = ingress::name(&route.id);
            let RouteTargets { targets, notes } = RouteTargets::find(&loaded.world, route);
            notes.into_iter().for_each(|note| self.note(note));
            let pods = ingress.controllers().pods(Some(route), namespace, loaded)?;
            if pods.is_empty() && !targets.is_empty() {
                self.note(format!(
                    "the pods that serve {name} are unknown, so no policy allows their connections: \
                     name them with --ingress-controller"
                ));
            }
            let why = format!("{name} leads to it");
            for (pod, target) in pods.iter().flat_map(|pod| targets.iter().map(move |t| (pod, t))) {
                for backend in &target.backends {
                    let to = match (&backend.pod, backend.addresses.first()) {
                        (Some(pod), _) => ObservedEnd::Pod(pod.clone()),
                        (None, Some(address)) => ObservedEnd::Address(*address),
                        (None, None) => continue,
                    };
                    let flow = (target.port.protocol, backend.port);
                    self.add_flow(loaded, (ObservedEnd::Pod(pod.clone()), to), flow, &why, None);
                }
            }
        }
        Ok(())
    }

    /// Adds the connections of clients outside the cluster.
    fn add_published(&mut self, loaded: &Loaded, service: &Service) {
        if !matches!(service.kind, ServiceKind::LoadBalancer | ServiceKind::NodePort) {
            return;
        }
        let why = format!("Service {} is of type {}", service.id, service.kind);
        let families = families(&loaded.world, service);
        let mut clients: Vec<IpAddr> =
            CLIENTS.into_iter().filter(|one| families.contains(&one.is_ipv4())).collect();
        // Other nodes replace the address of the client by their own.
        if service.external_traffic == ExternalTraffic::Cluster {
            let nodes = loaded.world.nodes.values().flat_map(|node| &node.addresses);
            clients.extend(nodes.filter(|one| families.contains(&one.is_ipv4())));
        }
        for client in clients {
            for port in &service.ports {
                let from = ObservedEnd::Address(client);
                let location = service.location.as_ref();
                self.add_backends(loaded, &from, service, port, &why, location);
            }
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.insert(note);
        }
    }
}

/// Whether pods of a Service have IPv4 addresses (`true`) or IPv6 addresses (`false`).
fn families(world: &World, service: &Service) -> BTreeSet<bool> {
    let pods = world.pods.values().filter(|pod| service.selects(pod));
    pods.flat_map(|pod| pod.addresses.iter().map(IpAddr::is_ipv4)).collect()
}

/// The Service that a name means in a namespace: `db`, `db.shop`, `db.shop.svc` with or without the
/// domain of the cluster, or `db-0.db.shop.svc` for a pod behind it.
fn service_id(host: &str, namespace: &Name) -> Option<ServiceId> {
    let parts: Vec<&str> = host.split('.').collect();
    let (name, namespace) = match (parts.iter().position(|part| *part == "svc"), &parts[..]) {
        (_, [name]) => (*name, &**namespace),
        (None, [name, namespace]) => (*name, *namespace),
        (Some(2), [name, namespace, ..]) => (*name, *namespace),
        (Some(3), [_, name, namespace, ..]) => (*name, *namespace),
        _ => return None,
    };
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

fn end_name(loaded: &Loaded, end: &ObservedEnd) -> Name {
    match end {
        ObservedEnd::Pod(id) => workloads::name_of(loaded, id),
        ObservedEnd::Address(address) if CLIENTS.contains(address) => "clients outside".into(),
        ObservedEnd::Address(address) => address.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_several_names() {
        let id = |host: &str| service_id(host, &"shop".into()).map(|id| id.to_string());
        for (host, expected) in [
            ("db", Some("shop/db")),
            ("db.data", Some("data/db")),
            ("db.data.svc", Some("data/db")),
            ("db.data.svc.cluster.local", Some("data/db")),
            ("db-0.db.data.svc.cluster.local", Some("data/db")),
            ("api.example.com", None),
            ("svc", Some("shop/svc")),
        ] {
            assert_eq!(id(host).as_deref(), expected, "{host}");
        }
    }
}
