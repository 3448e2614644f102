//! The part of the rules that comes from one policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use weir_datapath::{Granted, Mode, Planner as _};
use weir_model::{Chain, Delta, Direction, Endpoint, IpFamily, Name, PodId, PolicyId, Program};

use crate::{ChainsAndSets, Entry, IpSet, Planner, name, skeleton, text};

/// The chains, rules and entries of a policy. It displays in the format of iptables-save and
/// `ipset save`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPart {
    chains: BTreeSet<(IpFamily, Name)>,
    entries: BTreeMap<Name, BTreeSet<Entry>>,
    all: ChainsAndSets,
}

/// Renders the part of a program that comes from a policy. `None` if the policy selects no pod.
///
/// A chain or a set that several policies share is shown completely.
pub fn render_policy(program: &Program, policy: &PolicyId) -> Option<PolicyPart> {
    let mut planner = Planner::new(Mode::Enforce);
    planner.plan(program, &Delta::from(program));
    let mut part = PolicyPart { all: planner.desired().clone(), ..PolicyPart::default() };
    for (pod, endpoint) in &program.endpoints {
        for direction in Direction::BOTH {
            if is_in(endpoint.rules.chain(direction), policy) {
                part.add_pod(&planner, program, (pod, endpoint), direction, policy);
            }
        }
    }
    if part.chains.is_empty() {
        return None;
    }
    part.add_entry(&skeleton::policies(), Entry::Address(name::policy_address(policy)));
    for (family, place) in planner.signposts.places(policy) {
        part.chains.insert((family, name::policy_signpost(policy)));
        part.chains.insert((family, place));
    }
    // The chains and sets that exist on every node say nothing about the policy.
    let fixed = Planner::new(Mode::Enforce).objects.desired;
    part.chains.retain(|key| part.all.chains.contains_key(key) && !fixed.chains.contains_key(key));
    let rules = part.chains.iter().filter_map(|key| part.all.chains.get(key)).flatten();
    let sets: BTreeSet<Name> = rules.flat_map(|rule| rule.sets()).cloned().collect();
    for set in sets.into_iter().filter(|set| !fixed.sets.contains_key(set)) {
        let entries = part.all.sets.get(&set).map(|set| set.entries.keys().cloned().collect());
        part.entries.insert(set, entries.unwrap_or_default());
    }
    Some(part)
}

impl PolicyPart {
    /// Adds a pod that the policy selects.
    fn add_pod(
        &mut self,
        planner: &Planner,
        program: &Program,
        (pod, endpoint): (&PodId, &Endpoint),
        direction: Direction,
        policy: &PolicyId,
    ) {
        let granted = Granted::from_chain(endpoint.rules.chain(direction));
        let granted = granted.and_then(|granted| granted.by_policies(program)).unwrap_or_default();
        for &address in &endpoint.addresses {
            let family = IpFamily::from(address);
            self.add_entry(&skeleton::isolated(direction, family), Entry::Address(address));
            self.chains.insert((family, name::pod_signpost(pod)));
            if let Some(chain) = planner.pod_chain(direction, address) {
                self.chains.insert((family, chain.clone()));
            }
            for (&(peer, protocol, port), policies) in &granted {
                if policies.iter().any(|section| section.policy == *policy) {
                    let entry = Entry::Grant(address, protocol, port, peer);
                    self.add_entry(&skeleton::grants(direction, family), entry);
                }
            }
        }
    }

    /// Adds an entry, if the set has it.
    fn add_entry(&mut self, set: &Name, entry: Entry) {
        if self.all.sets.get(set).is_some_and(|set| set.entries.contains_key(&entry)) {
            self.entries.entry(set.clone()).or_default().insert(entry);
        }
    }
}

/// Whether a policy has a part in a chain.
fn is_in(chain: &Chain, policy: &PolicyId) -> bool {
    let isolation = chain.isolation.iter().flatten();
    let mut sections = chain.admin.iter().chain(isolation).chain(&chain.baseline);
    sections.any(|section| section.policy == *policy)
}

impl fmt::Display for PolicyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# ipset save")?;
        for (name, entries) in &self.entries {
            let Some(IpSet { kind, family, entries: all }) = self.all.sets.get(name) else {
                continue;
            };
            writeln!(f, "{}", text::create(name, *kind, *family))?;
            for (entry, comment) in entries.iter().filter_map(|entry| all.get_key_value(entry)) {
                writeln!(f, "{}", text::add(name, entry, comment))?;
            }
        }
        for family in IpFamily::BOTH {
            let program = match family {
                IpFamily::V4 => "iptables-save",
                IpFamily::V6 => "ip6tables-save",
            };
            let mut chains = self.chains.iter().filter(|(of, _)| *of == family).peekable();
            if chains.peek().is_some() {
                writeln!(f, "\n# {program} -t filter")?;
            }
            for key in chains {
                for rule in self.all.chains.get(key).into_iter().flatten() {
                    writeln!(f, "-A {} {rule}", key.1)?;
                }
            }
        }
        Ok(())
    }
}
