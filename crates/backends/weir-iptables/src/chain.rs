//! The chains of pods and of policies.
//!
//! A pod's chain calls the chains of its admin policies in order. They mark an allowed or passed
//! packet, and the pod's chain tests the mark. Then it goes to one chain with the rules of all
//! NetworkPolicies that isolate the pod. An allowed packet leaves that chain immediately, and the
//! last rule denies the others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use weir_datapath::{isolated_by, policy_name, policy_names};
use weir_model::{
    Action, Block, Chain, Direction, IpFamily, Name, Peers, PodId, PortRange, Ports, Program,
    Protocol, Rule, RuleSet, Section, SetId,
};

use crate::{
    Entry, IpSetKind, IptablesRule, IptablesTarget, Match, Planner, SrcDst, blocks,
    chains_and_sets::{ALLOWED, PASSED},
    derived_set::EntryForm,
    name::{self, comment},
    signposts::Place,
    skeleton::{allow, allowed, clear_marks, denied, marked_allowed, not_allowed, pass},
};

/// The number of rules up to which separate chains are as fast as merged ones.
const MAX_SEPARATE_RULES: usize = 4;
/// The number of port ranges that such rules can have together.
const MAX_SEPARATE_PORTS: usize = 60;

/// Compiles the rules of pods to chains, for one direction and family.
pub(crate) struct ChainCompiler<'a> {
    pub(crate) planner: &'a mut Planner,
    pub(crate) program: &'a Program,
    pub(crate) direction: Direction,
    pub(crate) family: IpFamily,
}

/// The rules of pods that are computed once per plan.
pub(crate) type SharedRules = BTreeMap<(*const RuleSet, Direction, IpFamily), ClassRules>;

/// The rules of all pods with the same rules, in one direction and family.
#[derive(Clone, Debug)]
pub(crate) struct ClassRules {
    /// The start of a pod's chain.
    start: Vec<IptablesRule>,
    /// The target of its last rule.
    target: IptablesTarget,
    /// The chains of the policies, in the order of evaluation.
    places: Arc<[Place]>,
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
    pub(crate) fn add_pod_chain(
        &mut self,
        pod: &PodId,
        rules: &Arc<RuleSet>,
        shared: &mut SharedRules,
    ) -> (Name, Arc<[Place]>) {
        let chain = rules.chain(self.direction);
        let key = (Arc::as_ptr(rules), self.direction, self.family);
        let ClassRules { start: mut all, target, places } =
            shared.entry(key).or_insert_with(|| self.add_shared_chains(chain)).clone();
        let comment = comment(&format!("{pod} {}", isolated_by(chain)));
        all.push(IptablesRule { target, comment, matches: Vec::new() });
        let name = name::pod_chain(pod, self.direction);
        self.planner.objects.put_chain(self.family, &name, all);
        (name, places)
    }

    /// Adds the chains of policies. Returns the rules that lead to them.
    fn add_shared_chains(&mut self, rules: &Chain) -> ClassRules {
        let mut places = self.add_policy_chains(&rules.admin, SectionTier::Admin);
        let mut all = Vec::new();
        if places.iter().any(Option::is_some) {
            all.push(clear_marks(ALLOWED | PASSED));
            for (at, chain) in places.iter().flatten().cloned().enumerate() {
                // Later admin policies do not apply to a packet that one of them passed.
                let matches = if at == 0 { Vec::new() } else { vec![Match::Unmarked(PASSED)] };
                all.push(IptablesRule::new(matches, IptablesTarget::Jump(chain)));
                all.push(self.leave_if_allowed());
            }
            all.push(clear_marks(PASSED));
        }
        let target = match &rules.isolation {
            Some(sections) => {
                let chain = self.add_isolation_chain(&sections.to_vec());
                places.extend(sections.iter().map(|_| Some(chain.clone())));
                all.push(IptablesRule::new([], IptablesTarget::Goto(chain)));
                // No packet reaches the last rule, whose comment names the pod.
                IptablesTarget::Goto(not_allowed(self.direction))
            }
            None => {
                let baseline = self.add_policy_chains(&rules.baseline, SectionTier::Baseline);
                if all.is_empty() && baseline.iter().any(Option::is_some) {
                    all.push(clear_marks(ALLOWED));
                }
                for chain in baseline.iter().flatten().cloned() {
                    all.push(IptablesRule::new([], IptablesTarget::Jump(chain)));
                    all.push(self.leave_if_allowed());
                }
                places.extend(baseline);
                allowed(self.direction)
            }
        };
        ClassRules { start: all, target, places: places.into() }
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
        let mut rules = if rule_count <= MAX_SEPARATE_RULES && has_few_ports(sections) {
            let each = sections.iter();
            each.flat_map(|section| self.policy_rules(section, SectionTier::Namespace)).collect()
        } else {
            self.isolation_rules(sections, &policy_names(sections))
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
    fn add_policy_chains(&mut self, sections: &[Arc<Section>], tier: SectionTier) -> Vec<Place> {
        sections.iter().map(|section| self.add_policy_chain(section, tier)).collect()
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
            for same_ports in by_ports(same_action) {
                let Some(first) = same_ports.first() else { continue };
                let target = match (first.action, tier) {
                    (Action::Deny, _) => IptablesTarget::Goto(denied(self.direction)),
                    (Action::Allow | Action::Pass, SectionTier::Namespace) => {
                        allowed(self.direction)
                    }
                    (Action::Pass, SectionTier::Admin) => IptablesTarget::Goto(pass()),
                    (Action::Allow | Action::Pass, _) => IptablesTarget::Goto(allow()),
                };
                let ports = port_matches(&first.ports);
                let is_product = same_ports.len() * ports.len() > MAX_SEPARATE_RULES;
                if let Some(group) = group.as_deref().filter(|_| is_product) {
                    rules.extend(self.merged_rules(section, &same_ports, group, &target));
                    continue;
                }
                for rule in same_ports {
                    rules.extend(self.policy_rule(section, rule, group.as_deref(), &target));
                }
            }
        }
        rules
    }

    /// Ordered rules with the same action and the same ports. Their peers share sets, so that the
    /// rules are not a product of peers and ports.
    fn merged_rules(
        &mut self,
        section: &Section,
        rules: &[&Rule],
        group: &str,
        target: &IptablesTarget,
    ) -> Vec<IptablesRule> {
        let Some(first) = rules.first() else { return Vec::new() };
        let (mut anyone, mut blocks) = (false, Vec::new());
        let (mut sets, mut port_sets) = (BTreeSet::new(), BTreeSet::new());
        for rule in rules {
            match &rule.peers {
                Peers::Any => anyone = true,
                Peers::Set(set) => _ = sets.insert(set.clone()),
                Peers::PortSet(set) => _ = port_sets.insert(set.clone()),
                Peers::Block(block) if blocks::is_in_family(block, self.family) => {
                    blocks.push(block);
                }
                Peers::Block(_) => (),
            }
        }
        let mut peers: Vec<Option<Match>> = Vec::new();
        if anyone {
            peers.push(None);
        }
        for (kind, sets) in [(IpSetKind::Addresses, sets), (IpSetKind::Ports, port_sets)] {
            if !sets.is_empty() {
                let of = sets.into_iter().map(|set| (set, EntryForm::Own)).collect();
                peers.push(Some(self.match_derived_set(kind, of, Some(group))));
            }
        }
        let entries = blocks::entries(blocks);
        if !entries.is_empty() {
            peers.push(Some(self.match_fixed_set(IpSetKind::Blocks, entries)));
        }
        let more = rules.len() - 1;
        let origin =
            comment(&format!("{} {} and {more} more", policy_name(&section.policy), first.origin));
        let ports = port_matches(&first.ports);
        let pairs = peers.into_iter().flat_map(|peers| {
            ports.iter().cloned().map(move |ports| ports.into_iter().chain(peers.clone()).collect())
        });
        let rule =
            |matches| IptablesRule { matches, target: target.clone(), comment: origin.clone() };
        pairs.map(rule).collect()
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
        let origin = comment(&format!("{} {}", policy_name(&section.policy), rule.origin));
        let with_ports = |ports: Option<Match>| {
            // Comparisons of addresses and ports are faster than set lookups.
            let (nets, sets): (Vec<_>, Vec<_>) =
                peers.iter().cloned().partition(|one| matches!(one, Match::At(..)));
            let matches = nets.into_iter().chain(ports).chain(sets).collect();
            IptablesRule { matches, target: target.clone(), comment: origin.clone() }
        };
        port_matches(&rule.ports).into_iter().map(with_ports).collect()
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
        if !blocks::is_in_family(block, self.family) {
            return None;
        }
        if *block == blocks::everything(self.family) {
            return Some(Vec::new());
        }
        if block.except.is_empty() {
            return Some(vec![Match::At(SrcDst::there(self.direction), block.net)]);
        }
        let entries = blocks::entries([block]);
        (!entries.is_empty()).then(|| vec![self.match_fixed_set(IpSetKind::Blocks, entries)])
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

/// Whether rules that are evaluated one by one would not become too many.
fn has_few_ports(sections: &[Arc<Section>]) -> bool {
    let rules = sections.iter().flat_map(|section| &section.rules);
    let ports = rules.filter_map(|rule| rule.ports.list()).map(|list| list.len());
    ports.sum::<usize>() <= MAX_SEPARATE_PORTS
}

/// Rules of one action, whose order does not matter, by ports.
fn by_ports(rules: &[Rule]) -> Vec<Vec<&Rule>> {
    let mut groups: Vec<Vec<&Rule>> = Vec::new();
    let mut known: HashMap<&Ports, usize> = HashMap::new();
    for rule in rules {
        let index = *known.entry(&rule.ports).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.push(rule),
            None => groups.push(vec![rule]),
        }
    }
    groups
}

/// The matches of ports, each for one rule. `None` matches every port.
fn port_matches(ports: &Ports) -> Vec<Option<Match>> {
    match ports {
        Ports::Any => vec![None],
        Ports::Of(list) => match_ports(list).into_iter().map(Some).collect(),
    }
}

/// Matches ports with as few matches as iptables allows.
pub(crate) fn match_ports(ranges: &[PortRange]) -> Vec<Match> {
    /// The maximum number of ports in one match. A range counts as two.
    const MAX_PORTS: usize = 15;
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
