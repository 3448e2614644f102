//! The sets in which a tier looks up its peers.
//!
//! The rules of a tier divide the ports into classes. In each class, a peer has one action. A
//! lookup yields no more than whether a set has an element, so each action has a set:
//!
//! ```text
//!   1. peers with the named port    address, protocol and port
//!   2. peers in the port's class    address
//!   3. peers in its protocol        address
//!   4. peers for all ports          address
//!   5. blocks, and all other peers  (not members of sets)
//! ```
//!
//! The first set with the peer decides. A peer is only in sets whose action differs from that of
//! the levels below, so a rule for all ports takes one element, however many classes there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Action, Block, Direction, IpFamily, Name, Protocol, SetId};

use crate::{
    ElementKey, Field, Match, SetKind,
    decision::{Decision, PeerDecision},
    names::{digest, digest_debug},
    ordered_rules::OrderedRules,
    port_classes::{PortClass, PortClasses},
};

/// The order in which a packet looks up the sets of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    NamedPort,
    Class,
    Protocol,
    AllPorts,
}

impl Level {
    pub(crate) const ALL: [Level; 4] =
        [Level::NamedPort, Level::Class, Level::Protocol, Level::AllPorts];
}

/// A set of a tier.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) set: Name,
    pub(crate) kind: SetKind,
    pub(crate) level: Level,
    pub(crate) action: Action,
    /// The number, if the set is one of several numbered sets.
    pub(crate) number: Option<u32>,
}

impl Slot {
    /// The element of an address, and of its named port if the level has them.
    pub(crate) fn element(&self, address: IpAddr, port: Option<(Protocol, u16)>) -> ElementKey {
        match (port, self.number) {
            (Some((protocol, port)), Some(number)) => {
                ElementKey::NumberedPort(number, address, protocol, port)
            }
            (Some((protocol, port)), None) => ElementKey::Port(address, protocol, port),
            (None, Some(number)) => ElementKey::NumberedAddress(number, address),
            (None, None) => ElementKey::Address(address),
        }
    }

    /// The lookup of a peer.
    pub(crate) fn lookup(&self, direction: Direction, family: IpFamily) -> Match {
        let address = Field::peer(direction, family);
        let mut key: Vec<Field> = self.number.map(Field::Number).into_iter().collect();
        key.push(address);
        if matches!(self.kind, SetKind::Ports(_) | SetKind::NumberedPorts(_)) {
            key.extend([Field::Protocol, Field::DestinationPort]);
        }
        Match::In(key, self.set.clone())
    }
}

/// An element of an address: the index of its set, and the named port if the level has them.
pub(crate) type Place = (usize, Option<(Protocol, u16)>);

/// The indexes of the sets for some ports, by action.
pub(crate) type SlotsByAction = BTreeMap<Action, usize>;

/// The sets of a tier. They follow from the rules alone, not from members.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) slots: Vec<Slot>,
    pub(crate) named: SlotsByAction,
    pub(crate) classes: PortClasses,
    /// The sets of each class, in the same order.
    pub(crate) narrow: Vec<SlotsByAction>,
    /// The sets of each protocol, in the same order.
    pub(crate) protocols: Vec<SlotsByAction>,
    pub(crate) all_ports: SlotsByAction,
    /// The classes that each rule is in.
    classes_of: BTreeMap<usize, Vec<usize>>,
    /// The classes with rules for blocks or for any peer.
    open_classes: Vec<usize>,
}

impl Layout {
    /// The sets of some rules. If there are more than `max_sets`, they are numbered.
    pub(crate) fn new(
        rules: &OrderedRules,
        end: Action,
        family: IpFamily,
        max_sets: usize,
    ) -> Self {
        let is_named = |set: &SetId| set.has_ports();
        let named = rules.sets.iter().filter(|(set, _)| is_named(set));
        let named: BTreeSet<usize> = named.flat_map(|(_, numbers)| numbers).copied().collect();
        let by_sets = rules.sets.iter().filter(|(set, _)| !is_named(set));
        let by_sets: BTreeSet<usize> = by_sets.flat_map(|(_, numbers)| numbers).copied().collect();
        let ours = |block: &Block| IpFamily::from(block.net.addr()) == family;
        let blocks = rules.blocks.iter().filter(|(block, _)| ours(block));
        let blocks: BTreeSet<usize> = blocks.flat_map(|(_, numbers)| numbers).copied().collect();
        let relevant = |number: &usize| {
            let is_for_anyone = rules.anyone.binary_search(number).is_ok();
            by_sets.contains(number) || blocks.contains(number) || is_for_anyone
        };
        let numbered = rules.rules.iter().map(|(ports, _)| ports).enumerate();
        let classes = PortClasses::new(numbered.filter(|(number, _)| relevant(number)));
        let mut layout = Layout {
            slots: Vec::new(),
            named: SlotsByAction::new(),
            narrow: Vec::new(),
            protocols: Vec::new(),
            all_ports: SlotsByAction::new(),
            classes_of: BTreeMap::new(),
            open_classes: Vec::new(),
            classes: PortClasses::default(),
        };
        let prefix = digest_debug(&(rules, end));
        let action = |number: usize| rules.rules.get(number).map(|(_, action)| *action);
        let actions = |numbers: &mut dyn Iterator<Item = usize>| -> BTreeSet<Action> {
            numbers.filter_map(action).collect()
        };
        // The actions that blocks, or rules for any peer, can have if these rules apply.
        let without_sets = |numbers: &mut dyn Iterator<Item = usize>| -> BTreeSet<Action> {
            let mut by_blocks = Vec::new();
            let mut anyone = None;
            for number in numbers {
                if blocks.contains(&number) {
                    by_blocks.push(number);
                } else if !by_sets.contains(&number) {
                    anyone = Some(anyone.map_or(number, |first: usize| first.min(number)));
                }
            }
            let last = anyone.and_then(action).unwrap_or(end);
            actions(&mut by_blocks.into_iter()).into_iter().chain([last]).collect()
        };
        let is_open = |number: &usize| !by_sets.contains(number);

        let members = actions(&mut classes.any.iter().copied().filter(|one| !is_open(one)));
        let below = without_sets(&mut classes.any.iter().copied());
        let kind = SetKind::Addresses(family);
        let all_ports = layout.add(&prefix, kind, Level::AllPorts, "", needed(&members, &below));
        layout.all_ports = all_ports;
        // The actions of the members of a class, and of the levels below it.
        let of_class = |layout: &Layout, class: &PortClass| {
            let mut members = if class.rules.iter().any(is_open) {
                actions(&mut classes.all_rules(class))
            } else {
                actions(&mut class.rules.iter().copied())
            };
            if by_sets.is_empty() {
                members.clear();
            }
            let mut below = without_sets(&mut classes.all_rules(class));
            below.extend(layout.all_ports.keys());
            let protocol = class.protocol.and_then(|at| layout.protocols.get(at));
            below.extend(protocol.into_iter().flat_map(BTreeMap::keys));
            needed(&members, &below)
        };
        for class in &classes.protocols {
            let needed = of_class(&layout, class);
            let slots =
                layout.add(&prefix, kind, Level::Protocol, &format!("{:?}", class.ports), needed);
            layout.protocols.push(slots);
        }
        for (index, class) in classes.narrow.iter().enumerate() {
            let needed = of_class(&layout, class);
            let slots =
                layout.add(&prefix, kind, Level::Class, &format!("{:?}", class.ports), needed);
            layout.narrow.push(slots);
            for rule in &class.rules {
                layout.classes_of.entry(*rule).or_default().push(index);
            }
            if class.rules.iter().any(is_open) {
                layout.open_classes.push(index);
            }
        }
        let members = actions(&mut named.iter().copied());
        let below = actions(&mut (0..rules.rules.len())).into_iter().chain([end]).collect();
        let kind = SetKind::Ports(family);
        layout.named = layout.add(&prefix, kind, Level::NamedPort, "", needed(&members, &below));
        if layout.slots.len() > max_sets {
            layout.number_sets(&prefix, family);
        }
        layout.classes = classes;
        layout
    }

    /// The number of sets of the table that the members of all sets of the program join, at most,
    /// without those in which blocks decide otherwise.
    pub(crate) fn copies(&self, rules: &OrderedRules) -> usize {
        let copies = |number: &usize| self.classes_of.get(number).map_or(1, Vec::len);
        rules.sets.values().flatten().map(copies).sum()
    }

    /// The number of sets of the table that members of sets of the program join because they are
    /// also in blocks, at most.
    pub(crate) fn copies_of_block_members(&self, rules: &OrderedRules) -> usize {
        let is_wide = |number: &usize| !self.classes_of.contains_key(number);
        let wide = rules
            .sets
            .iter()
            .filter(|(set, numbers)| !set.has_ports() && numbers.iter().any(is_wide));
        wide.count().saturating_mul(self.open_classes.len())
    }

    /// Puts all sets of addresses into one.
    fn number_sets(&mut self, prefix: &str, family: IpFamily) {
        let set: Name = format!("numbered-peers{}-{prefix}", family.digit()).into();
        let plain = self.slots.iter_mut().filter(|slot| slot.level != Level::NamedPort);
        for (number, slot) in (1..).zip(plain) {
            slot.number = Some(number);
            slot.kind = SetKind::NumberedAddresses(family);
            slot.set = set.clone();
        }
    }

    /// Adds a set for each action.
    fn add(
        &mut self,
        prefix: &str,
        kind: SetKind,
        level: Level,
        ports: &str,
        actions: BTreeSet<Action>,
    ) -> SlotsByAction {
        let mut slots = SlotsByAction::new();
        for action in actions {
            let (word, family) = match kind {
                SetKind::Ports(family) => ("ports", family),
                SetKind::Addresses(family) => ("peers", family),
                _ => continue,
            };
            let meaning = digest(&format!("{prefix} {level:?} {ports} {action:?}"));
            let set = format!("{word}{}-{meaning}", family.digit()).into();
            slots.insert(action, self.slots.len());
            self.slots.push(Slot { set, kind, level, action, number: None });
        }
        slots
    }

    /// The elements of an address with this decision. `by_blocks` is the decision if the address
    /// were in no set, and `rules` are the rules of its sets.
    pub(crate) fn places(
        &self,
        decision: &PeerDecision,
        by_blocks: &Decision,
        rules: impl IntoIterator<Item = usize>,
    ) -> Vec<Place> {
        let PeerDecision { plain, named } = decision;
        let mut places = Vec::new();
        let mut put = |slots: Option<&SlotsByAction>, action, port| {
            places.extend(slots.and_then(|slots| slots.get(&action)).map(|slot| (*slot, port)));
        };
        let base = (plain.others != by_blocks.others).then_some(plain.others);
        if let Some(action) = base {
            put(Some(&self.all_ports), action, None);
        }
        let mut by_protocol = Vec::with_capacity(self.protocols.len());
        for (class, slots) in self.classes.protocols.iter().zip(&self.protocols) {
            let action = plain.action(class.sample);
            let below = base.unwrap_or_else(|| by_blocks.action(class.sample));
            by_protocol.push((action != below).then_some(action));
            if action != below {
                put(Some(slots), action, None);
            }
        }
        // In other classes, the levels below have the same action.
        let own = rules.into_iter().filter_map(|rule| self.classes_of.get(&rule)).flatten();
        let classes: BTreeSet<usize> = own.chain(&self.open_classes).copied().collect();
        for index in classes {
            let Some(class) = self.classes.narrow.get(index) else { continue };
            let action = plain.action(class.sample);
            let protocol = class.protocol.and_then(|at| by_protocol.get(at).copied().flatten());
            let below = protocol.or(base).unwrap_or_else(|| by_blocks.action(class.sample));
            if action != below {
                put(self.narrow.get(index), action, None);
            }
        }
        for (port, action) in named {
            if *action != plain.action(*port) {
                put(Some(&self.named), *action, Some(*port));
            }
        }
        places
    }
}

/// The actions of members that differ from some action of the levels below.
fn needed(members: &BTreeSet<Action>, below: &BTreeSet<Action>) -> BTreeSet<Action> {
    let differs = |action: &&Action| below.iter().any(|other| other != *action);
    members.iter().filter(differs).copied().collect()
}
