//! The fixed part of every ruleset: the path of a packet to the chains of its pods.

use std::collections::BTreeMap;

use weir_datapath::{DropCause, Mode};
use weir_model::{Direction, IpFamily, Name};

use crate::{Act, Chain, Field, Hook, Kind, Match, Planner, Rule, Set, names};

impl Planner {
    /// Adds the sets and chains that every ruleset has, whatever the policies are.
    pub(crate) fn add_skeleton(&mut self, mode: Mode) {
        let mut forward = vec![Rule::new([Match::Established], Act::Accept)];
        for family in IpFamily::BOTH {
            forward.push(Rule::new([Match::Of(family)], Act::Goto(names::new_chain(family))));
            self.add_pinned_set(
                &names::self_set(family),
                Kind::Pairs(family),
                "pods that reach themselves",
            );
            self.add_cut_chain(family);
            self.add_new_chain(family);
        }
        Direction::BOTH.into_iter().for_each(|direction| self.add_denied_chain(direction, mode));
        self.add_pinned_chain(
            names::FORWARD_CHAIN,
            Chain { hook: Some(Hook::Forward), rules: forward },
        );
    }

    /// Adds the chain that drops the replies of terminated connections.
    fn add_cut_chain(&mut self, family: IpFamily) {
        let (name, from) = (names::cut(family), Field::Source(family));
        let ends = vec![
            from,
            Field::SourcePort,
            Field::Destination(family),
            Field::DestinationPort,
            Field::Protocol,
        ];
        self.add_pinned_set(&name, Kind::Cut(family), "replies of terminated connections");
        let senders = names::cut_senders_set(family);
        self.add_pinned_set(&senders, Kind::CutSenders(family), "their senders");
        let ended = || Match::In(ends.clone(), name.clone());
        let rules = vec![
            Rule::new([ended()], Act::Log(DropCause::Answer)),
            Rule::new([ended()], Act::CountDrop),
        ];
        self.add_pinned_chain(&name, Chain { hook: None, rules });
    }

    /// Adds the chain for packets that belong to no tracked connection.
    fn add_new_chain(&mut self, family: IpFamily) {
        let mut rules = Vec::new();
        if family == IpFamily::V6 {
            rules.push(Rule::new([Match::NeighbourDiscovery], Act::Accept));
        }
        let senders = Match::In(vec![Field::Source(family)], names::cut_senders_set(family));
        rules.push(Rule::new([senders], Act::Jump(names::cut(family))));
        for direction in [Direction::Egress, Direction::Ingress] {
            let name = names::dispatch_map(direction, family);
            let here = vec![Field::pod(direction, family)];
            rules.push(Rule::new([], Act::Map(here, name.clone())));
            let comment = format!("pods that policies select, {direction}");
            self.add_pinned_set(&name, Kind::Chains(family), &comment);
            self.add_grants_chain(direction, family);
        }
        let apply_ingress = rules.last().cloned();
        self.add_pinned_chain(&names::new_chain(family), Chain { hook: None, rules });
        let rules = apply_ingress.into_iter().chain([Rule::new([], Act::Accept)]).collect();
        self.add_pinned_chain(&names::onward_chain(family), Chain { hook: None, rules });
    }

    /// Adds the chain that looks up the grants of pods without a chain.
    fn add_grants_chain(&mut self, direction: Direction, family: IpFamily) {
        let grants = names::grants_set(direction, family);
        let comment = format!("pod, peer and port that policies allow, {direction}");
        self.add_pinned_set(&grants, Kind::Grants(family), &comment);
        let key = vec![
            Field::pod(direction, family),
            Field::peer(direction, family),
            Field::Protocol,
            Field::DestinationPort,
        ];
        let rules = vec![
            Rule::new([Match::In(key, grants)], Act::Return),
            Rule::new([], Act::Goto(names::denied_chain(direction))),
        ];
        self.add_pinned_chain(&names::grants_chain(direction, family), Chain { hook: None, rules });
    }

    /// Adds the chain for denied packets.
    fn add_denied_chain(&mut self, direction: Direction, mode: Mode) {
        // A pod always reaches itself through a service. Checking that here costs other packets
        // nothing.
        let own = IpFamily::BOTH.map(|family| {
            let pair = vec![Field::Source(family), Field::Destination(family)];
            let own = Match::In(pair, names::self_set(family));
            Rule::new([Match::Translated, own], Act::Return)
        });
        let mut rules = Vec::from(own);
        rules.push(Rule::new([], Act::Log(DropCause::Rules(direction))));
        match (mode, direction) {
            (Mode::Enforce, _) => rules.push(Rule::new([], Act::CountDrop)),
            (Mode::Audit, Direction::Ingress) => {
                rules.extend([Act::Count, Act::Accept].map(|act| Rule::new([], act)));
            }
            (Mode::Audit, Direction::Egress) => {
                rules.push(Rule::new([], Act::Count));
                rules.extend(IpFamily::BOTH.map(|family| {
                    Rule::new([Match::Of(family)], Act::Goto(names::onward_chain(family)))
                }));
            }
        }
        self.add_pinned_chain(&names::denied_chain(direction), Chain { hook: None, rules });
    }

    fn add_pinned_set(&mut self, name: &Name, kind: Kind, comment: &str) {
        let set = Set { kind, comment: comment.into(), elements: BTreeMap::new() };
        self.objects.add_set(name, set);
        self.objects.pin(name);
    }

    fn add_pinned_chain(&mut self, name: &str, chain: Chain) {
        let name = Name::from(name);
        self.objects.add_chain(&name, chain);
        self.objects.pin(&name);
    }
}
