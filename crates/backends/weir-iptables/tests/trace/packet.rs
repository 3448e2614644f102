//! Packets on their way through rules, as the kernel would lead them, while sets change.

use std::collections::BTreeMap;

use weir_iptables::{Act, Entry, Hook, Kind, Match, Rule, Ruleset, Set, Side};
use weir_model::{Flow, IpFamily, Name, Verdict};

/// The verdicts that the first packet of a connection may meet, if it comes and goes while these states follow each other.
///
/// The kernel reads the rules of one state to the end, but looks up each set as it is at that moment.
pub(crate) fn verdicts(states: &[Ruleset], flow: &Flow) -> Vec<Verdict> {
    let mut met = Vec::new();
    for start in 0..states.len() {
        let mut roads = vec![Vec::new()];
        while let Some(road) = roads.pop() {
            let mut way = Way {
                states,
                rules: &states[start].chains,
                time: start,
                road,
                made: Vec::new(),
                mark: 0,
                others: Vec::new(),
            };
            let verdict = way.chain(Hook::Forward.chain(), flow).unwrap_or(Verdict::Allow);
            if !met.contains(&verdict) {
                met.push(verdict);
            }
            roads.append(&mut way.others);
        }
    }
    met
}

/// One packet. When its lookups are made is told, as far as the road goes; after that, none takes any time.
struct Way<'a> {
    states: &'a [Ruleset],
    rules: &'a BTreeMap<(IpFamily, Name), Vec<Rule>>,
    time: usize,
    road: Vec<usize>,
    /// When lookups were made.
    made: Vec<usize>,
    mark: u32,
    /// Roads on which a lookup is made later and finds something else.
    others: Vec<Vec<usize>>,
}

impl Way<'_> {
    /// What a chain decides; `None` if it leads back to where it was called.
    fn chain(&mut self, name: &str, flow: &Flow) -> Option<Verdict> {
        let rules = self.rules.get(&(IpFamily::from(flow.from), name.into()));
        for rule in rules.expect("rules lead to chains that are there") {
            if !rule.matches.iter().all(|one| self.fits(one, flow)) {
                continue;
            }
            match &rule.act {
                Act::Accept => return Some(Verdict::Allow),
                Act::Drop => return Some(Verdict::Deny),
                Act::Return => return None,
                Act::Goto(chain) => return self.chain(chain, flow),
                Act::Jump(chain) => match self.chain(chain, flow) {
                    None => continue,
                    decided => return decided,
                },
                Act::Mark { value, mask } => self.mark = self.mark & !mask | value,
                Act::Log(_) => (),
            }
        }
        None
    }

    fn fits(&mut self, one: &Match, flow: &Flow) -> bool {
        match one {
            Match::At(side, net) => net.contains(&end(*side, flow)),
            Match::To(protocol, ports) => {
                let holds = |(first, last): &(u16, u16)| (*first..=*last).contains(&flow.port);
                *protocol == flow.protocol && (ports.is_empty() || ports.iter().any(holds))
            }
            // It is the first of its connection, to where it was sent, and no message of ICMP.
            Match::Icmp6 | Match::NeighbourDiscovery(_) | Match::Established | Match::Itself(_) => {
                false
            }
            Match::In(set, sides) => self.is_in(set, sides, flow),
            Match::Forwarded => true,
            Match::Unmarked(mask) => self.mark & mask == 0,
        }
    }

    fn is_in(&mut self, set: &Name, sides: &[Side], flow: &Flow) -> bool {
        let at = |time: usize| {
            // What is gone is there for packets under way.
            let set = self.states[..=time].iter().rev().find_map(|state| state.sets.get(set));
            contains(set.expect("rules ask sets that are there"), sides, flow)
        };
        let found = match self.road.get(self.made.len()) {
            Some(time) => {
                self.time = *time;
                at(*time)
            }
            None => {
                let found = at(self.time);
                let later = (self.time + 1..self.states.len()).find(|time| at(*time) != found);
                let other = later.map(|time| [&self.made[..], &[time]].concat());
                self.others.extend(other);
                found
            }
        };
        self.made.push(self.time);
        found
    }
}

fn end(side: Side, flow: &Flow) -> std::net::IpAddr {
    match side {
        Side::Source => flow.from,
        Side::Destination => flow.to,
    }
}

fn contains(set: &Set, sides: &[Side], flow: &Flow) -> bool {
    let Flow { protocol, port, .. } = *flow;
    let first = end(sides[0], flow);
    let entry = match set.kind {
        Kind::Pods | Kind::Isolated | Kind::Addresses => Entry::Address(first),
        Kind::Ports => Entry::Port(first, protocol, port),
        Kind::Grants => Entry::Grant(first, protocol, port, end(sides[2], flow)),
        Kind::Blocks | Kind::BlockPorts => {
            return set.entries.keys().any(|entry| match entry {
                Entry::Block(net) => net.contains(&first),
                Entry::BlockPort(net, of, at) => {
                    net.contains(&first) && (*of, *at) == (protocol, port)
                }
                _ => false,
            });
        }
        // No connection was cut.
        Kind::Cut => return false,
    };
    set.entries.contains_key(&entry)
}
