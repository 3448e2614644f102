use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Finding, ObjectRef, PolicyId, PolicyKind, Severity};

use crate::{HostprotId, Hpp, state::Unexpressed};

/// The maximum number of Services that a finding names.
const MAX_NAMED_SERVICES: usize = 3;

impl Unexpressed {
    fn message(self) -> &'static str {
        match self {
            Unexpressed::Deny => {
                "host protection rules can only allow: opflex does not enforce its Deny rules"
            }
            Unexpressed::Order => {
                "opflex cannot express Allow rules that come after a Deny or Pass rule of the admin tier: they are left out"
            }
            Unexpressed::Subject => {
                "opflex can express Allow rules of the admin tier only for all pods, and this policy selects some: they are left out"
            }
            Unexpressed::Peer => {
                "opflex cannot express Allow rules of the admin tier for nodes, domain names and named ports of the selected pods: they are left out"
            }
        }
    }
}

impl Hpp {
    /// The policies whose pods cannot connect through a Service, although its backends are allowed.
    fn closed_services(&self) -> impl Iterator<Item = Finding> {
        let finding = |id: &PolicyId, message: String, hint: &str| Finding {
            location: self.world.policies.get(id).and_then(|policy| policy.location.clone()),
            code: "aci-service",
            severity: Severity::Warning,
            object: Some(ObjectRef::from(id)),
            field: String::new(),
            message,
            hint: hint.into(),
        };
        let partial = self.partial_services().map(move |(id, services)| {
            let services: BTreeSet<String> = services
                .into_iter()
                .map(|(id, at)| format!("{id}:{}/{}", at.port, at.protocol))
                .collect();
            let mut named: Vec<String> =
                services.iter().take(MAX_NAMED_SERVICES).cloned().collect();
            if let Some(more) = services.len().checked_sub(named.len()).filter(|more| *more > 0) {
                named.push(format!("{more} more"));
            }
            let message = format!(
                "it allows some backends of these Services but not all, so connections through their addresses are denied: {}",
                named.join(", ")
            );
            finding(id, message, "allow all pods behind the Service, or let clients connect to the pods")
        });
        let unserved = self.unserved_policies().map(move |(id, count)| {
            let message = format!(
                "{count} of its rules for Services do not fit into a HostprotPol: connections through these Services are denied"
            );
            finding(id, message, "divide it into several policies")
        });
        partial.chain(unserved)
    }

    fn held_findings(&self) -> impl Iterator<Item = Finding> {
        self.held_policies().map(|id| Finding {
            location: self.world.policies.get(id).and_then(|policy| policy.location.clone()),
            code: "aci-size",
            severity: Severity::Error,
            object: Some(ObjectRef::from(id)),
            field: String::new(),
            message: "its rules do not fit into a HostprotPol: the policy isolates its pods and allows nothing".into(),
            hint: "divide it into several policies, or use fewer ports, exceptions and named ports".into(),
        })
    }

    /// The HostprotPols that lack a rule for something that their policies allow, and why.
    pub fn incomplete(&self) -> BTreeMap<HostprotId, String> {
        let mut messages: BTreeMap<HostprotId, String> = BTreeMap::new();
        let found = self.closed_services().chain(self.held_findings());
        for Finding { object, message, .. } in found {
            let policies = object.iter().filter_map(|object| self.policy_objects(object));
            for id in policies.flatten() {
                messages.entry(id.clone()).or_insert_with(|| message.clone());
            }
        }
        messages
    }

    /// The policies that host protection policies cannot express, and naming conflicts.
    pub fn findings(&self) -> Vec<Finding> {
        // NetworkPolicies come last.
        let others = self.world.policies.values();
        let others = others.take_while(|policy| policy.id.kind != PolicyKind::NetworkPolicy);
        let unenforced = others.filter_map(|policy| {
            let (message, hint) = match policy.id.kind {
                PolicyKind::ClusterSetNetworkPolicy => (
                    "only the NetworkPolicies that the clusterset controller generates from it take effect: opflex does not enforce this policy itself",
                    "pass the NetworkPolicies of the cluster; for tests, pass the clusters with --cluster",
                ),
                _ => (
                    self.unexpressed.get(&policy.id)?.message(),
                    "use NetworkPolicies instead, or another datapath",
                ),
            };
            Some(Finding {
                location: policy.location.clone(),
                code: "aci-kind",
                severity: Severity::Error,
                object: Some(ObjectRef::from(&policy.id)),
                field: String::new(),
                message: message.into(),
                hint: hint.into(),
            })
        });
        let shared = self.shared_hashes().map(|(id, hash, others)| Finding {
            location: self.world.policies.get(id).and_then(|policy| policy.location.clone()),
            code: "aci-hash",
            severity: Severity::Warning,
            object: Some(ObjectRef::from(id)),
            field: String::new(),
            message: format!(
                "{others} other policies with different rules have the same published hash {hash}, so each policy gets an object with a different name"
            ),
            hint: "tools that compute the object name from the policy do not find it; change one of the policies, for example the order of its ports".into(),
        });
        let overflow = self.overflow.iter().map(|(namespace, left_out)| Finding {
            location: self.world.namespaces.get(namespace).and_then(|one| one.location.clone()),
            code: "aci-size",
            severity: Severity::Error,
            object: Some(ObjectRef::cluster_wide("Namespace", namespace.clone())),
            field: String::new(),
            message: format!(
                "{left_out} addresses of its pods do not fit into one HostprotRemoteIpContainer: policies that allow them are stricter than written"
            ),
            hint: "spread the pods over several namespaces, or use fewer labels".into(),
        });
        let held = self.held_findings();
        let services = self.closed_services();
        unenforced.chain(shared).chain(overflow).chain(held).chain(services).collect()
    }
}
