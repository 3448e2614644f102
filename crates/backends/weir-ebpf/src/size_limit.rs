//! Closes tiers whose blocks and ports would need too many elements in the maps.
//!
//! A network has a kind with all blocks around it, and a kind has a list of the ports of all of them. So
//! the maps can be as large as the product of the parts of a policy, and as the product of the blocks of
//! two pods. The size is computed before anything is expanded. A *closed* tier denies all that it decides.
//!
//! *Invariant*: which tiers are closed depends on the rules of the node's pods, and not on earlier ones.
//!
//! *Invariant*: the size of a tier does not depend on other tiers. They can only close it while all tiers
//! of the node together are too large, the largest first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use weir_datapath::Shortfall;
use weir_model::{Block, Chain, Direction, Peers, PolicyId, Program, RuleSet, Section};

use crate::{
    classes::sections_key,
    digest::Digest,
    sweep::sweep,
    tier::{TierRole, TierRule, number_rules, tier_digest},
};

/// The number of elements that rules may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// The blocks and ports of a tier: the admin, NetworkPolicy or baseline rules of a pod for one
    /// direction.
    pub tier: usize,
    /// The blocks of all tiers of a node, and the ports of all of them.
    pub node: usize,
}

impl Default for SizeLimit {
    fn default() -> Self {
        SizeLimit { tier: 1 << 18, node: 1 << 21 }
    }
}

/// A tier has room for the combinations of this many sets: pods in each of them have their own list.
const COMBINED_SETS: usize = 6;

/// The kinds of pods for which there is room in the innermost network.
const KINDS_OF_PODS: usize = 1024;

/// The number of elements that a tier needs.
#[derive(Clone, Debug, Default)]
struct TierSize {
    /// The blocks of each network and exception.
    blocks: usize,
    /// The most blocks of one of them.
    depth: usize,
    /// The lists of ports.
    ports: usize,
}

impl TierSize {
    fn new(role: TierRole, sections: &[Arc<Section>]) -> Self {
        let (rules, peers) = number_rules(role, sections);
        let sizes: Vec<usize> = rules.iter().map(TierRule::size).collect();
        let (mut any, mut of_sets) = (BTreeSet::new(), BTreeSet::new());
        let (mut sets, mut blocks) = (HashSet::new(), BTreeMap::<&Block, Vec<usize>>::new());
        for (peers, number) in peers {
            match peers {
                Peers::Any => _ = any.insert(number),
                Peers::Set(set) | Peers::PortSet(set) => {
                    sets.insert(set);
                    of_sets.insert(number);
                }
                Peers::Block(block) => blocks.entry(block).or_default().push(number),
            }
        }
        let sum = |numbers: &BTreeSet<usize>| numbers.iter().map(|at| sizes[*at]).sum::<usize>();
        let (any, of_all_sets) = (sum(&any), sum(&of_sets));
        let (mut size, mut largest, mut known) = (TierSize::default(), 0, HashSet::new());
        sweep(&blocks, &sizes, |around| {
            size.blocks += around.nets;
            size.depth = size.depth.max(around.nets);
            if known.insert(around.labels) {
                size.ports += any + around.size;
                largest = largest.max(around.size);
            }
        });
        let combinations = 1 << sets.len().min(of_sets.len()).min(COMBINED_SETS);
        size.ports += combinations * (any + of_all_sets + largest);
        size
    }

    fn total(&self) -> usize {
        self.blocks + KINDS_OF_PODS * self.depth + self.ports
    }
}

/// A tier of rules in use.
#[derive(Debug)]
struct SizedTier {
    /// They keep the addresses valid by which the tier is found.
    sections: Vec<Arc<Section>>,
    digest: Digest,
    size: TierSize,
    /// The policy with the largest rules.
    policy: Option<PolicyId>,
}

impl SizedTier {
    fn new(role: TierRole, sections: Vec<Arc<Section>>) -> Self {
        let largest = sections.iter().max_by_key(|one| (one.cost(), Reverse(&one.policy)));
        let policy = largest.map(|section| section.policy.clone());
        let (digest, size) = (tier_digest(role, &sections), TierSize::new(role, &sections));
        SizedTier { sections, digest, size, policy }
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        let rules = self.sections.iter().flat_map(|section| &section.rules);
        rules.filter_map(|rule| match &rule.peers {
            Peers::Block(block) => Some(block),
            Peers::Any | Peers::Set(_) | Peers::PortSet(_) => None,
        })
    }
}

/// The tiers of the node's pods, and the largest ones that are open.
#[derive(Clone, Debug)]
pub(crate) struct OpenTiers {
    limit: SizeLimit,
    /// By the address of the rules in memory.
    rule_sets: BTreeMap<usize, SizedRules>,
    tiers: HashMap<(TierRole, Vec<usize>), Arc<SizedTier>>,
    largest: Largest,
    shortfalls: Vec<Shortfall>,
}

/// The rules of a pod.
#[derive(Clone, Debug)]
struct SizedRules {
    /// Keeps the address valid by which they are found.
    _rules: Arc<RuleSet>,
    tiers: Vec<(Direction, Arc<SizedTier>)>,
}

/// Which limit a tier exceeds.
#[derive(Clone, Copy, Debug)]
enum Closed {
    Tier,
    Node,
}

/// The largest tiers that are open: their elements for blocks, and those for ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Largest {
    blocks: usize,
    ports: usize,
}

impl Default for OpenTiers {
    fn default() -> Self {
        OpenTiers::new(SizeLimit::default())
    }
}

impl OpenTiers {
    /// No tiers.
    pub(crate) fn new(limit: SizeLimit) -> Self {
        let (rule_sets, tiers, shortfalls) = (BTreeMap::new(), HashMap::new(), Vec::new());
        let largest = Largest { blocks: limit.tier, ports: limit.tier };
        OpenTiers { limit, rule_sets, tiers, largest, shortfalls }
    }

    /// Reads the rules of the node's pods. Returns whether other tiers than before can be closed.
    pub(crate) fn update(&mut self, program: &Program) -> bool {
        let rule_sets = program.endpoints.values().map(|endpoint| &endpoint.rules);
        let used: BTreeMap<usize, &Arc<RuleSet>> =
            rule_sets.map(|rules| (Arc::as_ptr(rules) as usize, rules)).collect();
        let before = self.largest;
        if !used.keys().eq(self.rule_sets.keys()) {
            self.rule_sets.retain(|address, _| used.contains_key(address));
            for (address, rules) in used {
                if !self.rule_sets.contains_key(&address) {
                    let tiers = self.tiers_of(rules);
                    let rules = SizedRules { _rules: rules.clone(), tiers };
                    self.rule_sets.insert(address, rules);
                }
            }
            self.tiers.retain(|_, tier| Arc::strong_count(tier) > 1);
            self.largest = self.largest();
        }
        self.shortfalls = self.find_shortfalls(program);
        self.largest != before
    }

    /// The tiers of the rules of a pod.
    fn tiers_of(&mut self, rules: &RuleSet) -> Vec<(Direction, Arc<SizedTier>)> {
        let mut tiers = Vec::new();
        for direction in Direction::BOTH {
            let Chain { admin, isolation, baseline } = rules.chain(direction);
            let rest = match isolation {
                Some(sections) => (TierRole::Isolation, sections.to_vec()),
                None => (TierRole::Baseline, baseline.clone()),
            };
            for (role, sections) in [(TierRole::Admin, admin.clone()), rest] {
                let tier = self.tiers.entry(sections_key(role, &sections));
                let tier = tier.or_insert_with(|| Arc::new(SizedTier::new(role, sections)));
                tiers.push((direction, tier.clone()));
            }
        }
        tiers
    }

    /// The largest tiers that can be open so that the blocks and the ports of the node fit. Halves the
    /// limit of a tier until they do.
    fn largest(&self) -> Largest {
        let tiers = self.rule_sets.values().flat_map(|rules| &rules.tiers);
        let tiers: BTreeMap<Digest, &SizedTier> =
            tiers.map(|(_, tier)| (tier.digest, &**tier)).collect();
        let tiers: Vec<&SizedTier> =
            tiers.into_values().filter(|tier| tier.size.total() <= self.limit.tier).collect();
        let up_to = |size: fn(&TierSize) -> usize, largest: usize| {
            tiers.iter().copied().filter(move |tier| size(&tier.size) <= largest)
        };
        let halves: Vec<usize> = (0..usize::BITS).map(|bits| self.limit.tier >> bits).collect();
        let find = |is_too_large: &dyn Fn(usize) -> bool| {
            let fits = halves.partition_point(|largest| is_too_large(*largest));
            halves.get(fits).copied().unwrap_or_default()
        };
        Largest {
            blocks: find(&|largest| {
                let open: Vec<&SizedTier> = up_to(|size| size.blocks, largest).collect();
                size_of_blocks(&open, self.limit.node) > self.limit.node
            }),
            ports: find(&|largest| {
                let ports = up_to(|size| size.ports, largest).map(|tier| tier.size.ports);
                ports.sum::<usize>() > self.limit.node
            }),
        }
    }

    /// The digest of the rules of a tier; `None` if it is closed.
    pub(crate) fn digest(&self, role: TierRole, sections: &[Arc<Section>]) -> Option<Digest> {
        let tier = self.tiers.get(&sections_key(role, sections))?;
        self.closed(&tier.size).is_none().then_some(tier.digest)
    }

    /// Why a tier of this size is closed; `None` if it is open.
    fn closed(&self, size: &TierSize) -> Option<Closed> {
        if size.total() > self.limit.tier {
            Some(Closed::Tier)
        } else if size.blocks > self.largest.blocks || size.ports > self.largest.ports {
            Some(Closed::Node)
        } else {
            None
        }
    }

    fn find_shortfalls(&self, program: &Program) -> Vec<Shortfall> {
        let mut shortfalls = Vec::new();
        if self.tiers.values().all(|tier| self.closed(&tier.size).is_none()) {
            return shortfalls;
        }
        for (pod, endpoint) in &program.endpoints {
            let address = Arc::as_ptr(&endpoint.rules) as usize;
            let tiers = self.rule_sets.get(&address).into_iter().flat_map(|rules| &rules.tiers);
            for (direction, tier) in tiers {
                let SizeLimit { tier: of_tier, node: of_node } = self.limit;
                let what = match self.closed(&tier.size) {
                    None => continue,
                    Some(Closed::Tier) => format!(
                        "blocks and ports of {direction} rules multiply to more than {of_tier} \
                         elements: these rules deny everything"
                    ),
                    Some(Closed::Node) => format!(
                        "blocks or ports of the rules on this node multiply to more than {of_node} \
                         elements: {direction} rules, which are among the largest, deny everything"
                    ),
                };
                shortfalls.push(Shortfall { pod: pod.clone(), policy: tier.policy.clone(), what });
            }
        }
        shortfalls
    }

    /// The tiers that are closed, by pod.
    pub(crate) fn shortfalls(&self) -> &[Shortfall] {
        &self.shortfalls
    }
}

/// The number of elements for the blocks of tiers. A block of several tiers counts once, but each tier has
/// a decision about it. If an upper bound is within a limit, returns that.
fn size_of_blocks(tiers: &[&SizedTier], limit: usize) -> usize {
    let with_blocks = tiers.iter().filter(|tier| tier.size.blocks > 0);
    let boundaries: usize = with_blocks.clone().map(|tier| tier.size.blocks).sum();
    let depth: usize = with_blocks.clone().map(|tier| tier.size.depth).sum();
    let bound = boundaries * (depth + with_blocks.count()) + KINDS_OF_PODS * depth;
    if bound <= limit {
        return bound;
    }
    let mut blocks: BTreeMap<&Block, Vec<usize>> = BTreeMap::new();
    for (number, tier) in tiers.iter().enumerate() {
        tier.blocks().for_each(|block| blocks.entry(block).or_default().push(number));
    }
    let (mut size, mut depth) = (0, 0);
    sweep(&blocks, &vec![1; tiers.len()], |around| {
        size += around.nets + around.size;
        depth = depth.max(around.nets);
    });
    size + KINDS_OF_PODS * depth
}

#[cfg(test)]
mod tests;
