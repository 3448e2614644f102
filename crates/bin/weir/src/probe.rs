//! The connections that a probe of a policy test stands for.

use std::{collections::BTreeMap, net::IpAddr};

use weir_api::{CaseObjects, Probe, ProbeEnd, ProbePort, WorkloadRef};
use weir_model::{
    Attachments, Change, Flow, IpFamily, Name, Pod, PodId, PortRange, Protocol, World,
};
use weir_reach::PortQuery;

use crate::{
    failure::Failure,
    flow_end::FlowEnd,
    other_networks,
    service::{self, BackendEnd, Client, ServiceTarget, Sources},
    source::Loaded,
};

/// The connections of a probe; at least one.
pub(crate) struct ProbeFlows {
    /// The port that clients use, as a number.
    pub(crate) port: PortRange,
    /// The connections.
    pub(crate) flows: Vec<ProbeFlow>,
}

/// One connection of a probe.
pub(crate) struct ProbeFlow {
    /// The source: a pod or an address.
    pub(crate) from: ProbeEnd,
    /// The destination: a pod or an address.
    pub(crate) to: ProbeEnd,
    /// The connection.
    pub(crate) flow: Flow,
}

/// The objects that probes can name.
#[derive(Clone, Copy)]
pub(crate) struct ProbeContext<'a> {
    /// The cluster.
    pub(crate) world: &'a World,
    /// The pods of each workload.
    pub(crate) workloads: &'a BTreeMap<WorkloadRef, Vec<PodId>>,
    /// The pods with networks other than the cluster network.
    pub(crate) unjudged: &'a BTreeMap<PodId, Attachments>,
}

/// The objects and the workloads that probes can name.
pub(crate) fn targets(loaded: &Loaded) -> CaseObjects {
    let objects = loaded.world.changes().filter_map(|change| match change {
        Change::Put(object) => Some(object),
        Change::Remove(_) => None,
    });
    let workloads = loaded.workloads.iter().filter_map(|(name, pods)| {
        let mut parts = name.splitn(3, '/').map(Name::from);
        let (namespace, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some((WorkloadRef { namespace, kind, name }, pods.clone()))
    });
    CaseObjects {
        objects: objects.collect(),
        workloads: workloads.collect(),
        unjudged: loaded.attachments.clone(),
    }
}

/// A destination of a probe.
struct Target {
    end: ProbeEnd,
    port: PortRange,
    /// The family, if only one can be used.
    family: Option<IpFamily>,
}

/// The connections of a probe: from each pod of its source to each pod of its destination. Fails for
/// a pod that is not on the cluster network.
pub(crate) fn flows(probe: &Probe, context: ProbeContext<'_>) -> Result<ProbeFlows, Failure> {
    let ProbeContext { world, unjudged, .. } = context;
    let query = query(probe)?;
    let (port, targets, sources) = match &probe.to {
        ProbeEnd::Service(id) => {
            let service = service::find(world, id)?;
            let target = ServiceTarget::find(world, service, &query, Client::Pod)?;
            let protocol = target.port.protocol;
            let targets = target.backends.into_iter();
            let targets: Vec<Target> =
                targets.filter_map(|backend| of_backend(backend, protocol)).collect();
            let sources = match &probe.from {
                ProbeEnd::Address(address) => {
                    let sources = Sources::find(world, &FlowEnd::Address(*address), service);
                    sources.ends.iter().filter_map(address_end).collect()
                }
                from => ends(from, context)?,
            };
            (target.port, targets, sources)
        }
        to => {
            let mut targets = Vec::new();
            for end in ends(to, context)? {
                let port = port_at(&end, &query, world)?;
                targets.push(Target { end, port, family: None });
            }
            let port = targets.first().map_or(PortRange::one(Protocol::Tcp, 0), |one| one.port);
            (port, targets, ends(&probe.from, context)?)
        }
    };
    for end in sources.iter().chain(targets.iter().map(|target| &target.end)) {
        if let ProbeEnd::Pod(id) = end {
            other_networks::check(id, unjudged)?;
        }
    }
    let mut flows = Vec::new();
    for from in &sources {
        for target in &targets {
            let simple = Probe {
                from: from.clone(),
                to: target.end.clone(),
                port: ProbePort::Number(target.port.first),
                protocol: Some(target.port.protocol),
                family: probe.family.or(target.family),
                ..probe.clone()
            };
            let flow = simple.flow(world).map_err(|error| Failure::new(error, ""))?;
            if let Some(service) = service::at_address(world, flow.to) {
                let what = format!(
                    "{} is the address of Service {}, and policies apply to its backends",
                    flow.to, service.id
                );
                let hint =
                    format!("write `{{service: {}}}`, and the port of the Service", service.id);
                return Err(Failure::new(what, hint));
            }
            flows.push(ProbeFlow { from: from.clone(), to: target.end.clone(), flow });
        }
    }
    Ok(ProbeFlows { port, flows })
}

fn query(probe: &Probe) -> Result<PortQuery, Failure> {
    let text = match probe.protocol {
        None => probe.port.to_string(),
        Some(protocol) => format!("{}/{protocol}", probe.port),
    };
    let query: Result<PortQuery, String> = text.parse();
    match query {
        Ok(query) if !query.is_any() => Ok(query),
        Ok(_) => Err(Failure::new("a probe has one port", "give its number or its name")),
        Err(error) => Err(Failure::new(error, "give the number of the port")),
    }
}

fn address_end(end: &FlowEnd) -> Option<ProbeEnd> {
    match end {
        FlowEnd::Address(address) => Some(ProbeEnd::Address(*address)),
        FlowEnd::Pod(..) | FlowEnd::Service(_) | FlowEnd::Route(_) | FlowEnd::Ingress => None,
    }
}

/// The pods and addresses that an end stands for; at least one.
fn ends(end: &ProbeEnd, context: ProbeContext<'_>) -> Result<Vec<ProbeEnd>, Failure> {
    let ProbeContext { world, workloads, .. } = context;
    match end {
        ProbeEnd::Pod(_) | ProbeEnd::Address(_) => Ok(vec![end.clone()]),
        ProbeEnd::Service(id) => {
            let hint = "a Service opens no connections: name the pods that do";
            Err(Failure::new(format!("Service {id} cannot be a source"), hint))
        }
        ProbeEnd::Workload(workload) => {
            let pods = workloads.get(workload).map(Vec::as_slice).unwrap_or_default();
            let is_running = |id: &&PodId| world.pods.get(*id).is_some_and(|pod| !pod.finished);
            let running: Vec<ProbeEnd> =
                pods.iter().filter(is_running).cloned().map(ProbeEnd::Pod).collect();
            if running.is_empty() {
                let hint = "give it replicas, or name a pod";
                return Err(Failure::new(format!("{end} has no running pods"), hint));
            }
            Ok(running)
        }
    }
}

fn of_backend(backend: BackendEnd, protocol: Protocol) -> Option<Target> {
    let BackendEnd { pod, addresses, port } = backend;
    let first = *addresses.first()?;
    let is_first = |address: &IpAddr| IpFamily::from(*address) == IpFamily::from(first);
    // A Service of one family reaches a pod of both only over this one.
    let family = addresses.iter().all(is_first).then_some(first.into());
    let end = pod.map_or(ProbeEnd::Address(first), ProbeEnd::Pod);
    Some(Target { end, port: PortRange::one(protocol, port), family })
}

/// The port of a query at a pod or an address.
fn port_at(end: &ProbeEnd, query: &PortQuery, world: &World) -> Result<PortRange, Failure> {
    let pod: Option<&Pod> = match end {
        ProbeEnd::Pod(id) => world.pods.get(id),
        _ => None,
    };
    let mut ports = query.at(pod);
    ports.sort();
    ports.dedup();
    match (&ports[..], pod) {
        ([port], _) => Ok(*port),
        ([first, ..], _) => {
            let hint = format!("add `protocol: {}`, or give the number", first.protocol);
            Err(Failure::new(format!("{end} has several ports named {query}"), hint))
        }
        ([], Some(pod)) => {
            let names: Vec<&str> = pod.ports.iter().map(|port| &*port.name).collect();
            let hint = match names.is_empty() {
                true => "it names no ports: give the number".to_owned(),
                false => format!("it names {}; a number works too", names.join(", ")),
            };
            Err(Failure::new(format!("{end} has no port {query}"), hint))
        }
        ([], None) => {
            let hint = "the ports of an address have no names: name the pod, or give a number";
            Err(Failure::new(format!("{end} has no port {query}"), hint))
        }
    }
}
