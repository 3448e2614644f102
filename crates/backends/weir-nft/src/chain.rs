//! The chain that decides as the rules of a pod do.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{Block, Chain as Rules, Direction, Name, Peers, Ports, Program, Section};

use crate::{
    Act, Chain, Family, Field, Key, Kind, Match, Planner, Rule, Set,
    intervals::intervals,
    merge,
    name::{comment, digest},
    objects::Objects,
    place::there,
    tier::Judge,
};

/// Enters the chain that decides as these rules do, for packets of one family. A packet that passes returns.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    rules: &Rules,
    direction: Direction,
    family: Family,
) -> Name {
    let admin = admin(planner, program, &rules.admin, direction, family);
    let rest = match &rules.isolation {
        Some(sections) => merge::isolation(planner, program, sections, direction, family),
        None if has_rules(&rules.baseline) => {
            Judge::baseline(&rules.baseline, direction, family).rules(planner, program)
        }
        None => Vec::new(),
    };
    match admin {
        Some(admin) if rest.is_empty() => admin,
        admin => {
            let first = admin.map(|admin| Rule::new([], Act::Jump(admin)));
            let all = first.into_iter().chain(rest).collect();
            enter(&mut planner.objects, direction, family, "", all)
        }
    }
}

/// Enters the chain of the admin tier, which all pods share that the same policies speak for. What it passes returns, and what it
/// allows does not. `None` if it has nothing to say.
fn admin(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: Family,
) -> Option<Name> {
    if !has_rules(sections) {
        return None;
    }
    let sections_at = sections.iter().map(|section| Arc::as_ptr(section).addr()).collect();
    let known = (sections_at, direction, family);
    if let Some(chain) = planner.admin_chains.get(&known) {
        return Some(chain.clone());
    }
    let judge = Judge::admin(sections, direction, family);
    let rules = judge.rules(planner, program);
    let chain = enter(&mut planner.objects, direction, family, "-admin", rules);
    planner.admin_chains.insert(known, chain.clone());
    Some(chain)
}

fn has_rules(sections: &[Arc<Section>]) -> bool {
    sections.iter().any(|section| !section.rules.is_empty())
}

/// Enters a chain under a name made of what it says.
pub(crate) fn enter(
    objects: &mut Objects,
    direction: Direction,
    family: Family,
    suffix: &str,
    rules: Vec<Rule>,
) -> Name {
    let text: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name = format!("{direction}{}-{}{suffix}", family.digit(), digest(&text.join("\n")));
    let name = Name::from(name);
    objects.add_chain(&name, Chain { hook: None, rules });
    name
}

/// The policies that speak for a pod, for people.
pub(crate) fn spoken_for_by(rules: &Rules) -> String {
    let isolation = rules.isolation.iter().flatten();
    let sections = rules.admin.iter().chain(isolation).chain(&rules.baseline);
    format!("isolated by {}", names(sections))
}

/// The first few policies by name, and how many more there are.
pub(crate) fn names<'a>(sections: impl IntoIterator<Item = &'a Arc<Section>>) -> String {
    let mut names = sections.into_iter().map(|section| match &*section.policy.namespace {
        "" => section.policy.name.to_string(),
        namespace => format!("{namespace}/{}", section.policy.name),
    });
    let first: Vec<String> = names.by_ref().take(3).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// What some peers are; `None` if nobody of this family is among them.
pub(crate) fn peers(
    planner: &mut Planner,
    program: &Program,
    peers: &Peers,
    direction: Direction,
    family: Family,
) -> Option<Vec<Match>> {
    let address = there(direction, family);
    Some(match peers {
        Peers::Any => Vec::new(),
        Peers::Set(set) => {
            let name: Name =
                format!("pods{}-{}", family.digit(), digest(&format!("{set:?}"))).into();
            let said = comment(&set.to_string());
            planner.copy(program, &name, set, Kind::Addresses(family), said);
            vec![Match::In(vec![address], name)]
        }
        Peers::PortSet(set) => {
            let name: Name =
                format!("ports{}-{}", family.digit(), digest(&format!("{set:?}"))).into();
            let said = comment(&set.to_string());
            planner.copy(program, &name, set, Kind::Ports(family), said);
            vec![Match::In(vec![address, Field::Protocol, Field::DestinationPort], name)]
        }
        Peers::Block(block) => vec![Match::In(vec![address], one_block(planner, block, family)?)],
    })
}

/// Enters the set of the addresses of a block; `None` if it has none in this family.
fn one_block(planner: &mut Planner, block: &Block, family: Family) -> Option<Name> {
    let elements: BTreeMap<_, _> =
        intervals([block], family).into_iter().map(|interval| (interval, None)).collect();
    if elements.is_empty() {
        return None;
    }
    let name = format!("blocks{}-{}", family.digit(), digest(&format!("{block:?}"))).into();
    let set = Set { kind: Kind::Blocks(family), comment: comment(&block.to_string()), elements };
    planner.objects.add_set(&name, set);
    Some(name)
}

/// What some ports are.
pub(crate) fn ports(objects: &mut Objects, ports: &Ports) -> Vec<Match> {
    let Ports::Of(ranges) = ports else { return Vec::new() };
    if let [one] = &ranges[..] {
        return vec![Match::To(*one)];
    }
    let single = ranges.iter().all(|range| range.first == range.last);
    let kind = if single { Kind::Services } else { Kind::ServiceRanges };
    let name: Name = format!("services-{}", digest(&format!("{ranges:?}"))).into();
    let elements = ranges.iter().map(|range| (Key::Service(*range), None)).collect();
    let set = Set { kind, comment: comment(&ports.to_string()), elements };
    objects.add_set(&name, set);
    vec![Match::In(vec![Field::Protocol, Field::DestinationPort], name)]
}
