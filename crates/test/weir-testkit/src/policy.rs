use std::sync::Arc;

use proptest::{option, prelude::*, sample::select};
use weir_model::{
    Action, Location, Policy, PolicyId, PolicyKind, PolicyRule, Scope, Spec, Subject, Tier,
};

use crate::pool;

pub(crate) mod rule;
mod who;

pub use who::{block, selector};

/// A policy of any kind.
pub fn policy() -> impl Strategy<Value = Policy> {
    let location = option::weighted(0.3, (pool::name(&["a.yaml", "b.yaml"]), 1..3_u32));
    (prop_oneof![4 => network_policy(), 3 => admin_policy()], location).prop_map(
        |((id, spec), location)| {
            let location = location.map(|(file, line)| Location { file, line });
            Policy { id, location, spec: Arc::new(spec), staged: false }
        },
    )
}

/// The id of a policy of any kind.
pub fn policy_id() -> impl Strategy<Value = PolicyId> {
    prop_oneof![4 => network_policy_id(), 3 => admin_id().prop_map(|(id, _)| id)]
}

/// A NetworkPolicy selects pods of its namespace and can only allow.
fn network_policy() -> impl Strategy<Value = (PolicyId, Spec)> {
    let rules = || option::weighted(0.7, rule::rules(who::namespace_peer(), Just(Action::Allow)));
    (network_policy_id(), selector(), rules(), rules()).prop_map(|(id, pods, ingress, egress)| {
        let subject = Subject { scope: Scope::Own, pods };
        (id, Spec { tier: Tier::Namespace, subject, ingress, egress })
    })
}

fn network_policy_id() -> impl Strategy<Value = PolicyId> {
    (pool::name(pool::NAMESPACES), pool::name(pool::POLICIES))
        .prop_map(|(namespace, name)| PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name })
}

/// A cluster-wide policy selects namespaces by labels. Its ingress peers are pods only.
fn admin_policy() -> impl Strategy<Value = (PolicyId, Spec)> {
    let action = || select(&[Action::Allow, Action::Deny, Action::Pass][..]);
    let ingress = option::weighted(0.7, rule::rules(who::admin_source(), action()));
    let egress = option::weighted(0.7, rule::rules(who::admin_destination(), action()));
    let subject = (who::namespaces(), selector())
        .prop_map(|(scope, pods)| Subject { scope: Scope::Matching(scope), pods });
    (admin_id(), subject, ingress, egress).prop_map(
        |((id, tier), subject, mut ingress, mut egress)| {
            if id.kind == PolicyKind::BaselineAdminNetworkPolicy {
                [&mut ingress, &mut egress].into_iter().flatten().for_each(|rules| no_pass(rules));
            }
            (id, Spec { tier, subject, ingress, egress })
        },
    )
}

/// A BaselineAdminNetworkPolicy has no lower tier to pass to.
pub(crate) fn no_pass(rules: &mut [PolicyRule]) {
    for rule in rules.iter_mut().filter(|rule| rule.action == Action::Pass) {
        rule.action = Action::Allow;
    }
}

fn admin_id() -> impl Strategy<Value = (PolicyId, Tier)> {
    let priority = || select(pool::PRIORITIES);
    let id = |kind, name| PolicyId { kind, namespace: "".into(), name };
    prop_oneof![
        (pool::name(pool::CLUSTER_POLICIES), priority()).prop_map(move |(name, priority)| {
            (id(PolicyKind::ClusterNetworkPolicy, name), Tier::Admin { priority })
        }),
        (pool::name(pool::CLUSTER_POLICIES), priority()).prop_map(move |(name, priority)| {
            (id(PolicyKind::ClusterNetworkPolicy, name), Tier::Baseline { priority })
        }),
        (pool::name(pool::CLUSTER_POLICIES), priority()).prop_map(move |(name, priority)| {
            (id(PolicyKind::AdminNetworkPolicy, name), Tier::Admin { priority })
        }),
        Just((
            id(PolicyKind::BaselineAdminNetworkPolicy, "default".into()),
            Tier::Baseline { priority: 1001 }
        )),
    ]
}
