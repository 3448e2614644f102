//! The chains of pods and of policies.
//!
//! A chain of a pod asks those of its policies in turn; each marks what it allows and returns, and what is left unmarked is
//! denied. Policies that would need many lookups have one chain together.

use std::sync::Arc;

use weir_model::{
    Action, Block, Chain as Rules, Direction, Name, Peers, PodId, Ports, Program, Protocol,
    Rule as Decision, Section,
};

use crate::{
    Act, Entry, Family, Kind, Match, Planner, Rule, Side, blocks,
    feed::Share,
    merge::Allowed,
    name::{self, comment},
    ruleset::{ALLOWED, PASSED},
    skeleton::{allow, denied, pass},
};

/// So many rules one after the other are as good as merged ones.
const FEW: usize = 4;

/// Enters the chain that decides as these rules do, for packets of one family. A packet that passes returns.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    pod: &PodId,
    rules: &Rules,
    direction: Direction,
    family: Family,
) -> Name {
    let mut all = Vec::new();
    for section in &rules.admin {
        let chain = section_chain(planner, program, section, direction, family, pass());
        all.extend(chain.map(|chain| ask(chain, ALLOWED | PASSED, &[section])));
    }
    let after = if all.is_empty() { 0 } else { ALLOWED };
    match &rules.isolation {
        Some(sections) => {
            let jumps = isolation(planner, program, sections, direction, family);
            let marked = if jumps.is_empty() { after } else { ALLOWED };
            all.extend(jumps);
            let why = comment(&format!("{pod} {}", isolated_by(rules)));
            let act = Act::Goto(denied(direction));
            all.push(Rule { matches: unmarked(marked), act, comment: why });
        }
        None => {
            for section in &rules.baseline {
                let chain = section_chain(planner, program, section, direction, family, allow());
                all.extend(chain.map(|chain| ask(chain, ALLOWED, &[section])));
            }
        }
    }
    // Nothing is marked before the first one is asked.
    if let Some(first) = all.first_mut() {
        first.matches.clear();
    }
    let name = name::pod_chain(pod, direction);
    planner.objects.put_chain(family, &name, all);
    name
}

/// The rules that ask the policies which isolate a pod.
fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: Family,
) -> Vec<Rule> {
    let lines = sections.iter().map(|section| section.rules.len()).sum::<usize>();
    if lines <= FEW {
        let chain = |section: &Arc<Section>| {
            let chain = section_chain(planner, program, section, direction, family, allow())?;
            Some(ask(chain, ALLOWED, &[section]))
        };
        return sections.iter().filter_map(chain).collect();
    }
    let all: Vec<&Arc<Section>> = sections.iter().collect();
    let rules = Allowed::of(sections).rules(planner, program, direction, family, &names(&all));
    let said: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name = match sections {
        [one] => name::policy_chain(&one.policy, family, &said.join("\n")),
        _ => name::merged_chain(family, &said.join("\n")),
    };
    planner.objects.put_chain(family, &name, rules);
    vec![ask(name, ALLOWED, &all)]
}

/// Enters the chain of a policy: the first rule that fits decides, or passes on. `None` if none can fit in this family.
fn section_chain(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    direction: Direction,
    family: Family,
    passes: Name,
) -> Option<Name> {
    let mut rules = Vec::new();
    for rule in &section.rules {
        let act = match rule.action {
            Action::Allow => Act::Goto(allow()),
            Action::Pass => Act::Goto(passes.clone()),
            Action::Deny => Act::Goto(denied(direction)),
        };
        rules.extend(decision(planner, program, section, rule, family, &act));
    }
    if rules.is_empty() {
        return None;
    }
    let said: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name =
        name::policy_chain(&section.policy, family, &format!("{direction}\n{}", said.join("\n")));
    planner.objects.put_chain(family, &name, rules);
    Some(name)
}

/// A rule that asks the chain of some policies, unless these marks are there.
fn ask(chain: Name, marks: u32, policies: &[&Arc<Section>]) -> Rule {
    Rule { matches: unmarked(marks), act: Act::Jump(chain), comment: comment(&names(policies)) }
}

fn unmarked(marks: u32) -> Vec<Match> {
    if marks == 0 { Vec::new() } else { vec![Match::Unmarked(marks)] }
}

/// One rule of a policy, as several if its ports need it.
fn decision(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    rule: &Decision,
    family: Family,
    act: &Act,
) -> Vec<Rule> {
    let Some(peers) = peers(planner, program, rule, family) else { return Vec::new() };
    let origin = comment(&format!("{} {}", policy(section), rule.origin));
    let with = |to: Option<Match>| {
        // Addresses and ports are quicker to look at than sets.
        let (nets, sets): (Vec<_>, Vec<_>) =
            peers.iter().cloned().partition(|one| matches!(one, Match::At(..)));
        let matches = nets.into_iter().chain(to).chain(sets).collect();
        Rule { matches, act: act.clone(), comment: origin.clone() }
    };
    match &rule.ports {
        Ports::Any => vec![with(None)],
        Ports::Of(_) => ports(&rule.ports).into_iter().map(|to| with(Some(to))).collect(),
    }
}

/// What some peers are; `None` if nobody of this family is among them.
fn peers(
    planner: &mut Planner,
    program: &Program,
    rule: &Decision,
    family: Family,
) -> Option<Vec<Match>> {
    let direction = rule.origin.direction;
    let there = Side::there(direction);
    Some(match &rule.peers {
        Peers::Any => Vec::new(),
        Peers::Set(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, direction, family, Kind::Addresses, of);
            vec![Match::In(name, vec![there])]
        }
        Peers::PortSet(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, direction, family, Kind::Ports, of);
            vec![Match::In(name, vec![there, Side::Destination])]
        }
        Peers::Block(block) => block_match(planner, block, direction, family)?,
    })
}

/// The addresses of a block: a network if it is one, else a set.
fn block_match(
    planner: &mut Planner,
    block: &Block,
    direction: Direction,
    family: Family,
) -> Option<Vec<Match>> {
    let there = Side::there(direction);
    match &blocks::nets(block, family)[..] {
        [] => None,
        [all] if all.prefix_len() == 0 => Some(Vec::new()),
        [one] => Some(vec![Match::At(there, *one)]),
        several => {
            let entries = several.iter().map(|net| Entry::Block(*net)).collect();
            let name = planner.fixed(direction, family, Kind::Blocks, entries);
            Some(vec![Match::In(name, vec![there])])
        }
    }
}

/// Some ports, as few matches as iptables can say them with.
pub(crate) fn ports(ports: &Ports) -> Vec<Match> {
    /// So many numbers fit into one match; a range is two.
    const NUMBERS: usize = 15;
    let Ports::Of(ranges) = ports else { return Vec::new() };
    let mut matches = Vec::new();
    for protocol in Protocol::ALL {
        let mut some = Vec::new();
        let mut numbers = 0;
        for range in ranges.iter().filter(|range| range.protocol == protocol) {
            if (range.first, range.last) == (0, u16::MAX) {
                matches.push(Match::To(protocol, Vec::new()));
                continue;
            }
            let size = if range.first == range.last { 1 } else { 2 };
            if numbers + size > NUMBERS {
                matches.push(Match::To(protocol, std::mem::take(&mut some)));
                numbers = 0;
            }
            some.push((range.first, range.last));
            numbers += size;
        }
        if !some.is_empty() {
            matches.push(Match::To(protocol, some));
        }
    }
    matches
}

/// The policies that speak for a pod, for people.
pub(crate) fn isolated_by(rules: &Rules) -> String {
    let isolation = rules.isolation.iter().flatten();
    let sections: Vec<&Arc<Section>> =
        rules.admin.iter().chain(isolation).chain(&rules.baseline).collect();
    match sections.is_empty() {
        true => "isolated".to_owned(),
        false => format!("isolated by {}", names(&sections)),
    }
}

/// The first few policies by name, and how many more there are.
fn names(sections: &[&Arc<Section>]) -> String {
    let first: Vec<String> = sections.iter().take(3).map(|section| policy(section)).collect();
    match sections.len().saturating_sub(3) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn policy(section: &Section) -> String {
    match &*section.policy.namespace {
        "" => section.policy.name.to_string(),
        namespace => format!("{namespace}/{}", section.policy.name),
    }
}
