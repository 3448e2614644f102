//! The chains of pods and of policies.
//!
//! A pod's chain calls the chains of its admin policies in order. They mark an allowed or passed
//! packet, and the pod's chain tests the mark. Then it goes to one chain with the rules of all
//! NetworkPolicies that isolate the pod. An allowed packet leaves that chain immediately, and the
//! last rule denies the others.

use std::{collections::BTreeSet, sync::Arc};

use weir_datapath::{Allowed, isolated_by, policy_name, policy_names};
use weir_model::{
    Action, Block, Chain, Direction, IpFamily, Name, Peers, PodId, Ports, Program, Protocol, Rule,
    Section, SetId,
};

use crate::{
    Entry, IpSetKind, IptablesRule, IptablesTarget, Match, Planner, SrcDst, blocks,
    chains_and_sets::{ALLOWED, PASSED},
    derived_set::EntryForm,
    name::{self, comment},
    skeleton::{allow, allowed, clear_marks, denied, marked_allowed, not_allowed, pass},
};

/// The number of rules up to which separate chains are as fast as merged ones.
const MAX_SEPARATE_RULES: usize = 4;

/// Compiles the rules of pods to chains, for one direction and family.
pub(crate) struct ChainCompiler<'a> {
    pub(crate) planner: &'a mut Planner,
    pub(crate) program: &'a Program,
    pub(crate) direction: Direction,
    pub(crate) family: IpFamily,
}

/// The tier of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionTier {
    /// An admin policy, which can pass a packet to the next tier.
    Admin,
    /// A NetworkPolicy, which only allows.
    Namespace,
    /// The baseline policy, for pods that no NetworkPolicy selects.
    Baseline,
}

impl ChainCompiler<'_> {
    /// Adds the chain of a pod. A packet leaves it by goto or RETURN.
    pub(crate) fn add_pod_chain(&mut self, pod: &PodId, rules: &Chain) -> Name {
        let admin = self.add_policy_chains(&rules.admin, SectionTier::Admin);
        let mut all = Vec::new();
        if !admin.is_empty() {
            all.push(clear_marks(ALLOWED | PASSED));
            for (at, chain) in admin.into_iter().enumerate() {
                // Later admin policies do not apply to a packet that one of them passed.
                let matches = if at == 0 { Vec::new() } else { vec![Match::Unmarked(PASSED)] };
                all.push(IptablesRule::new(matches, IptablesTarget::Jump(chain)));
                all.push(self.leave_if_allowed());
            }
            all.push(clear_marks(PASSED));
        }
        let target = match &rules.isolation {
            Some(sections) => {
                let chain = self.add_isolation_chain(sections);
                all.push(IptablesRule::new([], IptablesTarget::Goto(chain)));
                // No packet reaches the last rule, whose comment names the pod.
                IptablesTarget::Goto(not_allowed(self.direction))
            }
            None => {
                let baseline = self.add_policy_chains(&rules.baseline, SectionTier::Baseline);
                if all.is_empty() && !baseline.is_empty() {
                    all.push(clear_marks(ALLOWED));
                }
                for chain in baseline {
                    all.push(IptablesRule::new([], IptablesTarget::Jump(chain)));
                    all.push(self.leave_if_allowed());
                }
                allowed(self.direction)
            }
        };
        let comment = comment(&format!("{pod} {}", isolated_by(rules)));
        all.push(IptablesRule { target, comment, matches: Vec::new() });
        let name = name::pod_chain(pod, self.direction);
        self.planner.objects.put_chain(self.family, &name, all);
        name
    }

    /// The rule for packets that an admin policy allowed.
    fn leave_if_allowed(&self) -> IptablesRule {
        let target = IptablesTarget::Goto(marked_allowed(self.direction));
        IptablesRule::new([Match::Marked(ALLOWED)], target)
    }

    /// Adds the chain of the policies that isolate a pod. It contains their rules, or merged rules
    /// if that is faster.
    fn add_isolation_chain(&mut self, sections: &[Arc<Section>]) -> Name {
        let rule_count: usize = sections.iter().map(|section| section.rules.len()).sum();
        let mut rules = if rule_count <= MAX_SEPARATE_RULES {
            let each = sections.iter();
            each.flat_map(|section| self.policy_rules(section, SectionTier::Namespace)).collect()
        } else {
            self.isolation_rules(&Allowed::from_sections(sections), &policy_names(sections))
        };
        if rules.is_empty() {
            return not_allowed(self.direction);
        }
        rules.push(IptablesRule::new([], IptablesTarget::Goto(not_allowed(self.direction))));
        let content = content(&rules);
        let name = match sections {
            [one] => name::policy_chain(&one.policy, self.family, &content),
            _ => name::merged_chain(self.family, &content),
        };
        self.planner.objects.put_chain(self.family, &name, rules);
        name
    }

    /// Adds one chain per policy. Policies without a rule for this family get none.
    fn add_policy_chains(&mut self, sections: &[Arc<Section>], tier: SectionTier) -> Vec<Name> {
        sections.iter().filter_map(|section| self.add_policy_chain(section, tier)).collect()
    }

    /// Adds the chain of a policy, in which the first match decides. `None` if no rule can match in
    /// this family.
    fn add_policy_chain(&mut self, section: &Section, tier: SectionTier) -> Option<Name> {
        let rules = self.policy_rules(section, tier);
        if rules.is_empty() {
            return None;
        }
        let content = format!("{}\n{}", self.direction, content(&rules));
        let name = name::policy_chain(&section.policy, self.family, &content);
        self.planner.objects.put_chain(self.family, &name, rules);
        Some(name)
    }

    /// The rules of a policy, in order.
    fn policy_rules(&mut self, section: &Section, tier: SectionTier) -> Vec<IptablesRule> {
        let mut rules = Vec::new();
        // Consecutive rules with the same action can share sets. Where the action changes, a new
        // group begins.
        for (group, same_action) in
            section.rules.chunk_by(|one, next| one.action == next.action).enumerate()
        {
            let group =
                (tier != SectionTier::Namespace).then(|| format!("{} {group}", section.policy));
            for rule in same_action {
                let target = match (rule.action, tier) {
                    (Action::Deny, _) => IptablesTarget::Goto(denied(self.direction)),
                    (Action::Allow | Action::Pass, SectionTier::Namespace) => {
                        allowed(self.direction)
                    }
                    (Action::Pass, SectionTier::Admin) => IptablesTarget::Goto(pass()),
                    (Action::Allow | Action::Pass, _) => IptablesTarget::Goto(allow()),
                };
                rules.extend(self.policy_rule(section, rule, group.as_deref(), &target));
            }
        }
        rules
    }

    /// One rule of a policy. Some port lists need several iptables rules.
    fn policy_rule(
        &mut self,
        section: &Section,
        rule: &Rule,
        group: Option<&str>,
        target: &IptablesTarget,
    ) -> Vec<IptablesRule> {
        let Some(peers) = self.match_peers(&rule.peers, group) else { return Vec::new() };
        let origin = comment(&format!("{} {}", policy_name(section), rule.origin));
        let with_ports = |ports: Option<Match>| {
            // Comparisons of addresses and ports are faster than set lookups.
            let (nets, sets): (Vec<_>, Vec<_>) =
                peers.iter().cloned().partition(|one| matches!(one, Match::At(..)));
            let matches = nets.into_iter().chain(ports).chain(sets).collect();
            IptablesRule { matches, target: target.clone(), comment: origin.clone() }
        };
        match &rule.ports {
            Ports::Any => vec![with_ports(None)],
            Ports::Of(_) => {
                match_ports(&rule.ports).into_iter().map(|ports| with_ports(Some(ports))).collect()
            }
        }
    }

    /// Matches the peers of a rule. `None` if none of them is of this family. `group` names the
    /// group of an ordered rule, whose sets are not shared.
    fn match_peers(&mut self, peers: &Peers, group: Option<&str>) -> Option<Vec<Match>> {
        Some(match peers {
            Peers::Any => Vec::new(),
            Peers::Set(set) => {
                let of = vec![(set.clone(), EntryForm::Own)];
                vec![self.match_derived_set(IpSetKind::Addresses, of, group)]
            }
            Peers::PortSet(set) => {
                let of = vec![(set.clone(), EntryForm::Own)];
                vec![self.match_derived_set(IpSetKind::Ports, of, group)]
            }
            Peers::Block(block) => self.match_block(block)?,
        })
    }

    /// Matches a block: by address if it is one network, else by a set.
    fn match_block(&mut self, block: &Block) -> Option<Vec<Match>> {
        match &blocks::nets(block, self.family)[..] {
            [] => None,
            [all] if all.prefix_len() == 0 => Some(Vec::new()),
            [one] => Some(vec![Match::At(SrcDst::there(self.direction), *one)]),
            several => {
                let entries = several.iter().map(|net| Entry::Block(*net)).collect();
                Some(vec![self.match_fixed_set(IpSetKind::Blocks, entries)])
            }
        }
    }

    /// Adds a set with the members of program sets, and matches peers in it.
    pub(crate) fn match_derived_set(
        &mut self,
        kind: IpSetKind,
        of: Vec<(SetId, EntryForm)>,
        group: Option<&str>,
    ) -> Match {
        let scope = (self.direction, self.family);
        let name = self.planner.add_derived_set(self.program, scope, kind, of, group);
        self.match_peer_in(name, kind)
    }

    /// Adds a set with these entries, and matches peers in it.
    pub(crate) fn match_fixed_set(&mut self, kind: IpSetKind, entries: BTreeSet<Entry>) -> Match {
        let name = self.planner.add_fixed_set(self.direction, self.family, kind, entries);
        self.match_peer_in(name, kind)
    }

    /// Matches the peer, and its port if entries of the set have one.
    fn match_peer_in(&self, set: Name, kind: IpSetKind) -> Match {
        let peer = SrcDst::there(self.direction);
        match kind {
            IpSetKind::Ports | IpSetKind::BlockPorts => {
                Match::In(set, vec![peer, SrcDst::Destination])
            }
            _ => Match::In(set, vec![peer]),
        }
    }
}

/// The text of rules, for the name of their chain.
fn content(rules: &[IptablesRule]) -> String {
    rules.iter().map(IptablesRule::to_string).collect::<Vec<_>>().join("\n")
}

/// Matches ports with as few matches as iptables allows.
pub(crate) fn match_ports(ports: &Ports) -> Vec<Match> {
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
