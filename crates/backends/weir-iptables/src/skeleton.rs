//! The sets and chains with fixed names, which exist on every node.
//!
//! ```text
//!   KUBE-NWPLCY-EGRESS, -INGRESS ─ not isolated, or granted? ─► allowed
//!    └► KUBE-NWPLCY-ISOLATED-EGRESS, -INGRESS ─ from the pod itself, through a service? ─► allowed
//!        └► KUBE-NWPLCY-DENIED-EGRESS, -INGRESS: report, drop
//!            └► KUBE-NWPLCY-SENDERS ─ from the cluster? ─► KUBE-NWPLCY-REJECT-INGRESS: answer, drop
//!   KUBE-NWPLCY-CUT: report and drop replies of terminated connections
//!   KUBE-NWPLCY-ALLOW, -PASS: mark the decision of an admin policy
//!   KUBE-NWPLCY-ALLOWED-EGRESS, -INGRESS: clear the mark, allowed
//! ```
//!
//! Allowed means, for egress: continue in KUBE-NWPLCY-DEFAULT; for ingress: return to the built-in
//! chain. Packets enter the chains of pods by goto only, so that RETURN leaves all of our chains.

use std::collections::BTreeMap;

use weir_datapath::{DropCause, Mode, Rejection};
use weir_model::{Direction, IpFamily, Name, Protocol};

use crate::{
    Hook, IpSet, IpSetKind, IptablesRule, IptablesTarget, Match, SrcDst,
    chains_and_sets::{ALLOWED, PASSED},
    common_chains::{CommonChains, near},
    dispatch::no_chain,
    name::{DESTINATIONS, POD, POLICY, SOURCES, in_family},
    objects::{ObjectId, Objects},
};

/// Adds them.
pub(crate) fn add(objects: &mut Objects, mode: Mode, rejection: &Rejection) {
    let policies_set =
        IpSet { kind: IpSetKind::Policies, family: IpFamily::V6, entries: BTreeMap::new() };
    objects.add_set(&policies(), policies_set);
    objects.pin(ObjectId::Set(policies()));
    for family in IpFamily::BOTH {
        sets(objects, family);
        chains(objects, family, mode, rejection);
    }
}

fn sets(objects: &mut Objects, family: IpFamily) {
    let mut keep = |name: Name, kind| {
        objects.add_set(&name, IpSet { kind, family, entries: BTreeMap::new() });
        objects.pin(ObjectId::Set(name));
    };
    keep(local(family), IpSetKind::Pods);
    for direction in Direction::BOTH {
        keep(isolated(direction, family), IpSetKind::Isolated);
        keep(grants(direction, family), IpSetKind::Grants);
    }
    cut(family).into_iter().for_each(|name| keep(name, IpSetKind::Cut));
    keep(ipvs(family), IpSetKind::Ipvs);
    keep(reported(family), IpSetKind::Sources);
}

fn chains(objects: &mut Objects, family: IpFamily, mode: Mode, rejection: &Rejection) {
    let mut keep = |name: Name, rules| {
        objects.put_chain(family, &name, rules);
        objects.pin(ObjectId::Chain(family, name));
    };
    keep(Hook::Forward.chain().into(), vec![IptablesRule::new([], IptablesTarget::Goto(common()))]);
    for (name, rules) in CommonChains::default().chains(family) {
        keep(name, rules);
    }
    let dropped = IptablesRule::new([], IptablesTarget::Drop);
    let replies = report(DropCause::Answer, family).into_iter().chain([dropped]);
    keep(terminated(), replies.collect());
    let denied_groups = IptablesTarget::Goto(not_allowed(Direction::Ingress));
    let pass_rules = link_control(family).into_iter();
    let pass_rules = pass_rules.map(|one| IptablesRule::new([one], IptablesTarget::Return));
    keep(group(), pass_rules.chain([IptablesRule::new([], denied_groups)]).collect());
    for (name, mark) in [(allow(), ALLOWED), (pass(), PASSED)] {
        keep(name, vec![set_mark(mark)]);
    }
    for direction in Direction::BOTH {
        let (here, there) = (SrcDst::here(direction), SrcDst::there(direction));
        let open = Match::NotIn(isolated(direction, family), vec![here]);
        // An address that is not isolated can be that of a broadcast.
        let open_target = match direction {
            Direction::Egress => allowed(direction),
            Direction::Ingress => IptablesTarget::Goto(groups()),
        };
        let granted = Match::In(grants(direction, family), vec![here, SrcDst::Destination, there]);
        keep(
            grant_lookup(direction),
            vec![
                IptablesRule::new([open], open_target),
                IptablesRule::new([granted], allowed(direction)),
                IptablesRule::new([], IptablesTarget::Goto(not_allowed(direction))),
            ],
        );
        keep(
            marked_allowed(direction),
            vec![clear_marks(ALLOWED), IptablesRule::new([], allowed(direction))],
        );
        keep(not_allowed(direction), not_allowed_rules(direction, family, mode));
        // The chains of admin policies return to that of the pod. In audit mode, it treats the
        // packet as allowed.
        let end = match mode {
            Mode::Enforce if rejection.answers(direction) => {
                keep(answer(direction), answer_rules(family));
                // The sender of a packet that a pod must not send is a pod of this node.
                let next = match direction {
                    Direction::Egress => answer(direction),
                    Direction::Ingress => {
                        keep(senders(), sender_rules(family, rejection));
                        senders()
                    }
                };
                IptablesRule::new([], IptablesTarget::Goto(next))
            }
            Mode::Enforce => IptablesRule::new([], IptablesTarget::Drop),
            Mode::Audit => set_mark(ALLOWED),
        };
        let report = report(DropCause::Rules(direction), family).into_iter();
        keep(denied(direction), report.chain([end]).collect());
        keep(dispatch(direction), vec![no_chain(direction)]);
    }
}

/// The rules that report a packet. Each source has a rate limit, so that one source cannot hide the
/// packets of others. A limit of new sources bounds the memory that false addresses take up. It also
/// keeps the table of rate limits from becoming full: then the kernel would drop packets in audit
/// mode, too.
fn report(cause: DropCause, family: IpFamily) -> [IptablesRule; 2] {
    let (sources, source) = (reported(family), vec![SrcDst::Source]);
    [
        IptablesRule::new(
            [Match::NotIn(sources.clone(), source.clone())],
            IptablesTarget::AddSource(sources.clone()),
        ),
        IptablesRule::new([Match::In(sources, source)], IptablesTarget::Log(cause)),
    ]
}

/// The rules that lead denied packets of senders in the cluster to their answer, and drop the others.
fn sender_rules(family: IpFamily, rejection: &Rejection) -> Vec<IptablesRule> {
    let pods = vec![Match::In(local(family), vec![SrcDst::Source])];
    let networks = rejection.networks(family).map(|net| near(SrcDst::Source, net.trunc()));
    let answered = [pods].into_iter().chain(networks).map(|matches| {
        IptablesRule::new(matches, IptablesTarget::Goto(answer(Direction::Ingress)))
    });
    answered.chain([IptablesRule::new([], IptablesTarget::Drop)]).collect()
}

/// The rules that answer denied packets, with a rate limit. They are in one chain: the kernel limits
/// how many chains a packet can enter one after the other.
fn answer_rules(family: IpFamily) -> Vec<IptablesRule> {
    let tcp = || Match::To(Protocol::Tcp, Vec::new());
    let drop = IptablesTarget::Drop;
    vec![
        IptablesRule::new([tcp(), Match::WithinAnswers], IptablesTarget::Reset),
        IptablesRule::new([tcp()], drop.clone()),
        IptablesRule::new([Match::WithinAnswers], IptablesTarget::Prohibited(family)),
        IptablesRule::new([], drop),
    ]
}

/// The rules for packets that no NetworkPolicy of an isolated pod allows. NetworkPolicies do not
/// apply when a pod reaches itself through a service.
fn not_allowed_rules(direction: Direction, family: IpFamily, mode: Mode) -> Vec<IptablesRule> {
    let mut rules = vec![IptablesRule::new([Match::Itself(family)], allowed(direction))];
    match mode {
        Mode::Enforce => rules.push(IptablesRule::new([], IptablesTarget::Goto(denied(direction)))),
        Mode::Audit => {
            rules.push(IptablesRule::new([], IptablesTarget::Jump(denied(direction))));
            rules.push(IptablesRule::new([], IptablesTarget::Goto(marked_allowed(direction))));
        }
    }
    rules
}

/// The packets to groups that hosts on a link need: membership reports and DHCP.
fn link_control(family: IpFamily) -> Vec<Match> {
    let dhcp = |server: u16, client: u16| {
        [Match::Udp { from: client, to: server }, Match::Udp { from: server, to: client }]
    };
    match family {
        IpFamily::V4 => [Match::Igmp].into_iter().chain(dhcp(67, 68)).collect(),
        IpFamily::V6 => {
            let reports = [130, 131, 132, 143].map(Match::Icmp6Type);
            reports.into_iter().chain(dhcp(547, 546)).collect()
        }
    }
}

/// A rule that sets a mark.
fn set_mark(mark: u32) -> IptablesRule {
    IptablesRule::new([], IptablesTarget::Mark { value: mark, mask: mark })
}

/// A rule that clears marks.
pub(crate) fn clear_marks(mask: u32) -> IptablesRule {
    IptablesRule::new([], IptablesTarget::Mark { value: 0, mask })
}

/// The action for a packet that the rules of one direction allow. After egress, the ingress rules
/// of the destination are evaluated. After ingress, the packet returns to the built-in chain.
pub(crate) fn allowed(direction: Direction) -> IptablesTarget {
    match direction {
        Direction::Ingress => IptablesTarget::Return,
        Direction::Egress => IptablesTarget::Goto(default()),
    }
}

fn prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => DESTINATIONS,
        Direction::Egress => SOURCES,
    }
}

fn upper_case(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "INGRESS",
        Direction::Egress => "EGRESS",
    }
}

/// The set of the pods of this node.
pub(crate) fn local(family: IpFamily) -> Name {
    in_family(family, &format!("{DESTINATIONS}LOCAL"))
}

/// The set of the pods that policies select.
pub(crate) fn isolated(direction: Direction, family: IpFamily) -> Name {
    in_family(family, &format!("{}ISOLATED", prefix(direction)))
}

/// The set of the grants of pods without a chain.
pub(crate) fn grants(direction: Direction, family: IpFamily) -> Name {
    in_family(family, &format!("{}GRANTS", prefix(direction)))
}

/// The sets of replies of terminated connections: by source and by destination.
pub(crate) fn cut(family: IpFamily) -> [Name; 2] {
    [SOURCES, DESTINATIONS].map(|prefix| in_family(family, &format!("{prefix}CUT")))
}

/// The set of addresses of IPVS services.
pub(crate) fn ipvs(family: IpFamily) -> Name {
    in_family(family, &format!("{DESTINATIONS}IPVS"))
}

/// The set that names all policies of the node. Only an IPv6 address has enough bits for a digest.
pub(crate) fn policies() -> Name {
    in_family(IpFamily::V6, &format!("{DESTINATIONS}POLICIES"))
}

/// The set of the sources of reported packets.
pub(crate) fn reported(family: IpFamily) -> Name {
    in_family(family, &format!("{SOURCES}REPORTED"))
}

/// The chain that all forwarded packets enter.
pub(crate) fn common() -> Name {
    format!("{POLICY}COMMON").into()
}

/// The chain that drops replies of terminated connections.
pub(crate) fn terminated() -> Name {
    format!("{POLICY}CUT").into()
}

/// The chain of packets that are allowed to leave.
pub(crate) fn default() -> Name {
    format!("{POLICY}DEFAULT").into()
}

/// The chain that accepts packets of pods. It is called last in FORWARD, if at all.
pub(crate) fn tail() -> Name {
    format!("{POLICY}TAIL").into()
}

/// The chain that allows neighbour discovery.
pub(crate) fn neighbours() -> Name {
    format!("{POLICY}NEIGHBOURS").into()
}

/// The chain of packets to no isolated pod, which finds those to groups.
pub(crate) fn groups() -> Name {
    format!("{POLICY}GROUPS").into()
}

/// The chain of packets with more than one receiver.
pub(crate) fn group() -> Name {
    format!("{POLICY}GROUP").into()
}

/// The chain that looks up the grants of a pod.
pub(crate) fn grant_lookup(direction: Direction) -> Name {
    format!("{POLICY}{}", upper_case(direction)).into()
}

/// The chain that marks a packet as allowed by an admin policy.
pub(crate) fn allow() -> Name {
    format!("{POLICY}ALLOW").into()
}

/// The chain that marks a packet as passed to the next tier.
pub(crate) fn pass() -> Name {
    format!("{POLICY}PASS").into()
}

/// The chain of packets that are marked as allowed.
pub(crate) fn marked_allowed(direction: Direction) -> Name {
    format!("{POLICY}ALLOWED-{}", upper_case(direction)).into()
}

/// The chain of packets that no NetworkPolicy of an isolated pod allows.
pub(crate) fn not_allowed(direction: Direction) -> Name {
    format!("{POLICY}ISOLATED-{}", upper_case(direction)).into()
}

/// The chain of denied packets.
pub(crate) fn denied(direction: Direction) -> Name {
    format!("{POLICY}DENIED-{}", upper_case(direction)).into()
}

/// The chain that finds the senders of denied packets that get an answer.
pub(crate) fn senders() -> Name {
    format!("{POLICY}SENDERS").into()
}

/// The chain that answers denied packets of a direction.
pub(crate) fn answer(direction: Direction) -> Name {
    format!("{POLICY}REJECT-{}", upper_case(direction)).into()
}

/// The root of the tree that leads to the chains of pods.
pub(crate) fn dispatch(direction: Direction) -> Name {
    format!("{POD}{}", upper_case(direction)).into()
}
