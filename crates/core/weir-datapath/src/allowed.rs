use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use weir_model::{Block, Peers, Ports, Section, SetId};

/// The traffic that the policies which isolate a pod allow, by distinct port list. All their rules
/// allow, so the order of policies and rules does not matter.
///
/// Its size is that of the rules, whatever they are.
#[derive(Debug, Default)]
pub struct AllowedByPorts {
    /// The peers that can use each list of ports. A peer can be in several of them.
    pub lists: BTreeMap<Ports, AllowedPeers>,
    /// The sets of peers with their named ports.
    pub port_sets: BTreeSet<SetId>,
}

/// The peers that can use some ports.
#[derive(Debug, Default)]
pub struct AllowedPeers {
    /// Whether every peer can.
    pub anyone: bool,
    /// The sets whose members can.
    pub sets: BTreeSet<SetId>,
    /// The blocks whose addresses can.
    pub blocks: BTreeSet<Block>,
}

impl AllowedByPorts {
    /// Collects the rules of policies.
    pub fn from_sections(sections: &[Arc<Section>]) -> Self {
        // Hashing a list takes constant time; comparing it takes time by its length.
        let mut lists: HashMap<&Ports, AllowedPeers> = HashMap::new();
        let mut port_sets = BTreeSet::new();
        for rule in sections.iter().flat_map(|section| &section.rules) {
            match &rule.peers {
                Peers::PortSet(set) => _ = port_sets.insert(set.clone()),
                Peers::Any => lists.entry(&rule.ports).or_default().anyone = true,
                Peers::Set(set) => {
                    lists.entry(&rule.ports).or_default().sets.insert(set.clone());
                }
                Peers::Block(block) => {
                    lists.entry(&rule.ports).or_default().blocks.insert(block.clone());
                }
            }
        }
        let lists = lists.into_iter().map(|(ports, peers)| (ports.clone(), peers)).collect();
        AllowedByPorts { lists, port_sets }
    }

    /// Whether every peer can use every port.
    pub fn is_everything(&self) -> bool {
        self.lists.get(&Ports::Any).is_some_and(|peers| peers.anyone)
    }

    /// The number of peers, exceptions and port ranges.
    pub fn size(&self) -> usize {
        let size = |(ports, peers): (&Ports, &AllowedPeers)| {
            let exceptions: usize = peers.blocks.iter().map(|block| block.except.len()).sum();
            length(ports) + peers.sets.len() + peers.blocks.len() + exceptions
        };
        self.port_sets.len() + self.lists.iter().map(size).sum::<usize>()
    }

    /// Merges the ports of each peer. `None` if the lists that are merged are longer than `limit`
    /// together: their size can be the product of peers and ports.
    pub fn merge(&self, limit: usize) -> Option<Allowed> {
        let lists: Vec<&Ports> = self.lists.keys().collect();
        let mut anyone: Vec<usize> = Vec::new();
        let mut sets: BTreeMap<&SetId, Vec<usize>> = BTreeMap::new();
        let mut blocks: BTreeMap<&Block, Vec<usize>> = BTreeMap::new();
        for (number, peers) in self.lists.values().enumerate() {
            anyone.extend(peers.anyone.then_some(number));
            peers.sets.iter().for_each(|set| sets.entry(set).or_default().push(number));
            peers.blocks.iter().for_each(|block| blocks.entry(block).or_default().push(number));
        }
        let mut unions = Unions { lists, known: HashMap::new(), left: limit };
        let mut allowed = Allowed { port_sets: self.port_sets.clone(), ..Allowed::default() };
        if !anyone.is_empty() {
            allowed.anyone = Some(unions.union(anyone)?);
        }
        for (set, numbers) in sets {
            allowed.sets.insert(set.clone(), unions.union(numbers)?);
        }
        for (block, numbers) in blocks {
            allowed.blocks.insert(block.clone(), unions.union(numbers)?);
        }
        Some(allowed)
    }
}

/// The traffic that the policies which isolate a pod allow, merged by peer.
#[derive(Debug, Default)]
pub struct Allowed {
    /// The ports that every peer can use. `None` if there are none.
    pub anyone: Option<Ports>,
    /// The ports that the members of each set can use.
    pub sets: BTreeMap<SetId, Ports>,
    /// The ports that the addresses of each block can use.
    pub blocks: BTreeMap<Block, Ports>,
    /// The sets of peers with their named ports.
    pub port_sets: BTreeSet<SetId>,
}

impl Allowed {
    /// Merges the rules of policies.
    pub fn from_sections(sections: &[Arc<Section>]) -> Self {
        AllowedByPorts::from_sections(sections).merge(usize::MAX).unwrap_or_default()
    }
}

/// The unions of port lists. Peers with the same lists share one.
struct Unions<'a> {
    lists: Vec<&'a Ports>,
    known: HashMap<Vec<usize>, Ports>,
    /// The number of ranges that may still be merged.
    left: usize,
}

impl Unions<'_> {
    /// The union of some lists. `None` if the limit is exceeded.
    fn union(&mut self, numbers: Vec<usize>) -> Option<Ports> {
        let lists = || numbers.iter().filter_map(|number| self.lists.get(*number).copied());
        if lists().any(|ports| *ports == Ports::Any) {
            return Some(Ports::Any);
        }
        if let (Some(one), None) = (lists().next(), lists().nth(1)) {
            return Some(one.clone());
        }
        if let Some(known) = self.known.get(&numbers) {
            return Some(known.clone());
        }
        self.left = self.left.checked_sub(lists().map(length).sum())?;
        let ranges = lists().filter_map(Ports::list).flatten();
        let union = Ports::from_ranges(ranges.copied())?;
        self.known.insert(numbers, union.clone());
        Some(union)
    }
}

/// The number of ranges.
fn length(ports: &Ports) -> usize {
    ports.list().map_or(0, |list| list.len())
}

#[cfg(test)]
mod tests {
    use weir_model::{
        Action, Direction, Origin, PolicyId, PolicyKind, PortRange, Protocol, Rule, SetKey,
    };

    use super::*;

    fn list(ports: impl IntoIterator<Item = u16>) -> Ports {
        let ranges = ports.into_iter().map(|port| PortRange::one(Protocol::Tcp, port));
        Ports::from_ranges(ranges).unwrap()
    }

    fn node(number: u16) -> Peers {
        Peers::Set(SetId::new(SetKey::Node(format!("n{number}").into())))
    }

    fn section(rules: impl IntoIterator<Item = (Peers, Ports)>) -> Arc<Section> {
        let origin = Origin { direction: Direction::Ingress, rule: 0, peer: None, line: 0 };
        let rule =
            |(peers, ports)| Rule { peers, ports, action: Action::Allow, origin: origin.clone() };
        let (namespace, name) = ("shop".into(), "web".into());
        let policy = PolicyId { kind: PolicyKind::NetworkPolicy, namespace, name };
        let rules = rules.into_iter().map(rule).collect();
        Arc::new(Section { policy, location: None, rules, idle: Vec::new() })
    }

    #[test]
    fn peers_with_the_same_lists_share_their_union() {
        let (odd, even) = (list((1..2000).step_by(4)), list((3..2000).step_by(4)));
        let both = [&odd, &even];
        let rules = (0..500).flat_map(|peer| both.map(|ports| (node(peer), ports.clone())));
        let rules = AllowedByPorts::from_sections(&[section(rules)]);
        assert_eq!((rules.lists.len(), rules.size()), (2, 1000 + 1000));
        let merged = rules.merge(1000).expect("one union of 1000 ranges");
        let union = list((1..2000).step_by(2));
        assert!(merged.sets.values().all(|ports| *ports == union));
        assert!(rules.merge(999).is_none());
    }

    #[test]
    fn a_union_for_each_peer_exceeds_the_limit() {
        let wide = list((1..2000).step_by(2));
        let own = (0..500).map(|peer| (node(peer), list([2 * peer])));
        let rules = own.chain((0..500).map(|peer| (node(peer), wide.clone())));
        let rules = AllowedByPorts::from_sections(&[section(rules)]);
        assert_eq!(rules.size(), 500 + 500 + 500 + 1000);
        assert!(rules.merge(8 * rules.size()).is_none());
        assert_eq!(rules.merge(usize::MAX).map(|merged| merged.sets.len()), Some(500));
    }
}
