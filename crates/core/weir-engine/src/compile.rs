//! Compiles policy rules: a pure function of the policy, its namespace and the endpoint's named
//! ports.

use std::collections::BTreeSet;

use weir_model::{
    Action, Block, Direction, Holders, Location, Name, NamedPort, Origin, Peer, Peers, PolicyId,
    PolicyRule, PortMatch, PortNameList, PortOwners, PortRange, Ports, Protocol, Rule, Scope,
    Section, SetId, SetKey, Tier, Who,
};

/// Every set that the rules of a policy in this namespace can use.
pub(crate) fn set_keys(
    namespace: &Name,
    rules: &[PolicyRule],
    names: &[PortNameList],
    direction: Direction,
) -> BTreeSet<SetKey> {
    let mut keys = BTreeSet::new();
    for (rule, names) in rules.iter().zip(names) {
        let numbers = may_have_numbers(rule, direction);
        for peer in peers(rule) {
            let addresses = match peer.map(|peer| target(namespace, &peer.who)) {
                Some(Target::Set(key)) if numbers => Some(key),
                _ => None,
            };
            for key in addresses.into_iter().chain(port_key(namespace, names, peer)) {
                let every = effects(rule.action).iter().filter_map(|(_, by)| held(&key, *by));
                keys.extend(every);
            }
        }
    }
    keys
}

/// Whether the compiled rules depend on the named ports of the endpoint.
pub(crate) fn depends_on_ports(rules: &[PolicyRule], direction: Direction) -> bool {
    direction == Direction::Ingress && rules.iter().any(|rule| names(rule).next().is_some())
}

/// Compiles one direction of a policy.
pub(crate) fn section(
    (policy, location): (&PolicyId, &Option<Location>),
    rules: &[PolicyRule],
    port_names: &[PortNameList],
    direction: Direction,
    ports: &[NamedPort],
    set: impl Fn(SetKey) -> SetId,
) -> Section {
    let (mut compiled, mut idle) = (Vec::new(), Vec::new());
    let effects = rules.iter().zip(port_names).flat_map(|(rule, port_names)| {
        effects(rule.action).iter().map(move |effect| (rule, port_names, effect))
    });
    for (rule, port_names, &(action, by)) in effects {
        let numbers = numbers(rule, direction, ports);
        let nameless = direction == Direction::Ingress && names(rule).next().is_some();
        for peer in peers(rule) {
            let origin = Origin {
                direction,
                rule: rule.index,
                peer: peer.map(|p| p.index),
                line: peer.map_or(rule.line, |p| p.line),
            };
            let made = |peers, ports| Rule { peers, ports, action, origin: origin.clone() };
            let addresses = || match peer.map(|peer| target(&policy.namespace, &peer.who)) {
                None => matches_uncontested(by).then_some(Peers::Any),
                Some(Target::Set(key)) => held(&key, by).map(|key| Peers::Set(set(key))),
                Some(Target::Block(block)) => {
                    matches_uncontested(by).then_some(Peers::Block(block))
                }
            };
            match &numbers {
                Some(numbers) => {
                    compiled.extend(addresses().map(|peers| made(peers, numbers.clone())));
                }
                None if nameless => {
                    idle.extend(addresses().map(|peers| made(peers, Ports::Any)));
                }
                None => (),
            }
            if let Some(key) = port_key(&policy.namespace, port_names, peer) {
                let key = held(&key, by);
                compiled.extend(key.map(|key| made(Peers::PortSet(set(key)), Ports::Any)));
            }
        }
    }
    Section { policy: policy.clone(), location: location.clone(), rules: compiled, idle }
}

/// One direction of a policy that is locked down: it allows nothing.
pub(crate) fn locked_down(
    (policy, location): (&PolicyId, &Option<Location>),
    tier: Tier,
    direction: Direction,
) -> Section {
    let origin = Origin { direction, rule: 0, peer: None, line: 0 };
    let deny = Rule { peers: Peers::Any, ports: Ports::Any, action: Action::Deny, origin };
    // In the namespace tier, a section without rules isolates.
    let rules = if tier == Tier::Namespace { Vec::new() } else { vec![deny] };
    Section { policy: policy.clone(), location: location.clone(), rules, idle: Vec::new() }
}

/// The effects of a rule on addresses, in order of evaluation, with the holders that it must select.
/// A contested address is allowed only if all of its holders are, and denied if one of them is.
fn effects(action: Action) -> &'static [(Action, Option<Holders>)] {
    match action {
        Action::Allow => &[(Action::Allow, None)],
        Action::Deny => &[(Action::Deny, Some(Holders::Any))],
        // If only some holders pass, any further rule could be wrong about one of them.
        Action::Pass => &[(Action::Pass, None), (Action::Deny, Some(Holders::NotAll))],
    }
}

/// The part of a set for these holders; none if it can have no members.
fn held(key: &SetKey, by: Option<Holders>) -> Option<SetKey> {
    match (key, by) {
        (SetKey::PodsIn(..) | SetKey::Pods { .. } | SetKey::Ports { .. }, Some(holders)) => {
            Some(SetKey::HeldBy(holders, Box::new(key.clone())))
        }
        _ => matches_uncontested(by).then(|| key.clone()),
    }
}

/// Whether addresses that are not contested can match.
fn matches_uncontested(by: Option<Holders>) -> bool {
    by != Some(Holders::NotAll)
}

/// The peers of a rule; a single `None` if it matches every peer.
fn peers(rule: &PolicyRule) -> impl Iterator<Item = Option<&Peer>> {
    let everyone = rule.peers.is_none().then_some(None);
    everyone.into_iter().chain(rule.peers.iter().flatten().map(Some))
}

/// The port numbers of a rule; `None` if it has none. On ingress, a name stands for the port that
/// the endpoint itself declares.
fn numbers(rule: &PolicyRule, direction: Direction, own: &[NamedPort]) -> Option<Ports> {
    let Some(specs) = &rule.ports else { return Some(Ports::Any) };
    let mut ranges: Vec<PortRange> = Vec::new();
    for spec in specs {
        match &spec.ports {
            PortMatch::Range(range) => ranges.push(*range),
            PortMatch::Named { .. } => (),
        }
    }
    if direction == Direction::Ingress && !own.is_empty() {
        let names = names(rule).map(|(name, protocol)| (name.clone(), protocol));
        let names = PortNameList::from_names(names);
        let named = own.iter().filter(|port| names.contains(port));
        ranges.extend(named.map(|port| PortRange::one(port.protocol, port.port)));
    }
    Ports::from_ranges(ranges)
}

/// Whether a rule has port numbers on some endpoint.
fn may_have_numbers(rule: &PolicyRule, direction: Direction) -> bool {
    rule.ports.as_ref().is_none_or(|specs| {
        specs.iter().any(|spec| match spec.ports {
            PortMatch::Range(_) => true,
            PortMatch::Named { .. } => direction == Direction::Ingress,
        })
    })
}

/// The set of named ports that an egress rule needs for one of its peers.
fn port_key(namespace: &Name, names: &PortNameList, peer: Option<&Peer>) -> Option<SetKey> {
    if names.is_empty() {
        return None;
    }
    let owners = owners(namespace, peer)?;
    Some(SetKey::Ports { owners, names: names.clone() })
}

/// The port names that the sets of each rule contain. On ingress, the endpoint itself declares the
/// ports, so there is no set. All sets of a rule share one list, which is compared by its address.
pub(crate) fn port_names(rules: &[PolicyRule], direction: Direction) -> Vec<PortNameList> {
    let is_used = direction == Direction::Egress;
    let of_rule = |rule| {
        let names = names(rule).filter(|_| is_used);
        PortNameList::from_names(names.map(|(name, protocol)| (name.clone(), protocol)))
    };
    rules.iter().map(of_rule).collect()
}

/// The port names that a rule uses.
fn names(rule: &PolicyRule) -> impl Iterator<Item = (&Name, Option<Protocol>)> {
    rule.ports.iter().flatten().filter_map(|spec| match &spec.ports {
        PortMatch::Named { name, protocol } => Some((name, *protocol)),
        PortMatch::Range(_) => None,
    })
}

/// How to match the addresses of a peer.
enum Target {
    Set(SetKey),
    Block(Block),
}

fn target(namespace: &Name, who: &Who) -> Target {
    match who {
        Who::Pods { scope: Scope::Own, pods } => {
            Target::Set(SetKey::PodsIn(namespace.clone(), pods.clone()))
        }
        Who::Pods { scope: Scope::Matching(namespaces), pods } => {
            Target::Set(SetKey::Pods { namespaces: namespaces.clone(), pods: pods.clone() })
        }
        Who::Nodes(selector) => Target::Set(SetKey::Nodes(selector.clone())),
        Who::Domain(pattern) => Target::Set(SetKey::Domain(pattern.clone())),
        Who::Block(block) => Target::Block(block.clone()),
    }
}

/// The pods whose named ports an egress rule uses. Nodes and domains have no named ports: the API
/// server rejects the combination.
fn owners(namespace: &Name, peer: Option<&Peer>) -> Option<PortOwners> {
    match peer.map(|peer| &peer.who) {
        None => Some(PortOwners::Everyone),
        Some(Who::Pods { scope: Scope::Own, pods }) => {
            Some(PortOwners::PodsIn(namespace.clone(), pods.clone()))
        }
        Some(Who::Pods { scope: Scope::Matching(namespaces), pods }) => {
            Some(PortOwners::Pods { namespaces: namespaces.clone(), pods: pods.clone() })
        }
        Some(Who::Block(block)) => Some(PortOwners::Block(block.clone())),
        Some(Who::Nodes(_) | Who::Domain(_)) => None,
    }
}
