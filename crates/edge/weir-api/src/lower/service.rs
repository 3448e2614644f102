use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{
    EndpointPort, EndpointSlice, Name, Object, Protocol, Requirement, Selector, Service, ServiceId,
    ServicePort, TargetPort,
};

use super::{Home, LowerContext, Lowered, Meta, PROTOCOLS, meta, selector};
use crate::{check, document::Tree};

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
    let service = Service { id, addresses, ports, selector, location };
    Some(Lowered::Object(Object::Service(service)))
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
    Some(ServicePort { name, protocol, port, target })
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
    let ports = each(ctx, list, |ctx, port| {
        // A port without a number has no meaning for Services.
        let number = ctx.at("port", |ctx| ctx.port(port.get("port")?))?;
        let (name, protocol) = (port_name(ctx, port), protocol(ctx, port)?);
        Some(EndpointPort { name, protocol, port: number })
    });
    let slice = EndpointSlice { id, service, addresses, ports, location };
    Some(Lowered::Object(Object::EndpointSlice(slice)))
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
