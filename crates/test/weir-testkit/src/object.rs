use proptest::{collection::vec, option, prelude::*, sample::select};
use weir_model::{Labels, Name, NamedPort, Namespace, Node, Object, Pod, PodId};

use crate::pool;

/// A pod with one or two addresses; sometimes finished or on the host network.
pub fn pod() -> impl Strategy<Value = Pod> {
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    let node = option::weighted(0.8, pool::name(pool::NODES));
    let address = prop_oneof![
        8 => select(pool::POD_V4),
        4 => select(pool::POD_V6),
        1 => select(pool::NODE_V4),
        1 => select(pool::NODE_V6),
    ];
    let host_address = prop_oneof![4 => select(pool::NODE_V4), 2 => select(pool::NODE_V6), 1 => select(pool::POD_V4)];
    (
        pod_id(),
        labels(),
        prop_oneof![9 => vec(address, 1..=2), 1 => Just(Vec::new())],
        vec(host_address, 0..=2),
        node,
        vec(named_port(), 0..=3),
        flags,
        select(pool::CLAIMS),
    )
        .prop_map(|(id, labels, addresses, host, node, mut ports, flags, claim)| {
            let (host_network, finished) = flags;
            let mut addresses = if host_network { host } else { addresses };
            if let [first, second] = addresses[..]
                && first == second
            {
                addresses.truncate(1);
            }
            ports.dedup();
            let (uid, owner, location) = (None, None, None);
            Pod {
                id,
                labels,
                addresses,
                node,
                ports,
                host_network,
                finished,
                claim,
                uid,
                owner,
                location,
            }
        })
}

/// The id of a pod.
pub(crate) fn pod_id() -> impl Strategy<Value = PodId> {
    (pool::name(pool::NAMESPACES), pool::name(pool::PODS))
        .prop_map(|(namespace, name)| PodId { namespace, name })
}

fn named_port() -> impl Strategy<Value = NamedPort> {
    (pool::name(pool::PORT_NAMES), pool::protocol(), select(pool::CONTAINER_PORTS))
        .prop_map(|(name, protocol, port)| NamedPort { name, protocol, port })
}

/// A namespace.
pub fn namespace() -> impl Strategy<Value = Namespace> {
    (pool::name(pool::NAMESPACES), labels())
        .prop_map(|(name, labels)| named_namespace(name, &labels))
}

/// A namespace with the name label that the API server sets.
pub(crate) fn named_namespace(name: Name, labels: &Labels) -> Namespace {
    let own = (Name::from("kubernetes.io/metadata.name"), name.clone());
    let labels = labels.iter().cloned().chain([own]).collect();
    Namespace { name, labels, location: None }
}

/// A node. Sometimes it has the address of a pod.
pub fn node() -> impl Strategy<Value = Node> {
    let address = prop_oneof![6 => select(pool::NODE_V4), 3 => select(pool::NODE_V6), 1 => select(pool::POD_V4)];
    (pool::name(pool::NODES), labels(), vec(address, 0..=3)).prop_map(
        |(name, labels, mut addresses)| {
            addresses.sort();
            addresses.dedup();
            Node { name, labels, addresses, location: None }
        },
    )
}

/// A domain name and its current addresses.
pub fn domain() -> impl Strategy<Value = Object> {
    let address = prop_oneof![
        4 => select(pool::OUTSIDE_V4),
        2 => select(pool::OUTSIDE_V6),
        1 => pool::v4(),
    ];
    (pool::name(pool::DOMAINS), vec(address, 0..=3)).prop_map(|(name, mut addresses)| {
        addresses.sort();
        addresses.dedup();
        Object::Domain(name, addresses)
    })
}

fn labels() -> impl Strategy<Value = Labels> {
    vec((pool::name(pool::LABEL_KEYS), pool::name(pool::LABEL_VALUES)), 0..=2)
        .prop_map(Labels::from_iter)
}
