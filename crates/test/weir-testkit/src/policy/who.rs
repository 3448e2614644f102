use proptest::{collection::vec, prelude::*, sample::select};
use weir_model::{Block, DomainPattern, Name, Requirement, Scope, Selector, Who};

use crate::pool;

/// A peer of a NetworkPolicy.
pub(super) fn namespace_peer() -> impl Strategy<Value = Who> {
    let own = selector().prop_map(|pods| Who::Pods { scope: Scope::Own, pods });
    prop_oneof![3 => own, 3 => pods(), 3 => block().prop_map(Who::Block)]
}

/// A peer of an ingress rule of a cluster-wide policy.
pub(super) fn admin_source() -> impl Strategy<Value = Who> {
    pods()
}

/// A peer of an egress rule of a cluster-wide policy.
pub(super) fn admin_destination() -> impl Strategy<Value = Who> {
    prop_oneof![
        4 => pods(),
        3 => block().prop_map(Who::Block),
        1 => selector().prop_map(Who::Nodes),
        1 => domain_pattern().prop_map(Who::Domain),
    ]
}

fn pods() -> impl Strategy<Value = Who> {
    (namespaces(), selector())
        .prop_map(|(scope, pods)| Who::Pods { scope: Scope::Matching(scope), pods })
}

/// A selector of namespaces by labels or, sometimes, by name.
pub(super) fn namespaces() -> impl Strategy<Value = Selector> {
    let by_name = pool::name(pool::NAMESPACES).prop_map(|name| {
        [Requirement::equals("kubernetes.io/metadata.name", name)].into_iter().collect()
    });
    prop_oneof![4 => selector(), 1 => by_name]
}

/// A label selector. It can be empty or contradictory.
pub fn selector() -> impl Strategy<Value = Selector> {
    prop_oneof![
        1 => Just(Selector::everything()),
        2 => vec(requirement(), 0..=2).prop_map(Selector::from_iter),
    ]
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let key = || pool::name(pool::LABEL_KEYS);
    let value = || pool::name(pool::LABEL_VALUES);
    let values = || {
        (value(), vec(value(), 0..=1))
            .prop_map(|(one, more)| more.into_iter().chain([one]).collect())
    };
    prop_oneof![
        3 => (key(), value()).prop_map(|(key, value): (Name, Name)| Requirement::equals(key, value)),
        1 => (key(), values()).prop_map(|(key, values)| Requirement::In(key, values)),
        2 => (key(), values()).prop_map(|(key, values)| Requirement::NotIn(key, values)),
        1 => key().prop_map(Requirement::Exists),
        1 => key().prop_map(Requirement::Absent),
    ]
}

/// A network with exceptions inside it. They can overlap and can cover the whole network.
pub fn block() -> impl Strategy<Value = Block> {
    let net = || select(pool::NETS).prop_map(pool::net);
    (net(), vec(net(), 0..=4)).prop_map(|(net, except)| pool::block(net, except))
}

fn domain_pattern() -> impl Strategy<Value = DomainPattern> {
    prop_oneof![
        pool::name(pool::DOMAINS).prop_map(DomainPattern::Exact),
        pool::name(pool::DOMAINS).prop_map(DomainPattern::Under),
    ]
}
