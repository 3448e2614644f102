//! Laws of spans, for any cluster and any history of changes.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Claim, Key, Labels, Node, Object, Pod, PodId, Program, World};
use weir_testkit::{changes, pool::NODES};

use super::{Refusal, Spans};

/// The object of a key.
fn object(world: &World, key: &Key) -> Option<Object> {
    world.changes().find_map(|change| match change {
        Change::Put(object) if object.key() == *key => Some(object),
        _ => None,
    })
}

/// A JSON that differs whenever the policy does.
fn json(object: &Object) -> Vec<u8> {
    match object {
        Object::Policy(policy) => format!("{policy:?}").into_bytes(),
        _ => Vec::new(),
    }
}

/// What an agent has received, compiled for its node.
struct Receiver {
    slot: usize,
    engine: Engine,
    program: Program,
    known: BTreeMap<Key, Object>,
}

impl Receiver {
    fn attach(spans: &mut Spans, world: &World, node: &str) -> Option<Self> {
        spans.log.clear();
        let (slot, frames) = match spans.attach(node) {
            Ok(attached) => attached,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::UnknownNode);
                assert!(!world.nodes.contains_key(node));
                return None;
            }
        };
        assert_eq!(frames.len(), spans.log.iter().filter(|(to, ..)| *to == slot).count());
        let engine = Engine::new(Locality::Node(node.into()));
        let (program, known) = (Program::default(), BTreeMap::new());
        let mut receiver = Receiver { slot, engine, program, known };
        receiver.receive(spans, world, true);
        Some(receiver)
    }

    /// After a single change, no frame repeats what the agent has.
    fn receive(&mut self, spans: &Spans, world: &World, is_exact: bool) {
        let mut changes = Vec::new();
        for (_, key, is_put) in spans.log.iter().filter(|(slot, ..)| *slot == self.slot) {
            if *is_put {
                let object = object(world, key).expect("an object that is sent exists");
                let before = self.known.insert(key.clone(), object.clone());
                assert!(!is_exact || before.as_ref() != Some(&object), "it has {key:?} already");
                changes.push(Change::Put(object));
            } else {
                let was_known = self.known.remove(key).is_some();
                assert!(!is_exact || was_known, "it does not have {key:?}");
                changes.push(Change::Remove(key.clone()));
            }
        }
        self.program.apply(self.engine.apply(changes));
    }
}

fn whole(world: &World, node: &str) -> Program {
    weir_engine::compile(world, Locality::Node(node.into()))
}

proptest! {
    #[test]
    fn a_span_compiles_to_the_rules_of_the_whole_cluster(
        history in changes(60),
        sizes in vec(1_usize..6, 1..20),
        attach_after in 0_usize..8,
    ) {
        let (mut spans, mut world) = (Spans::default(), World::default());
        let mut receivers: BTreeMap<&str, Receiver> = BTreeMap::new();
        let mut rest = &history[..];
        for (step, size) in sizes.into_iter().cycle().enumerate() {
            let (batch, others) = rest.split_at(size.min(rest.len()));
            rest = others;
            for change in batch {
                // No API server knows the addresses of domain names, nor what the CNI plugin reported.
                if matches!(change, Change::Put(Object::Domain(..)) | Change::Remove(Key::Domain(_))) {
                    continue;
                }
                let mut change = change.clone();
                if let Change::Put(Object::Pod(pod)) = &mut change {
                    pod.claim = pod.claim.min(Claim::Running);
                }
                world.apply(change.clone());
                match &change {
                    Change::Put(object) => spans.put(object.clone(), &json(object)),
                    Change::Remove(key) => spans.remove(key),
                }
            }
            spans.log.clear();
            spans.commit();
            for receiver in receivers.values_mut() {
                receiver.receive(&spans, &world, batch.len() == 1);
            }
            if step >= attach_after {
                for node in NODES.iter().copied() {
                    if !receivers.contains_key(node) {
                        receivers.extend(
                            Receiver::attach(&mut spans, &world, node).map(|it| (node, it)),
                        );
                    }
                }
            }
            for (node, receiver) in &receivers {
                prop_assert_eq!(&receiver.program, &whole(&world, node), "node {}", node);
            }
            if rest.is_empty() && step >= attach_after {
                break;
            }
        }
        // A new agent gets what an old one has, and nothing stays when all are gone.
        for (node, receiver) in receivers {
            spans.detach(receiver.slot);
            if let Some(again) = Receiver::attach(&mut spans, &world, node) {
                prop_assert_eq!(receiver.known, again.known);
                spans.detach(again.slot);
            }
        }
        prop_assert!(spans.peers.is_empty() && spans.selection_ids.is_empty());
        prop_assert!(spans.pods.iter().all(|(_, pod)| pod.audience.is_empty() && pod.selections.is_empty()));
    }
}

/// Rules name no pod with the address of its node, but its DNS answers count.
#[test]
fn resolvers_on_the_network_of_their_node_are_sent() {
    let pod = |name: &str, label: &str| Pod {
        id: PodId::new("kube-system", name),
        labels: [("k8s-app", label.to_owned())].into_iter().collect(),
        addresses: vec![[192, 0, 2, 7].into()],
        node: Some("n2".into()),
        ports: Vec::new(),
        host_network: true,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    };
    let node = |name: &str| {
        let (name, labels) = (name.into(), Labels::default());
        Object::Node(Node { name, labels, addresses: Vec::new(), location: None })
    };
    let mut spans = Spans::default();
    spans.put(node("n1"), &[]);
    spans.put(Object::Pod(pod("dns", "kube-dns")), &[]);
    spans.put(Object::Pod(pod("proxy", "kube-proxy")), &[]);
    spans.commit();
    let (slot, _) = spans.attach("n1").unwrap();
    let dns = Key::Pod(PodId::new("kube-system", "dns"));
    assert!(spans.log.contains(&(slot, dns.clone(), true)), "{:?}", spans.log);
    assert_eq!(spans.log.iter().filter(|(_, key, _)| matches!(key, Key::Pod(_))).count(), 1);
    spans.log.clear();
    spans.put(Object::Pod(pod("dns", "other")), &[]);
    spans.commit();
    assert_eq!(spans.log, [(slot, dns, false)]);
}
