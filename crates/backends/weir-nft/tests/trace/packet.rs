//! Evaluates a ruleset for a packet as the kernel does.

use std::sync::Arc;

use weir_model::{Flow, IpFamily, Name, Verdict};
use weir_nft::{Act, Aim, Field, Go, Key, Kind, Match, Ruleset, Set};

/// The rules for a packet, and the sets before and after a change.
///
/// The kernel evaluates the rules of one generation to the end, but looks up the current content of
/// each set.
pub(crate) struct Way<'a> {
    pub(crate) before: &'a Ruleset,
    pub(crate) after: &'a Ruleset,
    /// The number of lookups before the change.
    pub(crate) early: usize,
    /// The number of lookups made.
    pub(crate) made: usize,
}

impl Way<'_> {
    /// The verdict on the first packet of a connection.
    pub(crate) fn verdict(&mut self, flow: &Flow) -> Verdict {
        self.chain("forward", flow).unwrap_or(Verdict::Allow)
    }

    /// The verdict of a chain. `None` if the chain returns to its caller.
    fn chain(&mut self, name: &str, flow: &Flow) -> Option<Verdict> {
        // The rules of the packet's generation do not contain this chain.
        let rules = &self.before.chains.get(name)?.rules;
        for rule in rules {
            if !rule.matches.iter().all(|one| self.fits(one, flow)) {
                continue;
            }
            let go = match &rule.act {
                Act::Accept => return Some(Verdict::Allow),
                Act::CountDrop => return Some(Verdict::Deny),
                Act::Return => return None,
                Act::Log(_) | Act::Count => continue,
                Act::Goto(chain) => Go::Goto(chain.clone()),
                Act::Jump(chain) => Go::Jump(chain.clone()),
                Act::Map(fields, map) => match self.find(fields, map, flow).flatten() {
                    Some(aim) => aim.go.clone(),
                    None => continue,
                },
                Act::MapOr(fields, map, chain) => match self.find(fields, map, flow).flatten() {
                    Some(aim) if aim.go == Go::Continue => Go::Goto(chain.clone()),
                    Some(aim) => aim.go.clone(),
                    None => continue,
                },
            };
            match go {
                Go::Return => return None,
                Go::Accept => return Some(Verdict::Allow),
                Go::Continue => continue,
                Go::Goto(chain) => return self.chain(&chain, flow),
                Go::Jump(chain) => match self.chain(&chain, flow) {
                    None => continue,
                    decided => return decided,
                },
            }
        }
        None
    }

    fn fits(&mut self, one: &Match, flow: &Flow) -> bool {
        match one {
            // The packet opens its connection, is not translated, and is not neighbour discovery.
            Match::Established | Match::Translated | Match::NeighbourDiscovery => false,
            Match::Of(family) => IpFamily::from(flow.from) == *family,
            Match::In(fields, set) => self.find(fields, set, flow).is_some(),
            Match::To(range) => {
                range.protocol == flow.protocol && (range.first..=range.last).contains(&flow.port)
            }
        }
    }

    fn find(&mut self, fields: &[Field], set: &Name, flow: &Flow) -> Option<Option<Arc<Aim>>> {
        let state = if self.made < self.early { self.before } else { self.after };
        self.made += 1;
        // Packets inside the rules still see a deleted set.
        let set = state.sets.get(set).or_else(|| self.before.sets.get(set))?;
        look_up(fields, set, flow)
    }
}

fn look_up(fields: &[Field], set: &Set, flow: &Flow) -> Option<Option<Arc<Aim>>> {
    let mut addresses = fields.iter().filter_map(|field| match field {
        Field::Source(family) => Some((flow.from, *family)),
        Field::Destination(family) => Some((flow.to, *family)),
        Field::Protocol | Field::SourcePort | Field::DestinationPort => None,
    });
    if addresses.clone().any(|(address, family)| IpFamily::from(address) != family) {
        return None;
    }
    let mut address = || addresses.next().map(|(address, _)| address);
    let Flow { protocol, port, .. } = *flow;
    let key = match set.kind {
        Kind::Addresses(_) | Kind::Chains(_) => Key::Address(address()?),
        Kind::Pairs(_) => Key::Pair(address()?, address()?),
        Kind::Ports(_) => Key::Port(address()?, protocol, port),
        Kind::Grants(_) => Key::Grant(address()?, address()?, protocol, port),
        Kind::Blocks(_) | Kind::BlockChains(_) => {
            let address = address()?;
            let holds = |key: &&Key| matches!(key, Key::Block(first, last) if (first..=last).contains(&&address));
            set.elements.keys().find(holds)?.clone()
        }
        Kind::Services | Kind::ServiceRanges => {
            let holds = |key: &&Key| match key {
                Key::Service(range) => {
                    range.protocol == protocol && (range.first..=range.last).contains(&port)
                }
                _ => false,
            };
            set.elements.keys().find(holds)?.clone()
        }
        // No connection was terminated.
        Kind::Cut(_) | Kind::CutSenders(_) => return None,
    };
    set.elements.get(&key).cloned()
}
