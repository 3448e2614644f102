use std::collections::BTreeSet;

use weir_model::{Direction, Pod, PolicyId, PolicyKind};

use super::{Hpp, policies::numbers};
use crate::name;

impl Hpp {
    /// The groups that the endpoint of a pod must list. Empty if no policy selects the pod.
    pub fn groups(&self, pod: &Pod) -> Vec<String> {
        let from = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: pod.id.namespace.clone(),
            name: "".into(),
        };
        let mut groups = Vec::new();
        let mut isolated = BTreeSet::new();
        let here = self.group_keys.range(from..);
        for (id, key) in here.take_while(|(id, _)| id.namespace == pod.id.namespace) {
            let group = self.hashes.get(&key.0).and_then(|all| all.get(&key.1));
            let policy = self.world.policies.get(id);
            let (Some(group), Some(policy)) = (group, policy) else { continue };
            if !policy.spec.subject.pods.matches(&pod.labels) {
                continue;
            }
            let numbers = numbers(&group.own_ports(), &pod.ports);
            groups.push(self.pol_name(group, key, &numbers));
            let isolates = |direction: &&Direction| policy.rules(**direction).is_some();
            isolated.extend(Direction::BOTH.iter().filter(isolates).copied());
        }
        if groups.is_empty() {
            return groups;
        }
        groups.sort();
        groups.dedup();
        let prefix = &self.settings.prefix;
        groups.extend(pod.node.as_ref().map(|node| name::policy_object(prefix, "node", node)));
        groups.push(name::policy_object(prefix, "np", "static-discovery"));
        for direction in Direction::BOTH {
            if !isolated.contains(&direction) {
                groups.push(name::policy_object(prefix, "np", &format!("static-{direction}")));
            }
        }
        groups
    }
}
