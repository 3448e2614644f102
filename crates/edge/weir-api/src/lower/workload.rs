//! Workloads: objects that create pods. Besides those of Kubernetes, any object with a pod template.

use weir_model::{Labels, Location, Name, NamedPort, Pod, PortRange, Protocol};

use super::{
    Home, LowerContext, Lowered, Meta, PROTOCOLS, PathStep, PodTraits, kinds, meta, network, pod,
    selector,
};
use crate::{
    WorkloadRef, check,
    document::{Tree, TreeValue},
};

/// A workload, by the pods it would create.
#[derive(Debug)]
pub(crate) struct Template {
    /// Its namespace, kind and name.
    pub(crate) id: WorkloadRef,
    pub(crate) location: Option<Location>,
    /// Kind (lower case) and name of its owners.
    pub(crate) owners: Vec<(Name, Name)>,
    /// Whether it requests no pods.
    pub(crate) idle: bool,
    /// One pod for each of its pod templates.
    pub(crate) pods: Vec<TemplatePod>,
    /// The workload whose template it uses, if it has none of its own.
    pub(crate) uses: Option<WorkloadRef>,
    /// The kind with its API group, if only its pod template shows that it is a workload.
    pub(crate) inferred: Option<Name>,
}

/// The pod of a pod template. Its name starts with that of the workload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TemplatePod {
    pub(crate) pod: Pod,
    pub(crate) traits: PodTraits,
}

const KNATIVE: &str = "serving.knative.dev";
const KUBEVIRT: &str = "kubevirt.io";

/// The workloads of other projects whose controllers weir knows.
const KNOWN: [(&str, &str); 9] = [
    ("Configuration", KNATIVE),
    ("DeploymentConfig", "apps.openshift.io"),
    ("Revision", KNATIVE),
    ("Rollout", "argoproj.io"),
    ("Service", KNATIVE),
    ("VirtualMachine", KUBEVIRT),
    ("VirtualMachineInstance", KUBEVIRT),
    ("VirtualMachineInstanceReplicaSet", KUBEVIRT),
    ("VirtualMachinePool", "pool.kubevirt.io"),
];

/// Whether another project has a workload of this kind.
pub(super) fn is_known(kind: &str) -> bool {
    KNOWN.iter().any(|(known, _)| *known == kind)
}

/// The name of a kind of workload, as users write it: in lower case, and with the API group if a
/// kind of Kubernetes has the same name. Knative's Service is `ksvc`, as in kubectl.
pub(crate) fn workload_kind(kind: &str, group: &str) -> String {
    let lower = kind.to_lowercase();
    let is_own = matches!(group, "" | "apps" | "batch" | "extensions");
    match (kind, group) {
        ("Service", KNATIVE) => "ksvc".into(),
        _ if !is_own && kinds::is_supported(kind) => format!("{lower}.{group}"),
        _ => lower,
    }
}

/// A workload of Kubernetes. Without a template, its pod has no labels.
pub(super) fn lower(ctx: &mut LowerContext, tree: &Tree, kind: &str) -> Option<Lowered> {
    let path: &[&str] = match kind {
        "CronJob" => &["spec", "jobTemplate", "spec", "template"],
        _ => &["spec", "template"],
    };
    let none = Tree::null(tree.line);
    let template = FoundTemplate {
        path: path.iter().map(|key| Step::Key(key)).collect(),
        tree: tree.path(path).unwrap_or(&none),
    };
    workload(ctx, tree, kind, "", &[template])
}

/// A workload of another project: an object with pod templates, or one that stands for a pod.
pub(super) fn lower_other(
    ctx: &mut LowerContext,
    tree: &Tree,
    kind: &str,
    group: Option<&str>,
) -> Option<Lowered> {
    let lower = kind.to_ascii_lowercase();
    let is_inert = ["policy", "policies", "template"].iter().any(|end| lower.ends_with(end));
    if is_inert || !kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let group = group.unwrap_or_default();
    let mut found = Vec::new();
    match (kind, group) {
        ("VirtualMachineInstance", KUBEVIRT) | ("Revision", KNATIVE) => {
            found.extend(is_pod(tree).then(|| FoundTemplate { path: Vec::new(), tree }));
        }
        _ => find_templates(tree.get("spec")?, &mut vec![Step::Key("spec")], &mut found),
    }
    let has_reference = kind == "Rollout" && tree.path(&["spec", "workloadRef"]).is_some();
    if found.is_empty() && !has_reference {
        return None;
    }
    workload(ctx, tree, kind, group, &found)
}

/// A pod template, and the path to it.
struct FoundTemplate<'t> {
    path: Vec<Step<'t>>,
    tree: &'t Tree,
}

/// A step on the path to a template.
#[derive(Clone, Copy)]
enum Step<'t> {
    Key(&'t str),
    /// An element of a list, and its name if it has one.
    Item(usize, Option<&'t str>),
}

/// Whether it has the `spec` of a pod: a list of containers, or the domain of a virtual machine.
fn is_pod(tree: &Tree) -> bool {
    let containers = tree.path(&["spec", "containers"]).map_or(&[][..], Tree::items);
    let has_container =
        containers.first().is_some_and(|first| matches!(first.value, TreeValue::Map(_)));
    let domain = tree.path(&["spec", "domain", "devices"]);
    has_container || domain.is_some()
}

/// Finds the pod templates: mappings under a key such as `template` or `podTemplate`. The templates
/// of an embedded object are not those of the workload.
fn find_templates<'t>(
    tree: &'t Tree,
    path: &mut Vec<Step<'t>>,
    found: &mut Vec<FoundTemplate<'t>>,
) {
    let mut enter = |step: Step<'t>, value: &'t Tree| {
        path.push(step);
        let is_template =
            matches!(step, Step::Key(key) if key.to_ascii_lowercase().ends_with("template"));
        if is_template && is_pod(value) {
            found.push(FoundTemplate { path: path.clone(), tree: value });
        } else if value.get("apiVersion").is_none() || value.get("kind").is_none() {
            find_templates(value, path, found);
        }
        path.pop();
    };
    for entry in tree.entries() {
        enter(Step::Key(&entry.key), &entry.value);
    }
    for (at, item) in tree.items().iter().enumerate() {
        let name = ["name", "groupName"].iter().find_map(|key| item.get(key)?.text());
        enter(Step::Item(at, name), item);
    }
}

fn workload(
    ctx: &mut LowerContext,
    tree: &Tree,
    kind: &str,
    group: &str,
    templates: &[FoundTemplate<'_>],
) -> Option<Lowered> {
    let meta = meta(ctx, tree, kind, Home::Namespace, check::dns_subdomain);
    let name = meta.name.clone()?;
    let added = added_labels(ctx, kind, group, &name);
    let pods = templates.iter().map(|template| {
        let mut pod = template_pod(ctx, template, &meta, &added);
        if let (Some(part), 2..) = (part_name(&template.path), templates.len()) {
            pod.pod.id.name = ctx.name(&format!("{name}-{part}"));
        }
        pod
    });
    let pods = pods.collect();
    let is_zero = |path: &[&str]| {
        matches!(tree.path(path).map(|value| &value.value), Some(TreeValue::Int(0, _)))
    };
    let uses = if templates.is_empty() { workload_ref(ctx, tree, &meta.namespace) } else { None };
    let is_other = !group.is_empty() && !KNOWN.contains(&(kind, group));
    let inferred = is_other.then(|| ctx.name(&format!("{kind}.{group}")));
    let kind = ctx.name(&workload_kind(kind, group));
    let id = WorkloadRef { namespace: meta.namespace, kind, name };
    let idle = is_zero(&["spec", "replicas"]);
    let (location, owners) = (meta.location, meta.owners);
    Some(Lowered::Template(Template { id, location, owners, idle, pods, uses, inferred }))
}

/// The workload whose template an Argo Rollout uses.
fn workload_ref(ctx: &mut LowerContext, tree: &Tree, namespace: &Name) -> Option<WorkloadRef> {
    let reference = tree.path(&["spec", "workloadRef"])?;
    let text = |key: &str| reference.get(key).and_then(Tree::text);
    let group = text("apiVersion").and_then(|version| version.split_once('/')).unwrap_or_default();
    let kind = workload_kind(text("kind")?, group.0);
    let (kind, name) = (ctx.name(&kind), ctx.name(text("name")?));
    Some(WorkloadRef { namespace: namespace.clone(), kind, name })
}

/// The pod of one template, with the name of the workload.
fn template_pod(
    ctx: &mut LowerContext,
    template: &FoundTemplate<'_>,
    meta: &Meta,
    added: &[(Name, Name)],
) -> TemplatePod {
    let tree = template.tree;
    let name = meta.name.clone().unwrap_or_default();
    in_template(ctx, &template.path, &mut |ctx| {
        let labels = match tree.path(&["metadata", "labels"]) {
            None => Labels::default(),
            Some(labels) => {
                pod::within(ctx, &["metadata", "labels"], &mut |ctx| selector::labels(ctx, labels))
            }
        };
        let labels: Labels = labels.iter().chain(added).cloned().collect();
        let described = Meta {
            name: None,
            namespace: meta.namespace.clone(),
            labels,
            location: meta.location.clone(),
            terminating: false,
            uid: None,
            owners: Vec::new(),
            controller: None,
            generated_for: None,
        };
        let mut pod = pod::from_spec(ctx, tree, name.clone(), &described);
        let mut declared = tree.get("spec").map(pod::declared_ports).unwrap_or_default();
        if let Some(domain) = tree.path(&["spec", "domain"]) {
            let (named, all) = machine_ports(ctx, domain);
            pod.ports.extend(named);
            declared.extend(all);
        }
        let networks = network::attachments(ctx, tree);
        let resolvers = pod::resolvers(tree);
        let traits = PodTraits { declared, networks, resolvers, hosts: Vec::new() };
        TemplatePod { pod, traits }
    })
}

/// Runs `f` for findings at the path.
fn in_template<T>(
    ctx: &mut LowerContext,
    path: &[Step<'_>],
    f: &mut dyn FnMut(&mut LowerContext) -> T,
) -> T {
    match path {
        [] => f(ctx),
        [Step::Key(key), rest @ ..] => {
            ctx.at(PathStep::Unknown((*key).into()), |ctx| in_template(ctx, rest, f))
        }
        [Step::Item(at, _), rest @ ..] => ctx.at(*at, |ctx| in_template(ctx, rest, f)),
    }
}

/// A name for one of several templates of a workload: of the list element or field that has it.
fn part_name(path: &[Step<'_>]) -> Option<String> {
    let text = path.iter().rev().find_map(|step| match step {
        Step::Key("spec") => None,
        Step::Key(key) => {
            let lower = key.to_ascii_lowercase();
            let own = lower.strip_suffix("template").unwrap_or(&lower);
            let own = own.trim_end_matches("pod");
            (!own.is_empty()).then(|| own.to_owned())
        }
        Step::Item(_, Some(name)) => Some(name.to_ascii_lowercase()),
        Step::Item(at, None) => Some(at.to_string()),
    })?;
    let is_usual = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(*c);
    let usual: String = text.chars().filter(is_usual).take(63).collect();
    (!usual.is_empty()).then_some(usual)
}

/// The labels that the controller of a kind adds to all of its pods.
fn added_labels(ctx: &mut LowerContext, kind: &str, group: &str, name: &Name) -> Vec<(Name, Name)> {
    let labels: &[(&str, Option<&str>)] = match (kind, group) {
        ("Service", KNATIVE) => {
            &[("serving.knative.dev/service", None), ("serving.knative.dev/configuration", None)]
        }
        ("Configuration", KNATIVE) => &[("serving.knative.dev/configuration", None)],
        ("Revision", KNATIVE) => &[("serving.knative.dev/revision", None)],
        ("DeploymentConfig", _) => &[("deploymentconfig", None)],
        ("VirtualMachine" | "VirtualMachineInstance", KUBEVIRT) => {
            &[("kubevirt.io", Some("virt-launcher")), ("vm.kubevirt.io/name", None)]
        }
        (_, KUBEVIRT | "pool.kubevirt.io") => &[("kubevirt.io", Some("virt-launcher"))],
        _ => &[],
    };
    let mut label = |(key, value): &(&str, Option<&str>)| {
        let value = value.map_or_else(|| name.clone(), |value| ctx.name(value));
        (ctx.name(key), value)
    };
    labels.iter().map(&mut label).collect()
}

/// The named ports and all ports that the interfaces of a virtual machine declare.
fn machine_ports(ctx: &mut LowerContext, domain: &Tree) -> (Vec<NamedPort>, Vec<PortRange>) {
    let interfaces = domain.path(&["devices", "interfaces"]).map_or(&[][..], Tree::items);
    let ports = interfaces.iter().flat_map(|one| one.get("ports").map_or(&[][..], Tree::items));
    let (mut named, mut all) = (Vec::new(), Vec::new());
    for port in ports {
        let number = match port.get("port").map(|number| &number.value) {
            Some(TreeValue::Int(number, _)) => u16::try_from(*number).ok(),
            _ => None,
        };
        let word = port.get("protocol").and_then(Tree::text).unwrap_or("TCP");
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == word).map(|found| found.1);
        let (Some(number @ 1..), Some(protocol)) = (number, protocol) else { continue };
        let protocol: Protocol = protocol;
        all.push(PortRange::one(protocol, number));
        if let Some(name) = port.get("name").and_then(Tree::text)
            && check::port_name(name).is_ok()
        {
            named.push(NamedPort { name: ctx.name(name), protocol, port: number });
        }
    }
    (named, all)
}
