use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
};

use weir_model::{
    Finding, Key, Name, Namespace, Node, Object, Place, Pod, PodId, PolicyKind, Severity, Verdict,
};

use crate::{
    Manifests,
    document::{self, Value},
    lower::{self, Context, Fields, Lowered, Names},
    probe::{End, Family, Probe},
    reader::{repeated, unreadable},
    settle::{describe, duplicate, make_up_addresses, place_of},
};

/// A policy test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Where it was written.
    pub place: Place,
    /// Paths of further manifests, relative to the file.
    pub manifests: Vec<String>,
    /// The objects written in it.
    pub objects: Vec<Object>,
    /// What is tried.
    pub probes: Vec<Probe>,
    /// What is wrong with it. A case with an error has failed.
    pub findings: Vec<Finding>,
    /// The addresses that were made up for pods that had none.
    pub made_up: BTreeSet<IpAddr>,
}

/// Reads the policy tests of a file: one, a list of them, or several documents.
pub fn cases(file: Name, bytes: &[u8]) -> Vec<Case> {
    let (roots, repeats, error) = document::documents(bytes);
    let mut names = Names::default();
    let mut cases = Vec::new();
    for root in &roots {
        match &root.value {
            Value::Null => (),
            Value::Seq(items) => {
                cases.extend(items.iter().map(|item| case(&file, &mut names, item)))
            }
            _ => cases.push(case(&file, &mut names, root)),
        }
    }
    for repeat in &repeats {
        let finding = repeated(&file, repeat);
        // The case that began last before it.
        match cases.iter_mut().rfind(|case| case.place.line <= repeat.again) {
            Some(case) => case.findings.push(finding),
            None => cases.push(broken(&file, 0, finding)),
        }
    }
    cases.extend(error.map(|error| broken(&file, error.line, unreadable(&file, &error))));
    cases
}

/// A case that stands for what could not be read.
fn broken(file: &Name, line: u32, finding: Finding) -> Case {
    Case {
        name: file.to_string(),
        place: Place { file: file.clone(), line },
        manifests: Vec::new(),
        objects: Vec::new(),
        probes: Vec::new(),
        findings: vec![finding],
        made_up: BTreeSet::new(),
    }
}

impl Case {
    /// Takes in the manifests that the case asks for, and checks the probes against all there is now.
    pub fn join(&mut self, manifests: Manifests) {
        let Manifests { objects, findings, made_up, .. } = manifests;
        self.findings.extend(findings);
        let mut all: BTreeMap<Key, Object> = BTreeMap::new();
        for object in std::mem::take(&mut self.objects).into_iter().chain(objects) {
            match all.entry(object.key()) {
                btree_map::Entry::Vacant(entry) => drop(entry.insert(object)),
                // A namespace that the manifests only mention.
                btree_map::Entry::Occupied(_) if place_of(&object).is_none() => (),
                btree_map::Entry::Occupied(entry) => {
                    let (first, again) = (place_of(entry.get()), place_of(&object));
                    let kept = "the one in the case counts";
                    let (first, again) = (first.cloned(), again.cloned());
                    self.findings.push(duplicate(describe(&object), first, again, kept));
                }
            }
        }
        // What was made up apart may collide now.
        let invented: BTreeSet<IpAddr> = self.made_up.union(&made_up).copied().collect();
        let mut none = BTreeSet::new();
        for object in all.values_mut() {
            if let Object::Pod(pod) = object {
                match pod.addresses[..] {
                    [one] if invented.contains(&one) => pod.addresses.clear(),
                    [] => drop(none.insert(pod.id.clone())),
                    _ => (),
                }
            }
        }
        self.made_up = address_all(&mut all, &none);
        self.objects = all.into_values().collect();
        self.check_probes();
    }

    /// Reports probes of pods that are not there.
    fn check_probes(&mut self) {
        let pods: BTreeSet<&PodId> = self
            .objects
            .iter()
            .filter_map(|object| match object {
                Object::Pod(pod) => Some(&pod.id),
                _ => None,
            })
            .collect();
        for (at, probe) in self.probes.iter().enumerate() {
            for (field, end) in [("from", &probe.from), ("to", &probe.to)] {
                if let End::Pod(id) = end
                    && !pods.contains(id)
                {
                    self.findings.push(Finding {
                        place: Some(Place { file: self.place.file.clone(), line: probe.line }),
                        code: "invalid",
                        severity: Severity::Error,
                        object: format!("case {}", self.name),
                        field: format!("probes[{at}].{field}.pod"),
                        message: format!("there is no pod {id} in this case"),
                        hint: "add it to `pods:`, or correct the name".into(),
                    });
                }
            }
        }
    }
}

/// Makes up addresses, except for the pods that are meant to have none.
fn address_all(objects: &mut BTreeMap<Key, Object>, none: &BTreeSet<PodId>) -> BTreeSet<IpAddr> {
    let mut bare: Vec<(Key, Object)> = Vec::new();
    for id in none {
        bare.extend(objects.remove_entry(&Key::Pod(id.clone())));
    }
    let made_up = make_up_addresses(objects);
    objects.extend(bare);
    made_up
}

fn case(file: &Name, names: &mut Names, node: &document::Node) -> Case {
    let place = Place { file: file.clone(), line: node.line };
    let name = match node.get("name").and_then(document::Node::written) {
        Some(name) => name.to_owned(),
        None => place.to_string(),
    };
    let mut findings = Vec::new();
    let mut ctx = Context::new(file, names, &mut findings, format!("case {name}"));
    let known = [
        "name",
        "source",
        "namespaces",
        "pods",
        "nodes",
        "manifests",
        "policies",
        "adminPolicies",
        "dns",
        "probes",
    ];
    let fields = ctx.fields(node, &known);
    for field in ["name", "source"] {
        fields.get(field).and_then(|_| text(&mut ctx, &fields, field));
    }
    let manifests =
        each(&mut ctx, &fields, "manifests", |ctx, item| ctx.text(item).map(str::to_owned));
    let mut objects = each(&mut ctx, &fields, "namespaces", namespace);
    objects.extend(each(&mut ctx, &fields, "nodes", worker));
    let mut bare = BTreeSet::new();
    objects.extend(each(&mut ctx, &fields, "pods", |ctx, item| {
        let (pod, addressless) = pod(ctx, item)?;
        bare.extend(addressless.then(|| pod.id.clone()));
        Some(Object::Pod(pod))
    }));
    if let Some(dns) = fields.get("dns") {
        ctx.at("dns", |ctx| objects.extend(domains(ctx, dns)));
    }
    let probes = each(&mut ctx, &fields, "probes", probe);
    if node.entries().iter().all(|entry| &*entry.key != "probes" || entry.value.items().is_empty())
    {
        let hint = "add `probes:` with what is to be tried";
        ctx.at("probes", |ctx| ctx.invalid(node.line, "a case without probes tests nothing", hint));
    }
    let lists = [("policies", false), ("adminPolicies", true)].map(|(field, cluster_wide)| {
        let list = fields.get(field).and_then(|list| ctx.at(field, |ctx| ctx.list(list)));
        (list.unwrap_or_default(), cluster_wide)
    });
    for (list, cluster_wide) in lists {
        for item in list {
            objects.extend(policy(file, names, &mut findings, item, cluster_wide));
        }
    }
    let mut all = BTreeMap::new();
    for object in objects {
        match all.entry(object.key()) {
            btree_map::Entry::Vacant(entry) => drop(entry.insert(object)),
            btree_map::Entry::Occupied(entry) => {
                let (first, again) = (place_of(entry.get()).cloned(), place_of(&object).cloned());
                findings.push(duplicate(describe(&object), first, again, "the first one counts"));
            }
        }
    }
    let made_up = address_all(&mut all, &bare);
    let objects = all.into_values().collect();
    let mut case = Case { name, place, manifests, objects, probes, findings, made_up };
    if case.manifests.is_empty() {
        case.check_probes();
    }
    case
}

/// What can be read of a list.
fn each<T>(
    ctx: &mut Context,
    fields: &Fields,
    field: &'static str,
    mut read: impl FnMut(&mut Context, &document::Node) -> Option<T>,
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

fn required<'n>(
    ctx: &mut Context,
    fields: &Fields<'n>,
    field: &'static str,
) -> Option<&'n document::Node> {
    let node = fields.get(field);
    if node.is_none() {
        ctx.at(field, |ctx| {
            ctx.invalid(fields.line, format!("expected `{field}`"), format!("add `{field}:`"));
        });
    }
    node
}

/// A text as it was written. The format is ours: a namespace `y` needs no quotes here.
fn text(ctx: &mut Context, fields: &Fields, field: &'static str) -> Option<Name> {
    let node = required(ctx, fields, field)?;
    let text = match node.written() {
        Some(text) => text,
        None => ctx.at(field, |ctx| ctx.text(node))?,
    };
    Some(ctx.name(text))
}

fn labels(ctx: &mut Context, fields: &Fields) -> weir_model::Labels {
    match fields.get("labels") {
        None => Default::default(),
        Some(labels) => ctx.at("labels", |ctx| lower::labels(ctx, labels)),
    }
}

fn namespace(ctx: &mut Context, node: &document::Node) -> Option<Object> {
    let fields = ctx.fields(node, &["name", "labels"]);
    let name = text(ctx, &fields, "name")?;
    let labels = labels(ctx, &fields);
    let labels = lower::with_own_name(ctx, &labels, &name);
    Some(Object::Namespace(Namespace { name, labels, place: ctx.place(node.line) }))
}

fn worker(ctx: &mut Context, node: &document::Node) -> Option<Object> {
    let fields = ctx.fields(node, &["name", "labels", "ips"]);
    let name = text(ctx, &fields, "name")?;
    let labels = labels(ctx, &fields);
    let addresses = each(ctx, &fields, "ips", |ctx, item| ctx.address(item));
    Some(Object::Node(Node { name, labels, addresses, place: ctx.place(node.line) }))
}

/// A pod, and whether it is meant to have no address.
fn pod(ctx: &mut Context, node: &document::Node) -> Option<(Pod, bool)> {
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
    let fields = ctx.fields(node, &known);
    let namespace = match fields.get("namespace") {
        None => Some(ctx.name("default")),
        Some(_) => text(ctx, &fields, "namespace"),
    };
    let name = text(ctx, &fields, "name");
    let labels = labels(ctx, &fields);
    let addresses = each(ctx, &fields, "ips", |ctx, item| ctx.address(item));
    let bare = fields.get("ips").is_some_and(|ips| ips.items().is_empty());
    let worker = fields.get("node").and_then(|_| text(ctx, &fields, "node"));
    let ports = each(ctx, &fields, "ports", |ctx, item| {
        let clean = ctx.fields(item, &["name", "containerPort", "protocol"]).clean;
        lower::named_port(ctx, item).filter(|_| clean)
    });
    let mut flag = |field: &'static str| {
        fields.get(field).and_then(|node| ctx.at(field, |ctx| ctx.boolean(node))) == Some(true)
    };
    let host_network = flag("hostNetwork");
    // A pod that is being deleted owns its addresses until it is gone (Y6).
    flag("terminating");
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
        born: 0,
        place: ctx.place(node.line),
    };
    Some((pod, bare))
}

fn domains(ctx: &mut Context, node: &document::Node) -> Vec<Object> {
    ctx.any_fields(node);
    let mut all = Vec::new();
    for entry in node.entries() {
        let name = entry.key.strip_suffix('.').unwrap_or(&entry.key).to_ascii_lowercase();
        let addresses = ctx.at(lower::Step::Key(entry.key.clone()), |ctx| {
            ctx.each(&entry.value, |ctx, _, item| ctx.address(item))
        });
        all.extend(addresses.map(|addresses| Object::Domain(ctx.name(&name), addresses)));
    }
    all
}

/// A policy; whatever else is in the list fails the case.
fn policy(
    file: &Name,
    names: &mut Names,
    findings: &mut Vec<Finding>,
    node: &document::Node,
    cluster_wide: bool,
) -> Option<Object> {
    let lowered = lower::lower(file, names, findings, node, None);
    if let Some(Lowered::Object(Object::Policy(policy))) = lowered
        && (policy.id.kind != PolicyKind::NetworkPolicy) == cluster_wide
    {
        return Some(Object::Policy(policy));
    }
    let expected = match cluster_wide {
        true => "AdminNetworkPolicy, BaselineAdminNetworkPolicy or ClusterNetworkPolicy",
        false => "NetworkPolicy",
    };
    let mut ctx = Context::new(file, names, findings, String::new());
    let kind = node.get("kind").map_or("no kind".into(), document::Node::describe);
    let message = format!("expected an object of the kind {expected}, found {kind}");
    ctx.at("kind", |ctx| ctx.invalid(node.line, message, "move it to the list it belongs to"));
    None
}

fn probe(ctx: &mut Context, node: &document::Node) -> Option<Probe> {
    let known = ["from", "to", "port", "protocol", "expect", "ipFamily", "note"];
    let fields = ctx.fields(node, &known);
    let mut end = |field: &'static str| {
        required(ctx, &fields, field).and_then(|node| ctx.at(field, |ctx| one_end(ctx, node)))
    };
    let (from, to) = (end("from"), end("to"));
    let port = required(ctx, &fields, "port").and_then(|port| ctx.at("port", |ctx| ctx.port(port)));
    let protocol = match fields.get("protocol") {
        None => Some(weir_model::Protocol::Tcp),
        Some(word) => ctx.at("protocol", |ctx| ctx.word(word, &lower::PROTOCOLS)),
    };
    let verdicts = [("allow", Verdict::Allow), ("deny", Verdict::Deny)];
    let expect = required(ctx, &fields, "expect")
        .and_then(|word| ctx.at("expect", |ctx| ctx.word(word, &verdicts)));
    let families = [("IPv4", Family::V4), ("IPv6", Family::V6)];
    let family = fields.get("ipFamily");
    let family = family.and_then(|word| ctx.at("ipFamily", |ctx| ctx.word(word, &families)));
    let note = fields.get("note").and_then(|note| ctx.at("note", |ctx| ctx.text(note)));
    Some(Probe {
        line: node.line,
        from: from?,
        to: to?,
        port: port?,
        protocol: protocol?,
        expect: expect?,
        family,
        note: note.map(str::to_owned),
    })
}

fn one_end(ctx: &mut Context, node: &document::Node) -> Option<End> {
    let fields = ctx.fields(node, &["pod", "ip"]);
    match (fields.get("pod"), fields.get("ip")) {
        (Some(pod), None) => ctx.at("pod", |ctx| {
            let text = ctx.text(pod)?;
            let id = text.split_once('/').filter(|(ns, name)| !ns.is_empty() && !name.is_empty());
            match id {
                Some((namespace, name)) => {
                    Some(End::Pod(PodId { namespace: ctx.name(namespace), name: ctx.name(name) }))
                }
                None => {
                    let message = format!("expected namespace/name, found {}", pod.describe());
                    ctx.invalid(pod.line, message, "write it as in `shop/api`");
                    None
                }
            }
        }),
        (None, Some(ip)) => ctx.at("ip", |ctx| ctx.address(ip)).map(End::Address),
        _ => {
            let hint = "write `{pod: namespace/name}` or `{ip: address}`";
            ctx.invalid(fields.line, "expected either `pod` or `ip`", hint);
            None
        }
    }
}

#[cfg(test)]
mod tests;
