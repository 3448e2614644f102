//! The fixed part of every table: the path of a packet to the chains of its pods.

use std::collections::BTreeMap;

use ipnet::IpNet;
use weir_datapath::{DropCause, Mode};
use weir_model::{Direction, IpFamily, Name};

use crate::{
    Answer, Field, Hook, Match, NftChain, NftRule, NftSet, Planner, SetKind, Statement, names,
};

const IGMP: u8 = 2;
const TCP: u8 = 6;

impl Planner {
    /// Adds the sets and chains that every table has, whatever the policies are.
    pub(crate) fn add_skeleton(&mut self, mode: Mode) {
        let established = NftRule::new([Match::Established], Statement::Accept);
        let [mut forward, mut input, mut output] = [(); 3].map(|()| vec![established.clone()]);
        for family in IpFamily::BOTH {
            let of_family = |statement| NftRule::new([Match::Of(family)], statement);
            forward.push(of_family(Statement::Goto(names::new_chain(family))));
            input.push(of_family(Statement::Goto(names::local_chain(family))));
            output.push(drop_cut(family));
            self.add_pinned_set(
                &names::self_set(family),
                SetKind::Pairs(family),
                "pods that reach themselves",
            );
            self.add_cut_chain(family);
            self.add_new_chains(family);
            self.add_group_chain(family);
            let reported = names::reported_set(family);
            self.add_pinned_set(&reported, SetKind::Sources(family), "sources of reported packets");
        }
        let links = Name::from(names::REPORTED_LINKS);
        self.add_pinned_set(
            &links,
            SetKind::ReportLinks,
            "links of new sources of reported packets",
        );
        let causes = Direction::BOTH.map(DropCause::Rules).into_iter().chain([DropCause::Answer]);
        causes.for_each(|cause| self.add_report_chain(cause));
        let isolated = Name::from(names::ISOLATED_FAMILIES);
        self.add_pinned_set(&isolated, SetKind::Families, "families with isolated pods, ingress");
        for direction in Direction::BOTH {
            self.add_isolated_chain(direction);
            self.add_denied_chain(direction, mode);
        }
        let bases = [(Hook::Forward, forward), (Hook::Input, input), (Hook::Output, output)];
        for (hook, rules) in bases {
            self.add_pinned_chain(hook.chain(), NftChain { hook: Some(hook), rules });
        }
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
        self.add_pinned_set(&name, SetKind::Cut(family), "replies of terminated connections");
        let senders = names::cut_senders_set(family);
        self.add_pinned_set(&senders, SetKind::CutSenders(family), "their senders");
        let pairs = names::cut_pairs_set(family);
        let comment = "the same for protocols without ports";
        self.add_pinned_set(&pairs, SetKind::CutPairs(family), comment);
        let pair = vec![from, Field::Destination(family), Field::Protocol];
        let mut rules = Vec::new();
        for ended in [Match::In(ends, name.clone()), Match::In(pair, pairs)] {
            let report = Statement::Jump(names::report_chain(DropCause::Answer));
            for statement in [report, Statement::CountDrop] {
                rules.push(NftRule::new([ended.clone()], statement));
            }
        }
        self.add_pinned_chain(&name, NftChain { hook: None, rules });
    }

    /// Adds the chains for packets that belong to no tracked connection: those that the node
    /// forwards, and those that it receives.
    fn add_new_chains(&mut self, family: IpFamily) {
        let neighbours = match family {
            IpFamily::V4 => None,
            IpFamily::V6 => Some(NftRule::new([Match::NeighbourDiscovery], Statement::Accept)),
        };
        let egress = vec![Field::pod(Direction::Egress, family)];
        let egress = Statement::Map(egress, names::dispatch_map(Direction::Egress, family));
        let rules = neighbours.iter().cloned().chain([NftRule::new([], egress)]).collect();
        self.add_pinned_chain(&names::local_chain(family), NftChain { hook: None, rules });
        let mut rules: Vec<NftRule> = neighbours.into_iter().chain([drop_cut(family)]).collect();
        for direction in [Direction::Egress, Direction::Ingress] {
            let name = names::dispatch_map(direction, family);
            let here = vec![Field::pod(direction, family)];
            rules.push(NftRule::new([], Statement::Map(here, name.clone())));
            let comment = format!("pods that policies select, {direction}");
            self.add_pinned_set(&name, SetKind::Chains(family), &comment);
            self.add_grants_chain(direction, family);
        }
        let ingress = rules.last().cloned();
        let ingress: Vec<NftRule> = ingress.into_iter().chain(to_group_chain(family)).collect();
        rules.extend(to_group_chain(family));
        self.add_pinned_chain(&names::new_chain(family), NftChain { hook: None, rules });
        let rules = ingress.into_iter().chain([NftRule::new([], Statement::Accept)]).collect();
        self.add_pinned_chain(&names::onward_chain(family), NftChain { hook: None, rules });
    }

    /// Adds the chain for packets on a bridge that have more than one receiver. The rules of these
    /// receivers cannot apply, because the packet does not have their addresses. So it is denied.
    fn add_group_chain(&mut self, family: IpFamily) {
        let denied = Statement::Goto(names::denied_chain(Direction::Ingress));
        let accepted = link_control(family).into_iter();
        let accepted = accepted.map(|one| NftRule::new([one], Statement::Accept));
        let rules = accepted.chain([NftRule::new([], denied)]).collect();
        self.add_pinned_chain(&names::group_chain(family), NftChain { hook: None, rules });
    }

    /// Adds the chain that looks up the grants of pods without a chain.
    fn add_grants_chain(&mut self, direction: Direction, family: IpFamily) {
        let grants = names::grants_set(direction, family);
        let comment = format!("pod, peer and port that policies allow, {direction}");
        self.add_pinned_set(&grants, SetKind::Grants(family), &comment);
        let key = vec![
            Field::pod(direction, family),
            Field::peer(direction, family),
            Field::Protocol,
            Field::DestinationPort,
        ];
        let rules = vec![
            NftRule::new([Match::In(key, grants)], Statement::Return),
            NftRule::new([], Statement::Goto(names::isolated_chain(direction))),
        ];
        self.add_pinned_chain(
            &names::grants_chain(direction, family),
            NftChain { hook: None, rules },
        );
    }

    /// Adds the chain for packets that no NetworkPolicy of an isolated pod allows.
    fn add_isolated_chain(&mut self, direction: Direction) {
        // NetworkPolicies do not apply when a pod reaches itself through a service. Checking that
        // here costs other packets nothing.
        let own = IpFamily::BOTH.map(|family| {
            let pair = vec![Field::Source(family), Field::Destination(family)];
            let own = Match::In(pair, names::self_set(family));
            NftRule::new([Match::Translated, own], Statement::Return)
        });
        let mut rules = Vec::from(own);
        rules.push(NftRule::new([], Statement::Goto(names::denied_chain(direction))));
        self.add_pinned_chain(&names::isolated_chain(direction), NftChain { hook: None, rules });
    }

    /// Adds the chain that reports packets. Each source has a rate limit, so that one source cannot
    /// hide the packets of others.
    fn add_report_chain(&mut self, cause: DropCause) {
        let noisy = IpFamily::BOTH.map(|family| {
            let source = vec![Field::Source(family)];
            NftRule::new([Match::In(source, names::reported_set(family))], Statement::Return)
        });
        let excess = IpFamily::BOTH
            .map(|family| NftRule::new([Match::ExcessSource(family)], Statement::Return));
        let add = IpFamily::BOTH.map(|family| NftRule::new([], Statement::AddSource(family)));
        let log = NftRule::new([], Statement::Log(cause));
        // Packets of a flood leave at the first rules, after one lookup.
        let rules = noisy.into_iter().chain(excess).chain(add).chain([log]).collect();
        self.add_pinned_chain(&names::report_chain(cause), NftChain { hook: None, rules });
    }

    /// Adds the chain that reports and drops denied packets.
    fn add_denied_chain(&mut self, direction: Direction, mode: Mode) {
        let report = names::report_chain(DropCause::Rules(direction));
        let mut rules = vec![NftRule::new([], Statement::Jump(report))];
        match (mode, direction) {
            (Mode::Enforce, _) if self.rejection.answers(direction) => {
                rules.push(NftRule::new([], Statement::Count));
                let reject = || Statement::Goto(names::reject_chain(direction));
                let answered = self.answered_senders(direction).into_iter();
                rules.extend(answered.map(|senders| NftRule::new(senders, reject())));
                rules.push(NftRule::new([], Statement::Drop));
                self.add_reject_chain(direction);
            }
            (Mode::Enforce, _) => rules.push(NftRule::new([], Statement::CountDrop)),
            (Mode::Audit, Direction::Ingress) => {
                rules.extend(
                    [Statement::Count, Statement::Accept]
                        .map(|statement| NftRule::new([], statement)),
                );
            }
            (Mode::Audit, Direction::Egress) => {
                rules.push(NftRule::new([], Statement::Count));
                rules.extend(IpFamily::BOTH.map(|family| {
                    NftRule::new([Match::Of(family)], Statement::Goto(names::onward_chain(family)))
                }));
            }
        }
        self.add_pinned_chain(&names::denied_chain(direction), NftChain { hook: None, rules });
    }

    /// The conditions under which the sender of a denied packet gets an answer.
    fn answered_senders(&mut self, direction: Direction) -> Vec<Vec<Match>> {
        if direction == Direction::Egress {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for family in IpFamily::BOTH {
            let (pods, source) = (names::node_pods_set(family), Field::Source(family));
            self.add_pinned_set(&pods, SetKind::Addresses(family), "pods of this node");
            all.push(vec![Match::In(vec![source], pods)]);
            let networks = self.rejection.networks(family);
            let between = |net: IpNet| Match::Between(source, net.network(), net.broadcast());
            all.extend(networks.map(|net| vec![between(net)]));
        }
        all
    }

    /// Adds the chain that answers denied packets, with a rate limit.
    fn add_reject_chain(&mut self, direction: Direction) {
        let rules = vec![
            NftRule::new([Match::ExcessAnswers], Statement::Drop),
            NftRule::new([Match::Protocol(TCP)], Statement::Reject(Answer::Reset)),
            NftRule::new([], Statement::Reject(Answer::Prohibited)),
        ];
        self.add_pinned_chain(&names::reject_chain(direction), NftChain { hook: None, rules });
    }

    fn add_pinned_set(&mut self, name: &Name, kind: SetKind, comment: &str) {
        let set = NftSet { kind, comment: comment.into(), elements: BTreeMap::new() };
        self.objects.add_set(name, set);
        self.objects.pin(name);
    }

    fn add_pinned_chain(&mut self, name: &str, chain: NftChain) {
        let name = Name::from(name);
        self.objects.add_chain(&name, chain);
        self.objects.pin(&name);
    }
}

/// The rule that drops replies of terminated connections.
fn drop_cut(family: IpFamily) -> NftRule {
    let senders = Match::In(vec![Field::Source(family)], names::cut_senders_set(family));
    NftRule::new([senders], Statement::Jump(names::cut(family)))
}

/// The rules for packets with more than one receiver, while a pod of the node is isolated for
/// ingress.
fn to_group_chain(family: IpFamily) -> [NftRule; 2] {
    [Match::ToStations, Match::ToGroup(family)].map(|group| {
        let is_isolated = Match::In(vec![Field::Family], names::ISOLATED_FAMILIES.into());
        NftRule::new([group, is_isolated], Statement::Goto(names::group_chain(family)))
    })
}

/// The packets to groups that hosts on a link need: membership reports and DHCP.
fn link_control(family: IpFamily) -> Vec<Match> {
    let dhcp = |server: u16, client: u16| {
        [Match::Udp { from: client, to: server }, Match::Udp { from: server, to: client }]
    };
    match family {
        IpFamily::V4 => [Match::Protocol(IGMP)].into_iter().chain(dhcp(67, 68)).collect(),
        IpFamily::V6 => {
            let reports = [(130, 132), (143, 143)];
            let reports = reports.map(|(first, last)| Match::Icmpv6 { first, last });
            reports.into_iter().chain(dhcp(547, 546)).collect()
        }
    }
}
