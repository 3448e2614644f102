//! The rules of a tier, merged so that a packet's cost does not depend on their number.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
};

use weir_datapath::policy_names;
use weir_model::{
    Action, Block, Direction, IpFamily, Name, Peers, PortRange, Ports, Program, Protocol,
    Requirement, Section, Selector, SetId, SetKey,
};

use crate::{
    ElementData, ElementKey, Field, NftRule, NftSet, NftVerdict, Planner, SetKind, Statement,
    chain,
    decision::Decision,
    intervals::segments,
    names::{self, comment, digest},
    objects::Objects,
    peers::PeerMap,
};

/// An ordered list of rules. The first match decides.
///
/// Set names contain a digest of the `Debug` output, which therefore never changes.
#[derive(Default)]
pub(crate) struct OrderedRules {
    rules: Vec<(Ports, Action)>,
    /// The numbers of the rules for any peer.
    anyone: Vec<usize>,
    /// The numbers of the rules for each set.
    pub(crate) sets: BTreeMap<SetId, Vec<usize>>,
    /// The numbers of the rules for each block.
    blocks: BTreeMap<Block, Vec<usize>>,
}

impl fmt::Debug for OrderedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OrderedRules { rules, anyone, sets, blocks } = self;
        let mut text = f.debug_struct("Tier");
        text.field("rules", rules).field("anyone", anyone);
        text.field("sets", sets).field("blocks", blocks).finish()
    }
}

impl OrderedRules {
    /// The rules of policies, in order.
    pub(crate) fn from_sections(sections: &[Arc<Section>]) -> Self {
        let mut ordered = OrderedRules::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            ordered.push(&rule.peers, &rule.ports, rule.action);
        }
        ordered
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

/// Compiles the rules of a tier for one direction and family.
#[derive(Clone, Debug)]
pub(crate) struct TierCompiler {
    pub(crate) rules: Arc<OrderedRules>,
    pub(crate) direction: Direction,
    pub(crate) family: IpFamily,
    /// The decision if no rule matches. After `Pass`, a later tier decides.
    pub(crate) end: Action,
    /// The action for allowed packets.
    allow: Statement,
    /// The policies, for human readers.
    why: Name,
}

/// The number of a rule that matches a peer. For a set of named ports, with the peer's port.
pub(crate) type MatchedRule = (usize, Option<(Protocol, u16)>);

impl TierCompiler {
    /// The admin tier. Allowed packets skip later tiers of this direction, and passed ones return.
    pub(crate) fn admin(sections: &[Arc<Section>], direction: Direction, family: IpFamily) -> Self {
        let allow = match direction {
            // Ingress rules are the last ones that apply to a packet.
            Direction::Ingress => Statement::Accept,
            Direction::Egress => Statement::Goto(names::onward_chain(family)),
        };
        let why = comment(&format!("decided by {}", policy_names(sections)));
        let rules = Arc::new(OrderedRules::from_sections(sections));
        TierCompiler { rules, direction, family, end: Action::Pass, allow, why }
    }

    /// The baseline tier, which is the last one.
    pub(crate) fn baseline(
        sections: &[Arc<Section>],
        direction: Direction,
        family: IpFamily,
    ) -> Self {
        let why = comment(&format!("decided by {}", policy_names(sections)));
        let rules = Arc::new(OrderedRules::from_sections(sections));
        TierCompiler { rules, direction, family, end: Action::Allow, allow: Statement::Return, why }
    }

    /// The policies that isolate a pod. They deny everything that they do not allow.
    pub(crate) fn isolation(
        rules: OrderedRules,
        direction: Direction,
        family: IpFamily,
        why: Name,
    ) -> Self {
        let rules = Arc::new(rules);
        TierCompiler { rules, direction, family, end: Action::Deny, allow: Statement::Return, why }
    }

    /// The rules that decide: a lookup for pods, one for blocks, and the decision for other peers.
    pub(crate) fn compile(&self, planner: &mut Planner, program: &Program) -> Vec<NftRule> {
        let mut rules = Vec::new();
        rules.extend(self.lookup_members(planner, program));
        rules.extend(self.lookup_blocks(&mut planner.objects));
        rules.extend(self.decision_rules(&mut planner.objects, &self.decide(Vec::new())));
        rules
    }

    /// The decision about a peer that these rules match, in addition to those for any peer.
    pub(crate) fn decide(&self, mut fits: Vec<MatchedRule>) -> Decision {
        fits.extend(self.rules.anyone.iter().map(|number| (*number, None)));
        fits.sort_unstable();
        let rules: Vec<(Ports, Action)> = fits
            .into_iter()
            .filter_map(|(number, port)| {
                let (ports, action) = self.rules.rules.get(number)?;
                let own = |(protocol, port)| Ports::Of(vec![PortRange::one(protocol, port)]);
                Some((port.map_or_else(|| ports.clone(), own), *action))
            })
            .collect();
        Decision::from_rules(&rules, self.end)
    }

    /// The element data that carries out a decision.
    pub(crate) fn element_data(&self, objects: &mut Objects, decision: &Decision) -> ElementData {
        self.data_without_chain(decision)
            .unwrap_or_else(|| ElementData::goto(self.add_chain(objects, decision)))
    }

    /// The element data, if it needs no chain.
    fn data_without_chain(&self, decision: &Decision) -> Option<ElementData> {
        let verdict = match self.rule(decision.for_all_ports()?).statement {
            Statement::Return => NftVerdict::Return,
            Statement::Accept => NftVerdict::Accept,
            _ => return None,
        };
        Some(ElementData { verdict, comment: Name::from("") })
    }

    fn add_chain(&self, objects: &mut Objects, decision: &Decision) -> Name {
        let rules = self.decision_rules(objects, decision);
        chain::add_by_content(objects, self.direction, self.family, "-ports", rules)
    }

    /// Of the decisions that need a chain, the one that probably concerns most members. It is
    /// estimated from the rules alone, so that it does not change with the members.
    fn usual(&self) -> Option<Decision> {
        // By decision: the label count of its widest set, and the number of its sets.
        let mut sizes: BTreeMap<Decision, (usize, usize)> = BTreeMap::new();
        for (set, rules) in &self.rules.sets {
            let Some(labels) = required_labels(set) else { continue };
            let decision = self.decide(rules.iter().map(|number| (*number, None)).collect());
            if self.data_without_chain(&decision).is_none() {
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
    pub(crate) fn pieces(&self) -> Vec<(ElementKey, Vec<usize>)> {
        let blocks = &self.rules.blocks;
        let pieces = segments(blocks.keys(), self.family).into_iter();
        let rules = |inside: Vec<&Block>| {
            inside.into_iter().filter_map(|block| blocks.get(block)).flatten().copied().collect()
        };
        pieces.map(|(interval, inside)| (interval, rules(inside))).collect()
    }

    /// A lookup in the map from the addresses of pods to decisions.
    fn lookup_members(&self, planner: &mut Planner, program: &Program) -> Option<NftRule> {
        let sets = self.rules.sets.len();
        if sets == 0 {
            return None;
        }
        let usual = self.usual();
        let name = self.name("peers", usual.as_ref());
        if !planner.maps.contains_key(&name) {
            let meaning = match self.rules.sets.keys().next() {
                Some(one) if sets == 1 => comment(&one.to_string()),
                _ => comment(&format!("{sets} sets of pods together")),
            };
            let (map, elements) =
                PeerMap::new(self.clone(), usual.clone(), &mut planner.objects, program);
            let set = NftSet { kind: SetKind::Chains(self.family), comment: meaning, elements };
            planner.objects.add_set(&name, set);
            planner.register_map(&name, map);
        }
        let key = vec![Field::peer(self.direction, self.family)];
        let Some(usual) = usual else { return Some(NftRule::new([], Statement::Map(key, name))) };
        let (chain, comment) = match usual.for_all_ports().map(|action| self.rule(action)) {
            Some(NftRule { statement: Statement::Goto(chain), comment, .. }) => (chain, comment),
            _ => (self.add_chain(&mut planner.objects, &usual), Name::from("")),
        };
        Some(NftRule {
            matches: Vec::new(),
            statement: Statement::MapOr(key, name, chain),
            comment,
        })
    }

    /// A lookup in the map from the pieces of blocks to decisions.
    fn lookup_blocks(&self, objects: &mut Objects) -> Option<NftRule> {
        let mut elements = BTreeMap::new();
        // Many pieces share a list of rules.
        let mut known: BTreeMap<Vec<usize>, Arc<ElementData>> = BTreeMap::new();
        for (interval, rules) in self.pieces() {
            let data = match known.entry(rules) {
                Entry::Occupied(entry) => entry.get().clone(),
                Entry::Vacant(entry) => {
                    let fits = entry.key().iter().map(|number| (*number, None)).collect();
                    let data = self.element_data(objects, &self.decide(fits));
                    entry.insert(data.into()).clone()
                }
            };
            elements.insert(interval, Some(data));
        }
        if elements.is_empty() {
            return None;
        }
        let name = self.name("ranges", None);
        let blocks = &self.rules.blocks;
        let meaning = match blocks.keys().next() {
            Some(one) if blocks.len() == 1 => comment(&one.to_string()),
            _ => comment(&format!("{} blocks together", blocks.len())),
        };
        let kind = SetKind::BlockChains(self.family);
        objects.add_set(&name, NftSet { kind, comment: meaning, elements });
        Some(NftRule::new([], Statement::Map(vec![Field::peer(self.direction, self.family)], name)))
    }

    /// The rules that carry out a decision.
    fn decision_rules(&self, objects: &mut Objects, decision: &Decision) -> Vec<NftRule> {
        let others = decision.others;
        let listed = [Action::Allow, Action::Deny, Action::Pass].into_iter();
        let mut rules: Vec<NftRule> = listed
            .filter(|action| *action != others)
            .filter_map(|action| {
                let ports = decision.ports(action)?;
                Some(NftRule { matches: chain::match_ports(objects, &ports), ..self.rule(action) })
            })
            .collect();
        rules.push(self.rule(others));
        rules
    }

    fn rule(&self, action: Action) -> NftRule {
        let statement = match action {
            Action::Allow => self.allow.clone(),
            Action::Deny if self.end == Action::Deny => {
                Statement::Goto(names::isolated_chain(self.direction))
            }
            Action::Deny => Statement::Goto(names::denied_chain(self.direction)),
            Action::Pass => Statement::Return,
        };
        match statement {
            Statement::Return => NftRule::new([], statement),
            statement => NftRule { matches: Vec::new(), statement, comment: self.why.clone() },
        }
    }

    /// A name that digests all rules and actions, because the verdict of a peer depends on all of
    /// them.
    fn name(&self, word: &str, usual: Option<&Decision>) -> Name {
        let done = (&self.allow, &self.why, usual);
        let meaning = format!("{:?}", (&self.rules, self.direction, self.end, done));
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
