//! The explanation of a connection, as data.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use serde::Serialize;
use weir_engine::{Cited, Explanation, Judgement, Miss, Missing, Reason, Remedy, Side};
use weir_model::{
    Direction, Finding, Flow, IpFamily, Name, Peers, Pod, Policy, PolicyId, PortMatch, Protocol,
    Rule, Section, Verdict, Who, World,
};

use crate::{
    findings,
    flow_end::FlowEnd,
    loaded::Loaded,
    service_view::{RouteView, ServiceView},
    text, why,
};

/// An explanation as JSON.
#[derive(Serialize)]
pub struct ExplanationView {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The destination port.
    pub port: u16,
    /// The protocol.
    pub protocol: String,
    /// The Service that the user named. The other fields are about one of its backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceView>,
    /// The route that the user named. The other fields are about one of its backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteView>,
    /// The IP family.
    pub family: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// The reason, in one line.
    pub why: String,
    /// The side of the source.
    pub egress: SideView,
    /// The side of the destination.
    pub ingress: SideView,
    /// A change that would allow the connection; only if it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<RemedyView>,
    /// The findings from reading the input and about the policies that deny the connection.
    pub findings: Vec<findings::FindingJson>,
    /// Remarks about the two ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The findings about the policies that deny the connection.
    #[serde(skip)]
    pub policy_findings: Vec<Finding>,
}

/// One side of a connection.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SideView {
    /// The pod, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The address.
    pub address: String,
    /// Whether the address is synthetic, because the manifest has none.
    #[serde(rename = "madeUp", skip_serializing_if = "is_false")]
    pub synthetic: bool,
    /// `allow` or `deny`.
    pub verdict: String,
    /// The kind of the reason.
    pub reason: &'static str,
    /// The reason, in one line.
    pub why: String,
    /// The rule that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleView>,
    /// The admin rule with action Pass that deferred the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<RuleView>,
    /// The policies that isolate the pod.
    pub isolated_by: Vec<PolicyView>,
    /// The rules that nearly match.
    pub nearest: Vec<NearMissView>,
}

/// A policy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    /// The policy.
    pub policy: String,
    /// Its file and line.
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The object for which a controller created the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_for: Option<String>,
}

/// A rule.
#[derive(Serialize)]
pub struct RuleView {
    /// The policy.
    pub policy: String,
    /// The rule that decides.
    pub rule: String,
    /// Its file and line.
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// What the rule does.
    pub action: String,
    /// The peers of the rule.
    pub peers: String,
    /// The ports of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ports: String,
}

/// A rule that nearly matches.
#[derive(Serialize)]
pub struct NearMissView {
    /// What does not match.
    pub missing: &'static str,
    /// Why the rule does not match.
    pub why: String,
    /// The rule that decides.
    #[serde(flatten)]
    pub rule: RuleView,
}

/// A change that would allow a connection.
#[derive(Serialize)]
pub struct RemedyView {
    /// The rule to change, because no added policy can override it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<RuleView>,
    /// The policies to add, as manifests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Why no policy can be suggested for one of the ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The facts about the input that explain a verdict.
#[derive(Clone, Copy)]
pub struct InputFacts<'a> {
    /// The cluster.
    pub world: &'a World,
    /// The synthetic addresses of pods.
    pub synthetic: &'a BTreeSet<IpAddr>,
    /// The policies that a controller created, with the object that owns them.
    pub generated_for: &'a BTreeMap<PolicyId, Name>,
}

impl<'a> From<&'a Loaded> for InputFacts<'a> {
    fn from(loaded: &'a Loaded) -> Self {
        let Loaded { world, synthetic, generated_for, .. } = loaded;
        InputFacts { world, synthetic, generated_for }
    }
}

/// The input of a view besides the explanation itself.
pub struct Context<'a> {
    /// The two ends, as the user named them.
    pub ends: [&'a FlowEnd; 2],
    /// The loaded world.
    pub loaded: &'a Loaded,
    /// The findings about the policies that deny the connection.
    pub policy_findings: Vec<Finding>,
    /// Remarks about the two ends.
    pub notes: Vec<String>,
}

impl ExplanationView {
    /// The view of an explanation.
    pub fn new(explanation: &Explanation, remedy: &Remedy, context: Context<'_>) -> Self {
        let Context { ends, loaded, policy_findings, notes } = context;
        let mut findings = findings::to_json(&loaded.findings);
        findings.extend(policy_findings.iter().map(findings::FindingJson::from));
        let Explanation { flow, verdict, .. } = explanation;
        let [from, to] = ends;
        ExplanationView {
            from: from.to_string(),
            to: to.to_string(),
            port: flow.port,
            protocol: flow.protocol.to_string(),
            service: None,
            route: None,
            verdict: verdict.to_string(),
            why: why::line(explanation),
            egress: side(explanation, Direction::Egress, loaded.into()),
            ingress: side(explanation, Direction::Ingress, loaded.into()),
            family: IpFamily::from(flow.to).to_string(),
            remedy: (*verdict == Verdict::Deny).then(|| remedy_view(remedy, ends, loaded)),
            findings,
            notes,
            policy_findings,
        }
    }
}

fn remedy_view(remedy: &Remedy, ends: [&FlowEnd; 2], loaded: &Loaded) -> RemedyView {
    let policies = match remedy {
        Remedy::Add(policies) => policies,
        Remedy::Change(cited) => {
            return RemedyView { change: Some(rule(cited)), add: Vec::new(), note: None };
        }
        Remedy::NewAddress(pod) => {
            let note = format!("no policy can allow it before {pod} has an address of its own");
            return RemedyView { change: None, add: Vec::new(), note: Some(note) };
        }
    };
    // A policy must not name an address that no pod has, or that another pod may get.
    let unusable = |policy: &Policy| {
        let rules = Direction::BOTH.into_iter().filter_map(|direction| policy.rules(direction));
        let peers = rules.flatten().flat_map(|rule| rule.peers.iter().flatten());
        peers.into_iter().find_map(|peer| match &peer.who {
            Who::Block(block) => not_lasting(block.net.addr(), ends, loaded),
            _ => None,
        })
    };
    let manifest = |policy: &Policy| match &loaded.cluster_policy_version {
        Some(version) => weir_api::manifest_in_version(policy, version),
        None => weir_api::manifest(policy),
    };
    RemedyView {
        change: None,
        add: policies.iter().filter(|p| unusable(p).is_none()).map(manifest).collect(),
        note: policies.iter().find_map(unusable),
    }
}

/// Why a policy should not name an address, if that is so.
fn not_lasting(address: IpAddr, ends: [&FlowEnd; 2], loaded: &Loaded) -> Option<String> {
    let whose = |pod: &&Pod| pod.addresses.contains(&address);
    if loaded.synthetic.contains(&address) {
        let named = ends.into_iter().filter_map(|end| end.pod(loaded)).find(whose);
        let pod = named.or_else(|| loaded.world.pods.values().find(whose))?;
        return Some(format!(
            "{} has no address yet: once it has one, allow the address of its node with an ipBlock",
            pod.id
        ));
    }
    let mut owners = loaded.world.pods.values().filter(whose);
    let last = owners.clone().find(|pod| pod.finished)?;
    owners.all(|pod| pod.finished).then(|| {
        format!(
            "{address} belonged to {}, which has finished: the address may be assigned to another pod",
            last.id
        )
    })
}

fn near_miss(miss: &Miss, flow: &Flow, judgement: &Judgement, world: &World) -> NearMissView {
    let mut view = rule(&miss.cited);
    let Rule { peers, origin, .. } = miss.cited.rule();
    let there = match origin.direction {
        Direction::Ingress => flow.from,
        Direction::Egress => flow.to,
    };
    let (missing, why) = match (miss.missing, peers) {
        (Missing::Port, _) => ("port", "the port does not match".to_owned()),
        (Missing::PortName, _) => {
            let names = port_names(&miss.cited, world);
            let names = || names.iter().map(port_name);
            view.ports = format!("port {}", text::join(names(), ", "));
            let pod = &judgement.pod;
            let known = world.pods.get(pod).map(|pod| pod.ports.as_slice()).unwrap_or_default();
            let known: BTreeSet<&str> = known.iter().map(|port| &*port.name).collect();
            let known = if known.is_empty() {
                "it names no ports".to_owned()
            } else {
                format!("it names {}", Vec::from_iter(known).join(", "))
            };
            let what = format!("names port {}", text::join(names(), " or "));
            ("port name", format!("{what}, which {pod} does not have ({known})"))
        }
        (Missing::Peer, Peers::Block(block)) => {
            let taken = block.except.iter().find(|except| except.contains(&there));
            let (own, other) = (IpFamily::from(block.net.addr()), IpFamily::from(there));
            let why = match taken {
                Some(except) => format!("{there} is in the exception {except}"),
                None if own != other => format!("{there} is {other}, the block is {own}"),
                None => format!("{there} is not in the block"),
            };
            ("peer", why)
        }
        (Missing::Peer, _) => ("peer", "the peer does not match".to_owned()),
    };
    NearMissView { missing, why, rule: view }
}

/// The port names of a rule, as written in the policy.
fn port_names<'w>(cited: &Cited, world: &'w World) -> Vec<(&'w Name, Option<Protocol>)> {
    let origin = &cited.rule().origin;
    let policy = world.policies.get(&cited.section.policy);
    let rules = policy.and_then(|policy| policy.rules(origin.direction)).unwrap_or_default();
    let rule = rules.iter().find(|rule| rule.index == origin.rule);
    let ports = rule.and_then(|rule| rule.ports.as_deref()).unwrap_or_default();
    let names = ports.iter().filter_map(|port| match &port.ports {
        PortMatch::Named { name, protocol } => Some((name, *protocol)),
        PortMatch::Range(_) => None,
    });
    names.collect()
}

fn port_name((name, protocol): &(&Name, Option<Protocol>)) -> String {
    match protocol {
        None | Some(Protocol::Tcp) => name.to_string(),
        Some(protocol) => format!("{name}/{protocol}"),
    }
}

/// The view of one side of an explanation.
pub fn side(explanation: &Explanation, direction: Direction, facts: InputFacts<'_>) -> SideView {
    let side = explanation.side(direction);
    let address = match direction {
        Direction::Egress => explanation.flow.from,
        Direction::Ingress => explanation.flow.to,
    };
    let mut view = SideView {
        pod: None,
        address: address.to_string(),
        synthetic: facts.synthetic.contains(&address),
        verdict: side.verdict().to_string(),
        reason: "no-pod",
        why: "no pod has this address, so no policy applies".to_owned(),
        rule: None,
        passed: None,
        isolated_by: Vec::new(),
        nearest: Vec::new(),
    };
    match side {
        Side::NoPod => (),
        Side::Itself(pod) => {
            view.pod = Some(pod.to_string());
            view.reason = "itself";
            view.why = "a pod always reaches itself".to_owned();
        }
        Side::FromNode(pod, node) => {
            view.pod = Some(pod.to_string());
            view.reason = "own-node";
            view.why = format!("it runs on node {node}; a node always reaches its pods");
        }
        Side::Judged(judgement) => judged(&mut view, explanation, direction, judgement, facts),
    }
    view
}

fn judged(
    view: &mut SideView,
    explanation: &Explanation,
    direction: Direction,
    judgement: &Judgement,
    facts: InputFacts<'_>,
) {
    view.pod = Some(judgement.pod.to_string());
    view.why = why::reason(direction, judgement);
    let (reason, cited) = match &judgement.reason {
        Reason::Admin(cited) => ("admin", Some(cited)),
        Reason::Allowed(cited) => ("allowed", Some(cited)),
        Reason::Isolated => ("isolated", None),
        Reason::Contested => ("contested", None),
        Reason::Baseline(cited) => ("baseline", Some(cited)),
        Reason::Default => ("default", None),
    };
    view.reason = reason;
    view.rule = cited.map(rule);
    view.passed = judgement.passed.as_ref().map(rule);
    view.isolated_by = judgement.isolating.iter().map(|of| policy(of, facts)).collect();
    view.nearest = judgement
        .misses
        .iter()
        .map(|miss| near_miss(miss, &explanation.flow, judgement, facts.world))
        .collect();
}

fn policy(section: &Arc<Section>, facts: InputFacts<'_>) -> PolicyView {
    PolicyView {
        policy: section.policy.to_string(),
        location: why::location(section, 0).map(|location| location.to_string()),
        made_for: facts.generated_for.get(&section.policy).map(ToString::to_string),
    }
}

fn rule(cited: &Cited) -> RuleView {
    let Rule { peers, action, origin, .. } = cited.rule();
    RuleView {
        policy: cited.section.policy.to_string(),
        rule: origin.to_string(),
        location: why::location(&cited.section, origin.line).map(|location| location.to_string()),
        action: action.to_string(),
        peers: peers.to_string(),
        ports: text::ports(cited.rule()),
    }
}
