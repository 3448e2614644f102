use weir_model::{Finding, ObjectRef, PolicyKind, Severity};

use crate::Hpp;

impl Hpp {
    /// The policies that host protection policies cannot express, and naming conflicts.
    pub fn findings(&self) -> Vec<Finding> {
        let others = self.world.policies.values();
        let others = others.filter(|policy| policy.id.kind != PolicyKind::NetworkPolicy);
        let unenforced = others.map(|policy| {
            let (message, hint) = match policy.id.kind {
                PolicyKind::ClusterSetNetworkPolicy => (
                    "only the NetworkPolicies that the clusterset controller generates from it take effect: opflex does not enforce this policy itself",
                    "pass the NetworkPolicies of the cluster; for tests, pass the clusters with --cluster",
                ),
                _ => (
                    "host protection policies can only allow, and only for pods that a NetworkPolicy selects: this policy is not enforced by opflex",
                    "use a NetworkPolicy instead, or another datapath",
                ),
            };
            Finding {
                location: policy.location.clone(),
                code: "aci-kind",
                severity: Severity::Error,
                object: Some(ObjectRef::from(&policy.id)),
                field: String::new(),
                message: message.into(),
                hint: hint.into(),
            }
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
        let held = self.held_policies().map(|id| Finding {
            location: self.world.policies.get(id).and_then(|policy| policy.location.clone()),
            code: "aci-size",
            severity: Severity::Error,
            object: Some(ObjectRef::from(id)),
            field: String::new(),
            message: "its rules do not fit into a HostprotPol: the policy isolates its pods and allows nothing".into(),
            hint: "divide it into several policies, or use fewer ports, exceptions and named ports".into(),
        });
        unenforced.chain(shared).chain(overflow).chain(held).collect()
    }
}
