//! Evaluates a table for a packet as the kernel does.

use std::sync::Arc;

use weir_model::{Flow, IpFamily, Name, Verdict};
use weir_nft::{
    ElementData, ElementKey, Field, Hook, Match, NftSet, NftTable, NftVerdict, SetKind, Statement,
};

/// The rules for a packet, and the sets before and after a change.
///
/// The kernel evaluates the rules of one generation to the end, but looks up the current content of
/// each set.
pub(crate) struct Way<'a> {
    pub(crate) before: &'a NftTable,
    pub(crate) after: &'a NftTable,
    /// The number of lookups before the change.
    pub(crate) early: usize,
    /// The number of lookups made.
    pub(crate) made: usize,
}

impl Way<'_> {
    /// The verdict on the first packet of a connection, at one hook.
    pub(crate) fn verdict(&mut self, hook: Hook, flow: &Flow) -> Verdict {
        self.chain(hook.chain(), flow).unwrap_or(Verdict::Allow)
    }

    /// The verdict of a chain. `None` if the chain returns to its caller.
    fn chain(&mut self, name: &str, flow: &Flow) -> Option<Verdict> {
        // The rules of the packet's generation do not contain this chain.
        let rules = &self.before.chains.get(name)?.rules;
        for rule in rules {
            if !rule.matches.iter().all(|one| self.fits(one, flow)) {
                continue;
            }
            let verdict = match &rule.statement {
                Statement::Accept => return Some(Verdict::Allow),
                Statement::CountDrop | Statement::Drop | Statement::Reject(_) => {
                    return Some(Verdict::Deny);
                }
                Statement::Return => return None,
                Statement::AddSource(_) | Statement::Log(_) | Statement::Count => continue,
                Statement::Goto(chain) => NftVerdict::Goto(chain.clone()),
                Statement::Jump(chain) => NftVerdict::Jump(chain.clone()),
                Statement::Map(fields, map) => match self.find(fields, map, flow).flatten() {
                    Some(data) => data.verdict.clone(),
                    None => continue,
                },
            };
            match verdict {
                NftVerdict::Return => return None,
                NftVerdict::Accept => return Some(Verdict::Allow),
                NftVerdict::Goto(chain) => return self.chain(&chain, flow),
                NftVerdict::Jump(chain) => match self.chain(&chain, flow) {
                    None => continue,
                    decided => return decided,
                },
            }
        }
        None
    }

    fn fits(&mut self, one: &Match, flow: &Flow) -> bool {
        match one {
            // The packet opens its connection, and is not neighbour discovery.
            Match::Established | Match::NeighbourDiscovery => false,
            // A pod reaches itself through a Service.
            Match::Translated => flow.from == flow.to,
            // It has one receiver, the node routes it, and its source is reported.
            Match::ExcessSource(_)
            | Match::ExcessLink
            | Match::ExcessAnswers
            | Match::ToStations
            | Match::ToGroup(_)
            | Match::Protocol(_)
            | Match::Icmpv6 { .. }
            | Match::Udp { .. } => false,
            // Only the guard has these.
            Match::Reply | Match::FromLinkLocal | Match::FromNowhere(_) | Match::ArpProbe => false,
            Match::Of(family) => IpFamily::from(flow.from) == *family,
            Match::In(fields, set) => self.find(fields, set, flow).is_some(),
            Match::NotIn(fields, set) => self.find(fields, set, flow).is_none(),
            Match::Between(field, first, last) => {
                let address = match field {
                    Field::Source(_) => flow.from,
                    Field::Destination(_) => flow.to,
                    other => panic!("{other:?} has no address"),
                };
                (*first..=*last).contains(&address)
            }
            Match::To(range) => {
                range.protocol == flow.protocol && (range.first..=range.last).contains(&flow.port)
            }
        }
    }

    fn find(
        &mut self,
        fields: &[Field],
        set: &Name,
        flow: &Flow,
    ) -> Option<Option<Arc<ElementData>>> {
        let state = if self.made < self.early { self.before } else { self.after };
        self.made += 1;
        // Packets inside the rules still see a deleted set.
        let set = state.sets.get(set).or_else(|| self.before.sets.get(set))?;
        look_up(fields, set, flow)
    }
}

fn look_up(fields: &[Field], set: &NftSet, flow: &Flow) -> Option<Option<Arc<ElementData>>> {
    let mut addresses = fields.iter().filter_map(|field| match field {
        Field::Source(family) => Some((flow.from, *family)),
        Field::Destination(family) => Some((flow.to, *family)),
        _ => None,
    });
    if addresses.clone().any(|(address, family)| IpFamily::from(address) != family) {
        return None;
    }
    let number = fields.iter().find_map(|field| match field {
        Field::Number(number) | Field::IntervalNumber(number) => Some(*number),
        _ => None,
    });
    let mut address = || addresses.next().map(|(address, _)| address);
    let Flow { protocol, port, .. } = *flow;
    let key = match set.kind {
        SetKind::Addresses(_) | SetKind::Chains(_) => ElementKey::Address(address()?),
        SetKind::Pairs(_) => ElementKey::Pair(address()?, address()?),
        SetKind::Ports(_) => ElementKey::Port(address()?, protocol, port),
        SetKind::Grants(_) => ElementKey::Grant(address()?, address()?, protocol, port),
        SetKind::Blocks(_) | SetKind::BlockChains(_) => {
            let address = address()?;
            let holds = |key: &&ElementKey| matches!(key, ElementKey::Block(first, last) if (first..=last).contains(&&address));
            set.elements.keys().find(holds)?.clone()
        }
        SetKind::NumberedAddresses(_) => ElementKey::NumberedAddress(number?, address()?),
        SetKind::NumberedPorts(_) => ElementKey::NumberedPort(number?, address()?, protocol, port),
        SetKind::NumberedBlocks(_) => {
            let (number, address) = (number?, address()?);
            let holds = |key: &&ElementKey| matches!(key, ElementKey::NumberedBlock(of, first, last) if *of == number && (first..=last).contains(&&address));
            set.elements.keys().find(holds)?.clone()
        }
        SetKind::NumberedServices | SetKind::NumberedServiceRanges => {
            let number = number?;
            let holds = |key: &&ElementKey| match key {
                ElementKey::NumberedService(of, range) => {
                    *of == number
                        && range.protocol == protocol
                        && (range.first..=range.last).contains(&port)
                }
                _ => false,
            };
            set.elements.keys().find(holds)?.clone()
        }
        SetKind::Services
        | SetKind::ServiceRanges
        | SetKind::ServiceChains
        | SetKind::ServiceRangeChains => {
            let holds = |key: &&ElementKey| match key {
                ElementKey::Service(range) => {
                    range.protocol == protocol && (range.first..=range.last).contains(&port)
                }
                _ => false,
            };
            set.elements.keys().find(holds)?.clone()
        }
        SetKind::Families => ElementKey::Family(flow.from.into()),
        // No connection was terminated, and the guard has its own tables.
        SetKind::Sources(_) | SetKind::ReportLinks => return None,
        SetKind::Cut(_) | SetKind::CutPairs(_) | SetKind::CutSenders(_) => return None,
        SetKind::LinkAddresses(_) | SetKind::Links | SetKind::Records => return None,
    };
    set.elements.get(&key).cloned()
}
