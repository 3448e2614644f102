//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Block, Direction, Name, Peers, PortRange, Ports, Program, Section, SetId};

use crate::{
    Act, Aim, Family, Key, Kind, Match, Planner, Rule, Set, chain,
    intervals::segments,
    name::{comment, digest},
    place::{denied, there},
};

/// So many lookups one after the other are as good as one in a map.
const FEW: usize = 4;

/// What policies allow, by how it is told.
#[derive(Debug, Default)]
struct Allowed {
    /// To everyone. `None`: nothing.
    anyone: Option<Ports>,
    sets: BTreeMap<SetId, Ports>,
    blocks: BTreeMap<Block, Ports>,
    port_sets: BTreeSet<SetId>,
}

/// The rules for a pod that these policies isolate: what one of them allows returns, the rest is denied.
pub(crate) fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: Family,
) -> Vec<Rule> {
    let allowed = Arc::new(Allowed::of(sections));
    if allowed.anyone == Some(Ports::Any) {
        return vec![Rule::new([], Act::Return)];
    }
    let why = comment(&chain::names(&sections.iter().collect::<Vec<_>>()));
    let deny = Rule { matches: Vec::new(), act: Act::Goto(denied(direction)), comment: why };
    let mut rules = Vec::new();
    rules.extend(allowed.port_set_rules(planner, program, direction, family));
    if allowed.sets.len() + allowed.blocks.len() <= FEW {
        let sets = allowed.sets.iter().map(|(set, to)| (Peers::Set(set.clone()), to));
        let blocks = allowed.blocks.iter().map(|(block, to)| (Peers::Block(block.clone()), to));
        for (peers, to) in sets.chain(blocks) {
            let Some(mut matches) = chain::peers(planner, program, &peers, direction, family)
            else {
                continue;
            };
            matches.extend(chain::ports(planner, to));
            rules.push(Rule::new(matches, Act::Return));
        }
    } else {
        let merged = Merged { allowed: allowed.clone(), direction, family, deny: deny.clone() };
        rules.extend(merged.members(planner, program));
        rules.extend(merged.blocks(planner));
    }
    if let Some(to) = &allowed.anyone {
        rules.push(Rule::new(chain::ports(planner, to), Act::Return));
    }
    rules.push(deny);
    rules
}

impl Allowed {
    fn of(sections: &[Arc<Section>]) -> Self {
        let mut allowed = Allowed::default();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::Any => allowed.anyone = Some(and(allowed.anyone.as_ref(), &rule.ports)),
                Peers::Set(set) => extend(&mut allowed.sets, set, &rule.ports),
                Peers::Block(block) => extend(&mut allowed.blocks, block, &rule.ports),
                Peers::PortSet(set) => _ = allowed.port_sets.insert(set.clone()),
            }
        }
        allowed
    }

    /// Named ports: a lookup each if they are few, else one in a set that holds them all.
    fn port_set_rules(
        &self,
        planner: &mut Planner,
        program: &Program,
        direction: Direction,
        family: Family,
    ) -> Vec<Rule> {
        let groups: Vec<Vec<SetId>> = match self.port_sets.len() {
            0..=FEW => self.port_sets.iter().map(|set| vec![set.clone()]).collect(),
            _ => vec![self.port_sets.iter().cloned().collect()],
        };
        let rule = |group| {
            Rule::new(chain::port_sets(planner, program, group, direction, family), Act::Return)
        };
        groups.into_iter().map(rule).collect()
    }
}

/// A map from the address of a peer to the ports that all sets and blocks it is in allow it together.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    allowed: Arc<Allowed>,
    direction: Direction,
    pub(crate) family: Family,
    deny: Rule,
}

impl Merged {
    /// The sets whose members are in it.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &SetId> {
        self.allowed.sets.keys()
    }

    /// Where it leads every address in it.
    pub(crate) fn aims(
        &self,
        planner: &mut Planner,
        program: &Program,
    ) -> BTreeMap<Key, Option<Arc<Aim>>> {
        let mut by_sets: BTreeMap<IpAddr, Vec<&Ports>> = BTreeMap::new();
        for (set, to) in &self.allowed.sets {
            let members = program.sets.get(set).into_iter().flatten();
            for member in members.filter(|member| Family::of(member.address) == self.family) {
                by_sets.entry(member.address).or_default().push(to);
            }
        }
        // Many addresses, few kinds of ports: each kind has its chain made once.
        let mut known: BTreeMap<Ports, Arc<Aim>> = BTreeMap::new();
        let mut aims = BTreeMap::new();
        for (address, to) in by_sets {
            let Some(all) = self.all(address, to.into_iter()) else { continue };
            let aim = known
                .entry(all)
                .or_insert_with_key(|all| Arc::new(Aim::goto(self.ports_chain(planner, all))));
            aims.insert(Key::Address(address), Some(aim.clone()));
        }
        aims
    }

    /// Where it leads an address; `None` if the address is in no set.
    pub(crate) fn aim(
        &self,
        planner: &mut Planner,
        program: &Program,
        address: IpAddr,
    ) -> Option<Aim> {
        if Family::of(address) != self.family {
            return None;
        }
        let member = address.into();
        let holds = |set: &SetId| program.sets.get(set).is_some_and(|all| all.contains(&member));
        let by_sets = self.allowed.sets.iter().filter(|(set, _)| holds(set)).map(|(_, to)| to);
        let all = self.all(address, by_sets)?;
        Some(Aim::goto(self.ports_chain(planner, &all)))
    }

    /// All that an address may use which the sets it is in allow this much; `None` if it is in no set.
    fn all<'a>(
        &'a self,
        address: IpAddr,
        by_sets: impl Iterator<Item = &'a Ports>,
    ) -> Option<Ports> {
        let Allowed { anyone, blocks, .. } = &*self.allowed;
        let by_sets = together(by_sets)?;
        let by_blocks = blocks.iter().filter(|(block, _)| block.contains(address));
        together(by_blocks.map(|(_, to)| to).chain(anyone).chain([&by_sets]))
    }

    fn members(&self, planner: &mut Planner, program: &Program) -> Option<Rule> {
        let Allowed { anyone, sets, blocks, port_sets: _ } = &*self.allowed;
        if sets.is_empty() {
            return None;
        }
        // What an address may use follows from everything that is allowed, so all of it is in the name.
        let meaning = format!("{anyone:?}\n{sets:?}\n{blocks:?}\n{}", self.deny);
        let name = format!("peers{}-{}", self.family.digit(), digest(&meaning)).into();
        let said = comment(&format!("{} sets of pods together", sets.len()));
        planner.merge(program, &name, self.clone(), said);
        Some(Rule::new([], Act::Map(vec![there(self.direction, self.family)], name)))
    }

    /// A map from the blocks, cut where they overlap, to the ports that they allow together.
    fn blocks(&self, planner: &mut Planner) -> Option<Rule> {
        let Allowed { anyone, blocks, .. } = &*self.allowed;
        let mut elements = BTreeMap::new();
        for (interval, inside) in segments(blocks.keys(), self.family) {
            let to = inside.iter().filter_map(|block| blocks.get(*block));
            let Some(all) = together(to.chain(anyone)) else { continue };
            let aim = Aim::goto(self.ports_chain(planner, &all));
            elements.insert(interval, Some(Arc::new(aim)));
        }
        if elements.is_empty() {
            return None;
        }
        let meaning = format!("{anyone:?}\n{blocks:?}\n{}", self.deny);
        let name = format!("ranges{}-{}", self.family.digit(), digest(&meaning)).into();
        let said = comment(&format!("{} blocks together", blocks.len()));
        let kind = Kind::BlockChains(self.family);
        planner.objects.add_set(&name, Set { kind, comment: said, elements });
        Some(Rule::new([], Act::Map(vec![there(self.direction, self.family)], name)))
    }

    /// A chain that lets these ports pass and denies the rest.
    fn ports_chain(&self, planner: &mut Planner, to: &Ports) -> Name {
        let matches: Vec<Match> = chain::ports(planner, to);
        let mut rules = vec![Rule::new(matches, Act::Return)];
        if *to != Ports::Any {
            rules.push(self.deny.clone());
        }
        chain::enter(planner, self.direction, self.family, "-ports", rules)
    }
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = and(map.get(key), more);
    map.insert(key.clone(), all);
}

/// All of these ports; `None` if there are none.
fn together<'a>(all: impl Iterator<Item = &'a Ports>) -> Option<Ports> {
    let mut ranges: Vec<PortRange> = Vec::new();
    for ports in all {
        match ports {
            Ports::Any => return Some(Ports::Any),
            Ports::Of(more) => ranges.extend(more),
        }
    }
    Ports::of(ranges)
}

/// These ports and those.
fn and(some: Option<&Ports>, more: &Ports) -> Ports {
    together(some.into_iter().chain([more])).unwrap_or_else(|| more.clone())
}
