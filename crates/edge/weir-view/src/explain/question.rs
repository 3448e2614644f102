//! A question about one connection, and its answer.

use std::collections::BTreeSet;

use weir_engine::{Explanation, Reason, Remedy, Side};
use weir_model::{Direction, Finding, Flow, IpFamily, ObjectRef, Severity, Verdict};
use weir_reach::{PortQuery, ReachState};

use super::ends::{addresses, claim_note, network_notes, note, other_family};
use crate::{
    explanation_view::{Context, ExplanationView},
    failure::Failure,
    flow_end::FlowEnd,
    loaded::{self, Loaded},
    pod_cidrs::PodCidrs,
    why,
};

/// A question about one connection.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The source, as the user named it.
    pub from: &'a str,
    /// The destination, as the user named it.
    pub to: &'a str,
    /// The destination port.
    pub port: Option<&'a PortQuery>,
    /// The IP family, if the user named one.
    pub family: Option<IpFamily>,
    /// The networks of the pods.
    pub pod_cidrs: PodCidrs<'a>,
    /// The clusters in the world.
    pub clusters: Clusters,
}

/// Whether the world unites several clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// One cluster.
    One,
    /// Several; a remedy belongs to one of them.
    Several,
}

impl Question<'_> {
    /// Explains one connection.
    pub fn explain(
        &self,
        loaded: &Loaded,
        state: &ReachState,
        [from, to]: [&FlowEnd; 2],
        flow: Flow,
    ) -> Explained {
        let mut notes: Vec<String> =
            [from, to].into_iter().filter_map(|end| note(end, loaded)).collect();
        notes.extend(network_notes([from, to], loaded));
        let explanation = weir_engine::explain(&state.program, &flow);
        notes.extend(self.pod_cidrs.notes(state, &loaded.synthetic, &flow));
        for (end, address) in [(from, flow.from), (to, flow.to)] {
            notes.extend(claim_note(end.pod(loaded), address, &loaded.world));
        }
        notes.extend(other_family(loaded, &state.program, &explanation, [from, to]));
        notes.extend(staged_note(loaded, &explanation));
        let mut remedy = weir_engine::remedy(&loaded.world, &explanation);
        if let (Remedy::Add(policies), false) = (&mut remedy, self.clusters == Clusters::One) {
            for policy in policies {
                let (cluster, local) = weir_clusterset::localized(policy);
                let cluster = cluster.unwrap_or_default();
                notes.push(format!("apply {} in cluster {cluster}", local.id));
                *policy = local;
            }
        }
        Explained { explanation, remedy, notes }
    }

    /// The port, which only routes do not need.
    pub fn port(&self) -> Result<&PortQuery, Failure> {
        self.port.ok_or_else(|| {
            let hint = "give it with --port; only a route needs none";
            Failure::new("the destination port is missing", hint)
        })
    }

    /// The connection to explain.
    pub fn flow(&self, loaded: &Loaded, from: &FlowEnd, to: &FlowEnd) -> Result<Flow, Failure> {
        let port = self.port()?;
        if port.is_any() {
            let hint = "give a number or a name; `weir matrix --port any` evaluates all ports";
            return Err(Failure::new("a connection has one port", hint));
        }
        let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
        let (from_address, to_address) =
            addresses((self.from, sources), (self.to, targets), self.family)?;
        let mut ports = port.at(to.pod(loaded));
        ports.sort();
        ports.dedup();
        if ports.len() > 1 {
            let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let hint = if ports.windows(2).all(|pair| pair[0].protocol != pair[1].protocol) {
                format!("add the protocol: `--port {port}/{}`", ports[1].protocol)
            } else {
                format!("give the number: `--port {}`", list[0])
            };
            let what = format!("{} has several ports named {port}: {}", self.to, list.join(", "));
            return Err(Failure::new(what, hint));
        }
        let Some(port) = ports.first() else {
            let names: Vec<&str> = to
                .pod(loaded)
                .map(|pod| pod.ports.iter().map(|port| &*port.name).collect())
                .unwrap_or_default();
            let hint = if !names.is_empty() {
                format!("its named ports are {}; a number works too", names.join(", "))
            } else if to.pod(loaded).is_some() {
                "give the port as a number".to_owned()
            } else {
                "the ports of an address have no names: name the pod, or give a number".to_owned()
            };
            return Err(Failure::new(format!("{} has no port {port}", self.to), hint));
        };
        Ok(Flow { from: from_address, to: to_address, protocol: port.protocol, port: port.first })
    }
}

/// The verdict with all staged policies enforced, if it differs.
fn staged_note(loaded: &Loaded, explanation: &Explanation) -> Option<String> {
    if !loaded.world.has_staged() {
        return None;
    }
    let state = loaded::compile(loaded.world.with_staged_enforced());
    let enforced = weir_engine::explain(&state.program, &explanation.flow);
    if enforced.verdict == explanation.verdict {
        return None;
    }
    let verdict = why::past(enforced.verdict);
    let reason = why::line(&enforced);
    Some(format!(
        "with the staged policies, which are not enforced, it would be {verdict}: {reason}"
    ))
}

/// The explanation of one connection.
pub struct Explained {
    /// The reasons of both sides.
    pub explanation: Explanation,
    remedy: Remedy,
    notes: Vec<String>,
}

impl Explained {
    /// The explanation as data.
    pub fn view(&self, loaded: &Loaded, ends: [&FlowEnd; 2]) -> ExplanationView {
        self.view_with(loaded, ends, || loaded.lint())
    }

    /// The explanation as data, with the lint findings about the world.
    pub fn view_with(
        &self,
        loaded: &Loaded,
        ends: [&FlowEnd; 2],
        lint: impl FnOnce() -> Vec<Finding>,
    ) -> ExplanationView {
        let policy_findings = findings_of_denying_policies(lint, &self.explanation);
        let notes = self.notes.clone();
        let context = Context { ends, loaded, policy_findings, notes };
        ExplanationView::new(&self.explanation, &self.remedy, context)
    }
}

/// The findings about the policies that deny the connection, in the direction in which they deny
/// it.
fn findings_of_denying_policies(
    lint: impl FnOnce() -> Vec<Finding>,
    explanation: &Explanation,
) -> Vec<Finding> {
    let mut denying: BTreeSet<(ObjectRef, Direction)> = BTreeSet::new();
    for direction in Direction::BOTH {
        let Side::Judged(judgement) = explanation.side(direction) else { continue };
        match &judgement.reason {
            _ if judgement.verdict == Verdict::Allow => (),
            Reason::Admin(cited) | Reason::Baseline(cited) => {
                denying.insert((ObjectRef::from(&cited.section.policy), direction));
            }
            Reason::Isolated | Reason::Contested | Reason::Allowed(_) | Reason::Default => {
                let policies = judgement.isolating.iter();
                denying
                    .extend(policies.map(|section| (ObjectRef::from(&section.policy), direction)));
            }
        }
    }
    if denying.is_empty() {
        return Vec::new();
    }
    let mut findings = lint();
    let is_about = |finding: &Finding, direction: Direction| {
        finding.field.starts_with(&format!("spec.{direction}"))
    };
    findings.retain(|finding| {
        let [ingress, egress] = Direction::BOTH.map(|direction| is_about(finding, direction));
        finding.severity > Severity::Info
            && denying.iter().any(|(policy, direction)| {
                let is_other_direction = match direction {
                    Direction::Ingress => egress,
                    Direction::Egress => ingress,
                };
                finding.object.as_ref() == Some(policy) && !is_other_direction
            })
    });
    findings
}
