//! Removing anything that lint reports as without effect does not change any verdict.

use std::sync::Arc;

use proptest::prelude::*;
use weir_lint::{CODES, lint};
use weir_model::{Direction, Finding, Flow, Policy, PolicyId, PolicyRule, Severity, Spec, World};

/// The codes that report something without effect.
const WITHOUT_EFFECT: [&str; 12] = [
    "duplicate-policy",
    "host-network-peer",
    "host-network-subject",
    "moot-policy",
    "never-matches",
    "peer-matches-nothing",
    "redundant-peer",
    "redundant-rule",
    "selects-nothing",
    "shadowed",
    "unknown-namespace-label",
    "unknown-port-name",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn removing_a_part_without_effect_changes_no_verdict(
        world in weir_testkit::world(),
        flows in proptest::collection::vec(weir_testkit::flow(), 1..40),
    ) {
        for finding in lint(&world).iter().filter(|finding| has_no_effect(finding)) {
            let Some(without) = without(&world, finding) else { continue };
            for flow in &flows {
                let (with, without) = (verdict(&world, flow), verdict(&without, flow));
                prop_assert_eq!(with, without, "{} after taking away {:?}", flow, finding);
            }
        }
    }

    #[test]
    fn findings_are_sorted_complete_and_known(world in weir_testkit::world()) {
        let findings = lint(&world);
        prop_assert!(findings.is_sorted());
        for finding in findings {
            prop_assert!(CODES.contains(&finding.code));
            prop_assert!(!finding.message.is_empty() && !finding.hint.is_empty());
        }
    }
}

fn verdict(world: &World, flow: &Flow) -> weir_model::Verdict {
    weir_oracle::verdict(world, flow)
}

/// Whether a finding reports something without effect. The notes about host network pods concern
/// one pod of several.
fn has_no_effect(finding: &Finding) -> bool {
    let partial = finding.code == "host-network-subject" && finding.severity == Severity::Info;
    WITHOUT_EFFECT.contains(&finding.code) && !partial
}

/// The world without the part that a finding points at.
fn without(world: &World, finding: &Finding) -> Option<World> {
    let policy =
        world.policies.values().find(|policy| policy.id.to_string() == finding.object_text())?;
    let mut world = world.clone();
    let at = Field::parse(&finding.field);
    match at {
        None => drop(world.policies.remove(&policy.id)),
        Some(field) => {
            let mut spec = Spec::clone(&policy.spec);
            field.remove_from(&mut spec)?;
            put(&mut world, &policy.id, spec);
        }
    }
    Some(world)
}

fn put(world: &mut World, id: &PolicyId, spec: Spec) {
    let policy = Policy { id: id.clone(), location: None, spec: Arc::new(spec), staged: false };
    world.policies.insert(id.clone(), policy);
}

/// The part of a direction that a path points at.
struct Field {
    direction: Direction,
    rule: Option<u32>,
    peer: Option<u32>,
    port: Option<usize>,
}

impl Field {
    /// `None` for the whole policy.
    fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix("spec.")?.split('.');
        let (name, rule) = indexed(parts.next()?);
        let direction = Direction::BOTH.into_iter().find(|d| d.to_string() == name)?;
        let mut field = Field { direction, rule, peer: None, port: None };
        match parts.next().map(indexed) {
            Some(("from" | "to", peer)) => field.peer = peer,
            Some((_, port)) => field.port = port.map(|port| port as usize),
            None => (),
        }
        Some(field)
    }

    fn remove_from(&self, spec: &mut Spec) -> Option<()> {
        let rules = match self.direction {
            Direction::Ingress => &mut spec.ingress,
            Direction::Egress => &mut spec.egress,
        };
        let Some(index) = self.rule else {
            *rules = None;
            return Some(());
        };
        let rules = rules.as_mut()?;
        let at = rules.iter().position(|rule| rule.index == index)?;
        match (self.peer, self.port) {
            (None, None) => drop(rules.remove(at)),
            (Some(peer), _) => remove_peer(&mut rules[at], peer)?,
            (None, Some(port)) => drop(rules[at].ports.as_mut()?.remove(port)),
        }
        Some(())
    }
}

/// Removes the peer. An entry with several networks is several peers; then nothing can be checked.
fn remove_peer(rule: &mut PolicyRule, index: u32) -> Option<()> {
    let peers = rule.peers.as_mut()?;
    let mut same = peers.iter().enumerate().filter(|(_, peer)| peer.index == index);
    let (at, _) = same.next()?;
    if same.next().is_some() {
        return None;
    }
    peers.remove(at);
    Some(())
}

/// Splits `name[3]` into its name and its index.
fn indexed(text: &str) -> (&str, Option<u32>) {
    match text.split_once('[') {
        None => (text, None),
        Some((name, number)) => (name, number.trim_end_matches(']').parse().ok()),
    }
}
