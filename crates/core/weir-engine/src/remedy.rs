//! The smallest policies that would allow a denied flow.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use weir_model::{
    Action, Block, CLUSTER_LABEL, Direction, Flow, NAMESPACE_NAME_LABEL, Name, Peer, Pod, PodId,
    Policy, PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec, QualifiedName,
    Requirement, Scope, Selector, Spec, Subject, Tier, Verdict, Who, World, is_lasting_label,
};

use crate::explain::{Cited, Explanation, Judgement, Reason, Side};

/// A change that would allow a denied flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Add these policies; none if the flow is already allowed. They isolate no additional pod.
    Add(Vec<Policy>),
    /// Change this rule: no added policy can precede it.
    Change(Cited),
    /// Give this pod an address of its own: no policy allows connections of a contested one.
    NewAddress(PodId),
}

/// The smallest addition to a world that would allow the flow.
pub fn remedy(world: &World, explanation: &Explanation) -> Remedy {
    let mut policies = Vec::new();
    for direction in [Direction::Egress, Direction::Ingress] {
        let Side::Judged(judgement) = explanation.side(direction) else { continue };
        if judgement.verdict == Verdict::Allow {
            continue;
        }
        if judgement.reason == Reason::Contested {
            return Remedy::NewAddress(judgement.pod.clone());
        }
        match allow(world, &explanation.flow, direction, judgement) {
            Ok(policy) => policies.push(policy),
            Err(rule) => return Remedy::Change(rule),
        }
    }
    Remedy::Add(policies)
}

fn allow(
    world: &World,
    flow: &Flow,
    direction: Direction,
    judgement: &Judgement,
) -> Result<Policy, Cited> {
    let (_, there) = flow.ends(direction);
    let (kind, tier) = match &judgement.reason {
        Reason::Admin(cited) | Reason::Baseline(cited) => {
            before(world, judgement, cited).ok_or_else(|| cited.clone())?
        }
        Reason::Isolated | Reason::Contested | Reason::Allowed(_) | Reason::Default => {
            (PolicyKind::NetworkPolicy, Tier::Namespace)
        }
    };
    let own = &judgement.pod.namespace;
    let subject =
        world.pods.get(&judgement.pod).map(|pod| selector_of(world, pod)).unwrap_or_default();
    let subject = match tier {
        Tier::Namespace => {
            Subject { scope: Scope::Own, pods: and(&subject, isolating_selector(world, judgement)) }
        }
        Tier::Admin { .. } | Tier::Baseline { .. } => Subject { scope: named(own), pods: subject },
    };
    let who = match (peer(world, there, own, tier), &judgement.reason, direction) {
        // Ingress rules of the admin tiers cannot match an address, so only a rule that denies
        // every peer can have denied it.
        (Who::Block(_), Reason::Admin(cited) | Reason::Baseline(cited), Direction::Ingress) => {
            return Err(cited.clone());
        }
        (who, ..) => who,
    };
    let rule = PolicyRule {
        index: 0,
        name: None,
        line: 0,
        action: Action::Allow,
        peers: Some(vec![Peer { index: 0, line: 0, who }]),
        ports: Some(vec![PortSpec {
            line: 0,
            ports: PortMatch::Range(PortRange::one(flow.protocol, flow.port)),
        }]),
    };
    let (ingress, egress) = match direction {
        Direction::Ingress => (Some(vec![rule]), None),
        Direction::Egress => (None, Some(vec![rule])),
    };
    let spec = Arc::new(Spec { tier, subject, ingress, egress });
    Ok(Policy {
        id: unused_id(world, kind, judgement, flow, direction),
        location: None,
        spec,
        staged: false,
    })
}

/// The position just before a rule of the admin tiers, in a policy of the same API version if
/// possible; `None` if there is no such position.
fn before(world: &World, judgement: &Judgement, cited: &Cited) -> Option<(PolicyKind, Tier)> {
    let denying = world.policies.get(&cited.section.policy)?;
    let kind = match denying.id.kind {
        PolicyKind::ClusterNetworkPolicy => PolicyKind::ClusterNetworkPolicy,
        _ => PolicyKind::AdminNetworkPolicy,
    };
    // The end of the admin tier precedes the baseline tier. If a rule passes the flow on, the
    // policy must precede that rule.
    let passing = judgement.passed.as_ref().map(|passed| &passed.section.policy);
    let priority = match passing.map(|id| world.policies.get(id).map(|policy| policy.spec.tier)) {
        None => Some(1000),
        Some(Some(Tier::Admin { priority })) => priority.checked_sub(1),
        Some(_) => None,
    };
    let last = priority.map(|priority| (kind, Tier::Admin { priority }));
    match (denying.spec.tier, kind) {
        (Tier::Admin { priority }, _) => {
            Some((kind, Tier::Admin { priority: priority.checked_sub(1)? }))
        }
        (Tier::Baseline { .. }, PolicyKind::AdminNetworkPolicy) if last.is_some() => last,
        (Tier::Baseline { priority: 0 }, _) => last,
        (Tier::Baseline { priority }, _) => {
            Some((PolicyKind::ClusterNetworkPolicy, Tier::Baseline { priority: priority - 1 }))
        }
        (Tier::Namespace, _) => None,
    }
}

/// The pod selector of a policy that isolates the pod. Every pod that it matches is isolated
/// already.
fn isolating_selector<'a>(world: &'a World, judgement: &Judgement) -> &'a [Requirement] {
    let first = judgement.isolating.first().and_then(|section| world.policies.get(&section.policy));
    first.map(|policy| policy.spec.subject.pods.requirements()).unwrap_or_default()
}

/// The other end: a pod by its labels and namespace, or else the address.
fn peer(world: &World, address: IpAddr, own: &Name, tier: Tier) -> Who {
    let owner = match world.holders(address)[..] {
        [only] => Some(only),
        _ => None,
    };
    match owner {
        Some(pod) if pod.id.namespace == *own && tier == Tier::Namespace => {
            Who::Pods { scope: Scope::Own, pods: selector_of(world, pod) }
        }
        Some(pod) if world.namespaces.contains_key(&pod.id.namespace) => {
            Who::Pods { scope: named(&pod.id.namespace), pods: selector_of(world, pod) }
        }
        Some(_) | None => Who::Block(Block::host(address)),
    }
}

/// Selects the namespace of this name, in its cluster if the world has several.
fn named(namespace: &str) -> Scope {
    let QualifiedName { cluster, name } = QualifiedName::parse(namespace);
    let by_name = Requirement::equals(NAMESPACE_NAME_LABEL, name);
    let by_cluster = cluster.map(|cluster| Requirement::equals(CLUSTER_LABEL, cluster));
    Scope::Matching([by_name].into_iter().chain(by_cluster).collect())
}

/// Selects a pod by the labels that outlive a rollout. A pod without labels is selected by the
/// absence of its neighbours' labels.
fn selector_of(world: &World, pod: &Pod) -> Selector {
    let lasting = pod.labels.iter().filter(|(key, _)| is_lasting_label(key));
    let mut requirements: Vec<Requirement> =
        lasting.map(|(key, value)| Requirement::equals(key.clone(), value.clone())).collect();
    if requirements.is_empty() {
        let neighbours = world.pods.values().filter(|other| other.id.namespace == pod.id.namespace);
        let keys: BTreeSet<&Name> =
            neighbours.flat_map(|other| other.labels.iter()).map(|(key, _)| key).collect();
        let absent = keys.into_iter().filter(|key| pod.labels.value(key).is_none());
        requirements.extend(absent.map(|key| Requirement::Absent(key.clone())));
    }
    requirements.into_iter().collect()
}

/// Combines two selectors. If the first fixes the value of a label, the requirements of the second
/// on that label are redundant.
fn and(selector: &Selector, more: &[Requirement]) -> Selector {
    let fixed = |key: &Name| {
        selector
            .requirements()
            .iter()
            .any(|one| matches!(one, Requirement::In(k, values) if k == key && values.len() == 1))
    };
    let rest = more.iter().filter(|requirement| !fixed(requirement.key()));
    selector.requirements().iter().chain(rest).cloned().collect()
}

/// An unused policy name that describes its purpose.
fn unused_id(
    world: &World,
    kind: PolicyKind,
    judgement: &Judgement,
    flow: &Flow,
    direction: Direction,
) -> PolicyId {
    let namespace: Name = match kind {
        PolicyKind::NetworkPolicy => judgement.pod.namespace.clone(),
        _ => "".into(),
    };
    let pod: String = judgement.pod.name.chars().take(200).collect();
    let base = format!("allow-{pod}-{direction}-{}-{}", flow.port, flow.protocol).to_lowercase();
    let id = |name: String| PolicyId { kind, namespace: namespace.clone(), name: name.into() };
    let candidates =
        std::iter::once(id(base.clone())).chain((2..).map(|n| id(format!("{base}-{n}"))));
    candidates.into_iter().find(|id| !world.policies.contains_key(id)).unwrap_or_else(|| id(base))
}
