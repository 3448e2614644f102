//! What every ruleset has: the way of a packet to the pods that judge it.

use std::collections::BTreeMap;

use weir_datapath::{Cause, Mode};
use weir_model::{Direction, Name};

use crate::{Act, Chain, Family, Field, Hook, Kind, Match, Planner, Rule, Set, place};

impl Planner {
    /// What is there in every ruleset, whatever the policies are.
    pub(crate) fn skeleton(&mut self, mode: Mode) {
        let mut forward = vec![Rule::new([Match::Established], Act::Accept)];
        for family in Family::BOTH {
            forward.push(Rule::new([Match::Of(family)], Act::Goto(place::new(family))));
            self.keep(&place::own(family), Kind::Pairs(family), "pods that reach themselves");
            self.cut(family);
            self.new_connections(family);
        }
        Direction::BOTH.into_iter().for_each(|direction| self.denied(direction, mode));
        self.keep_chain("forward", Chain { hook: Some(Hook::Forward), rules: forward });
    }

    /// The chain for packets of connections that policies ended.
    fn cut(&mut self, family: Family) {
        let (name, from) = (place::cut(family), Field::Source(family));
        let ends = vec![
            from,
            Field::SourcePort,
            Field::Destination(family),
            Field::DestinationPort,
            Field::Protocol,
        ];
        self.keep(&name, Kind::Cut(family), "answers of connections that policies ended");
        self.keep(&place::cut_senders(family), Kind::CutSenders(family), "who sends them");
        let ended = || Match::In(ends.clone(), name.clone());
        let rules = vec![
            Rule::new([ended()], Act::Log(Cause::Answer)),
            Rule::new([ended()], Act::CountDrop),
        ];
        self.keep_chain(&name, Chain { hook: None, rules });
    }

    /// The chain for packets that belong to no known connection.
    fn new_connections(&mut self, family: Family) {
        let mut rules = Vec::new();
        if family == Family::V6 {
            rules.push(Rule::new([Match::NeighbourDiscovery], Act::Accept));
        }
        let senders = Match::In(vec![Field::Source(family)], place::cut_senders(family));
        rules.push(Rule::new([senders], Act::Jump(place::cut(family))));
        for direction in [Direction::Egress, Direction::Ingress] {
            let name = place::dispatch(direction, family);
            let here = vec![place::here(direction, family)];
            rules.push(Rule::new([], Act::Map(here, name.clone())));
            let comment = format!("pods that policies speak for, {direction}");
            self.keep(&name, Kind::Chains(family), &comment);
            self.judge(direction, family);
        }
        let ask_receiver = rules.last().cloned();
        self.keep_chain(&place::new(family), Chain { hook: None, rules });
        let rules = ask_receiver.into_iter().chain([Rule::new([], Act::Accept)]).collect();
        self.keep_chain(&place::onward(family), Chain { hook: None, rules });
    }

    /// The chain for pods whose grants are looked up one by one.
    fn judge(&mut self, direction: Direction, family: Family) {
        let grants = place::grants(direction, family);
        let comment = format!("pod, peer and port that policies allow, {direction}");
        self.keep(&grants, Kind::Grants(family), &comment);
        let key = vec![
            place::here(direction, family),
            place::there(direction, family),
            Field::Protocol,
            Field::DestinationPort,
        ];
        let rules = vec![
            Rule::new([Match::In(key, grants)], Act::Return),
            Rule::new([], Act::Goto(place::denied(direction))),
        ];
        self.keep_chain(&place::judge(direction, family), Chain { hook: None, rules });
    }

    /// Where all packets go that policies deny.
    fn denied(&mut self, direction: Direction, mode: Mode) {
        // A pod that reaches itself through a service is not judged; this is where its packets would end.
        let own = Family::BOTH.map(|family| {
            let pair = vec![Field::Source(family), Field::Destination(family)];
            let own = Match::In(pair, place::own(family));
            Rule::new([Match::Translated, own], Act::Return)
        });
        let mut rules = Vec::from(own);
        rules.push(Rule::new([], Act::Log(Cause::Rules(direction))));
        match (mode, direction) {
            (Mode::Enforce, _) => rules.push(Rule::new([], Act::CountDrop)),
            (Mode::Audit, Direction::Ingress) => {
                rules.extend([Act::Count, Act::Accept].map(|act| Rule::new([], act)));
            }
            (Mode::Audit, Direction::Egress) => {
                rules.push(Rule::new([], Act::Count));
                rules.extend(Family::BOTH.map(|family| {
                    Rule::new([Match::Of(family)], Act::Goto(place::onward(family)))
                }));
            }
        }
        self.keep_chain(&place::denied(direction), Chain { hook: None, rules });
    }

    fn keep(&mut self, name: &Name, kind: Kind, comment: &str) {
        let set = Set { kind, comment: comment.into(), elements: BTreeMap::new() };
        self.objects.add_set(name, set);
        self.objects.pin(name);
    }

    fn keep_chain(&mut self, name: &str, chain: Chain) {
        let name = Name::from(name);
        self.objects.add_chain(&name, chain);
        self.objects.pin(&name);
    }
}
