//! The rules of policies that isolate a pod, one after the other: for policies whose merged rules
//! would be too large.
//!
//! ```text
//!   peers with named ports                  return
//!   ports of list 1, peers of list 1        return
//!   ports of list 2, peers of list 2        return
//! ```
//!
//! Each distinct list of ports is a set, and so are its blocks, and the members of its selectors.
//! So the size of all of them is that of the policies. Many such sets are numbered.

use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::{AllowedByPorts, AllowedPeers};
use weir_model::{Block, Direction, IpFamily, Name, Peers, Program, SetId, numbered_address};

use crate::{
    Field, Match, NftRule, NftSet, Planner, SetKind, Statement, chain,
    intervals::{interval_key, union},
    merge::{MAX_SEQUENTIAL_LOOKUPS, look_up_any},
    names::{comment, digest},
};

/// A set that more lists of ports name is looked up on its own, so that its members are not copied
/// for each of them.
pub(crate) const MAX_COPIES: usize = 4;

/// Up to this many intervals of addresses are compared one by one.
const MAX_COMPARED_INTERVALS: usize = 4;

/// The number of sets that the rules need, at most.
pub(crate) fn sets(allowed: &AllowedByPorts) -> usize {
    let sets: BTreeSet<&SetId> = allowed.lists.values().flat_map(|peers| &peers.sets).collect();
    sets.len() + allowed.lists.len()
}

/// The rules that return for allowed packets.
pub(crate) fn rules(
    allowed: &AllowedByPorts,
    planner: &mut Planner,
    program: &Program,
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    let mut uses: BTreeMap<&SetId, usize> = BTreeMap::new();
    let sets = allowed.lists.values().flat_map(|peers| &peers.sets);
    sets.for_each(|set| *uses.entry(set).or_default() += 1);
    let (named, limit) = (allowed.port_sets.iter().cloned().collect(), MAX_SEQUENTIAL_LOOKUPS);
    let mut rules = look_up_any(planner, program, named, limit, &Peers::PortSet, direction, family);
    for (ports, peers) in &allowed.lists {
        let lookups = look_up_peers(peers, &uses, planner, program, direction, family);
        if lookups.is_empty() {
            continue;
        }
        let ports = chain::match_ports(&mut planner.objects, ports);
        rules.extend(lookups.into_iter().map(|lookup| {
            let matches: Vec<Match> = ports.iter().cloned().chain(lookup.matches).collect();
            NftRule::new(matches, Statement::Return)
        }));
    }
    rules
}

/// The lookups of the peers of one list of ports.
fn look_up_peers(
    peers: &AllowedPeers,
    uses: &BTreeMap<&SetId, usize>,
    planner: &mut Planner,
    program: &Program,
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    if peers.anyone {
        return vec![NftRule::new([], Statement::Return)];
    }
    let is_shared = |set: &SetId| uses.get(set).is_some_and(|uses| *uses > MAX_COPIES);
    let (shared, own): (Vec<SetId>, Vec<SetId>) =
        peers.sets.iter().cloned().partition(|set| is_shared(set));
    let mut look_up =
        |sets, limit| look_up_any(planner, program, sets, limit, &Peers::Set, direction, family);
    let mut lookups = look_up(shared, usize::MAX);
    lookups.extend(look_up(own, MAX_SEQUENTIAL_LOOKUPS));
    lookups.extend(look_up_blocks(&peers.blocks, planner, direction, family));
    lookups
}

/// The lookup of all blocks of one list of ports.
pub(crate) fn look_up_blocks(
    blocks: &BTreeSet<Block>,
    planner: &mut Planner,
    direction: Direction,
    family: IpFamily,
) -> Vec<NftRule> {
    let intervals = union(blocks, family);
    let address = Field::peer(direction, family);
    if intervals.len() <= MAX_COMPARED_INTERVALS {
        let compare = |(first, last)| {
            let [first, last] = [first, last].map(|number| numbered_address(number, family));
            NftRule::new([Match::Between(address, first, last)], Statement::Return)
        };
        return intervals.into_iter().map(compare).collect();
    }
    if let Some(numbered) = &mut planner.objects.numbered {
        let all = numbered.match_blocks(blocks).into_iter();
        return all.map(|matches| NftRule::new(matches, Statement::Return)).collect();
    }
    let name = Name::from(format!("blocks{}-{}", family.digit(), digest(&format!("{blocks:?}"))));
    let meaning = match blocks.first() {
        Some(one) if blocks.len() == 1 => comment(&one.to_string()),
        _ => comment(&format!("{} blocks together", blocks.len())),
    };
    let elements = intervals.into_iter().map(|part| (interval_key(part, family), None)).collect();
    let kind = SetKind::Blocks(family);
    planner.objects.add_set(&name, NftSet { kind, comment: meaning, elements });
    vec![NftRule::new([Match::In(vec![address], name)], Statement::Return)]
}
