//! The pods of workloads.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use weir_model::{Finding, Labels, Name, ObjectRef, Pod, PodId, Severity};

use super::{Assembly, conflict, equal};
use crate::{
    WorkloadRef,
    lower::{Template, TemplatePod, keep},
};

/// The code of a finding about a workload whose template is in another object.
const MISSING_WORKLOAD: &str = "missing-workload";

impl Assembly {
    /// Adds a workload. Two definitions that differ are a conflict.
    pub(super) fn put_template(&mut self, template: Template) {
        let again = template.location.clone();
        match self.templates.entry(template.id.clone()) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(template);
            }
            btree_map::Entry::Occupied(entry) => {
                let WorkloadRef { namespace, kind, name } = entry.key().clone();
                let name = ObjectRef { kind, namespace, name };
                let first = entry.get().location.clone();
                let finding = if entry.get().is_equivalent(&template) {
                    equal(name, first, again)
                } else {
                    conflict(name, first, again)
                };
                keep(&mut self.findings, finding);
            }
        }
    }

    /// Finds the pods of each workload, and creates one for each template without pods.
    pub(super) fn assign_pods(&mut self) -> BTreeMap<WorkloadRef, Vec<PodId>> {
        let mut owners: BTreeMap<WorkloadRef, Vec<PodId>> = BTreeMap::new();
        for (id, own) in &self.owned {
            let labels = self.pods.get(id).map(|pod| &pod.labels);
            for owner in self.ancestors(&id.namespace, own, labels) {
                owners.entry(owner).or_default().push(id.clone());
            }
        }
        let templates = std::mem::take(&mut self.templates);
        let ancestors = |template: &Template| {
            ancestors(&templates, &template.id.namespace, &template.owners, None)
        };
        for (owner, template) in &templates {
            // A Deployment and its ReplicaSets share one pod. Old ReplicaSets have none.
            let has_pod_above = ancestors(template)
                .iter()
                .any(|above| template.idle || templates.contains_key(above));
            if owners.contains_key(owner) || has_pod_above {
                continue;
            }
            for TemplatePod { pod, traits } in &template.pods {
                let mut pod = pod.clone();
                pod.id.name = free_name(&self.pods, &pod.id, &owner.kind);
                owners.entry(owner.clone()).or_default().push(pod.id.clone());
                self.put_traits(&pod.id, traits.clone());
                self.pods.insert(pod.id.clone(), pod);
            }
        }
        for (owner, template) in &templates {
            let Some(used) = &template.uses else { continue };
            match owners.get(used).cloned() {
                Some(pods) => owners.entry(owner.clone()).or_insert(pods),
                None if owners.contains_key(owner) => continue,
                None => {
                    keep(&mut self.findings, missing_workload(template, used));
                    continue;
                }
            };
        }
        self.templates = templates;
        owners
    }

    fn ancestors(
        &self,
        namespace: &Name,
        own: &[(Name, Name)],
        labels: Option<&Labels>,
    ) -> BTreeSet<WorkloadRef> {
        ancestors(&self.templates, namespace, own, labels)
    }
}

/// The owners, their known owners, and so on. The labels are those of the owned pod.
fn ancestors(
    templates: &BTreeMap<WorkloadRef, Template>,
    namespace: &Name,
    own: &[(Name, Name)],
    labels: Option<&Labels>,
) -> BTreeSet<WorkloadRef> {
    /// The label with the suffix of a ReplicaSet's name, and the kind of its owner.
    const HASHES: [(&str, &str); 2] =
        [("rollouts-pod-template-hash", "rollout"), ("pod-template-hash", "deployment")];
    let owner = |(kind, name): &(Name, Name)| WorkloadRef {
        namespace: namespace.clone(),
        kind: kind.clone(),
        name: name.clone(),
    };
    let mut all = BTreeSet::new();
    let mut next: Vec<WorkloadRef> = own.iter().map(owner).collect();
    while let Some(one) = next.pop() {
        match templates.get(&one) {
            Some(template) => next.extend(template.owners.iter().map(owner)),
            // The name of a missing ReplicaSet still contains the name of its owner.
            None if &*one.kind == "replicaset" => {
                let above = HASHES.iter().find_map(|(label, kind)| {
                    let hash = labels?.value(label)?;
                    Some((*kind, one.name.strip_suffix(&**hash)?.strip_suffix('-')?))
                });
                next.extend(above.map(|(kind, name)| owner(&(kind.into(), name.into()))));
            }
            None => (),
        }
        // Stop at a cycle of owners.
        if all.len() >= 16 || !all.insert(one) {
            break;
        }
    }
    all
}

/// A free name for the pod of a workload: the wanted one, or one derived from it.
fn free_name(pods: &BTreeMap<PodId, Pod>, wanted: &PodId, kind: &Name) -> Name {
    let PodId { namespace, name } = wanted;
    let longer = (1_u32..).map(|n| match n {
        1 => format!("{name}-{kind}"),
        n => format!("{name}-{kind}-{n}"),
    });
    std::iter::once(name.to_string())
        .chain(longer)
        .map(Name::from)
        .find(|name| !pods.contains_key(&PodId::new(namespace.clone(), name.clone())))
        .unwrap_or_else(|| name.clone())
}

/// The finding about a workload that uses the template of another one that is not there.
fn missing_workload(template: &Template, used: &WorkloadRef) -> Finding {
    let WorkloadRef { namespace, kind, name } = &template.id;
    let WorkloadRef { kind: used_kind, name: used_name, .. } = used;
    Finding {
        location: template.location.clone(),
        code: MISSING_WORKLOAD,
        severity: Severity::Warning,
        object: Some(ObjectRef {
            kind: kind.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
        }),
        field: "spec.workloadRef".into(),
        message: format!(
            "{kind} {namespace}/{name} uses the template of {used_kind} {namespace}/{used_name}, \
             which is not in the input; its pods are missing"
        ),
        hint: format!("add the manifest of {used_kind} {used_name}"),
    }
}

impl Template {
    fn is_equivalent(&self, other: &Template) -> bool {
        let is_same = |(one, other): (&TemplatePod, &TemplatePod)| {
            let pod = Pod { location: one.pod.location.clone(), ..other.pod.clone() };
            one.pod == pod && one.traits == other.traits
        };
        self.pods.len() == other.pods.len()
            && self.pods.iter().zip(&other.pods).all(is_same)
            && (&self.owners, self.idle, &self.uses) == (&other.owners, other.idle, &other.uses)
    }
}
