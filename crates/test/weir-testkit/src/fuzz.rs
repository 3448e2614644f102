use weir_model::{Change, Flow, Key, NamedPort, Namespace, Node, Object, Pod, PodId, Protocol};

use crate::pool;

mod cursor;
mod policy;

use cursor::Cursor;

/// Decodes a fuzzer's bytes into changes and flows from the same pools as the strategies.
///
/// Every input is valid and deterministic. One byte makes one choice, so that inputs that differ in one
/// byte give similar results. After the last byte, every choice is the first option.
pub fn changes_from_bytes(bytes: &[u8]) -> (Vec<Change>, Vec<Flow>) {
    let mut cursor = Cursor::new(bytes);
    let (mut changes, mut flows) = (Vec::new(), Vec::new());
    while !cursor.is_at_end() && changes.len() < 64 {
        match cursor.below(16) {
            0..4 => changes.push(Change::Put(Object::Pod(pod(&mut cursor)))),
            4..6 => changes.push(Change::Put(Object::Namespace(namespace(&mut cursor)))),
            6 => changes.push(Change::Put(Object::Node(node(&mut cursor)))),
            7 => changes.push(Change::Put(domain(&mut cursor))),
            8..12 => changes.push(Change::Put(Object::Policy(policy::policy(&mut cursor)))),
            12 => changes.push(Change::Remove(key(&mut cursor))),
            _ => flows.push(flow(&mut cursor)),
        }
    }
    (changes, flows)
}

fn pod(cursor: &mut Cursor<'_>) -> Pod {
    let id = pod_id(cursor);
    let (host_network, finished) = (cursor.rarely(), cursor.rarely());
    let own: &[_] = if host_network {
        &[pool::NODE_V4, pool::NODE_V6, pool::POD_V4]
    } else {
        &[pool::POD_V4, pool::POD_V6, pool::NODE_V4, pool::NODE_V6]
    };
    Pod {
        id,
        labels: cursor.labels(),
        addresses: cursor.addresses(own, 2),
        node: cursor.maybe(|cursor| cursor.name(pool::NODES)),
        ports: cursor.list(3, |cursor| NamedPort {
            name: cursor.name(pool::PORT_NAMES),
            protocol: cursor.one_of(&Protocol::ALL),
            port: cursor.one_of(pool::CONTAINER_PORTS),
        }),
        host_network,
        finished,
        claim: cursor.one_of(pool::CLAIMS),
        uid: None,
        owner: None,
        location: None,
    }
}

fn pod_id(cursor: &mut Cursor<'_>) -> PodId {
    PodId { namespace: cursor.name(pool::NAMESPACES), name: cursor.name(pool::PODS) }
}

fn namespace(cursor: &mut Cursor<'_>) -> Namespace {
    let (name, labels) = (cursor.name(pool::NAMESPACES), cursor.labels());
    crate::object::named_namespace(name, &labels)
}

fn node(cursor: &mut Cursor<'_>) -> Node {
    Node {
        name: cursor.name(pool::NODES),
        labels: cursor.labels(),
        addresses: cursor.addresses(&[pool::NODE_V4, pool::NODE_V6, pool::POD_V4], 3),
        location: None,
    }
}

fn domain(cursor: &mut Cursor<'_>) -> Object {
    let pools = &[pool::OUTSIDE_V4, pool::OUTSIDE_V6, pool::POD_V4];
    Object::Domain(cursor.name(pool::DOMAINS), cursor.addresses(pools, 3))
}

fn key(cursor: &mut Cursor<'_>) -> Key {
    match cursor.below(8) {
        0..3 => Key::Pod(pod_id(cursor)),
        3 => Key::Namespace(cursor.name(pool::NAMESPACES)),
        4 => Key::Node(cursor.name(pool::NODES)),
        5 => Key::Domain(cursor.name(pool::DOMAINS)),
        _ => Key::Policy(policy::id(cursor).0),
    }
}

fn flow(cursor: &mut Cursor<'_>) -> Flow {
    let v4: &[_] = &[pool::POD_V4, pool::POD_V4, pool::NODE_V4, pool::OUTSIDE_V4];
    let v6: &[_] = &[pool::POD_V6, pool::POD_V6, pool::NODE_V6, pool::OUTSIDE_V6];
    let family = cursor.one_of(&[v4, v4, v6]);
    Flow {
        from: cursor.address(family),
        to: cursor.address(family),
        protocol: cursor.one_of(&Protocol::ALL),
        port: cursor.one_of(pool::PORTS),
    }
}
