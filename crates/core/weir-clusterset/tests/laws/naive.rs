//! The meaning of policies over several clusters, evaluated pod by pod.

use super::*;

fn holds(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| {
        let value = labels.value(requirement.key());
        match requirement {
            Requirement::In(_, values) => value.is_some_and(|value| values.contains(value)),
            Requirement::NotIn(_, values) => !value.is_some_and(|value| values.contains(value)),
            Requirement::Exists(_) => value.is_some(),
            Requirement::Absent(_) => value.is_none(),
        }
    })
}

fn selects(policy: &Policy, rule: &PolicyRule, world: &World, pod: &Pod) -> bool {
    rule.peers.iter().flatten().any(|peer| {
        let Who::Pods { scope, pods } = &peer.who else { return false };
        let namespace = &pod.id.namespace;
        let reaches = match scope {
            Scope::Own => *namespace == policy.id.namespace,
            Scope::Matching(selector) if selector.is_everything() => true,
            Scope::Matching(selector) => world
                .namespaces
                .get(namespace)
                .is_some_and(|namespace| holds(selector, &namespace.labels)),
        };
        reaches && holds(pods, &pod.labels)
    })
}

/// Whether a rule allows the port of a flow. `at` is the destination pod.
fn port(rule: &PolicyRule, flow: &Flow, at: &Pod) -> bool {
    let Some(ports) = &rule.ports else { return true };
    ports.iter().any(|port| match &port.ports {
        PortMatch::Range(range) => range.contains(flow.protocol, flow.port),
        PortMatch::Named { name, protocol } => at.ports.iter().any(|port| {
            port.name == *name
                && port.port == flow.port
                && port.protocol == flow.protocol
                && protocol.is_none_or(|protocol| protocol == flow.protocol)
        }),
    })
}

/// Whether some policy allows a flow in a direction because of remote pods.
fn remote(
    policies: &[Policy],
    home: &World,
    others: &BTreeMap<Name, World>,
    flow: &Flow,
    direction: Direction,
    is_trusted: fn(&str, IpAddr) -> bool,
) -> bool {
    let (own, other) = flow.ends(direction);
    let [pod] = home.holders(own)[..] else { return false };
    let claimants: Vec<(&World, &Pod)> = others
        .iter()
        .filter(|(cluster, _)| is_trusted(cluster, other))
        .map(|(_, world)| world)
        .flat_map(|world| world.pods.values().map(move |pod| (world, pod)))
        .filter(|(_, pod)| pod.own_addresses().contains(&other))
        .collect();
    policies.iter().any(|policy| {
        let subject = &policy.spec.subject;
        policy.id.namespace == pod.id.namespace
            && holds(&subject.pods, &pod.labels)
            && policy.rules(direction).unwrap_or_default().iter().any(|rule| {
                !claimants.is_empty()
                    && claimants.iter().all(|(world, remote)| {
                        let destination = match direction {
                            Direction::Ingress => pod,
                            Direction::Egress => *remote,
                        };
                        selects(policy, rule, world, remote) && port(rule, flow, destination)
                    })
            })
    })
}

/// The verdict of our cluster for a flow.
pub(super) fn verdict(
    home: &World,
    policies: &[Policy],
    others: &BTreeMap<Name, World>,
    flow: &Flow,
    is_trusted: fn(&str, IpAddr) -> bool,
) -> Verdict {
    // Each direction separately: a remote pod that one direction allows must also be allowed by the
    // other.
    let sides = Direction::BOTH.map(|direction| {
        let mut world = home.clone();
        for policy in policies {
            let mut spec = (*policy.spec).clone();
            match direction {
                Direction::Ingress => spec.egress = None,
                Direction::Egress => spec.ingress = None,
            }
            let id = named(&policy.id);
            let policy = Policy { id, spec: Arc::new(spec), ..policy.clone() };
            world.apply(Change::Put(Object::Policy(policy)));
        }
        if remote(policies, home, others, flow, direction, is_trusted) {
            Verdict::Allow
        } else {
            weir_oracle::verdict(&world, flow)
        }
    });
    sides[0].and(sides[1])
}
