//! The chains of pods and of policies.
//!
//! A chain of a pod asks those of its policies in turn. What one of them allows goes its way at once; what comes back from all
//! is denied. Policies that would need many lookups have one chain together.

use std::sync::Arc;

use weir_model::{
    Action, Block, Chain as Rules, Direction, IpFamily, Name, Peers, PodId, Ports, Program,
    Protocol, Rule as Decision, Section,
};

use crate::{
    Act, Entry, Kind, Match, Planner, Rule, Side, blocks,
    feed::Share,
    merge::Allowed,
    name::{self, comment},
    ruleset::PASSED,
    skeleton::{allowed, denied, pass},
};

/// So many rules one after the other are as good as merged ones.
const FEW: usize = 4;

/// Whose rules a chain has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Those of an admin policy, which may pass a packet on.
    Admin,
    /// Those of a NetworkPolicy, which only allow.
    Isolation,
    /// Those for pods that no NetworkPolicy speaks for.
    Baseline,
}

/// Enters the chain that decides as these rules do, for packets of one family. No packet comes back from it.
pub(crate) fn of(
    planner: &mut Planner,
    program: &Program,
    pod: &PodId,
    rules: &Rules,
    direction: Direction,
    family: IpFamily,
) -> Name {
    let place = (direction, family);
    let admin = one_by_one(planner, program, &rules.admin, place, Tier::Admin);
    let mut all = Vec::new();
    if !admin.is_empty() {
        // The mark says that one of them passed the packet on. Nobody else gets to see it.
        let unmarked = || Rule::new([], Act::Mark { value: 0, mask: PASSED });
        all.push(unmarked());
        let jump = |(at, chain)| match at {
            0 => ask(chain),
            _ => Rule { matches: vec![Match::Unmarked(PASSED)], ..ask(chain) },
        };
        all.extend(admin.into_iter().enumerate().map(jump));
        all.push(unmarked());
    }
    let chains = match &rules.isolation {
        Some(sections) => isolation(planner, program, sections, place),
        None => one_by_one(planner, program, &rules.baseline, place, Tier::Baseline),
    };
    all.extend(chains.into_iter().map(ask));
    let act = match rules.isolation {
        Some(_) => Act::Goto(denied(direction)),
        None => allowed(direction),
    };
    let comment = comment(&format!("{pod} {}", isolated_by(rules)));
    all.push(Rule { act, comment, matches: Vec::new() });
    let name = name::pod_chain(pod, direction);
    planner.objects.put_chain(family, &name, all);
    name
}

/// Enters the chains of the policies that isolate a pod, each with one of its own as long as that is no more work.
fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    (direction, family): (Direction, IpFamily),
) -> Vec<Name> {
    let lines = sections.iter().map(|section| section.rules.len()).sum::<usize>();
    if lines <= FEW {
        return one_by_one(planner, program, sections, (direction, family), Tier::Isolation);
    }
    let all: Vec<&Arc<Section>> = sections.iter().collect();
    let rules = Allowed::of(sections).rules(planner, program, direction, family, &names(&all));
    let said: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name = match sections {
        [one] => name::policy_chain(&one.policy, family, &said.join("\n")),
        _ => name::merged_chain(family, &said.join("\n")),
    };
    planner.objects.put_chain(family, &name, rules);
    vec![name]
}

/// Enters the chains of policies, each with one of its own.
fn one_by_one(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    place: (Direction, IpFamily),
    tier: Tier,
) -> Vec<Name> {
    let chain = |section: &Arc<Section>| section_chain(planner, program, section, place, tier);
    sections.iter().filter_map(chain).collect()
}

/// Enters the chain of a policy: the first rule that fits decides. `None` if none can fit in this family.
fn section_chain(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    (direction, family): (Direction, IpFamily),
    tier: Tier,
) -> Option<Name> {
    let mut rules = Vec::new();
    // Rules with one answer after the other may ask the same sets. Where the answer changes, a new turn begins.
    for (turn, alike) in section.rules.chunk_by(|one, next| one.action == next.action).enumerate() {
        let turn = (tier != Tier::Isolation).then(|| format!("{} {turn}", section.policy));
        for rule in alike {
            let act = match rule.action {
                Action::Allow => allowed(direction),
                Action::Pass if tier == Tier::Admin => Act::Goto(pass()),
                Action::Pass => allowed(direction),
                Action::Deny => Act::Goto(denied(direction)),
            };
            rules.extend(decision(
                planner,
                program,
                section,
                rule,
                (family, turn.as_deref(), &act),
            ));
        }
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

/// A rule that asks the chain of a policy. It has no comment, for a comment takes a packet as long as many comparisons: the
/// rules that it leads to have.
fn ask(chain: Name) -> Rule {
    Rule::new([], Act::Jump(chain))
}

/// One rule of a policy, as several if its ports need it.
fn decision(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    rule: &Decision,
    (family, turn, act): (IpFamily, Option<&str>, &Act),
) -> Vec<Rule> {
    let Some(peers) = peers(planner, program, rule, family, turn) else { return Vec::new() };
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
    family: IpFamily,
    turn: Option<&str>,
) -> Option<Vec<Match>> {
    let direction = rule.origin.direction;
    let place = (direction, family);
    let there = Side::there(direction);
    Some(match &rule.peers {
        Peers::Any => Vec::new(),
        Peers::Set(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, place, Kind::Addresses, of, turn);
            vec![Match::In(name, vec![there])]
        }
        Peers::PortSet(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, place, Kind::Ports, of, turn);
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
    family: IpFamily,
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
