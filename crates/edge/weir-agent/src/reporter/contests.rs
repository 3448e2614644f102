//! Addresses that several pods claim: warnings and Events.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_engine::Contest;
use weir_kube::{EventType, NewEvent, pod_reference};
use weir_model::PodId;

use super::{Reporter, gauge_value};

/// The most contested addresses that warnings name.
const MAX_WARNINGS: usize = 100;
/// The most pods that one warning names.
const MAX_NAMED_PODS: usize = 3;

impl Reporter {
    /// The contests of addresses that changed.
    pub(crate) fn update_contests(&mut self, changed: Vec<Contest>) {
        if changed.is_empty() {
            return;
        }
        let new = self.contests.update(changed);
        self.publish(new.iter().flat_map(|contest| events(contest, &self.node)));
        self.report.metrics.contested.set(gauge_value(self.contests.len()));
        self.warnings.contests = self.contests.warnings();
        self.update_warnings();
    }
}

/// The current contests.
#[derive(Debug, Default)]
pub(super) struct Contests(BTreeMap<IpAddr, Contest>);

impl Contests {
    /// Replaces contests, and returns those that are new or have other pods.
    pub(super) fn update(&mut self, changed: Vec<Contest>) -> Vec<Contest> {
        let mut new = Vec::new();
        for contest in changed {
            if contest.local.len() + contest.remote.len() < 2 {
                self.0.remove(&contest.address);
            } else if self.0.get(&contest.address) != Some(&contest) {
                new.push(contest.clone());
                self.0.insert(contest.address, contest);
            }
        }
        new
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A warning for each contest, and one for all contests that would make the list too long.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut all: Vec<String> = self.0.values().take(MAX_WARNINGS).map(describe).collect();
        if let Some(more @ 1..) = self.0.len().checked_sub(MAX_WARNINGS) {
            all.push(format!("{more} more addresses are contested"));
        }
        all
    }

    /// The Events about all contests.
    pub(super) fn events(&self, node: &str) -> Vec<NewEvent> {
        self.0.values().flat_map(|contest| events(contest, node)).collect()
    }
}

/// The Events about a contest: one for each local pod. Nodes without one of the pods publish none.
pub(super) fn events(contest: &Contest, node: &str) -> Vec<NewEvent> {
    let event = |pod: &PodId| NewEvent {
        regarding: pod_reference(pod),
        kind: EventType::Warning,
        reason: "AddressContested".into(),
        message: format!("node {node}: {}", describe(contest)),
    };
    contest.local.iter().take(MAX_NAMED_PODS).map(event).collect()
}

fn describe(Contest { address, local, remote }: &Contest) -> String {
    let (here, elsewhere) = (names(local), names(remote));
    match (local.len(), remote.len()) {
        (0, _) => format!(
            "{elsewhere} of other nodes claim {address}: a rule allows it only if it selects all"
        ),
        (1, _) => format!(
            "{elsewhere} of another node claims {address} of {here}: the rules of {here} stay in force"
        ),
        (_, 0) => format!("{here} of this node claim {address}: nothing is allowed there"),
        _ => format!(
            "{here} of this node and {elsewhere} of another node claim {address}: nothing is allowed there"
        ),
    }
}

fn names(pods: &BTreeSet<PodId>) -> String {
    let named: Vec<String> = pods.iter().take(MAX_NAMED_PODS).map(ToString::to_string).collect();
    match pods.len().checked_sub(MAX_NAMED_PODS) {
        Some(more @ 1..) => format!("{} and {more} more pods", named.join(", ")),
        _ => named.join(" and "),
    }
}
