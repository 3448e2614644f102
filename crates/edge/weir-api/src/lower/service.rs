use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{
    EndpointPort, EndpointSlice, ExternalTraffic, IpFamily, Name, Object, Protocol, Requirement,
    Selector, Service, ServiceId, ServiceKind, ServicePort, TargetPort,
};

use super::{Home, LowerContext, Lowered, Meta, PROTOCOLS, meta, selector};
use crate::{
    check,
    document::{Tree, TreeValue},
};

/// The label of an EndpointSlice with the name of its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A Service, with its cluster IPs and the addresses of its load balancer.
///
/// `externalIPs` are not among them: the author of the Service chooses them freely.
pub(super) fn service(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let Meta { name, namespace, location, .. } =
        meta(ctx, tree, "Service", Home::Namespace, check::dns_label);
    let id = ServiceId { namespace, name: name? };
    let none = Tree::null(tree.line);
    let spec = tree.get("spec").unwrap_or(&none);
    let ports = ctx.at("spec", |ctx| {
        let list = spec.get("ports").map_or(&[][..], Tree::items);
        each(ctx, list, service_port)
    });
    let own = spec.get("clusterIP").into_iter();
    let own = own.chain(spec.get("clusterIPs").map_or(&[][..], Tree::items));
    let is_set = |ip: &&Tree| !matches!(ip.text(), None | Some("" | "None"));
    let balancer = tree.path(&["status", "loadBalancer", "ingress"]).map_or(&[][..], Tree::items);
    let all = own.chain(balancer.iter().filter_map(|entry| entry.get("ip"))).filter(is_set);
    let addresses = ctx.at("spec", |ctx| {
        ctx.at("clusterIPs", |ctx| distinct(all.filter_map(|ip| ctx.address(ip))))
    });
    let selector = spec.get("selector").filter(|labels| !labels.entries().is_empty());
    let selector = selector.map(|labels| {
        let labels = ctx.at("spec", |ctx| ctx.at("selector", |ctx| selector::labels(ctx, labels)));
        let equals = |(key, value): &(Name, Name)| Requirement::equals(key.clone(), value.clone());
        labels.iter().map(equals).collect::<Selector>()
    });
    let (kind, external_traffic, families) =
        ctx.at("spec", |ctx| (kind(ctx, spec), external_traffic(ctx, spec), families(ctx, spec)));
    let service =
        Service { id, kind, external_traffic, addresses, families, ports, selector, location };
    Some(Lowered::Object(Object::Service(service)))
}

fn kind(ctx: &mut LowerContext, spec: &Tree) -> ServiceKind {
    #[derive(Clone, Copy)]
    enum Word {
        ClusterIp,
        NodePort,
        LoadBalancer,
        ExternalName,
    }
    let words = [
        ("ClusterIP", Word::ClusterIp),
        ("NodePort", Word::NodePort),
        ("LoadBalancer", Word::LoadBalancer),
        ("ExternalName", Word::ExternalName),
    ];
    let word = given(spec, "type").and_then(|word| ctx.at("type", |ctx| ctx.word(word, &words)));
    match word.unwrap_or(Word::ClusterIp) {
        Word::ClusterIp if spec.get("clusterIP").and_then(Tree::text) == Some("None") => {
            ServiceKind::Headless
        }
        Word::ClusterIp => ServiceKind::ClusterIp,
        Word::NodePort => ServiceKind::NodePort,
        Word::LoadBalancer => ServiceKind::LoadBalancer,
        Word::ExternalName => {
            let name = spec.get("externalName").and_then(Tree::text).unwrap_or_default();
            ServiceKind::ExternalName(ctx.name(name))
        }
    }
}

fn external_traffic(ctx: &mut LowerContext, spec: &Tree) -> ExternalTraffic {
    let words = [("Cluster", ExternalTraffic::Cluster), ("Local", ExternalTraffic::Local)];
    let word = given(spec, "externalTrafficPolicy");
    let word = word.and_then(|word| ctx.at("externalTrafficPolicy", |ctx| ctx.word(word, &words)));
    word.unwrap_or_default()
}

/// The families of the backends, if the Service determines them.
fn families(ctx: &mut LowerContext, spec: &Tree) -> Vec<IpFamily> {
    let words = [("IPv4", IpFamily::V4), ("IPv6", IpFamily::V6)];
    let list = spec.get("ipFamilies").map_or(&[][..], Tree::items);
    // The cluster may add a family to the one that the manifest names.
    let can_grow = matches!(
        spec.get("ipFamilyPolicy").and_then(Tree::text),
        Some("PreferDualStack" | "RequireDualStack")
    );
    let named: Vec<IpFamily> = ctx.at("ipFamilies", |ctx| {
        let all = list.iter().enumerate();
        all.filter_map(|(at, word)| ctx.at(at, |ctx| ctx.word(word, &words))).collect()
    });
    if can_grow && named.len() == 1 { Vec::new() } else { named }
}

/// A field that is neither missing nor empty.
fn given<'t>(spec: &'t Tree, field: &str) -> Option<&'t Tree> {
    spec.get(field).filter(|word| word.text() != Some(""))
}

fn service_port(ctx: &mut LowerContext, tree: &Tree) -> Option<ServicePort> {
    let port = ctx.at("port", |ctx| match tree.get("port") {
        Some(port) => ctx.port(port),
        None => {
            ctx.invalid(tree.line, "a port of a Service needs a number", "add `port:`");
            None
        }
    })?;
    let target = match tree.get("targetPort") {
        None => TargetPort::Number(port),
        Some(target) => ctx.at("targetPort", |ctx| match target.text() {
            Some("") => Some(TargetPort::Number(port)),
            Some(name) => Some(TargetPort::Name(ctx.name(name))),
            None => ctx.port(target).map(TargetPort::Number),
        })?,
    };
    let (name, protocol) = (port_name(ctx, tree), protocol(ctx, tree)?);
    // The API server writes 0 for a port that it has not allocated.
    let node_port = tree.get("nodePort").filter(|port| !matches!(port.value, TreeValue::Int(0, _)));
    let node_port = node_port.and_then(|port| ctx.at("nodePort", |ctx| ctx.port(port)));
    Some(ServicePort { name, protocol, port, target, node_port })
}

/// An EndpointSlice of a Service. Those of domain names have no addresses.
pub(super) fn slice(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let Meta { name, namespace, labels, location, .. } =
        meta(ctx, tree, "EndpointSlice", Home::Namespace, check::dns_subdomain);
    let id = ServiceId { namespace, name: name? };
    let service = labels.value(SERVICE_NAME_LABEL).cloned().unwrap_or_default();
    let is_address = tree.get("addressType").and_then(Tree::text) != Some("FQDN");
    let endpoints = tree.get("endpoints").filter(|_| is_address).map_or(&[][..], Tree::items);
    let addresses = ctx.at("endpoints", |ctx| {
        let lists = endpoints.iter().filter_map(|endpoint| endpoint.get("addresses"));
        distinct(lists.flat_map(Tree::items).filter_map(|address| ctx.address(address)))
    });
    let list = tree.get("ports").map_or(&[][..], Tree::items);
    let ports = endpoint_ports(ctx, list);
    let slice = EndpointSlice { id, service, addresses, ports, location };
    Some(Lowered::Object(Object::EndpointSlice(slice)))
}

/// The Endpoints of a Service, as EndpointSlices with the same backends: one for each subset.
pub(super) fn endpoints(ctx: &mut LowerContext, tree: &Tree) -> Option<Lowered> {
    let Meta { name, namespace, location, .. } =
        meta(ctx, tree, "Endpoints", Home::Namespace, check::dns_subdomain);
    let service = name?;
    let subsets = tree.get("subsets").map_or(&[][..], Tree::items).iter().enumerate();
    let slices = subsets.map(|(at, subset)| {
        ctx.at("subsets", |ctx| {
            ctx.at(at, |ctx| {
                let lists = ["addresses", "notReadyAddresses"].map(|field| subset.get(field));
                let entries = lists.into_iter().flatten().flat_map(Tree::items);
                let addresses = distinct(
                    entries.filter_map(|entry| entry.get("ip")).filter_map(|ip| ctx.address(ip)),
                );
                let list = subset.get("ports").map_or(&[][..], Tree::items);
                let ports = endpoint_ports(ctx, list);
                // No EndpointSlice can have this name.
                let name = ctx.name(&format!("{service}/{at}"));
                let id = ServiceId { namespace: namespace.clone(), name };
                let (service, location) = (service.clone(), location.clone());
                EndpointSlice { id, service, addresses, ports, location }
            })
        })
    });
    Some(Lowered::Endpoints(slices.collect()))
}

fn endpoint_ports(ctx: &mut LowerContext, list: &[Tree]) -> Vec<EndpointPort> {
    each(ctx, list, |ctx, port| {
        // A port without a number has no meaning for Services.
        let number = ctx.at("port", |ctx| ctx.port(port.get("port")?))?;
        let (name, protocol) = (port_name(ctx, port), protocol(ctx, port)?);
        Some(EndpointPort { name, protocol, port: number })
    })
}

/// The valid elements of `ports`.
fn each<T>(
    ctx: &mut LowerContext,
    list: &[Tree],
    mut read: impl FnMut(&mut LowerContext, &Tree) -> Option<T>,
) -> Vec<T> {
    ctx.at("ports", |ctx| {
        let all = list.iter().enumerate();
        all.filter_map(|(at, port)| ctx.at(at, |ctx| read(ctx, port))).collect()
    })
}

fn port_name(ctx: &mut LowerContext, port: &Tree) -> Name {
    port.get("name").and_then(Tree::text).map_or_else(Name::default, |name| ctx.name(name))
}

/// TCP unless the port names another protocol.
fn protocol(ctx: &mut LowerContext, port: &Tree) -> Option<Protocol> {
    match port.get("protocol").filter(|word| word.text() != Some("")) {
        None => Some(Protocol::Tcp),
        Some(word) => ctx.at("protocol", |ctx| ctx.word(word, &PROTOCOLS)),
    }
}

/// The addresses without repetitions, sorted.
fn distinct(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    addresses.collect::<BTreeSet<_>>().into_iter().collect()
}
