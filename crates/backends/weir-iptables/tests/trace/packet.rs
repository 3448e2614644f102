//! Evaluates packets against rules as the kernel does, while sets change.

use std::collections::BTreeMap;

use weir_iptables::{
    ChainsAndSets, Entry, Hook, IpSet, IpSetKind, IptablesRule, IptablesTarget, Match, SrcDst,
};
use weir_model::{Flow, IpFamily, Name, Verdict};

/// The verdicts that the first packet of a connection can get, if it arrives and leaves during
/// these states.
///
/// The kernel evaluates the rules of one state, but looks up each set in its current state.
pub(crate) fn verdicts(states: &[ChainsAndSets], hook: Hook, flow: &Flow) -> Vec<Verdict> {
    let mut met = Vec::new();
    for start in 0..states.len() {
        let mut schedules = vec![Vec::new()];
        while let Some(schedule) = schedules.pop() {
            let mut packet = Packet {
                states,
                rules: &states[start].chains,
                time: start,
                schedule,
                lookups: Vec::new(),
                mark: 0,
                others: Vec::new(),
            };
            let verdict = packet.chain(hook.chain(), flow).unwrap_or(Verdict::Allow);
            if !met.contains(&verdict) {
                met.push(verdict);
            }
            schedules.append(&mut packet.others);
        }
    }
    met
}

/// One packet. The schedule fixes the state of its first lookups; later lookups use the current state.
struct Packet<'a> {
    states: &'a [ChainsAndSets],
    rules: &'a BTreeMap<(IpFamily, Name), Vec<IptablesRule>>,
    time: usize,
    schedule: Vec<usize>,
    /// The state of each lookup.
    lookups: Vec<usize>,
    mark: u32,
    /// Schedules in which a lookup happens later and has another result.
    others: Vec<Vec<usize>>,
}

impl Packet<'_> {
    /// The verdict of a chain, or `None` if it returns to the caller.
    fn chain(&mut self, name: &str, flow: &Flow) -> Option<Verdict> {
        let rules = self.rules.get(&(IpFamily::from(flow.from), name.into()));
        for rule in rules.expect("rules refer to existing chains") {
            if !rule.matches.iter().all(|one| self.fits(one, flow)) {
                continue;
            }
            match &rule.target {
                IptablesTarget::Accept => return Some(Verdict::Allow),
                IptablesTarget::Drop | IptablesTarget::Reset | IptablesTarget::Prohibited(_) => {
                    return Some(Verdict::Deny);
                }
                IptablesTarget::Return => return None,
                IptablesTarget::Goto(chain) => return self.chain(chain, flow),
                IptablesTarget::Jump(chain) => match self.chain(chain, flow) {
                    None => continue,
                    decided => return decided,
                },
                IptablesTarget::Mark { value, mask } => self.mark = self.mark & !mask | value,
                IptablesTarget::AddSource(_)
                | IptablesTarget::Log(_)
                | IptablesTarget::LogSome(_) => (),
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
            // It is the first packet of its connection, not translated, and not ICMP. It has one
            // receiver.
            Match::Icmp6
            | Match::NeighbourDiscovery(_)
            | Match::Icmp6Type(_)
            | Match::Igmp
            | Match::Udp { .. }
            | Match::ToStations
            | Match::Established
            | Match::Itself(_) => false,
            Match::In(set, sides) => self.is_in(set, sides, flow),
            Match::NotIn(set, sides) => !self.is_in(set, sides, flow),
            Match::Forwarded | Match::WithinAnswers => true,
            // Only the guard has these.
            Match::Link(_) | Match::BridgePort(_) | Match::Protocol(_) | Match::Reply => false,
            Match::Unmarked(mask) => self.mark & mask == 0,
            Match::Marked(mask) => self.mark & mask == *mask,
        }
    }

    fn is_in(&mut self, set: &Name, sides: &[SrcDst], flow: &Flow) -> bool {
        let at = |time: usize| {
            // A destroyed set still exists for packets in flight.
            let set = self.states[..=time].iter().rev().find_map(|state| state.sets.get(set));
            contains(set.expect("rules refer to existing sets"), sides, flow)
        };
        let found = match self.schedule.get(self.lookups.len()) {
            Some(time) => {
                self.time = *time;
                at(*time)
            }
            None => {
                let found = at(self.time);
                let later = (self.time + 1..self.states.len()).find(|time| at(*time) != found);
                let other = later.map(|time| [&self.lookups[..], &[time]].concat());
                self.others.extend(other);
                found
            }
        };
        self.lookups.push(self.time);
        found
    }
}

fn end(side: SrcDst, flow: &Flow) -> std::net::IpAddr {
    match side {
        SrcDst::Source => flow.from,
        SrcDst::Destination => flow.to,
    }
}

fn contains(set: &IpSet, sides: &[SrcDst], flow: &Flow) -> bool {
    let Flow { protocol, port, .. } = *flow;
    let first = end(sides[0], flow);
    let entry = match set.kind {
        IpSetKind::Pods | IpSetKind::Isolated | IpSetKind::Addresses => Entry::Address(first),
        IpSetKind::Ports => Entry::Port(first, protocol, port),
        IpSetKind::Grants => Entry::Grant(first, protocol, port, end(sides[2], flow)),
        IpSetKind::Blocks | IpSetKind::BlockPorts => {
            // The longest network decides.
            let nets = set.entries.keys().filter_map(|entry| match entry {
                Entry::Block(net) => Some((net, true)),
                Entry::Except(net) => Some((net, false)),
                Entry::BlockPort(net, of, at) if (*of, *at) == (protocol, port) => {
                    Some((net, true))
                }
                Entry::ExceptPort(net, of, at) if (*of, *at) == (protocol, port) => {
                    Some((net, false))
                }
                _ => None,
            });
            let longest = nets.filter(|(net, _)| net.contains(&first));
            let longest = longest.max_by_key(|(net, _)| net.prefix_len());
            return longest.is_some_and(|(_, is_in_set)| is_in_set);
        }
        // No connection was terminated, no packet reported, and there is no IPVS service.
        IpSetKind::Cut | IpSetKind::Ipvs | IpSetKind::Sources => return false,
        // Only the guard has these.
        IpSetKind::Links | IpSetKind::Records | IpSetKind::Policies => return false,
    };
    set.entries.contains_key(&entry)
}
