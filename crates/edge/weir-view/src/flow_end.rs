//! The ends of a connection, as a user names them: an address, `namespace/pod`, `pod`,
//! `namespace/deployment/name`, `namespace/svc/name`, `namespace/ingress/name`, or `ingress`.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use weir_api::{ROUTES_UNREAD, Route, RouteId, SERVICES_UNREAD};
use weir_model::{Finding, Name, Namespace, Pod, PodId, QualifiedName, ServiceId};

use crate::{
    failure::{Failure, nearest},
    ingress,
    loaded::Loaded,
    service,
};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// A pod, and the number of pods of its workload if the user named that.
    Pod(PodId, usize),
    /// An address.
    Address(IpAddr),
    /// A Service, which can only be a destination.
    Service(ServiceId),
    /// An Ingress or a Gateway route. As a source, it stands for the pods that serve it.
    Route(RouteId),
    /// The ingress controller, which can only be a source.
    Ingress,
}

/// The source that stands for the ingress controller.
pub const INGRESS: &str = "ingress";

/// The kinds of routes.
pub const ROUTE_KINDS: [&str; 6] =
    ["ingress", "httproute", "grpcroute", "tlsroute", "tcproute", "udproute"];

impl FlowEnd {
    /// Finds the end that a text names.
    pub fn find(text: &str, namespace: Option<&str>, loaded: &Loaded) -> Result<Self, Failure> {
        if let Some(address) = weir_api::address(text) {
            return Ok(match service::at_address(&loaded.world, address) {
                Some(service) => FlowEnd::Service(service.id.clone()),
                None => FlowEnd::Address(address),
            });
        }
        if text.contains("://") {
            return Err(domain_name(text));
        }
        let parts: Vec<&str> = text.split('/').collect();
        let id = match parts[..] {
            [name] => PodId::new(namespace.unwrap_or("default"), name),
            [namespace, name] => PodId::new(namespace, name),
            [namespace, kind, name] => match full_kind(kind).as_str() {
                "pod" => PodId::new(namespace, name),
                "service" => return service(namespace, name, loaded),
                kind if ROUTE_KINDS.contains(&kind) => {
                    return route(&[namespace, kind, name], loaded);
                }
                kind => return workload(&format!("{namespace}/{kind}/{name}"), loaded),
            },
            _ => {
                return Err(Failure::new(
                    format!("`{text}` does not name an end of a connection"),
                    FORMS,
                ));
            }
        };
        match loaded.world.pods.get(&id) {
            Some(pod) if pod.finished => Err(finished(pod, loaded)),
            Some(_) => Ok(FlowEnd::Pod(id, 1)),
            None if text == INGRESS => Ok(FlowEnd::Ingress),
            None if parts.len() == 1 && loaded.world.nodes.contains_key(text) => {
                Err(names_node(text, loaded))
            }
            None if text.parse::<ipnet::IpNet>().is_ok() => {
                Err(Failure::new(format!("{text} is a network"), "give one of its addresses"))
            }
            None if parts.len() == 1 && text.contains('.') && !is_like_an_address(text) => {
                Err(domain_name(text))
            }
            None if is_like_an_address(text) => {
                let hint = "an IPv4 address has four numbers from 0 to 255; an IPv6 address has hexadecimal numbers and `:`";
                Err(Failure::new(format!("{text} is not an address"), hint))
            }
            None => Err(no_pod(&id, loaded)),
        }
    }

    /// The pod, if the end is one.
    pub fn pod<'w>(&self, loaded: &'w Loaded) -> Option<&'w Pod> {
        match self {
            FlowEnd::Pod(id, _) => loaded.world.pods.get(id),
            FlowEnd::Address(_) | FlowEnd::Service(_) | FlowEnd::Route(_) | FlowEnd::Ingress => {
                None
            }
        }
    }

    /// The route, if the end is one.
    pub fn route<'w>(&self, loaded: &'w Loaded) -> Option<&'w Route> {
        match self {
            FlowEnd::Route(id) => loaded.routes.get(id),
            _ => None,
        }
    }

    /// The addresses, the primary one first.
    pub fn addresses(&self, loaded: &Loaded) -> Vec<IpAddr> {
        match self {
            FlowEnd::Pod(..) => {
                self.pod(loaded).map(|pod| pod.addresses.clone()).unwrap_or_default()
            }
            FlowEnd::Address(address) => vec![*address],
            // Policies apply to the backends.
            FlowEnd::Service(_) | FlowEnd::Route(_) | FlowEnd::Ingress => Vec::new(),
        }
    }
}

impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowEnd::Pod(id, _) => id.fmt(f),
            FlowEnd::Address(address) => address.fmt(f),
            FlowEnd::Service(id) => f.write_str(&service::name(id)),
            FlowEnd::Route(id) => f.write_str(&ingress::name(id)),
            FlowEnd::Ingress => f.write_str(INGRESS),
        }
    }
}

const FORMS: &str = "use an address, `namespace/pod`, `pod` with -n, `namespace/deployment/name`, \
                     `namespace/svc/name`, or `namespace/ingress/name`";

/// The pods that a pod or workload on the command line stands for; at least one.
pub fn pods(text: &str, namespace: Option<&str>, loaded: &Loaded) -> Result<Vec<PodId>, Failure> {
    let FlowEnd::Pod(id, _) = FlowEnd::find(text, namespace, loaded)? else {
        let hint = "use `namespace/pod`, `pod` with -n, or `namespace/deployment/name`";
        return Err(Failure::new(format!("{text} is not a pod"), hint));
    };
    let workload = match text.split('/').collect::<Vec<&str>>()[..] {
        [namespace, kind, name] => format!("{namespace}/{}/{name}", full_kind(kind)),
        _ => String::new(),
    };
    let is_running = |id: &&PodId| loaded.world.pods.get(id).is_some_and(|pod| !pod.finished);
    Ok(match loaded.workloads.get(&workload) {
        Some(pods) => pods.iter().filter(is_running).cloned().collect(),
        None => vec![id],
    })
}

/// The kind that a text names, as in `namespace/kind/name`.
pub fn kind_in(text: &str) -> Option<String> {
    match text.split('/').collect::<Vec<&str>>()[..] {
        [_, kind, _] => Some(full_kind(kind)),
        _ => None,
    }
}

/// Expands the short names and plurals of kubectl.
fn full_kind(kind: &str) -> String {
    match kind.to_ascii_lowercase().as_str() {
        "deploy" | "deployments" => "deployment",
        "sts" | "statefulsets" => "statefulset",
        "ds" | "daemonsets" => "daemonset",
        "rs" | "replicasets" => "replicaset",
        "rc" | "replicationcontrollers" => "replicationcontroller",
        "jobs" => "job",
        "cj" | "cronjobs" => "cronjob",
        "ro" | "rollouts" => "rollout",
        "dc" | "deploymentconfigs" => "deploymentconfig",
        "vm" | "vms" | "virtualmachines" => "virtualmachine",
        "vmi" | "vmis" | "virtualmachineinstances" => "virtualmachineinstance",
        "kservice" | "services.serving.knative.dev" | "service.serving.knative.dev" => "ksvc",
        "po" | "pods" => "pod",
        "svc" | "services" => "service",
        "ing" | "ingresses" => "ingress",
        "httproutes" => "httproute",
        "grpcroutes" => "grpcroute",
        "tlsroutes" => "tlsroute",
        "tcproutes" => "tcproute",
        "udproutes" => "udproute",
        other => other,
    }
    .to_owned()
}

/// Whether the user probably meant an address.
fn is_like_an_address(text: &str) -> bool {
    let dotted = text.contains('.') && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    // The part after `%` is a network interface.
    let bare = text.split('%').next().unwrap_or_default();
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || b":.[]".contains(&byte);
    dotted || bare.contains("::") || (bare.contains(':') && bare.bytes().all(is_hex))
}

/// The error for a domain name. The name of a Service in the DNS of the cluster contains its own.
fn domain_name(text: &str) -> Failure {
    let hint = match text.split('.').collect::<Vec<&str>>()[..] {
        [name, namespace, "svc", ..] => format!("use the Service {namespace}/svc/{name}"),
        _ => "names are not looked up: give an address that it resolves to, or a pod or Service \
              (`namespace/svc/name`)"
            .to_owned(),
    };
    Failure::new(format!("{text} is a domain name, not a pod"), hint)
}

/// The error for the name of a node.
fn names_node(name: &str, loaded: &Loaded) -> Failure {
    let addresses = loaded.world.nodes.get(name).map(|node| node.addresses.as_slice());
    let hint = match addresses.unwrap_or_default() {
        [] => "give one of its addresses".to_owned(),
        [first, ..] => format!("give one of its addresses, such as {first}"),
    };
    Failure::new(format!("{name} is a node, not a pod"), hint)
}

/// The error for a finished pod: its address may belong to another pod.
fn finished(pod: &Pod, loaded: &Loaded) -> Failure {
    let hint = match pod.addresses.iter().find(|address| !loaded.synthetic.contains(address)) {
        Some(address) => {
            format!("name a running pod, or the address {address}")
        }
        None => "name a running pod".to_owned(),
    };
    Failure::new(format!("{} has finished and no longer owns an address", pod.id), hint)
}

fn service(namespace: &str, name: &str, loaded: &Loaded) -> Result<FlowEnd, Failure> {
    let id = ServiceId { namespace: Name::from(namespace), name: Name::from(name) };
    match service::find(&loaded.world, &id) {
        Ok(service) => Ok(FlowEnd::Service(service.id.clone())),
        Err(failure) => Err(match unread_services(loaded) {
            Some(finding) => Failure::new(finding.message.clone(), finding.hint.clone()),
            None => failure,
        }),
    }
}

fn route([namespace, kind, name]: &[&str; 3], loaded: &Loaded) -> Result<FlowEnd, Failure> {
    let id = RouteId { namespace: (*namespace).into(), kind: (*kind).into(), name: (*name).into() };
    if loaded.routes.contains_key(&id) {
        return Ok(FlowEnd::Route(id));
    }
    if let Some(unread) = loaded.findings.iter().find(|finding| finding.code == ROUTES_UNREAD) {
        return Err(Failure::new(unread.message.clone(), unread.hint.clone()));
    }
    let known: Vec<String> = loaded.routes.keys().map(ingress::name).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let id = ingress::name(&id);
    let hint = match nearest(&id, &known).as_slice() {
        [] => "the input has no Ingresses or Gateway routes".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Err(Failure::new(format!("there is no route {id}"), hint))
}

/// The finding about Services that the user may not list.
pub fn unread_services(loaded: &Loaded) -> Option<&Finding> {
    loaded.findings.iter().find(|finding| finding.code == SERVICES_UNREAD)
}

fn workload(name: &str, loaded: &Loaded) -> Result<FlowEnd, Failure> {
    let running = |id: &&PodId| loaded.world.pods.get(id).is_some_and(|pod| !pod.finished);
    match loaded.workloads.get(name) {
        Some(pods) => match pods.iter().find(running).or(pods.first()) {
            Some(id) => match loaded.world.pods.get(id) {
                Some(pod) if pod.finished => Err(finished(pod, loaded)),
                _ => Ok(FlowEnd::Pod(id.clone(), pods.len())),
            },
            None => {
                Err(Failure::new(format!("{name} has no pods"), "give it replicas, or name a pod"))
            }
        },
        None => {
            let known: Vec<&str> = loaded.workloads.keys().map(String::as_str).collect();
            let hint = match nearest(name, &known).as_slice() {
                [] => FORMS.to_owned(),
                near => format!("did you mean {}?", near.join(" or ")),
            };
            Err(Failure::new(format!("there is no workload {name}"), hint))
        }
    }
}

fn no_pod(id: &PodId, loaded: &Loaded) -> Failure {
    let pods = &loaded.world.pods;
    let clusters: BTreeSet<&str> =
        loaded.world.namespaces.values().filter_map(Namespace::cluster).collect();
    let QualifiedName { cluster, name: pod } = QualifiedName::parse(&id.name);
    if let (Some(named), false) = (cluster, clusters.is_empty()) {
        let hint = format!(
            "with several clusters, use `cluster:namespace/pod`, such as `{named}:NAMESPACE/{pod}`"
        );
        return Failure::new(format!("{} has no namespace", id.name), hint);
    }
    if let Some(named) = id.cluster().filter(|named| !clusters.contains(named)) {
        let hint = if clusters.is_empty() {
            format!("load the cluster with `--cluster {named}=PATH`")
        } else {
            let known: Vec<&str> = clusters.into_iter().collect();
            format!("the clusters are {}; add one with `--cluster {named}=PATH`", known.join(", "))
        };
        return Failure::new(format!("there is no cluster {named}"), hint);
    }
    let other = pods.keys().find(|other| other.name == id.name);
    let workload = loaded.workloads.keys().find(|name| {
        let mut parts = name.splitn(3, '/');
        parts.next() == Some(&*id.namespace) && parts.nth(1) == Some(&*id.name)
    });
    let names: Vec<String> = pods.keys().map(PodId::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match (workload, other) {
        (Some(workload), _) => format!("use {workload}"),
        (None, Some(other)) => format!("did you mean {other}?"),
        (None, None) if names.is_empty() => format!("the input has no pods; {FORMS}"),
        (None, None) => {
            format!("did you mean {}?", nearest(&id.to_string(), &names).join(" or "))
        }
    };
    Failure::new(format!("there is no pod {id}"), hint)
}
