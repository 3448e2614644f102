//! The rules of a tier, merged so that a packet's cost does not depend on their number.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use hashbrown::HashSet;
use weir_datapath::policy_names;
use weir_model::{
    Action, Block, Direction, Interval, IpFamily, Name, Ports, Program, Protocol, Section,
};

use crate::{
    ElementData, ElementKey, Field, Match, NftRule, NftSet, NftVerdict, Planner, SetKind,
    Statement, chain,
    decision::Decision,
    intervals::{overlaps, segments, union},
    layout::{Layout, Slot, SlotsByAction},
    merge::MergeLimit,
    names::{self, comment, digest_debug},
    objects::Objects,
    ordered_rules::OrderedRules,
    peers::PeerSets,
    port_classes::{PortClass, PortClasses},
};

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

    /// The rules that decide: lookups for pods, one for blocks, and the decision for other peers.
    pub(crate) fn compile(&self, planner: &mut Planner, program: &Program) -> Vec<NftRule> {
        let Some(layout) = self.merge(planner.merge_limit) else {
            return self.compile_in_sequence(planner, program);
        };
        let layout = Arc::new(layout);
        self.add_peer_sets(planner, program, &layout);
        let rules = |slots: &SlotsByAction| -> Vec<NftRule> {
            let slots = LOOKUP_ORDER.iter().filter_map(|action| slots.get(action));
            let slots = slots.filter_map(|slot| layout.slots.get(*slot));
            let rule = |slot: &Slot| {
                let matches = vec![slot.lookup(self.direction, self.family)];
                NftRule { matches, ..self.rule(slot.action) }
            };
            slots.map(rule).collect()
        };
        let of_class =
            |(class, slots): (&PortClass, &SlotsByAction)| (class.ports.clone(), rules(slots));
        let lookups = Lookups {
            named: rules(&layout.named),
            classes: layout.classes.narrow.iter().zip(&layout.narrow).map(of_class).collect(),
            protocols: layout
                .classes
                .protocols
                .iter()
                .zip(&layout.protocols)
                .map(of_class)
                .collect(),
            all_ports: rules(&layout.all_ports),
        };
        self.assemble(planner, lookups)
    }

    /// The sets of merged rules. `None` if the merged rules would be larger than the limit.
    fn merge(&self, merge_limit: MergeLimit) -> Option<Layout> {
        let OrderedRules { rules, sets, .. } = &*self.rules;
        let limit = merge_limit.for_size(self.rules.size());
        let ports = rules.iter().map(|(ports, _)| ports);
        if rules.len() > limit || PortClasses::count(ports) > limit {
            return None;
        }
        self.count_decisions(limit)?;
        let layout = Layout::new(&self.rules, self.end, self.family, merge_limit.sets);
        let may_copy = merge_limit.for_copies(sets.values().map(Vec::len).sum());
        let is_small = layout.copies(&self.rules) <= may_copy
            && layout.copies_of_block_members(&self.rules) <= limit;
        is_small.then_some(layout)
    }

    /// Adds the sets of the tier's peers.
    fn add_peer_sets(&self, planner: &mut Planner, program: &Program, layout: &Arc<Layout>) {
        let sets = self.rules.sets.len();
        let meaning = |slot: &Slot| {
            let action = match slot.action {
                Action::Allow => "allowed",
                Action::Deny => "denied",
                Action::Pass => "passed",
            };
            match self.rules.sets.keys().next() {
                _ if slot.number.is_some() => comment(&format!("numbered peers of {sets} sets")),
                Some(one) if sets == 1 => comment(&format!("{action}: {}", **one)),
                _ => comment(&format!("{action} peers of {sets} sets")),
            }
        };
        planner.add_peer_sets(
            program,
            || PeerSets::tier(self.clone(), layout.clone()),
            &layout.slots,
            meaning,
        );
    }

    /// Combines lookups of peers with the rules for blocks and for all other peers.
    ///
    /// A packet is directed to the chain for its port, so it makes as many lookups for many classes
    /// of ports as for a few.
    pub(crate) fn assemble(&self, planner: &mut Planner, lookups: Lookups) -> Vec<NftRule> {
        let Lookups { named, mut classes, protocols, all_ports } = lookups;
        classes.retain(|(_, rules)| !rules.is_empty());
        let objects = &mut planner.objects;
        let mut rest = Vec::new();
        for (ports, rules) in protocols {
            rest.extend(rules.into_iter().map(|rule| with_ports(objects, &ports, rule)));
        }
        rest.extend(all_ports);
        rest.extend(self.lookup_blocks(objects));
        rest.extend(self.decision_rules(objects, &self.decide([])));
        let mut all = named;
        // The number of lookups in an ordered tier does not depend on the number of classes.
        let without_map = match &classes[..] {
            [] => Some(Vec::new()),
            [(ports, rules)] if let [rule] = &rules[..] => {
                Some(vec![with_ports(objects, ports, rule.clone())])
            }
            _ if self.end == Action::Deny => compare_ports(&classes),
            _ => None,
        };
        if let Some(rules) = without_map {
            all.extend(rules);
            all.extend(rest);
            return all;
        }
        // All chains of ports end with the same rules.
        let rest = match &rest[..] {
            [_] => rest,
            _ => {
                let rest = self.add_chain(objects, "-rest", rest);
                vec![NftRule::new([], Statement::Goto(rest))]
            }
        };
        let mut chains = BTreeMap::new();
        for (ports, mut rules) in classes {
            // Without the names of policies, pods with other policies can share the chain.
            rules.extend(
                rest.iter().map(|rule| NftRule { comment: Name::from(""), ..rule.clone() }),
            );
            let chain = ElementData::goto(self.add_chain(objects, "-ports", rules));
            let chain = Some(Arc::new(chain));
            let Ports::Of(ranges) = ports else { continue };
            chains.extend(ranges.iter().map(|range| (ElementKey::Service(*range), chain.clone())));
        }
        all.push(chain::look_up_ports(objects, chains));
        all.extend(rest);
        all
    }

    /// The decision about a peer that these rules match, in addition to those for any peer.
    pub(crate) fn decide(&self, rules: impl IntoIterator<Item = usize>) -> Decision {
        let mut numbers: Vec<usize> = rules.into_iter().chain(self.rules.anyone.clone()).collect();
        numbers.sort_unstable();
        let rules = numbers.into_iter().filter_map(|number| self.rules.rules.get(number));
        Decision::from_rules(rules, self.end)
    }

    /// The action for a named port. Rules about named ports apply to it.
    pub(crate) fn decide_port(
        &self,
        rules: impl IntoIterator<Item = usize>,
        (protocol, port): (Protocol, u16),
    ) -> Action {
        let rules = rules.into_iter().chain(self.rules.anyone.iter().copied());
        let fits = |number: &usize| {
            self.rules.rules.get(*number).is_some_and(|(ports, _)| ports.contains(protocol, port))
        };
        let first = rules.filter(fits).min().and_then(|number| self.rules.rules.get(number));
        first.map_or(self.end, |(_, action)| *action)
    }

    /// The element data that carries out a decision.
    pub(crate) fn element_data(&self, objects: &mut Objects, decision: &Decision) -> ElementData {
        let verdict =
            decision.for_all_ports().and_then(|action| match self.rule(action).statement {
                Statement::Return => Some(NftVerdict::Return),
                Statement::Accept => Some(NftVerdict::Accept),
                Statement::Goto(chain) => Some(NftVerdict::Goto(chain)),
                _ => None,
            });
        let verdict = verdict.unwrap_or_else(|| {
            let rules = self.decision_rules(objects, decision);
            NftVerdict::Goto(self.add_chain(objects, "-ports", rules))
        });
        ElementData { verdict, comment: Name::from("") }
    }

    fn add_chain(&self, objects: &mut Objects, suffix: &str, rules: Vec<NftRule>) -> Name {
        chain::add_by_content(objects, self.direction, self.family, suffix, rules)
    }

    /// The pieces into which blocks divide the addresses, with the rules for each.
    pub(crate) fn pieces(&self) -> Vec<(ElementKey, Vec<usize>)> {
        segments(self.block_intervals(), self.family)
    }

    /// The intervals of the blocks of each rule, joined, with the number of the rule.
    fn block_intervals(&self) -> Vec<(Interval, usize)> {
        let mut blocks: BTreeMap<usize, Vec<&Block>> = BTreeMap::new();
        for (block, numbers) in &self.rules.blocks {
            numbers.iter().for_each(|number| blocks.entry(*number).or_default().push(block));
        }
        let parts = blocks.into_iter().flat_map(|(number, blocks)| {
            union(blocks, self.family).into_iter().map(move |part| (part, number))
        });
        parts.collect()
    }

    /// The number of distinct decisions about the pieces of blocks. `None` if the pieces refer to
    /// more than `limit` rules together, or their decisions list more than `limit` port ranges.
    pub(crate) fn count_decisions(&self, limit: usize) -> Option<usize> {
        let parts = self.block_intervals();
        let ranges = parts.iter().map(|((first, last), _)| (*first, last.saturating_add(1)));
        if overlaps(ranges) > limit {
            return None;
        }
        let length = |number: &usize| {
            let list = self.rules.rules.get(*number).and_then(|(ports, _)| ports.list());
            list.map_or(0, |list| list.len())
        };
        let anyone: usize = self.rules.anyone.iter().map(length).sum();
        let combinations: HashSet<Vec<usize>> =
            segments(parts, self.family).into_iter().map(|(_, rules)| rules).collect();
        let sizes = combinations.iter().map(|rules| rules.iter().map(length).sum::<usize>());
        let size = sizes.map(|size| size + anyone).sum::<usize>();
        (size <= limit).then_some(combinations.len())
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
                    let decision = self.decide(entry.key().iter().copied());
                    let data = self.element_data(objects, &decision);
                    entry.insert(data.into()).clone()
                }
            };
            elements.insert(interval, Some(data));
        }
        if elements.is_empty() {
            return None;
        }
        let done = (&self.rules.blocks, &self.rules.anyone, &self.rules.rules);
        let done = (done, self.direction, self.end, &self.allow, &self.why);
        // The chains of the elements name numbered sets.
        let numbered = objects.numbered.as_ref().map_or("", |numbered| numbered.digest());
        let done = digest_debug(&format_args!("{done:?}{numbered}"));
        let name = format!("ranges{}-{done}", self.family.digit());
        let name = Name::from(name);
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

    pub(crate) fn rule(&self, action: Action) -> NftRule {
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
}

/// The lookups of a tier's peers, by the ports that they apply to.
#[derive(Default)]
pub(crate) struct Lookups {
    /// For named ports, whose lookups include the port.
    pub(crate) named: Vec<NftRule>,
    pub(crate) classes: Vec<(Ports, Vec<NftRule>)>,
    /// For all ports of a protocol.
    pub(crate) protocols: Vec<(Ports, Vec<NftRule>)>,
    pub(crate) all_ports: Vec<NftRule>,
}

/// Up to this many rules compare their ports one by one, which saves a map and its chains.
const MAX_COMPARISONS: usize = 12;

/// The rules of classes, each with a comparison of the port. `None` if there are too many.
fn compare_ports(classes: &[(Ports, Vec<NftRule>)]) -> Option<Vec<NftRule>> {
    let mut all = Vec::new();
    for (ports, rules) in classes {
        let Ports::Of(ranges) = ports else { return None };
        for range in ranges {
            all.extend(rules.iter().cloned().map(|mut rule| {
                rule.matches.insert(0, Match::To(*range));
                rule
            }));
        }
        if all.len() > MAX_COMPARISONS {
            return None;
        }
    }
    Some(all)
}

/// The order in which a packet looks up the sets of a class. A peer that moves is in two of them for
/// a while, and gets its old or its new action.
const LOOKUP_ORDER: [Action; 3] = [Action::Deny, Action::Allow, Action::Pass];

/// Adds a match for ports to a rule: before a lookup, unless it is a lookup itself.
fn with_ports(objects: &mut Objects, ports: &Ports, mut rule: NftRule) -> NftRule {
    let ports = chain::match_ports(objects, ports);
    let at = if matches!(ports[..], [Match::In(..)]) { rule.matches.len() } else { 0 };
    rule.matches.splice(at..at, ports);
    rule
}
