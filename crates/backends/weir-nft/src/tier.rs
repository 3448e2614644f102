//! The rules of a tier, merged so that their number does not matter to a packet.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use weir_model::{
    Action, Block, Direction, Name, Peers, PortRange, Ports, Program, Protocol, Requirement,
    Section, Selector, SetId, SetKey,
};

use crate::{
    Act, Aim, Family, Go, Key, Kind, Planner, Rule, Set, chain,
    decision::Decision,
    intervals::segments,
    name::{comment, digest},
    objects::Objects,
    peers::PeerMap,
    place::{denied, onward, there},
};

/// Rules of which the first that fits decides.
#[derive(Debug, Default)]
pub(crate) struct Tier {
    rules: Vec<(Ports, Action)>,
    /// The numbers of the rules about anyone, and of those about each set and each block.
    anyone: Vec<usize>,
    pub(crate) sets: BTreeMap<SetId, Vec<usize>>,
    blocks: BTreeMap<Block, Vec<usize>>,
}

impl Tier {
    /// The rules of policies, in order.
    pub(crate) fn of(sections: &[Arc<Section>]) -> Self {
        let mut tier = Tier::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            tier.push(&rule.peers, &rule.ports, rule.action);
        }
        tier
    }

    /// One more rule, after all others.
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

/// A tier as one family of one direction meets it, and what it does with packets.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) tier: Arc<Tier>,
    pub(crate) direction: Direction,
    pub(crate) family: Family,
    /// What applies if no rule fits. If it passes, another tier may come.
    pub(crate) end: Action,
    /// What is done with what is allowed.
    allow: Act,
    /// The policies, for people.
    why: Name,
}

/// A rule that fits a peer; of a set of named ports, at the port that the peer has there.
pub(crate) type Fit = (usize, Option<(Protocol, u16)>);

impl Judge {
    /// The admin tier: what it allows is not judged again in this direction, and what it passes returns.
    pub(crate) fn admin(sections: &[Arc<Section>], direction: Direction, family: Family) -> Self {
        let allow = match direction {
            // This is the last thing to be asked of a packet.
            Direction::Ingress => Act::Accept,
            Direction::Egress => Act::Goto(onward(family)),
        };
        let why = comment(&format!("decided by {}", chain::names(sections)));
        let tier = Arc::new(Tier::of(sections));
        Judge { tier, direction, family, end: Action::Pass, allow, why }
    }

    /// The baseline tier: nothing comes after it.
    pub(crate) fn baseline(
        sections: &[Arc<Section>],
        direction: Direction,
        family: Family,
    ) -> Self {
        let why = comment(&format!("decided by {}", chain::names(sections)));
        let tier = Arc::new(Tier::of(sections));
        Judge { tier, direction, family, end: Action::Allow, allow: Act::Return, why }
    }

    /// Policies that isolate a pod: what they do not allow is denied.
    pub(crate) fn isolation(tier: Tier, direction: Direction, family: Family, why: Name) -> Self {
        let tier = Arc::new(tier);
        Judge { tier, direction, family, end: Action::Deny, allow: Act::Return, why }
    }

    /// The rules that decide: a lookup for pods, one for blocks, and what applies to everyone else.
    pub(crate) fn rules(&self, planner: &mut Planner, program: &Program) -> Vec<Rule> {
        let mut rules = Vec::new();
        rules.extend(self.members(planner, program));
        rules.extend(self.ranges(&mut planner.objects));
        rules.extend(self.acts(&mut planner.objects, &self.decide(Vec::new())));
        rules
    }

    /// What is decided about a peer that these rules fit besides those about everyone.
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
        Decision::first(&rules, self.end)
    }

    /// The way on that does what was decided.
    pub(crate) fn aim(&self, objects: &mut Objects, decision: &Decision) -> Aim {
        self.plain(decision).unwrap_or_else(|| Aim::goto(self.chain(objects, decision)))
    }

    /// The same, if it needs no chain.
    fn plain(&self, decision: &Decision) -> Option<Aim> {
        let go = match self.act(decision.always()?).act {
            Act::Return => Go::Return,
            Act::Accept => Go::Accept,
            _ => return None,
        };
        Some(Aim { go, comment: Name::from("") })
    }

    fn chain(&self, objects: &mut Objects, decision: &Decision) -> Name {
        let rules = self.acts(objects, decision);
        chain::enter(objects, self.direction, self.family, "-ports", rules)
    }

    /// What is decided about most members, to go by what their sets mean, of all that takes a chain. It follows from the rules
    /// alone, so that it stays when members change.
    fn usual(&self) -> Option<Decision> {
        // How narrow the widest set is, and how many there are.
        let mut sizes: BTreeMap<Decision, (usize, usize)> = BTreeMap::new();
        for (set, rules) in &self.tier.sets {
            let Some(narrow) = narrow(set) else { continue };
            let decision = self.decide(rules.iter().map(|number| (*number, None)).collect());
            if self.plain(&decision).is_none() {
                let (widest, sets) = sizes.entry(decision).or_insert((narrow, 0));
                *widest = narrow.min(*widest);
                *sets += 1;
            }
        }
        let size = |(decision, (widest, sets)): &(Decision, (usize, usize))| {
            (*widest, Reverse(*sets), decision.always().is_none())
        };
        sizes.into_iter().min_by_key(size).map(|(decision, _)| decision)
    }

    /// The pieces that blocks cut the addresses into, with the rules about each.
    pub(crate) fn pieces(&self) -> Vec<(Key, Vec<usize>)> {
        let blocks = &self.tier.blocks;
        let pieces = segments(blocks.keys(), self.family).into_iter();
        let rules = |inside: Vec<&Block>| {
            inside.into_iter().filter_map(|block| blocks.get(block)).flatten().copied().collect()
        };
        pieces.map(|(interval, inside)| (interval, rules(inside))).collect()
    }

    /// A lookup in the map from the addresses of pods to what is decided about them.
    fn members(&self, planner: &mut Planner, program: &Program) -> Option<Rule> {
        let sets = self.tier.sets.len();
        if sets == 0 {
            return None;
        }
        let usual = self.usual();
        let name = self.name("peers", usual.as_ref());
        if !planner.maps.contains_key(&name) {
            let said = match self.tier.sets.keys().next() {
                Some(one) if sets == 1 => comment(&one.to_string()),
                _ => comment(&format!("{sets} sets of pods together")),
            };
            let (map, elements) =
                PeerMap::new(self.clone(), usual.clone(), &mut planner.objects, program);
            let set = Set { kind: Kind::Chains(self.family), comment: said, elements };
            planner.objects.add_set(&name, set);
            planner.follow_with(&name, map);
        }
        let key = vec![there(self.direction, self.family)];
        let Some(usual) = usual else { return Some(Rule::new([], Act::Map(key, name))) };
        let (chain, comment) = match usual.always().map(|action| self.act(action)) {
            Some(Rule { act: Act::Goto(chain), comment, .. }) => (chain, comment),
            _ => (self.chain(&mut planner.objects, &usual), Name::from("")),
        };
        Some(Rule { matches: Vec::new(), act: Act::MapOr(key, name, chain), comment })
    }

    /// A lookup in the map from blocks, cut where they overlap, to what is decided about what is inside.
    fn ranges(&self, objects: &mut Objects) -> Option<Rule> {
        let mut elements = BTreeMap::new();
        // Many pieces, few lists of rules.
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
        let said = match blocks.keys().next() {
            Some(one) if blocks.len() == 1 => comment(&one.to_string()),
            _ => comment(&format!("{} blocks together", blocks.len())),
        };
        let kind = Kind::BlockChains(self.family);
        objects.add_set(&name, Set { kind, comment: said, elements });
        Some(Rule::new([], Act::Map(vec![there(self.direction, self.family)], name)))
    }

    /// The rules that do what was decided.
    fn acts(&self, objects: &mut Objects, decision: &Decision) -> Vec<Rule> {
        let others = decision.others;
        let listed = [Action::Allow, Action::Deny, Action::Pass].into_iter();
        let mut rules: Vec<Rule> = listed
            .filter(|action| *action != others)
            .filter_map(|action| {
                let ports = decision.ports(action)?;
                Some(Rule { matches: chain::ports(objects, &ports), ..self.act(action) })
            })
            .collect();
        rules.push(self.act(others));
        rules
    }

    fn act(&self, action: Action) -> Rule {
        let act = match action {
            Action::Allow => self.allow.clone(),
            Action::Deny => Act::Goto(denied(self.direction)),
            Action::Pass => Act::Return,
        };
        match act {
            Act::Return => Rule::new([], act),
            act => Rule { matches: Vec::new(), act, comment: self.why.clone() },
        }
    }

    /// What becomes of a peer follows from all rules and from what is done then, so all of it is in the name.
    fn name(&self, word: &str, usual: Option<&Decision>) -> Name {
        let done = (&self.allow, &self.why, usual);
        let meaning = format!("{:?}", (&self.tier, self.direction, self.end, done));
        format!("{word}{}-{}", self.family.digit(), digest(&meaning)).into()
    }
}

/// The number of labels that the members of a set must have: with each of them there are fewer. `None` if members are decided about one
/// by one.
fn narrow(set: &SetKey) -> Option<usize> {
    let labels = |selector: &Selector| {
        let must_be_there =
            |one: &&Requirement| matches!(one, Requirement::In(..) | Requirement::Exists(_));
        selector.requirements().iter().filter(must_be_there).count()
    };
    match set {
        SetKey::Pods { namespaces, pods } => Some(labels(namespaces) + labels(pods)),
        SetKey::PodsIn(_, pods) => Some(1 + labels(pods)),
        SetKey::Nodes(_) | SetKey::Node(_) | SetKey::Domain(_) => Some(usize::MAX),
        SetKey::Ports { .. } => None,
    }
}
