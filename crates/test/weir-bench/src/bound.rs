//! A lower bound for a compile: a pass that only indexes the same input and looks up each policy's pods.

use hashbrown::HashMap;

use weir_model::{Change, Object, Requirement, Scope, Selector, Who};

/// Indexes pods by namespace and label, then visits the subjects and peers of every policy that selects
/// a pod of the node. Returns the number of visits, so that the compiler cannot remove the work.
pub(crate) fn index_only(changes: &[Change], node: &str) -> usize {
    let mut labels: HashMap<(&str, &str), u32> = HashMap::new();
    let mut namespaces: HashMap<&str, u32> = HashMap::new();
    let mut namespaces_by_label: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut pods: Vec<(u32, bool)> = Vec::new();
    let mut by_label: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
    let mut by_namespace: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut addresses: HashMap<std::net::IpAddr, u32> = HashMap::new();
    let mut visited = 0;
    for change in changes {
        let Change::Put(object) = change else { continue };
        match object {
            Object::Namespace(namespace) => {
                let next = namespaces.len() as u32;
                let id = *namespaces.entry(&namespace.name).or_insert(next);
                for (key, value) in namespace.labels.iter() {
                    let next = labels.len() as u32;
                    let label = *labels.entry((key, value)).or_insert(next);
                    namespaces_by_label.entry(label).or_default().push(id);
                }
            }
            Object::Pod(pod) => {
                let next = namespaces.len() as u32;
                let namespace = *namespaces.entry(&pod.id.namespace).or_insert(next);
                let id = pods.len() as u32;
                pods.push((namespace, pod.node.as_deref() == Some(node)));
                by_namespace.entry(namespace).or_default().push(id);
                for (key, value) in pod.labels.iter() {
                    let next = labels.len() as u32;
                    let label = *labels.entry((key, value)).or_insert(next);
                    by_label.entry((namespace, label)).or_default().push(id);
                }
                addresses.extend(pod.addresses.iter().map(|address| (*address, id)));
            }
            Object::Policy(policy) => {
                let Some(&own) = namespaces.get(&*policy.id.namespace) else { continue };
                let find =
                    |namespace: u32, selector: &Selector| match selector.requirements().first() {
                        None => by_namespace.get(&namespace),
                        Some(Requirement::In(key, values)) => {
                            let value = values.first()?;
                            by_label.get(&(namespace, *labels.get(&(&**key, &**value))?))
                        }
                        Some(_) => None,
                    };
                let subjects =
                    find(own, &policy.spec.subject.pods).map_or(&[][..], |pods| &pods[..]);
                if !subjects.iter().any(|pod| pods[*pod as usize].1) {
                    continue;
                }
                visited += subjects.len();
                for peer in policy
                    .spec
                    .ingress
                    .iter()
                    .chain(&policy.spec.egress)
                    .flatten()
                    .flat_map(|rule| rule.peers.iter().flatten())
                {
                    let Who::Pods { scope, pods } = &peer.who else { continue };
                    let scope: &[u32] = match scope {
                        Scope::Own => &[own],
                        Scope::Matching(selector) => match selector.requirements().first() {
                            Some(Requirement::In(key, values)) => values
                                .first()
                                .and_then(|value| {
                                    namespaces_by_label.get(labels.get(&(&**key, &**value))?)
                                })
                                .map_or(&[][..], |namespaces| &namespaces[..]),
                            Some(_) | None => &[],
                        },
                    };
                    visited += scope
                        .iter()
                        .filter_map(|namespace| find(*namespace, pods))
                        .map(Vec::len)
                        .sum::<usize>();
                }
            }
            Object::Node(_)
            | Object::Service(_)
            | Object::EndpointSlice(_)
            | Object::Domain(..) => (),
        }
    }
    visited + addresses.len()
}
