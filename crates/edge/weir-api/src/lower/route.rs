//! Ingresses and the routes of the Gateway API. Policies do not select them, but their proxies
//! connect to the pods behind them.

use weir_model::{Name, Protocol, ServiceId};

use super::{LowerContext, Lowered};
use crate::document::Tree;

/// A route: an Ingress, or a route of the Gateway API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The id.
    pub id: RouteId,
    /// The protocol of the connections to its backends.
    pub protocol: Protocol,
    /// The ports of Services that it leads to, each once.
    pub backends: Vec<RouteBackend>,
    /// The kinds and names of backends that are not Services.
    pub others: Vec<Name>,
    /// The Gateways that serve it, by namespace and name; none for an Ingress.
    pub gateways: Vec<(Name, Name)>,
}

/// The id of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteId {
    /// The namespace.
    pub namespace: Name,
    /// The kind in lower case, such as `httproute`.
    pub kind: Name,
    /// The name in the namespace.
    pub name: Name,
}

/// A port of a Service that a route leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteBackend {
    /// The Service.
    pub service: ServiceId,
    /// The number or the name of the port; empty if the manifest has none.
    pub port: Name,
}

/// Whether a kind is a route.
pub(super) fn is_route(kind: &str, group: Option<&str>) -> bool {
    let groups: &[&str] = match kind {
        "Ingress" => &["networking.k8s.io", "extensions"],
        "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" | "UDPRoute" => {
            &["gateway.networking.k8s.io"]
        }
        _ => return false,
    };
    group.is_some_and(|group| groups.contains(&group))
}

/// A route. Its proxy checks it, so invalid parts are left out without a finding.
pub(super) fn lower(ctx: &mut LowerContext, tree: &Tree, kind: &str) -> Option<Lowered> {
    let metadata = tree.get("metadata")?;
    let text = |key: &str| metadata.get(key).and_then(Tree::text).filter(|text| !text.is_empty());
    let name = ctx.name(text("name")?);
    let namespace = match text("namespace") {
        Some(namespace) => ctx.name(namespace),
        None => ctx.default_namespace.clone(),
    };
    let id = RouteId { namespace, kind: ctx.name(&kind.to_ascii_lowercase()), name };
    let protocol = if kind == "UDPRoute" { Protocol::Udp } else { Protocol::Tcp };
    let (backends, others, gateways) = (Vec::new(), Vec::new(), Vec::new());
    let mut route = Route { id, protocol, backends, others, gateways };
    if let Some(spec) = tree.get("spec") {
        match kind {
            "Ingress" => ingress(ctx, spec, &mut route),
            _ => gateway_route(ctx, spec, &mut route),
        }
    }
    Some(Lowered::Route(route))
}

fn ingress(ctx: &mut LowerContext, spec: &Tree, route: &mut Route) {
    let rules = spec.get("rules").map_or(&[][..], Tree::items).iter();
    let paths = rules.filter_map(|rule| rule.path(&["http", "paths"])).flat_map(Tree::items);
    // The default backend is `backend` in the versions before v1.
    let default = ["defaultBackend", "backend"].into_iter().filter_map(|key| spec.get(key));
    let all = default.chain(paths.filter_map(|path| path.get("backend")));
    for backend in all {
        if let Some(other) = backend.get("resource") {
            add_other(ctx, other, route);
            continue;
        }
        let service = backend.get("service");
        let name = service.and_then(|service| service.get("name")).or(backend.get("serviceName"));
        let Some(name) = name.and_then(Tree::text) else { continue };
        let port = service.and_then(|service| service.get("port"));
        let port = match port {
            Some(port) => port.get("number").or(port.get("name")),
            None => backend.get("servicePort"),
        };
        let namespace = route.id.namespace.clone();
        add(ctx, ServiceId { namespace, name: name.into() }, port, route);
    }
}

fn gateway_route(ctx: &mut LowerContext, spec: &Tree, route: &mut Route) {
    let own = route.id.namespace.clone();
    for parent in spec.get("parentRefs").map_or(&[][..], Tree::items) {
        let kind = parent.get("kind").and_then(Tree::text).unwrap_or("Gateway");
        let Some(name) = parent.get("name").and_then(Tree::text) else { continue };
        if kind == "Gateway" {
            let namespace = parent.get("namespace").and_then(Tree::text);
            let namespace = namespace.map_or_else(|| own.clone(), |name| ctx.name(name));
            let gateway = (namespace, ctx.name(name));
            route.gateways.push(gateway);
        }
    }
    for rule in spec.get("rules").map_or(&[][..], Tree::items) {
        let backends = rule.get("backendRefs").map_or(&[][..], Tree::items);
        let filters = backends.iter().chain([rule]).flat_map(filters);
        let mirrors = filters.filter_map(|filter| filter.path(&["requestMirror", "backendRef"]));
        for backend in backends.iter().chain(mirrors) {
            let text = |key: &str| backend.get(key).and_then(Tree::text);
            let Some(name) = text("name") else { continue };
            let is_service = text("kind").unwrap_or("Service") == "Service"
                && text("group").unwrap_or_default().is_empty();
            if !is_service {
                add_other(ctx, backend, route);
                continue;
            }
            let namespace = text("namespace").map_or_else(|| own.clone(), |name| ctx.name(name));
            let service = ServiceId { namespace, name: name.into() };
            add(ctx, service, backend.get("port"), route);
        }
    }
}

fn filters(tree: &Tree) -> &[Tree] {
    tree.get("filters").map_or(&[], Tree::items)
}

fn add(ctx: &mut LowerContext, service: ServiceId, port: Option<&Tree>, route: &mut Route) {
    let port = ctx.name(port.and_then(Tree::written).unwrap_or_default());
    let backend = RouteBackend { service, port };
    if !route.backends.contains(&backend) {
        route.backends.push(backend);
    }
}

fn add_other(ctx: &mut LowerContext, reference: &Tree, route: &mut Route) {
    let text = |key: &str| reference.get(key).and_then(Tree::text).unwrap_or_default();
    let name = ctx.name(format!("{} {}", text("kind"), text("name")).trim());
    if !route.others.contains(&name) {
        route.others.push(name);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::read;

    fn backends(text: &str) -> Vec<String> {
        let manifests = read(text);
        assert_eq!(manifests.findings, [], "{text}");
        let routes = manifests.routes.values().flat_map(|route| {
            let crate::RouteId { namespace, kind, name } = &route.id;
            let id = format!("{namespace}/{kind}/{name}");
            let gateways =
                route.gateways.iter().map(|(namespace, name)| format!("{namespace}/{name}"));
            let gateways: Vec<String> = gateways.collect();
            let backends = route
                .backends
                .iter()
                .map(|backend| format!("{} {}/{}", backend.service, backend.port, route.protocol));
            let others = route.others.iter().map(ToString::to_string);
            let all: Vec<String> = backends.chain(others).collect();
            all.into_iter().map(move |one| format!("{id} {gateways:?} {one}"))
        });
        routes.collect()
    }

    #[test]
    fn an_ingress_of_any_version_names_its_services() {
        let ingress = backends(
            "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec:
  defaultBackend: {service: {name: web, port: {name: http}}}
  rules:
  - host: shop.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}
      - {path: /api, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}
      - {path: /x, pathType: Prefix, backend: {resource: {apiGroup: x, kind: Bucket, name: b}}}
",
        );
        let expected = [
            "shop/ingress/web [] shop/web http/TCP",
            "shop/ingress/web [] shop/api 80/TCP",
            "shop/ingress/web [] Bucket b",
        ];
        assert_eq!(ingress, expected);
        let old = backends(
            "\
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: web}
spec: {backend: {serviceName: web, servicePort: 80}}
",
        );
        assert_eq!(old, ["default/ingress/web [] default/web 80/TCP"]);
    }

    #[test]
    fn a_route_names_its_gateways_and_services() {
        let route = backends(
            "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: public, namespace: edge}, {name: own}, {kind: Service, name: mesh}]
  rules:
  - backendRefs: [{name: web, port: 80}, {kind: Bucket, group: x, name: b}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: copy, port: 81}}}]
---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: UDPRoute
metadata: {name: dns, namespace: shop}
spec: {rules: [{backendRefs: [{name: dns, namespace: kube-system, port: 53}]}]}
",
        );
        let expected = [
            r#"shop/httproute/web ["edge/public", "shop/own"] shop/web 80/TCP"#,
            r#"shop/httproute/web ["edge/public", "shop/own"] shop/copy 81/TCP"#,
            r#"shop/httproute/web ["edge/public", "shop/own"] Bucket b"#,
            "shop/udproute/dns [] kube-system/dns 53/UDP",
        ];
        assert_eq!(route, expected);
    }

    #[test]
    fn invalid_parts_of_a_route_are_left_out() {
        for spec in ["7", "{rules: 7}", "{rules: [{http: {paths: [{backend: {service: 7}}]}}]}"] {
            let text = format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: a}}\nspec: {spec}\n"
            );
            assert_eq!(backends(&text), Vec::<String>::new(), "{spec}");
        }
    }
}
