//! The objects and probes of a case itself.

use weir_model::{
    Claim, Finding, IpFamily, Labels, Name, NameTable, Namespace, Node, Object, Pod, PodId,
    ServiceId, Verdict,
};

use crate::{
    WorkloadRef, check,
    document::{Tree, TreeValue},
    lower::{self, Fields, LowerContext, Lowered},
    probe::{Probe, ProbeEnd, ProbePort},
};

/// The valid elements of a list.
pub(super) fn each<T>(
    ctx: &mut LowerContext,
    fields: &Fields,
    field: &'static str,
    mut read: impl FnMut(&mut LowerContext, &Tree) -> Option<T>,
) -> Vec<T> {
    let mut all = Vec::new();
    if let Some(list) = fields.get(field) {
        ctx.at(field, |ctx| {
            ctx.each(list, |ctx, _, item| {
                all.extend(read(ctx, item));
                Some(())
            })
        });
    }
    all
}

fn required<'t>(
    ctx: &mut LowerContext,
    fields: &Fields<'t>,
    field: &'static str,
) -> Option<&'t Tree> {
    let tree = fields.get(field);
    if tree.is_none() {
        ctx.at(field, |ctx| {
            ctx.invalid(fields.line, format!("expected `{field}`"), format!("add `{field}:`"));
        });
    }
    tree
}

/// A text as written. In this format, a namespace `y` needs no quotes.
pub(super) fn text(ctx: &mut LowerContext, fields: &Fields, field: &'static str) -> Option<Name> {
    let tree = required(ctx, fields, field)?;
    let text = match tree.written() {
        Some(text) => text,
        None => ctx.at(field, |ctx| ctx.text(tree))?,
    };
    Some(ctx.name(text))
}

fn labels(ctx: &mut LowerContext, fields: &Fields) -> Labels {
    match fields.get("labels") {
        None => Default::default(),
        Some(labels) => ctx.at("labels", |ctx| lower::labels(ctx, labels)),
    }
}

pub(super) fn namespace(ctx: &mut LowerContext, tree: &Tree) -> Option<Object> {
    let fields = ctx.fields(tree, &["name", "labels"]);
    let name = text(ctx, &fields, "name")?;
    let labels = labels(ctx, &fields);
    let labels = lower::with_own_name(ctx, &labels, &name);
    Some(Object::Namespace(Namespace { name, labels, location: ctx.location(tree.line) }))
}

pub(super) fn worker(ctx: &mut LowerContext, tree: &Tree) -> Option<Object> {
    let fields = ctx.fields(tree, &["name", "labels", "ips"]);
    let name = text(ctx, &fields, "name")?;
    let labels = labels(ctx, &fields);
    let addresses = each(ctx, &fields, "ips", |ctx, item| ctx.address(item));
    Some(Object::Node(Node { name, labels, addresses, location: ctx.location(tree.line) }))
}

/// A pod, and whether it is explicitly without addresses.
pub(super) fn pod(ctx: &mut LowerContext, tree: &Tree) -> Option<(Pod, bool)> {
    let known = [
        "namespace",
        "name",
        "labels",
        "ips",
        "node",
        "ports",
        "hostNetwork",
        "phase",
        "terminating",
    ];
    let fields = ctx.fields(tree, &known);
    let namespace = match fields.get("namespace") {
        None => Some(ctx.name("default")),
        Some(_) => text(ctx, &fields, "namespace"),
    };
    let name = text(ctx, &fields, "name");
    let labels = labels(ctx, &fields);
    let addresses = each(ctx, &fields, "ips", |ctx, item| ctx.address(item));
    let bare = fields.get("ips").is_some_and(|ips| ips.items().is_empty());
    let worker = fields.get("node").and_then(|_| text(ctx, &fields, "node"));
    let worker = worker.filter(|worker| !worker.is_empty());
    let ports = each(ctx, &fields, "ports", |ctx, item| {
        let clean = ctx.fields(item, &["name", "containerPort", "protocol"]).clean;
        lower::named_port(ctx, item).filter(|_| clean)
    });
    let mut flag = |field: &'static str| {
        fields.get(field).and_then(|tree| ctx.at(field, |ctx| ctx.boolean(tree))) == Some(true)
    };
    let host_network = flag("hostNetwork");
    let claim = if flag("terminating") { Claim::Terminating } else { Claim::Running };
    let phases = [
        ("Pending", false),
        ("Running", false),
        ("Succeeded", true),
        ("Failed", true),
        ("Unknown", false),
    ];
    let phase = fields.get("phase");
    let finished = phase.and_then(|phase| ctx.at("phase", |ctx| ctx.word(phase, &phases)));
    let pod = Pod {
        id: PodId { namespace: namespace?, name: name? },
        labels,
        addresses,
        node: worker,
        ports,
        host_network,
        finished: finished.unwrap_or(false),
        claim,
        uid: None,
        owner: None,
        location: ctx.location(tree.line),
    };
    Some((pod, bare))
}

pub(super) fn domains(ctx: &mut LowerContext, tree: &Tree) -> Vec<Object> {
    ctx.any_fields(tree);
    let mut all = Vec::new();
    for entry in tree.entries() {
        let name = entry.key.strip_suffix('.').unwrap_or(&entry.key).to_ascii_lowercase();
        let addresses = ctx.at(lower::PathStep::Key(entry.key.clone()), |ctx| {
            ctx.each(&entry.value, |ctx, _, item| ctx.address(item))
        });
        all.extend(addresses.map(|addresses| Object::Domain(ctx.name(&name), addresses)));
    }
    all
}

/// A Service or an EndpointSlice. Any other object in the list fails the case.
pub(super) fn service(
    file: &Name,
    names: &mut NameTable,
    findings: &mut Vec<Finding>,
    tree: &Tree,
) -> Option<Object> {
    match lower::lower(file, names, findings, tree, None) {
        Some(Lowered::Object(object @ (Object::Service(_) | Object::EndpointSlice(_)))) => {
            Some(object)
        }
        _ => {
            let mut ctx = LowerContext::new(file, names, findings, None);
            let kind = tree.get("kind").map_or("no kind".into(), Tree::describe);
            let message = format!("expected a Service or an EndpointSlice, found {kind}");
            let hint = "move it to the list it belongs to, or to a file in `manifests`";
            ctx.at("kind", |ctx| ctx.invalid(tree.line, message, hint));
            None
        }
    }
}

/// A policy. Any other object in the list fails the case.
pub(super) fn policy(
    file: &Name,
    names: &mut NameTable,
    findings: &mut Vec<Finding>,
    tree: &Tree,
    cluster_wide: bool,
) -> Option<Object> {
    let lowered = lower::lower(file, names, findings, tree, None);
    if let Some(
        Lowered::Object(Object::Policy(policy))
        | Lowered::Generated { object: Object::Policy(policy), .. },
    ) = lowered
        && policy.id.kind.is_namespaced() != cluster_wide
    {
        return Some(Object::Policy(policy));
    }
    let expected = if cluster_wide {
        "AdminNetworkPolicy, BaselineAdminNetworkPolicy or ClusterNetworkPolicy"
    } else {
        "NetworkPolicy or ClusterSetNetworkPolicy"
    };
    let mut ctx = LowerContext::new(file, names, findings, None);
    let kind = tree.get("kind").map_or("no kind".into(), Tree::describe);
    let message = format!("expected an object of the kind {expected}, found {kind}");
    ctx.at("kind", |ctx| ctx.invalid(tree.line, message, "move it to the list it belongs to"));
    None
}

pub(super) fn probe(ctx: &mut LowerContext, tree: &Tree) -> Option<Probe> {
    let known = ["from", "to", "port", "protocol", "expect", "ipFamily", "note"];
    let fields = ctx.fields(tree, &known);
    let mut end = |field: &'static str| {
        required(ctx, &fields, field).and_then(|tree| ctx.at(field, |ctx| one_end(ctx, tree)))
    };
    let (from, to) = (end("from"), end("to"));
    let port =
        required(ctx, &fields, "port").and_then(|port| ctx.at("port", |ctx| probe_port(ctx, port)));
    let protocol = match fields.get("protocol") {
        None => Some(None),
        Some(word) => ctx.at("protocol", |ctx| ctx.word(word, &lower::PROTOCOLS)).map(Some),
    };
    let verdicts = [("allow", Verdict::Allow), ("deny", Verdict::Deny)];
    let expect = required(ctx, &fields, "expect")
        .and_then(|word| ctx.at("expect", |ctx| ctx.word(word, &verdicts)));
    let families = [("IPv4", IpFamily::V4), ("IPv6", IpFamily::V6)];
    let family = fields.get("ipFamily");
    let family = family.and_then(|word| ctx.at("ipFamily", |ctx| ctx.word(word, &families)));
    let note = fields.get("note").and_then(|_| text(ctx, &fields, "note"));
    Some(Probe {
        line: tree.line,
        from: from?,
        to: to?,
        port: port?,
        protocol: protocol?,
        expect: expect?,
        family,
        note: note.map(|note| note.to_string()),
    })
}

/// A number, or the name of a port.
fn probe_port(ctx: &mut LowerContext, tree: &Tree) -> Option<ProbePort> {
    match &tree.value {
        TreeValue::Str(text) if check::port_name(text).is_ok() => {
            Some(ProbePort::Name(ctx.name(text)))
        }
        _ => ctx.port(tree).map(ProbePort::Number),
    }
}

/// The fields of an end that name a workload of this kind.
const WORKLOADS: [&str; 7] = [
    "deployment",
    "statefulset",
    "daemonset",
    "replicaset",
    "replicationcontroller",
    "job",
    "cronjob",
];

fn one_end(ctx: &mut LowerContext, tree: &Tree) -> Option<ProbeEnd> {
    let known: Vec<&'static str> =
        ["pod", "ip", "service", "workload"].into_iter().chain(WORKLOADS).collect();
    let fields = ctx.fields(tree, &known);
    let given: Vec<&'static str> =
        known.into_iter().filter(|field| fields.get(field).is_some()).collect();
    let [field] = given[..] else {
        let hint = "write `{pod: namespace/name}`, `{deployment: namespace/name}`, \
                    `{service: namespace/name}` or `{ip: address}`";
        ctx.invalid(fields.line, "expected one of `pod`, `deployment`, `service` and `ip`", hint);
        return None;
    };
    let value = fields.get(field)?;
    ctx.at(field, |ctx| match field {
        "ip" => ctx.address(value).map(ProbeEnd::Address),
        "workload" => {
            let [namespace, kind, name] = parts(ctx, value, "shop/deployment/api")?;
            let kind = ctx.name(&kind.to_lowercase());
            let (namespace, name) = (ctx.name(namespace), ctx.name(name));
            Some(ProbeEnd::Workload(WorkloadRef { namespace, kind, name }))
        }
        _ => {
            let [namespace, name] = parts(ctx, value, "shop/api")?;
            let (namespace, name) = (ctx.name(namespace), ctx.name(name));
            Some(match field {
                "pod" => ProbeEnd::Pod(PodId { namespace, name }),
                "service" => ProbeEnd::Service(ServiceId { namespace, name }),
                kind => {
                    let kind = ctx.name(kind);
                    ProbeEnd::Workload(WorkloadRef { namespace, kind, name })
                }
            })
        }
    })
}

/// The parts of a name between slashes, none of them empty.
fn parts<'t, const COUNT: usize>(
    ctx: &mut LowerContext,
    tree: &'t Tree,
    example: &str,
) -> Option<[&'t str; COUNT]> {
    let text = ctx.text(tree)?;
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    let is_whole = text.split('/').count() == COUNT;
    match <[&str; COUNT]>::try_from(parts) {
        Ok(parts) if is_whole => Some(parts),
        _ => {
            let form = if COUNT == 2 { "namespace/name" } else { "namespace/kind/name" };
            let message = format!("expected {form}, found {}", tree.describe());
            ctx.invalid(tree.line, message, format!("write it as in `{example}`"));
            None
        }
    }
}
