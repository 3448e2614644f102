//! The rules of all policies that isolate a pod, merged so that their number does not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Block, Direction, Peers, PortRange, Ports, Section, SetId};

use crate::{
    Element, Family, Kind, Set,
    intervals::segments,
    name::{comment, digest},
    render::{Render, line, ports, there},
};

/// So many lookups one after the other are as good as one in a map.
const FEW: usize = 4;

/// What policies allow, by how it is told.
#[derive(Default)]
struct Allowed {
    /// To everyone. `None`: nothing.
    anyone: Option<Ports>,
    sets: BTreeMap<SetId, Ports>,
    blocks: BTreeMap<Block, Ports>,
    port_sets: BTreeSet<SetId>,
}

/// The rules for a pod that these policies isolate: what one of them allows returns, the rest is dropped.
pub(crate) fn isolation(
    render: &mut Render,
    sections: &[Arc<Section>],
    direction: Direction,
    family: Family,
) -> Vec<String> {
    let allowed = Allowed::of(sections);
    let drop = format!("counter drop comment \"{}\"", comment(&isolated_by(sections)));
    if allowed.anyone == Some(Ports::Any) {
        return vec!["return".to_owned()];
    }
    let mut rules = Vec::new();
    rules.extend(allowed.port_set_rules(render, direction, family));
    if allowed.sets.len() + allowed.blocks.len() <= FEW {
        for (set, to) in &allowed.sets {
            let peers = render.peers(&Peers::Set(set.clone()), direction, family);
            rules.extend(peers.map(|peers| line([&peers, &ports(to), "return"])));
        }
        for (block, to) in &allowed.blocks {
            let peers = render.peers(&Peers::Block(block.clone()), direction, family);
            rules.extend(peers.map(|peers| line([&peers, &ports(to), "return"])));
        }
    } else {
        rules.extend(allowed.member_map(render, direction, family, &drop));
        rules.extend(allowed.block_map(render, direction, family, &drop));
    }
    rules.extend(allowed.anyone.as_ref().map(|to| line([&ports(to), "return"])));
    rules.push(drop);
    rules
}

fn isolated_by(sections: &[Arc<Section>]) -> String {
    let names: Vec<String> = sections
        .iter()
        .take(3)
        .map(|section| format!("{}/{}", section.policy.namespace, section.policy.name))
        .collect();
    let more = sections.len().saturating_sub(3);
    match more {
        0 => format!("isolated by {}", names.join(", ")),
        more => format!("isolated by {} and {more} more", names.join(", ")),
    }
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
        render: &mut Render,
        direction: Direction,
        family: Family,
    ) -> Vec<String> {
        if self.port_sets.len() <= FEW {
            let peers = self
                .port_sets
                .iter()
                .filter_map(|set| render.peers(&Peers::PortSet(set.clone()), direction, family));
            return peers.map(|peers| line([&peers, "return"])).collect();
        }
        let meaning: Vec<String> = self.port_sets.iter().map(|set| format!("{set:?}")).collect();
        let name = format!("ports{}-{}", family.digit(), digest(&meaning.join("\n")));
        let mut elements = BTreeSet::new();
        for set in &self.port_sets {
            let single = render.peers(&Peers::PortSet(set.clone()), direction, family);
            let single =
                single.and_then(|text| text.rsplit_once('@').map(|(_, name)| name.to_owned()));
            elements.extend(
                single
                    .and_then(|single| render.ruleset.sets.remove(&single))
                    .into_iter()
                    .flat_map(|set| set.elements),
            );
        }
        let header = family.header();
        let rule =
            format!("{header} {} . meta l4proto . th dport @{name} return", there(direction));
        let comment = comment(&format!("{} sets of named ports together", self.port_sets.len()));
        render.ruleset.sets.insert(name, Set { kind: Kind::Ports, family, comment, elements });
        vec![rule]
    }

    /// One map from the address of a peer to the ports that all sets it is in allow it together.
    fn member_map(
        &self,
        render: &mut Render,
        direction: Direction,
        family: Family,
        drop: &str,
    ) -> Option<String> {
        let mut by_address: BTreeMap<IpAddr, Ports> = BTreeMap::new();
        for (set, to) in &self.sets {
            let members = render.program.sets.get(set).into_iter().flatten();
            for member in members.filter(|member| Family::of(member.address) == family) {
                extend(&mut by_address, &member.address, to);
            }
        }
        let mut elements = BTreeSet::new();
        for (address, to) in by_address {
            let blocks =
                self.blocks.iter().filter(|(block, _)| block.contains(address)).map(|(_, to)| to);
            let all = blocks.chain(&self.anyone).fold(to, |all, more| and(Some(&all), more));
            let chain = ports_chain(render, direction, family, &all, drop);
            elements.insert(Element { address, rest: format!(" : goto {chain}") });
        }
        // What an address may use follows from everything that is allowed, so all of it is in the name.
        let Allowed { anyone, sets, blocks, port_sets: _ } = self;
        let meaning = format!("{anyone:?}\n{sets:?}\n{blocks:?}\n{drop}");
        let name = format!("peers{}-{}-{direction}", family.digit(), digest(&meaning));
        let rule = format!("{} {} vmap @{name}", family.header(), there(direction));
        let comment = comment(&format!("{} sets of pods together", self.sets.len()));
        render.ruleset.sets.insert(name, Set { kind: Kind::Verdicts, family, comment, elements });
        (!self.sets.is_empty()).then_some(rule)
    }

    /// One map from the blocks, cut where they overlap, to the ports that they allow together.
    fn block_map(
        &self,
        render: &mut Render,
        direction: Direction,
        family: Family,
        drop: &str,
    ) -> Option<String> {
        let mut elements = Vec::new();
        for (interval, inside) in segments(self.blocks.keys(), family) {
            let to = inside.iter().filter_map(|block| self.blocks.get(*block));
            let all = to
                .chain(&self.anyone)
                .fold(None, |all: Option<Ports>, more| Some(and(all.as_ref(), more)));
            let Some(all) = all else { continue };
            let chain = ports_chain(render, direction, family, &all, drop);
            elements.push(format!("{interval} : goto {chain}"));
        }
        let rule =
            format!("{} {} vmap {{ {} }}", family.header(), there(direction), elements.join(", "));
        (!elements.is_empty()).then_some(rule)
    }
}

/// A chain that lets these ports pass and drops the rest.
fn ports_chain(
    render: &mut Render,
    direction: Direction,
    family: Family,
    to: &Ports,
    drop: &str,
) -> String {
    let rules = match ports(to) {
        all if all.is_empty() => vec!["return".to_owned()],
        some => vec![format!("{some} return"), drop.to_owned()],
    };
    render.add_chain(direction, family, "-ports", rules)
}

fn extend<K: Ord + Clone>(map: &mut BTreeMap<K, Ports>, key: &K, more: &Ports) {
    let all = and(map.get(key), more);
    map.insert(key.clone(), all);
}

/// These ports and those.
fn and(some: Option<&Ports>, more: &Ports) -> Ports {
    match (some, more) {
        (None, more) => more.clone(),
        (Some(Ports::Any), _) | (_, Ports::Any) => Ports::Any,
        (Some(Ports::Of(some)), Ports::Of(more)) => {
            let both: Vec<PortRange> = some.iter().chain(more).copied().collect();
            Ports::of(both).unwrap_or_else(|| Ports::Of(some.clone()))
        }
    }
}
