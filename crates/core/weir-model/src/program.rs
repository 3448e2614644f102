use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    Action, Chain, Delta, Direction, Endpoint, Flow, Member, Peers, PodId, Ports, Protocol, Rule,
    Section, SetDelta, SetId, SetKey, Verdict,
};

/// Everything in force: the sum of all deltas. It is the reference that every datapath must agree
/// with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The endpoints.
    pub endpoints: BTreeMap<PodId, Endpoint>,
    /// The sets that the rules use.
    pub sets: BTreeMap<SetId, BTreeSet<Member>>,
    owners: BTreeMap<IpAddr, PodId>,
}

impl Program {
    /// Applies a delta and returns the delta that reverts it.
    pub fn apply(&mut self, delta: Delta) -> Delta {
        let mut undo = Delta::default();
        for (id, set) in delta.sets {
            let back = match set {
                SetDelta::Put(members) => {
                    self.sets.insert(id.clone(), members).map_or_else(SetDelta::gone, SetDelta::Put)
                }
                SetDelta::Change { added, removed } => self.change(&id, added, removed),
                SetDelta::Gone { .. } => match self.sets.remove(&id) {
                    Some(members) => SetDelta::Put(members),
                    None => continue,
                },
            };
            undo.sets.insert(id, back);
        }
        // Remove all old owners first: an address can move from one pod to another in the same
        // delta.
        for id in delta.endpoints.keys() {
            let old = self.endpoints.remove(id);
            for address in old.iter().flat_map(|old| &old.addresses) {
                if self.owners.get(address) == Some(id) {
                    self.owners.remove(address);
                }
            }
            undo.endpoints.insert(id.clone(), old);
        }
        for (id, endpoint) in delta.endpoints {
            let Some(endpoint) = endpoint else { continue };
            self.owners.extend(endpoint.addresses.iter().map(|address| (*address, id.clone())));
            self.endpoints.insert(id, endpoint);
        }
        undo
    }

    fn change(
        &mut self,
        id: &SetId,
        mut added: BTreeSet<Member>,
        mut removed: BTreeSet<Member>,
    ) -> SetDelta {
        let is_new = !self.sets.contains_key(id);
        let members = self.sets.entry(id.clone()).or_default();
        removed.retain(|member| members.remove(member));
        added.retain(|member| members.insert(*member));
        if is_new { SetDelta::gone() } else { SetDelta::Change { added: removed, removed: added } }
    }

    /// The pod that owns an address, if it is an endpoint of this program.
    pub fn owner(&self, address: IpAddr) -> Option<(&PodId, &Endpoint)> {
        let id = self.owners.get(&address)?;
        Some((id, self.endpoints.get(id)?))
    }

    /// Whether the rules of the endpoints here allow a connection.
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        Direction::BOTH
            .into_iter()
            .map(|direction| self.side(flow, direction))
            .fold(Verdict::Allow, Verdict::and)
    }

    /// The verdict of the rules for one direction. Without an endpoint to which they apply, the
    /// flow is allowed.
    pub fn side(&self, flow: &Flow, direction: Direction) -> Verdict {
        let matches = |rule: &Rule| self.matches(rule, flow);
        self.side_by(flow, direction, &matches)
    }

    /// The verdict on packets of a protocol without ports, such as ICMP. A rule with ports does not
    /// match them.
    pub fn verdict_without_ports(&self, from: IpAddr, to: IpAddr) -> Verdict {
        // The protocol and the port are not evaluated.
        let flow = Flow { from, to, protocol: Protocol::Tcp, port: 0 };
        let matches = |rule: &Rule| {
            let has_ports = rule.ports != Ports::Any || matches!(rule.peers, Peers::PortSet(_));
            !has_ports && self.matches_peer(rule, &flow)
        };
        let sides = Direction::BOTH.map(|direction| self.side_by(&flow, direction, &matches));
        sides.into_iter().fold(Verdict::Allow, Verdict::and)
    }

    /// The verdict of the rules for one direction, as if exactly those rules matched the flow for
    /// which `matches` holds.
    pub fn side_by(
        &self,
        flow: &Flow,
        direction: Direction,
        matches: &dyn Fn(&Rule) -> bool,
    ) -> Verdict {
        match self.judged(flow, direction) {
            None => Verdict::Allow,
            Some((_, endpoint)) => chain_verdict(endpoint.rules.chain(direction), matches),
        }
    }

    /// The endpoint whose rules for this direction apply to the flow. There is none if the address
    /// belongs to no endpoint here, if a pod connects to itself, or if a node connects to a pod that
    /// runs on it.
    pub fn judged(&self, flow: &Flow, direction: Direction) -> Option<(&PodId, &Endpoint)> {
        let (here, there) = flow.ends(direction);
        let (id, endpoint) = self.owner(here)?;
        let is_from_node = direction == Direction::Ingress && self.is_own_node(endpoint, there);
        let is_exempt = endpoint.addresses.contains(&there) || is_from_node;
        (!is_exempt).then_some((id, endpoint))
    }

    /// Whether the address belongs to the node that the endpoint runs on.
    pub fn is_own_node(&self, endpoint: &Endpoint, address: IpAddr) -> bool {
        let Some(node) = &endpoint.node else { return false };
        let set = SetId::new(SetKey::Node(node.clone()));
        self.sets.get(&set).is_some_and(|members| members.contains(&address.into()))
    }

    /// Whether a rule matches a flow in the direction of the rule.
    pub fn matches(&self, rule: &Rule, flow: &Flow) -> bool {
        rule.ports.contains(flow.protocol, flow.port) && self.matches_peer(rule, flow)
    }

    /// Whether the rule's peers include the other end of the flow.
    pub fn matches_peer(&self, rule: &Rule, flow: &Flow) -> bool {
        let (_, there) = flow.ends(rule.origin.direction);
        let contains = |set: &SetId, member: Member| {
            self.sets.get(set).is_some_and(|members| members.contains(&member))
        };
        match &rule.peers {
            Peers::Any => true,
            Peers::Block(block) => block.contains(there),
            Peers::Set(set) => contains(set, there.into()),
            Peers::PortSet(set) => {
                contains(set, Member { address: there, port: Some((flow.protocol, flow.port)) })
            }
        }
    }
}

fn chain_verdict(chain: &Chain, matches: &dyn Fn(&Rule) -> bool) -> Verdict {
    let first_match = |sections: &[Arc<Section>]| {
        let mut rules = sections.iter().flat_map(|section| &section.rules);
        rules.find(|rule| matches(rule)).map(|rule| rule.action)
    };
    match first_match(&chain.admin) {
        Some(Action::Allow) => return Verdict::Allow,
        Some(Action::Deny) => return Verdict::Deny,
        Some(Action::Pass) | None => (),
    }
    match &chain.isolation {
        Some(sections) => {
            let mut rules = sections.iter().flat_map(|section| &section.rules);
            if rules.any(matches) { Verdict::Allow } else { Verdict::Deny }
        }
        None if first_match(&chain.baseline) == Some(Action::Deny) => Verdict::Deny,
        None => Verdict::Allow,
    }
}
