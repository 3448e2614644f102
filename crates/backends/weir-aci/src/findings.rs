use weir_model::{Finding, ObjectRef, PolicyKind, Severity};

use crate::Hpp;

impl Hpp {
    /// What host protection policies cannot say, or say under another name than expected.
    pub fn findings(&self) -> Vec<Finding> {
        let others = self.world.policies.values();
        let others = others.filter(|policy| policy.id.kind != PolicyKind::NetworkPolicy);
        let unenforced = others.map(|policy| {
            let (message, hint) = match policy.id.kind {
                PolicyKind::ClusterSetNetworkPolicy => (
                    "counts as the NetworkPolicies that the controller clusterset makes of it, and not by itself: this policy is not enforced by opflex",
                    "give the NetworkPolicies of the cluster; for tests, give the clusters with --cluster",
                ),
                _ => (
                    "host protection policies only allow, and only for pods that a NetworkPolicy selects: this policy is not enforced by opflex",
                    "say it with a NetworkPolicy, or use another datapath",
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
                "{others} other policies that mean something else have the published hash {hash} too, so each has an object of another name"
            ),
            hint: "whoever computes the name from the policy does not find it; change one of them, for example the order of its ports".into(),
        });
        let crowded = self.crowded.iter().map(|(namespace, left_out)| Finding {
            location: self.world.namespaces.get(namespace).and_then(|one| one.location.clone()),
            code: "aci-size",
            severity: Severity::Error,
            object: Some(ObjectRef::cluster_wide("Namespace", namespace.clone())),
            field: String::new(),
            message: format!(
                "{left_out} addresses of its pods do not fit into one HostprotRemoteIpContainer: policies that allow them are stricter than they say"
            ),
            hint: "spread the pods over several namespaces, or give them fewer labels".into(),
        });
        unenforced.chain(shared).chain(crowded).collect()
    }
}
