//! The requests whose answers a static page contains.

use std::collections::BTreeSet;

use super::{PageRequest, snapshot::Snapshot};

/// The most explanations that a static page contains.
const MAX_EXPLANATIONS: usize = 3000;
/// The most pairs of namespaces whose cells a static page contains.
const MAX_PAIRS: usize = 2500;
/// The most workloads whose connections a static page contains.
const MAX_ENDS: usize = 300;

/// All requests that the page can make, as far as the limits allow.
pub(super) fn requests(snapshot: &Snapshot) -> Vec<PageRequest> {
    let mut requests =
        vec![PageRequest::Overview, PageRequest::Policies, PageRequest::Flows { after: 0 }];
    requests.push(PageRequest::Drops { after: 0 });
    let ids = snapshot.loaded.world.policies.keys();
    requests.extend(ids.map(|id| PageRequest::Policy { id: id.to_string() }));
    let places = 0..snapshot.places.names.len();
    let pairs = places.clone().flat_map(|from| places.clone().map(move |to| (from, to)));
    requests.extend(pairs.take(MAX_PAIRS).map(|(from, to)| PageRequest::Cells { from, to }));
    let ends = 0..snapshot.matrix.ends.len().min(MAX_ENDS);
    requests.extend(ends.map(|end| PageRequest::End { end }));
    requests.extend(explanations(snapshot));
    requests
}

/// One explanation for each port of each connection.
fn explanations(snapshot: &Snapshot) -> impl Iterator<Item = PageRequest> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (from, to, port) in super::overview::questions(snapshot) {
        if all.len() >= MAX_EXPLANATIONS {
            break;
        }
        if seen.insert((from.clone(), to.clone(), port.clone())) {
            all.push(PageRequest::Explain { from, to, port });
        }
    }
    all.into_iter()
}
