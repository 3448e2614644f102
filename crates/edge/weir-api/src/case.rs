mod inline;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
};

use self::inline::{domains, each, namespace, pod, policy, probe, service, text, worker};
use weir_model::{
    Attachments, Finding, Key, Location, Name, NameTable, Object, ObjectRef, Pod, PodId,
    QualifiedName, Scope, Severity, Spec, Who,
};

use crate::{
    Manifests, WorkloadRef,
    assemble::{assign_to_pods, duplicate, location_of},
    document::{self, Tree, TreeValue},
    lower::{LowerContext, UNRESOLVED_NAME},
    probe::{Probe, ProbeEnd},
    reader::{repeated, unreadable},
};

/// A policy test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The name.
    pub name: String,
    /// The location.
    pub location: Location,
    /// Paths of further manifests, relative to the file.
    pub manifests: Vec<String>,
    /// The objects of the case itself.
    pub objects: Vec<Object>,
    /// The connections to test.
    pub probes: Vec<Probe>,
    /// The findings. A case with an error fails.
    pub findings: Vec<Finding>,
    /// The synthetic addresses of pods without addresses.
    pub synthetic: BTreeSet<IpAddr>,
    /// The pods of each workload.
    pub workloads: BTreeMap<WorkloadRef, Vec<PodId>>,
    /// The pods with networks other than the cluster network.
    pub unjudged: BTreeMap<PodId, Attachments>,
}

/// The objects of a cluster that replace those of a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseObjects {
    /// The objects.
    pub objects: Vec<Object>,
    /// The pods of each workload.
    pub workloads: BTreeMap<WorkloadRef, Vec<PodId>>,
    /// The pods with networks other than the cluster network.
    pub unjudged: BTreeMap<PodId, Attachments>,
}

/// Reads the policy tests of a file: one, a list of them, or several documents.
pub fn cases(file: Name, bytes: &[u8]) -> Vec<Case> {
    let (roots, repeats, error) = document::documents(bytes);
    let mut names = NameTable::default();
    let mut cases = Vec::new();
    for root in &roots {
        match &root.value {
            TreeValue::Null => (),
            TreeValue::Seq(items) => {
                cases.extend(items.iter().map(|item| case(&file, &mut names, item)))
            }
            _ => cases.push(case(&file, &mut names, root)),
        }
    }
    for repeat in &repeats {
        let finding = repeated(&file, repeat);
        // The last case that begins before it.
        match cases.iter_mut().rfind(|case| case.location.line <= repeat.again) {
            Some(case) => case.findings.push(finding),
            None => cases.push(broken(&file, 0, finding)),
        }
    }
    cases.extend(error.map(|error| broken(&file, error.line, unreadable(&file, &error))));
    cases
}

/// A failing case for input that could not be read.
fn broken(file: &Name, line: u32, finding: Finding) -> Case {
    Case {
        name: file.to_string(),
        location: Location { file: file.clone(), line },
        manifests: Vec::new(),
        objects: Vec::new(),
        probes: Vec::new(),
        findings: vec![finding],
        synthetic: BTreeSet::new(),
        workloads: BTreeMap::new(),
        unjudged: BTreeMap::new(),
    }
}

impl Case {
    /// Adds the manifests that the case names, and checks the probes against all objects.
    pub fn join(&mut self, manifests: Manifests) {
        let Manifests { objects, findings, synthetic: from_manifests, owners, unjudged, .. } =
            manifests;
        self.findings.extend(findings);
        self.workloads.extend(owners);
        self.unjudged.extend(unjudged);
        let mut all: BTreeMap<Key, Object> = BTreeMap::new();
        for object in std::mem::take(&mut self.objects).into_iter().chain(objects) {
            match all.entry(object.key()) {
                btree_map::Entry::Vacant(entry) => {
                    entry.insert(object);
                }
                // The manifests only mention this namespace.
                btree_map::Entry::Occupied(_) if location_of(&object).is_none() => (),
                btree_map::Entry::Occupied(entry) => {
                    let (first, again) = (location_of(entry.get()), location_of(&object));
                    let kept = "the one in the case is used";
                    let (first, again) = (first.cloned(), again.cloned());
                    self.findings.push(duplicate(
                        ObjectRef::from(&object.key()),
                        first,
                        again,
                        kept,
                    ));
                }
            }
        }
        // Synthetic addresses of the case and of the manifests may collide.
        let synthetic: BTreeSet<IpAddr> = self.synthetic.union(&from_manifests).copied().collect();
        let mut none = BTreeSet::new();
        for object in all.values_mut() {
            if let Object::Pod(pod) = object {
                match pod.addresses[..] {
                    [one] if synthetic.contains(&one) => pod.addresses.clear(),
                    [] => {
                        none.insert(pod.id.clone());
                    }
                    _ => (),
                }
            }
        }
        self.synthetic = assign_addresses(&mut all, &none);
        self.objects = all.into_values().collect();
        self.drop_resolved_names();
        self.findings.extend(self.missing_ends());
        self.findings.extend(self.undeclared());
    }

    /// Drops the findings about unresolved names if the case has a `dns` section: names that are
    /// not in it have no address.
    fn drop_resolved_names(&mut self) {
        if self.objects.iter().any(|object| matches!(object, Object::Domain(..))) {
            self.findings.retain(|finding| finding.code != UNRESOLVED_NAME);
        }
    }

    /// Replaces the case's objects and checks the probes against the new ones.
    pub fn replace_objects(&mut self, new: CaseObjects) {
        let missing = self.missing_ends();
        self.findings.retain(|finding| !missing.contains(finding));
        let CaseObjects { objects, workloads, unjudged } = new;
        (self.objects, self.workloads, self.unjudged) = (objects, workloads, unjudged);
        self.findings.extend(self.missing_ends());
    }

    /// A finding for each end of a probe that does not exist.
    fn missing_ends(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let keys: BTreeSet<Key> = self.objects.iter().map(Object::key).collect();
        for (at, probe) in self.probes.iter().enumerate() {
            for (field, end) in [("from", &probe.from), ("to", &probe.to)] {
                let (what, namespace, is_known) = match end {
                    ProbeEnd::Address(_) => continue,
                    ProbeEnd::Pod(id) => {
                        (format!("pod {id}"), &id.namespace, keys.contains(&Key::Pod(id.clone())))
                    }
                    ProbeEnd::Service(id) => (
                        format!("Service {id}"),
                        &id.namespace,
                        keys.contains(&Key::Service(id.clone())),
                    ),
                    ProbeEnd::Workload(workload) => (
                        format!("workload {end}"),
                        &workload.namespace,
                        self.workloads.contains_key(workload),
                    ),
                };
                if !is_known {
                    let field = match end {
                        ProbeEnd::Pod(_) => format!("probes[{at}].{field}.pod"),
                        _ => format!("probes[{at}].{field}"),
                    };
                    let cluster = QualifiedName::parse(namespace).cluster;
                    findings.push(self.missing_end(probe, field, &what, cluster));
                }
            }
        }
        findings
    }

    fn missing_end(
        &self,
        probe: &Probe,
        field: String,
        what: &str,
        cluster: Option<&str>,
    ) -> Finding {
        let hint = match cluster {
            Some(cluster) => format!(
                "`{cluster}` is a cluster of a set: say where its manifests are, `weir test --cluster {cluster}=PATH …`, or correct the name"
            ),
            None if what.starts_with("pod ") => "add it to `pods:`, or correct the name".to_owned(),
            None => "add it to the manifests, or correct the name".to_owned(),
        };
        Finding {
            location: Some(Location { file: self.location.file.clone(), line: probe.line }),
            code: "invalid",
            severity: Severity::Error,
            object: Some(ObjectRef::cluster_wide("case", &*self.name)),
            field,
            message: format!("there is no {what} in this case"),
            hint,
        }
    }
}

impl Case {
    /// A finding for each namespace of a pod that is not declared, if a policy selects by namespace
    /// (Y9). Without it, the author would look for the mistake in the policy.
    fn undeclared(&self) -> Vec<Finding> {
        let mut declared = BTreeSet::new();
        let mut pods: BTreeMap<&Name, &Pod> = BTreeMap::new();
        let mut is_selected = false;
        for object in &self.objects {
            match object {
                Object::Namespace(namespace) => {
                    declared.insert(&namespace.name);
                }
                Object::Pod(pod) => {
                    pods.entry(&pod.id.namespace).or_insert(pod);
                }
                Object::Policy(policy) => is_selected |= selects_namespaces(&policy.spec),
                Object::Node(_)
                | Object::Service(_)
                | Object::EndpointSlice(_)
                | Object::Domain(..) => (),
            }
        }
        let unknown = pods.into_iter().filter(|(name, _)| is_selected && !declared.contains(name));
        let findings = unknown.map(|(name, pod)| Finding {
            location: pod.location.clone(),
            code: "undeclared-namespace",
            severity: Severity::Warning,
            object: Some(ObjectRef::cluster_wide("case", &*self.name)),
            field: "namespaces".into(),
            message: format!(
                "the namespace {name} is not declared, so no namespace selector matches its pods"
            ),
            hint: format!("add `{{name: {name}}}` to `namespaces:`"),
        });
        findings.collect()
    }
}

fn selects_namespaces(spec: &Spec) -> bool {
    let rules = spec.ingress.iter().chain(&spec.egress).flatten();
    let mut peers = rules.flat_map(|rule| rule.peers.iter().flatten());
    let selects = |scope: &Scope| matches!(scope, Scope::Matching(_));
    selects(&spec.subject.scope)
        || peers.any(|peer| matches!(&peer.who, Who::Pods { scope, .. } if selects(scope)))
}

/// Assigns synthetic addresses, except to the pods that are explicitly without addresses.
fn assign_addresses(
    objects: &mut BTreeMap<Key, Object>,
    none: &BTreeSet<PodId>,
) -> BTreeSet<IpAddr> {
    let mut pods = BTreeMap::new();
    let is_assigned = |key: &Key, object: &mut Object| {
        matches!(object, Object::Pod(_)) && !matches!(key, Key::Pod(id) if none.contains(id))
    };
    for (_, object) in objects.extract_if(.., is_assigned) {
        if let Object::Pod(pod) = object {
            pods.insert(pod.id.clone(), pod);
        }
    }
    let nodes = objects.values().filter_map(|object| match object {
        Object::Node(node) => Some(node),
        _ => None,
    });
    let synthetic = assign_to_pods(&mut pods, nodes);
    objects.extend(pods.into_iter().map(|(id, pod)| (Key::Pod(id), Object::Pod(pod))));
    synthetic
}

fn case(file: &Name, names: &mut NameTable, tree: &Tree) -> Case {
    let location = Location { file: file.clone(), line: tree.line };
    let name = match tree.get("name").and_then(Tree::written) {
        Some(name) => name.to_owned(),
        None => location.to_string(),
    };
    let mut findings = Vec::new();
    let mut ctx = LowerContext::new(
        file,
        names,
        &mut findings,
        Some(ObjectRef::cluster_wide("case", &*name)),
    );
    let known = [
        "name",
        "source",
        "namespaces",
        "pods",
        "nodes",
        "manifests",
        "policies",
        "adminPolicies",
        "services",
        "dns",
        "probes",
    ];
    let fields = ctx.fields(tree, &known);
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
    if tree.entries().iter().all(|entry| &*entry.key != "probes" || entry.value.items().is_empty())
    {
        let hint = "add `probes:` with the connections to test";
        ctx.at("probes", |ctx| ctx.invalid(tree.line, "a case without probes tests nothing", hint));
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
    let services = fields.get("services").and_then(|list| {
        let mut ctx = LowerContext::new(file, names, &mut findings, None);
        ctx.at("services", |ctx| ctx.list(list))
    });
    for item in services.unwrap_or_default() {
        objects.extend(service(file, names, &mut findings, item));
    }
    let mut all = BTreeMap::new();
    for object in objects {
        match all.entry(object.key()) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(object);
            }
            btree_map::Entry::Occupied(entry) => {
                let (first, again) =
                    (location_of(entry.get()).cloned(), location_of(&object).cloned());
                findings.push(duplicate(
                    ObjectRef::from(&object.key()),
                    first,
                    again,
                    "the first one is used",
                ));
            }
        }
    }
    let synthetic = assign_addresses(&mut all, &bare);
    let objects = all.into_values().collect();
    let mut case = Case {
        name,
        location,
        manifests,
        objects,
        probes,
        findings,
        synthetic,
        workloads: BTreeMap::new(),
        unjudged: BTreeMap::new(),
    };
    case.drop_resolved_names();
    if case.manifests.is_empty() {
        case.findings.extend(case.missing_ends());
        case.findings.extend(case.undeclared());
    }
    case
}

#[cfg(test)]
mod tests;
