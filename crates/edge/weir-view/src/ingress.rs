//! The pods that forward the connections of Ingresses and Gateway routes to Services. Policies of
//! the backends see these pods, and not the clients.

use std::collections::BTreeMap;

use weir_api::{Route, RouteBackend, RouteId};
use weir_model::{Pod, PodId, PortRange, World};
use weir_reach::NamedSource;

use crate::{
    failure::Failure,
    flow_end,
    loaded::Loaded,
    service::{self, Client, ServiceTarget},
};

/// The label of the pods that a Gateway creates, with its name.
const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// The label with the name of a program.
const NAME_LABEL: &str = "app.kubernetes.io/name";
/// The label with the role of a pod in its program.
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// The names of common ingress controllers, and the component that forwards connections, if their
/// pods have several.
const CONTROLLERS: [(&str, Option<&str>); 8] = [
    ("contour", Some("envoy")),
    ("haproxy-ingress", None),
    ("ingress-nginx", Some("controller")),
    ("kong", None),
    ("kubernetes-ingress", None),
    ("nginx-gateway-fabric", None),
    ("nginx-ingress", None),
    ("traefik", None),
];

/// The name of the row for routes whose pods are unknown.
const OUTSIDE: &str = "ingress (outside)";

/// The sources of a matrix that stand for routes.
pub struct RouteSources {
    /// The sources with at least one destination.
    pub sources: Vec<NamedSource>,
    /// Remarks about them.
    pub notes: Vec<String>,
}

/// The pods of ingress controllers, as the user named them; none to find them by their labels.
#[derive(Clone, Copy, Debug, Default)]
pub struct IngressControllers<'a>(pub &'a [String]);

impl IngressControllers<'_> {
    /// The pods that forward the connections of a route, or of all if there is none; empty if they
    /// are unknown.
    pub fn pods(
        self,
        route: Option<&Route>,
        namespace: Option<&str>,
        loaded: &Loaded,
    ) -> Result<Vec<PodId>, Failure> {
        let mut given = Vec::new();
        for text in self.0 {
            given.extend(flow_end::pods(text, namespace, loaded)?);
        }
        if !given.is_empty() {
            return Ok(given);
        }
        let pods = || loaded.world.pods.values().filter(|pod| !pod.finished);
        let is_of_gateway = |pod: &&Pod| match (route, pod.labels.value(GATEWAY_LABEL)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(route), Some(name)) => {
                route.gateways.contains(&(pod.id.namespace.clone(), name.clone()))
            }
        };
        let of_gateways: Vec<PodId> =
            pods().filter(is_of_gateway).map(|pod| pod.id.clone()).collect();
        if route.is_some() && !of_gateways.is_empty() {
            return Ok(of_gateways);
        }
        let found = pods().filter(|pod| is_controller(pod)).map(|pod| pod.id.clone());
        let mut found: Vec<PodId> = found.chain(of_gateways).collect();
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The sources of a matrix for all routes to selected pods: the known pods of ingress
    /// controllers, and all that is outside for routes whose pods are unknown.
    pub fn sources(
        self,
        namespace: Option<&str>,
        loaded: &Loaded,
        selected: impl Fn(&PodId) -> bool,
    ) -> Result<RouteSources, Failure> {
        let mut by_pods: BTreeMap<Vec<PodId>, NamedSource> = BTreeMap::new();
        let mut notes = Vec::new();
        let mut unknown_routes = Vec::new();
        for route in loaded.routes.values() {
            let RouteTargets { targets, notes: own } = RouteTargets::find(&loaded.world, route);
            let backends = targets.iter().flat_map(|target| {
                let port = |number| PortRange::one(target.port.protocol, number);
                target.backends.iter().map(move |backend| (&backend.pod, port(backend.port)))
            });
            let backends = backends.filter_map(|(pod, port)| Some((pod.as_ref()?, port)));
            let mut backends = backends.filter(|(pod, _)| selected(pod)).peekable();
            if namespace.is_none_or(|name| *route.id.namespace == *name) {
                notes.extend(own);
            }
            if backends.peek().is_none() {
                continue;
            }
            let pods = self.pods(Some(route), namespace, loaded)?;
            if pods.is_empty() {
                unknown_routes.push(name(&route.id));
            }
            let source = by_pods.entry(pods).or_insert_with_key(|pods| NamedSource {
                name: String::new(),
                pods: pods.clone(),
                targets: BTreeMap::new(),
            });
            for (pod, port) in backends {
                let ports = source.targets.entry(pod.clone()).or_default();
                ports.push(port);
                ports.sort();
                ports.dedup();
            }
        }
        let mut sources: Vec<NamedSource> = by_pods.into_values().collect();
        let known = sources.iter().filter(|source| !source.pods.is_empty()).count();
        for source in &mut sources {
            let pods = listed(&source.pods);
            source.name = match source.pods.len() {
                0 => OUTSIDE.to_owned(),
                _ if known == 1 => "ingress".to_owned(),
                _ => format!("ingress ({pods})"),
            };
            if !source.pods.is_empty() {
                let note = format!("{}: the ports that routes lead to, from {pods}", source.name);
                notes.push(note);
            }
        }
        if !unknown_routes.is_empty() {
            let routes = unknown_routes.join(", ");
            notes.push(format!(
                "{OUTSIDE}: the pods that serve {routes} are unknown, so any address outside the \
                 cluster stands for them; name them with --ingress-controller"
            ));
        }
        Ok(RouteSources { sources, notes })
    }
}

/// The names of some pods.
pub fn listed(pods: &[PodId]) -> String {
    /// The maximum number of names to print.
    const MAX_NAMES: usize = 3;
    let names: Vec<String> = pods.iter().take(MAX_NAMES).map(ToString::to_string).collect();
    match pods.len().saturating_sub(MAX_NAMES) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// The error if the pods of an ingress controller are needed and unknown.
pub fn unknown_pods() -> Failure {
    let hint = "name them with --ingress-controller NAMESPACE/NAME, or give an address as --from";
    Failure::new("the pods of the ingress controller are unknown", hint)
}

/// The name of a route on the command line.
pub fn name(id: &RouteId) -> String {
    format!("{}/{}/{}", id.namespace, id.kind, id.name)
}

/// Whether a pod has the labels of a common ingress controller.
fn is_controller(pod: &Pod) -> bool {
    let Some(name) = pod.labels.value(NAME_LABEL) else { return false };
    let component = pod.labels.value(COMPONENT_LABEL).map(|component| &**component);
    CONTROLLERS.iter().any(|(known, forwarding)| {
        **name == **known && (forwarding.is_none() || component == *forwarding)
    })
}

/// The ports of Services that a route leads to, with their backends.
pub struct RouteTargets<'w> {
    /// The ports.
    pub targets: Vec<ServiceTarget<'w>>,
    /// Remarks about the others.
    pub notes: Vec<String>,
}

impl<'w> RouteTargets<'w> {
    /// Finds the backends of a route.
    pub fn find(world: &'w World, route: &Route) -> Self {
        let id = name(&route.id);
        let (mut targets, mut notes) = (Vec::new(), Vec::new());
        for backend in &route.backends {
            match target(world, route, backend) {
                Ok(target) => targets.push(target),
                Err(failure) => notes.push(format!("{id}: {}", failure.sentence())),
            }
            if backend.service.namespace != route.id.namespace {
                notes.push(format!(
                    "{id}: Service {} needs a ReferenceGrant, which weir does not check",
                    backend.service
                ));
            }
        }
        let others = route.others.iter();
        notes.extend(others.map(|other| format!("{id}: the pods behind {other} are unknown")));
        RouteTargets { targets, notes }
    }
}

fn target<'w>(
    world: &'w World,
    route: &Route,
    RouteBackend { service, port }: &RouteBackend,
) -> Result<ServiceTarget<'w>, Failure> {
    let found = service::find(world, service)?;
    let query = format!("{port}/{}", route.protocol).parse().map_err(|_| {
        let hint = "give the number or the name of a port of the Service";
        Failure::new(format!("the backend {service} has no valid port"), hint)
    })?;
    ServiceTarget::find(world, found, &query, Client::Proxy)
}
