//! The rules of a tier, merged so that a packet's cost does not depend on their number.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use weir_model::{
    Action, Block, Direction, IpFamily, Name, Peers, PortRange, Ports, Program, Protocol,
    Requirement, Section, Selector, SetId, SetKey,
};

use crate::{
    Act, Aim, Field, Go, Key, Kind, Planner, Rule, Set, chain,
    decision::Decision,
    intervals::segments,
    names::{self, comment, digest},
    objects::Objects,
    peers::PeerMap,
};

/// An ordered list of rules. The first match decides.
///
/// Set names contain a digest of the `Debug` output, so renaming a field renames sets.
#[derive(Debug, Default)]
pub(crate) struct Tier {
    rules: Vec<(Ports, Action)>,
    /// The numbers of the rules for any peer.
    anyone: Vec<usize>,
    /// The numbers of the rules for each set.
    pub(crate) sets: BTreeMap<SetId, Vec<usize>>,
    /// The numbers of the rules for each block.
    blocks: BTreeMap<Block, Vec<usize>>,
}

impl Tier {
    /// The rules of policies, in order.
    pub(crate) fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut tier = Tier::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            tier.push(&rule.peers, &rule.ports, rule.action);
        }
        tier
    }

    /// Appends a rule.
    pub(crate) fn push(&mut self, peers: &Peers, ports: &Ports, action: Action) {
        let number = self.rules.len();
        self.rules.push((ports.clone(), action));
        match peers {
            Peers::Any => self.anyone.push(number),
            Peers::Set(set) | Peers::PortSet(set) => {
                self.sets.entry(set.clone()).or_default().push(number);
            }
            Peers::Block(block) => self.blocks.entry(block.clone()).or_default().push(number),
        }
    }
}

/// A tier for one direction and family, with the actions of its decisions.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) tier: Arc<Tier>,
    pub(crate) direction: Direction,
    pub(crate) family: IpFamily,
    /// The decision if no rule matches. After `Pass`, a later tier decides.
    pub(crate) end: Action,
    /// The action for allowed packets.
    allow: Act,
    /// The policies, for human readers.
    why: Name,
}

/// The number of a rule that matches a peer. For a set of named ports, with the peer's port.
pub(crate) type Fit = (usize, Option<(Protocol, u16)>);

impl Judge {
    /// The admin tier. Allowed packets skip later tiers of this direction, and passed ones return.
    pub(crate) fn admin(sections: &[Arc<Section>], direction: Direction, family: IpFamily) -> Self {
        let allow = match direction {
            // Ingress rules are the last ones that apply to a packet.
            Direction::Ingress => Act::Accept,
            Direction::Egress => Act::Goto(names::onward_chain(family)),
        };
        let why = comment(&format!("decided by {}", chain::policy_names(sections)));
        let tier = Arc::new(Tier::from_sections(sections));
        Judge { tier, direction, family, end: Action::Pass, allow, why }
    }

    /// The baseline tier, which is the last one.
    pub(crate) fn baseline(
        sections: &[Arc<Section>],
        direction: Direction,
        family: IpFamily,
    ) -> Self {
        let why = comment(&format!("decided by {}", chain::policy_names(sections)));
        let tier = Arc::new(Tier::from_sections(sections));
        Judge { tier, direction, family, end: Action::Allow, allow: Act::Return, why }
    }

    /// The policies that isolate a pod. They deny everything that they do not allow.
    pub(crate) fn isolation(tier: Tier, direction: Direction, family: IpFamily, why: Name) -> Self {
        let tier = Arc::new(tier);
        Judge { tier, direction, family, end: Action::Deny, allow: Act::Return, why }
    }

    /// The rules that decide: a lookup for pods, one for blocks, and the decision for other peers.
    pub(crate) fn rules(&self, planner: &mut Planner, program: &Program) -> Vec<Rule> {
        let mut rules = Vec::new();
        rules.extend(self.lookup_members(planner, program));
        rules.extend(self.lookup_blocks(&mut planner.objects));
        rules.extend(self.decision_rules(&mut planner.objects, &self.decide(Vec::new())));
        rules
    }

    /// The decision about a peer that these rules match, in addition to those for any peer.
    pub(crate) fn decide(&self, mut fits: Vec<Fit>) -> Decision {
        fits.extend(self.tier.anyone.iter().map(|number| (*number, None)));
        fits.sort_unstable();
        let rules: Vec<(Ports, Action)> = fits
            .into_iter()
            .filter_map(|(number, port)| {
                let (ports, action) = self.tier.rules.get(number)?;
                let own = |(protocol, port)| Ports::Of(vec![PortRange::one(protocol, port)]);
                Some((port.map_or_else(|| ports.clone(), own), *action))
            })
            .collect();
        Decision::from_rules(&rules, self.end)
    }

    /// The target that carries out a decision.
    pub(crate) fn aim(&self, objects: &mut Objects, decision: &Decision) -> Aim {
        self.plain_aim(decision).unwrap_or_else(|| Aim::goto(self.chain(objects, decision)))
    }

    /// The target, if it needs no chain.
    fn plain_aim(&self, decision: &Decision) -> Option<Aim> {
        let go = match self.rule(decision.for_all_ports()?).act {
            Act::Return => Go::Return,
            Act::Accept => Go::Accept,
            _ => return None,
        };
        Some(Aim { go, comment: Name::from("") })
    }

    fn chain(&self, objects: &mut Objects, decision: &Decision) -> Name {
        let rules = self.decision_rules(objects, decision);
        chain::add_by_content(objects, self.direction, self.family, "-ports", rules)
    }

    /// Of the decisions that need a chain, the one that probably concerns most members. It is
    /// estimated from the rules alone, so that it does not change with the members.
    fn usual(&self) -> Option<Decision> {
        // By decision: the label count of its widest set, and the number of its sets.
        let mut sizes: BTreeMap<Decision, (usize, usize)> = BTreeMap::new();
        for (set, rules) in &self.tier.sets {
            let Some(labels) = required_labels(set) else { continue };
            let decision = self.decide(rules.iter().map(|number| (*number, None)).collect());
            if self.plain_aim(&decision).is_none() {
                let (widest, sets) = sizes.entry(decision).or_insert((labels, 0));
                *widest = labels.min(*widest);
                *sets += 1;
            }
        }
        let size = |(decision, (widest, sets)): &(Decision, (usize, usize))| {
            (*widest, Reverse(*sets), decision.for_all_ports().is_none())
        };
        sizes.into_iter().min_by_key(size).map(|(decision, _)| decision)
    }

    /// The pieces into which blocks divide the addresses, with the rules for each.
    pub(crate) fn pieces(&self) -> Vec<(Key, Vec<usize>)> {
        let blocks = &self.tier.blocks;
        let pieces = segments(blocks.keys(), self.family).into_iter();
        let rules = |inside: Vec<&Block>| {
            inside.into_iter().filter_map(|block| blocks.get(block)).flatten().copied().collect()
        };
        pieces.map(|(interval, inside)| (interval, rules(inside))).collect()
    }

    /// A lookup in the map from the addresses of pods to decisions.
    fn lookup_members(&self, planner: &mut Planner, program: &Program) -> Option<Rule> {
        let sets = self.tier.sets.len();
        if sets == 0 {
            return None;
        }
        let usual = self.usual();
        let name = self.name("peers", usual.as_ref());
        if !planner.maps.contains_key(&name) {
            let meaning = match self.tier.sets.keys().next() {
                Some(one) if sets == 1 => comment(&one.to_string()),
                _ => comment(&format!("{sets} sets of pods together")),
            };
            let (map, elements) =
                PeerMap::new(self.clone(), usual.clone(), &mut planner.objects, program);
            let set = Set { kind: Kind::Chains(self.family), comment: meaning, elements };
            planner.objects.add_set(&name, set);
            planner.register_map(&name, map);
        }
        let key = vec![Field::peer(self.direction, self.family)];
        let Some(usual) = usual else { return Some(Rule::new([], Act::Map(key, name))) };
        let (chain, comment) = match usual.for_all_ports().map(|action| self.rule(action)) {
            Some(Rule { act: Act::Goto(chain), comment, .. }) => (chain, comment),
            _ => (self.chain(&mut planner.objects, &usual), Name::from("")),
        };
        Some(Rule { matches: Vec::new(), act: Act::MapOr(key, name, chain), comment })
    }

    /// A lookup in the map from the pieces of blocks to decisions.
    fn lookup_blocks(&self, objects: &mut Objects) -> Option<Rule> {
        let mut elements = BTreeMap::new();
        // Many pieces share a list of rules.
        let mut known: BTreeMap<Vec<usize>, Arc<Aim>> = BTreeMap::new();
        for (interval, rules) in self.pieces() {
            let aim = match known.entry(rules) {
                Entry::Occupied(entry) => entry.get().clone(),
                Entry::Vacant(entry) => {
                    let fits = entry.key().iter().map(|number| (*number, None)).collect();
                    let aim = self.aim(objects, &self.decide(fits));
                    entry.insert(aim.into()).clone()
                }
            };
            elements.insert(interval, Some(aim));
        }
        if elements.is_empty() {
            return None;
        }
        let name = self.name("ranges", None);
        let blocks = &self.tier.blocks;
        let meaning = match blocks.keys().next() {
            Some(one) if blocks.len() == 1 => comment(&one.to_string()),
            _ => comment(&format!("{} blocks together", blocks.len())),
        };
        let kind = Kind::BlockChains(self.family);
        objects.add_set(&name, Set { kind, comment: meaning, elements });
        Some(Rule::new([], Act::Map(vec![Field::peer(self.direction, self.family)], name)))
    }

    /// The rules that carry out a decision.
    fn decision_rules(&self, objects: &mut Objects, decision: &Decision) -> Vec<Rule> {
        let others = decision.others;
        let listed = [Action::Allow, Action::Deny, Action::Pass].into_iter();
        let mut rules: Vec<Rule> = listed
            .filter(|action| *action != others)
            .filter_map(|action| {
                let ports = decision.ports(action)?;
                Some(Rule { matches: chain::match_ports(objects, &ports), ..self.rule(action) })
            })
            .collect();
        rules.push(self.rule(others));
        rules
    }

    fn rule(&self, action: Action) -> Rule {
        let act = match action {
            Action::Allow => self.allow.clone(),
            Action::Deny => Act::Goto(names::denied_chain(self.direction)),
            Action::Pass => Act::Return,
        };
        match act {
            Act::Return => Rule::new([], act),
            act => Rule { matches: Vec::new(), act, comment: self.why.clone() },
        }
    }

    /// A name that digests all rules and actions, because the target of a peer depends on all of
    /// them.
    fn name(&self, word: &str, usual: Option<&Decision>) -> Name {
        let done = (&self.allow, &self.why, usual);
        let meaning = format!("{:?}", (&self.tier, self.direction, self.end, done));
        format!("{word}{}-{}", self.family.digit(), digest(&meaning)).into()
    }
}

/// The number of labels that members of a set must have: more labels mean fewer members. `None` if
/// each member gets its own decision.
fn required_labels(set: &SetKey) -> Option<usize> {
    let labels = |selector: &Selector| {
        let is_required =
            |one: &&Requirement| matches!(one, Requirement::In(..) | Requirement::Exists(_));
        selector.requirements().iter().filter(is_required).count()
    };
    match set {
        SetKey::Pods { namespaces, pods } => Some(labels(namespaces) + labels(pods)),
        SetKey::PodsIn(_, pods) => Some(1 + labels(pods)),
        SetKey::Nodes(_) | SetKey::Node(_) | SetKey::Domain(_) => Some(usize::MAX),
        SetKey::Ports { .. } => None,
    }
}
