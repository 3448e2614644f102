//! The recommended policies, and what the recorded flows say about them.

use weir_model::{PolicyId, Verdict};
use weir_reach::ReachState;
use weir_recommend::{ObservedFlow, Recommendation, WorkloadPods};

use super::{Recording, connections, end_name};
use crate::{
    present::{count, plain::Plain},
    why,
};

/// The recommended policies and their effect on the recorded flows.
pub(crate) struct Outcome {
    /// The policies.
    pub(crate) recommendation: Recommendation,
    /// The flows.
    pub(crate) recording: Recording,
    /// The NetworkPolicies that the policies replace and that have other names.
    pub(crate) superseded: Vec<PolicyId>,
    /// The world with the policies.
    pub(crate) state: ReachState,
    /// The recorded flows that would be denied.
    pub(crate) broken: Vec<BrokenFlow>,
}

/// A recorded flow that would be denied.
pub(crate) struct BrokenFlow {
    /// The source.
    pub(crate) from: String,
    /// The destination.
    pub(crate) to: String,
    /// The destination port.
    pub(crate) port: u16,
    /// The protocol.
    pub(crate) protocol: String,
    /// Why it would be denied.
    pub(crate) why: String,
}

/// The recorded flows that the state denies, between any pods of their workloads.
pub(super) fn broken(
    state: &ReachState,
    workloads: &[WorkloadPods],
    flows: &[ObservedFlow],
) -> Vec<BrokenFlow> {
    let mut broken = Vec::new();
    for observed in flows {
        let mut all = connections(&state.world, workloads, observed).into_iter();
        let denied = all.find(|flow| state.program.verdict(flow) == Verdict::Deny);
        broken.extend(denied.map(|flow| BrokenFlow {
            from: end_name(workloads, &observed.from).to_string(),
            to: end_name(workloads, &observed.to).to_string(),
            port: observed.port,
            protocol: observed.protocol.to_string(),
            why: why::line(&weir_engine::explain(&state.program, &flow)),
        }));
    }
    broken
}

impl Outcome {
    /// The number of flows and drops behind the policies, as text.
    pub(crate) fn summary(&self) -> String {
        let Recording { flows, declared, used, .. } = &self.recording;
        let recorded = count(flows.len().saturating_sub(*declared), "flow");
        let records = count(*used, "record");
        let policies = match self.recommendation.policies.len() {
            1 => "1 policy".to_owned(),
            more => format!("{more} policies"),
        };
        let declared = count(*declared, "declared connection");
        match (used, self.recording.declared) {
            (_, 0) => format!("{policies} from {recorded} in {records}"),
            (0, _) => format!("{policies} from {declared}"),
            _ => format!("{policies} from {recorded} in {records} and {declared}"),
        }
    }

    /// Everything that the reader should know beside the policies.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.recommendation.notes.clone();
        notes.extend(self.recording.notes());
        if !self.superseded.is_empty() {
            let names: Vec<String> = self.superseded.iter().map(ToString::to_string).collect();
            notes.push(format!("delete the policies that these replace: {}", names.join(", ")));
        }
        notes
    }

    pub(super) fn print_notes(&self) {
        print_notes(self.notes());
    }

    pub(super) fn print_broken(&self) {
        if self.broken.is_empty() {
            let noun = match (self.recording.declared, self.recording.used) {
                (0, _) => "recorded flow",
                (_, 0) => "declared connection",
                _ => "recorded and declared connection",
            };
            let flows = count(self.recording.flows.len(), noun);
            anstream::eprintln!("{flows} tested against the policies: all are allowed");
            return;
        }
        for BrokenFlow { from, to, port, protocol, why } in &self.broken {
            let text = format!("{from} to {to}, port {port}/{protocol}, would be denied: {why}");
            anstream::eprintln!("error: {}", Plain(text));
        }
    }
}

impl Recording {
    /// The records that are no evidence, and why.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.remarks.clone();
        let Recording { denied, without_port, incomplete, unknown, .. } = self;
        if *denied > 0 {
            notes.push(format!("ignored {} of denied packets", count(*denied, "record")));
        }
        if *without_port > 0 {
            let records = count(*without_port, "record");
            notes.push(format!(
                "ignored {records} of other protocols than TCP, UDP and SCTP: a NetworkPolicy cannot \
                 name them, and the policies deny them"
            ));
        }
        if *incomplete > 0 {
            let records = count(*incomplete, "record");
            notes.push(format!(
                "ignored {records} without both ends, because an agent reached its limit: record for \
                 a shorter time"
            ));
        }
        for (name, records) in unknown {
            let records = count(*records, "record");
            notes.push(format!("ignored {records} of {name}, which the input does not have"));
        }
        notes
    }
}

pub(super) fn print_notes(notes: Vec<String>) {
    for note in notes {
        anstream::eprintln!("note: {}", Plain(note));
    }
}
