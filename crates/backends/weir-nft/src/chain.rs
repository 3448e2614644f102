//! The chain that decides as the rules of a pod do.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{
    Action, Block, Chain as Rules, Direction, Name, Peers, Ports, Program, Rule as Decision,
    Section, SetId,
};

use crate::{
    Act, Chain, Family, Field, Key, Kind, Match, Planner, Rule, Set,
    intervals::intervals,
    merge,
    name::{comment, digest},
    place::{denied, there},
};

/// Enters the chain that decides as these rules do, for packets of one family. A packet that passes returns.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    rules: &Rules,
    direction: Direction,
    family: Family,
) -> Name {
    let mut last = Vec::new();
    match &rules.isolation {
        Some(sections) => {
            last.extend(merge::isolation(planner, program, sections, direction, family));
        }
        None => {
            for (section, rule) in each(&rules.baseline) {
                let act = match rule.action {
                    Action::Deny => Act::Goto(denied(direction)),
                    Action::Allow | Action::Pass => Act::Return,
                };
                last.extend(decision(planner, program, section, rule, family, act));
            }
        }
    }
    let passes = each(&rules.admin).any(|(_, rule)| rule.action == Action::Pass);
    let rest = passes.then(|| enter(planner, direction, family, "-rest", last.clone()));
    let mut all = Vec::new();
    for (section, rule) in each(&rules.admin) {
        let act = match (rule.action, &rest) {
            (Action::Deny, _) => Act::Goto(denied(direction)),
            (Action::Pass, Some(rest)) => Act::Goto(rest.clone()),
            (Action::Allow | Action::Pass, _) => Act::Return,
        };
        all.extend(decision(planner, program, section, rule, family, act));
    }
    match rest {
        Some(rest) => all.push(Rule::new([], Act::Goto(rest))),
        None => all.extend(last),
    }
    enter(planner, direction, family, "", all)
}

/// Enters a chain under a name made of what it says.
pub(crate) fn enter(
    planner: &mut Planner,
    direction: Direction,
    family: Family,
    suffix: &str,
    rules: Vec<Rule>,
) -> Name {
    let text: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name = format!("{direction}{}-{}{suffix}", family.digit(), digest(&text.join("\n")));
    let name = Name::from(name);
    planner.objects.add_chain(&name, Chain { hook: None, rules });
    name
}

/// The policies that speak for a pod, for people.
pub(crate) fn spoken_for_by(rules: &Rules) -> String {
    let isolation = rules.isolation.iter().flatten();
    let sections: Vec<&Arc<Section>> =
        rules.admin.iter().chain(isolation).chain(&rules.baseline).collect();
    names(&sections)
}

/// The first few policies by name, and how many more there are.
pub(crate) fn names(sections: &[&Arc<Section>]) -> String {
    let name = |section: &&Arc<Section>| match &*section.policy.namespace {
        "" => section.policy.name.to_string(),
        namespace => format!("{namespace}/{}", section.policy.name),
    };
    let first: Vec<String> = sections.iter().take(3).map(name).collect();
    match sections.len().saturating_sub(3) {
        0 => format!("isolated by {}", first.join(", ")),
        more => format!("isolated by {} and {more} more", first.join(", ")),
    }
}

fn each(sections: &[Arc<Section>]) -> impl Iterator<Item = (&Section, &Decision)> {
    sections.iter().flat_map(|section| section.rules.iter().map(move |rule| (&**section, rule)))
}

/// One rule, as it is. Nothing if it cannot match in this family.
fn decision(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    rule: &Decision,
    family: Family,
    act: Act,
) -> Option<Rule> {
    let mut matches = peers(planner, program, &rule.peers, rule.origin.direction, family)?;
    matches.extend(ports(planner, &rule.ports));
    let origin = comment(&format!("{} {}", section.policy, rule.origin));
    Some(Rule { matches, act, comment: origin })
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
            planner.copy(program, &name, vec![set.clone()], Kind::Addresses(family), said);
            vec![Match::In(vec![address], name)]
        }
        Peers::PortSet(set) => port_sets(planner, program, vec![set.clone()], direction, family),
        Peers::Block(block) => vec![Match::In(vec![address], one_block(planner, block, family)?)],
    })
}

/// One of these named ports.
pub(crate) fn port_sets(
    planner: &mut Planner,
    program: &Program,
    sets: Vec<SetId>,
    direction: Direction,
    family: Family,
) -> Vec<Match> {
    let name: Name = format!("ports{}-{}", family.digit(), digest(&format!("{sets:?}"))).into();
    let said = match &sets[..] {
        [one] => one.to_string(),
        several => format!("{} sets of named ports together", several.len()),
    };
    planner.copy(program, &name, sets, Kind::Ports(family), comment(&said));
    let key = vec![there(direction, family), Field::Protocol, Field::DestinationPort];
    vec![Match::In(key, name)]
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
pub(crate) fn ports(planner: &mut Planner, ports: &Ports) -> Vec<Match> {
    let Ports::Of(ranges) = ports else { return Vec::new() };
    if let [one] = &ranges[..] {
        return vec![Match::To(*one)];
    }
    let single = ranges.iter().all(|range| range.first == range.last);
    let kind = if single { Kind::Services } else { Kind::ServiceRanges };
    let name: Name = format!("services-{}", digest(&format!("{ranges:?}"))).into();
    let elements = ranges.iter().map(|range| (Key::Service(*range), None)).collect();
    let set = Set { kind, comment: comment(&ports.to_string()), elements };
    planner.objects.add_set(&name, set);
    vec![Match::In(vec![Field::Protocol, Field::DestinationPort], name)]
}
