//! The chains of pods and of policies.
//!
//! A pod's chain calls the chains of its policies in order. An allowed packet leaves immediately. A
//! packet that returns from all of them is denied. Policies that would need many lookups share one
//! chain.

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

/// The number of rules up to which separate chains are as fast as merged ones.
const MAX_SEPARATE_RULES: usize = 4;

/// The tier of a chain's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// An admin policy, which can pass a packet to the next tier.
    Admin,
    /// A NetworkPolicy, which only allows.
    Isolation,
    /// The baseline policy, for pods that no NetworkPolicy selects.
    Baseline,
}

/// Adds the chain of a pod for one direction and family. No packet returns from it.
pub(crate) fn add_pod_chain(
    planner: &mut Planner,
    program: &Program,
    pod: &PodId,
    rules: &Rules,
    direction: Direction,
    family: IpFamily,
) -> Name {
    let scope = (direction, family);
    let admin = separate_chains(planner, program, &rules.admin, scope, Tier::Admin);
    let mut all = Vec::new();
    if !admin.is_empty() {
        // The mark records that an admin policy passed the packet on. It is cleared before other
        // rules see it.
        let unmarked = || Rule::new([], Act::Mark { value: 0, mask: PASSED });
        all.push(unmarked());
        let jump = |(at, chain)| match at {
            0 => jump_to(chain),
            _ => Rule { matches: vec![Match::Unmarked(PASSED)], ..jump_to(chain) },
        };
        all.extend(admin.into_iter().enumerate().map(jump));
        all.push(unmarked());
    }
    let chains = match &rules.isolation {
        Some(sections) => isolation(planner, program, sections, scope),
        None => separate_chains(planner, program, &rules.baseline, scope, Tier::Baseline),
    };
    all.extend(chains.into_iter().map(jump_to));
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

/// Adds the chains of the policies that isolate a pod: one per policy, or a merged one if that is
/// faster.
fn isolation(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    (direction, family): (Direction, IpFamily),
) -> Vec<Name> {
    let lines = sections.iter().map(|section| section.rules.len()).sum::<usize>();
    if lines <= MAX_SEPARATE_RULES {
        return separate_chains(planner, program, sections, (direction, family), Tier::Isolation);
    }
    let all: Vec<&Arc<Section>> = sections.iter().collect();
    let rules =
        Allowed::from_sections(sections).rules(planner, program, direction, family, &names(&all));
    let text: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name = match sections {
        [one] => name::policy_chain(&one.policy, family, &text.join("\n")),
        _ => name::merged_chain(family, &text.join("\n")),
    };
    planner.objects.put_chain(family, &name, rules);
    vec![name]
}

/// Adds one chain per policy.
fn separate_chains(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    scope: (Direction, IpFamily),
    tier: Tier,
) -> Vec<Name> {
    let chain = |section: &Arc<Section>| section_chain(planner, program, section, scope, tier);
    sections.iter().filter_map(chain).collect()
}

/// Adds the chain of a policy, in which the first match decides. `None` if no rule can match in
/// this family.
fn section_chain(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    (direction, family): (Direction, IpFamily),
    tier: Tier,
) -> Option<Name> {
    let mut rules = Vec::new();
    // Consecutive rules with the same action can share sets. Where the action changes, a new group
    // begins.
    for (group, same_action) in
        section.rules.chunk_by(|one, next| one.action == next.action).enumerate()
    {
        let group = (tier != Tier::Isolation).then(|| format!("{} {group}", section.policy));
        for rule in same_action {
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
                (family, group.as_deref(), &act),
            ));
        }
    }
    if rules.is_empty() {
        return None;
    }
    let text: Vec<String> = rules.iter().map(Rule::to_string).collect();
    let name =
        name::policy_chain(&section.policy, family, &format!("{direction}\n{}", text.join("\n")));
    planner.objects.put_chain(family, &name, rules);
    Some(name)
}

/// A rule that jumps to a policy's chain. It has no comment, because evaluating a comment costs as
/// much as many comparisons. The rules in that chain have comments.
fn jump_to(chain: Name) -> Rule {
    Rule::new([], Act::Jump(chain))
}

/// One rule of a policy. Some port lists need several iptables rules.
fn decision(
    planner: &mut Planner,
    program: &Program,
    section: &Section,
    rule: &Decision,
    (family, group, act): (IpFamily, Option<&str>, &Act),
) -> Vec<Rule> {
    let Some(peers) = peers(planner, program, rule, family, group) else { return Vec::new() };
    let origin = comment(&format!("{} {}", policy(section), rule.origin));
    let with = |to: Option<Match>| {
        // Comparisons of addresses and ports are faster than set lookups.
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

/// Matches the peers of a rule. `None` if none of them is of this family. `group` names the group
/// of an ordered rule, whose sets are not shared.
fn peers(
    planner: &mut Planner,
    program: &Program,
    rule: &Decision,
    family: IpFamily,
    group: Option<&str>,
) -> Option<Vec<Match>> {
    let direction = rule.origin.direction;
    let scope = (direction, family);
    let there = Side::there(direction);
    Some(match &rule.peers {
        Peers::Any => Vec::new(),
        Peers::Set(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, scope, Kind::Addresses, of, group);
            vec![Match::In(name, vec![there])]
        }
        Peers::PortSet(set) => {
            let of = vec![(set.clone(), Share::Own)];
            let name = planner.feed(program, scope, Kind::Ports, of, group);
            vec![Match::In(name, vec![there, Side::Destination])]
        }
        Peers::Block(block) => block_match(planner, block, direction, family)?,
    })
}

/// Matches a block: by address if it is one network, else by a set.
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

/// Matches ports with as few matches as iptables allows.
pub(crate) fn ports(ports: &Ports) -> Vec<Match> {
    /// The maximum number of ports in one match. A range counts as two.
    const MAX_PORTS: usize = 15;
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
            if numbers + size > MAX_PORTS {
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

/// The policies that select a pod, for comments.
pub(crate) fn isolated_by(rules: &Rules) -> String {
    let isolation = rules.isolation.iter().flatten();
    let sections: Vec<&Arc<Section>> =
        rules.admin.iter().chain(isolation).chain(&rules.baseline).collect();
    if sections.is_empty() {
        "isolated".to_owned()
    } else {
        format!("isolated by {}", names(&sections))
    }
}

/// The names of the first three policies, and the number of others.
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
