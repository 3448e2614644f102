//! The sets and chains with fixed names, which exist on every node.
//!
//! ```text
//!   KUBE-NWPLCY-EGRESS, -INGRESS ─ granted? ─► allow
//!    └► KUBE-NWPLCY-DENIED-EGRESS, -INGRESS ─ from the pod itself, through a service? ─► allow
//!        └► report, drop
//!   KUBE-NWPLCY-CUT: report and drop replies of terminated connections
//! ```

use std::collections::BTreeMap;

use weir_datapath::{DropCause, Mode};
use weir_model::{Direction, IpFamily, Name};

use crate::{
    Hook, IpSet, IpSetKind, IptablesRule, IptablesTarget, Match, SrcDst,
    chains_and_sets::PASSED,
    common_chains::CommonChains,
    name::{DESTINATIONS, POD, POLICY, SOURCES, comment, in_family},
    objects::{ObjectId, Objects},
};

/// Adds them.
pub(crate) fn add(objects: &mut Objects, mode: Mode) {
    for family in IpFamily::BOTH {
        sets(objects, family);
        chains(objects, family, mode);
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
}

fn chains(objects: &mut Objects, family: IpFamily, mode: Mode) {
    let mut keep = |name: Name, rules| {
        objects.put_chain(family, &name, rules);
        objects.pin(ObjectId::Chain(family, name));
    };
    let unfiltered = IptablesRule {
        comment: comment("traffic between pods and their node is not judged"),
        ..IptablesRule::new([], IptablesTarget::Return)
    };
    keep(Hook::Input.chain().into(), vec![unfiltered]);
    keep(Hook::Forward.chain().into(), vec![IptablesRule::new([], IptablesTarget::Goto(common()))]);
    for (name, rules) in CommonChains::default().chains(family) {
        keep(name, rules);
    }
    keep(
        terminated(),
        vec![
            IptablesRule::new([], IptablesTarget::Log(DropCause::Answer)),
            IptablesRule::new([], IptablesTarget::Drop),
        ],
    );
    keep(pass(), vec![IptablesRule::new([], IptablesTarget::Mark { value: PASSED, mask: PASSED })]);
    if family == IpFamily::V6 {
        let discovery = (133..=137).map(Match::NeighbourDiscovery);
        let pass = |one| IptablesRule::new([one], IptablesTarget::Goto(tail()));
        keep(neighbours(), discovery.map(pass).collect());
    }
    for direction in Direction::BOTH {
        let (here, there) = (SrcDst::here(direction), SrcDst::there(direction));
        let granted = Match::In(grants(direction, family), vec![here, SrcDst::Destination, there]);
        let granted = IptablesRule::new([granted], allowed(direction));
        keep(
            grant_lookup(direction),
            vec![granted, IptablesRule::new([], IptablesTarget::Goto(denied(direction)))],
        );
        let end = match mode {
            Mode::Enforce => IptablesTarget::Drop,
            Mode::Audit => allowed(direction),
        };
        let itself = IptablesRule::new([Match::Itself(family)], allowed(direction));
        let log = IptablesRule::new([], IptablesTarget::Log(DropCause::Rules(direction)));
        keep(denied(direction), vec![itself, log, IptablesRule::new([], end)]);
        keep(dispatch(direction), Vec::new());
    }
}

/// The action for a packet that the rules of one direction allow. After egress, the ingress rules
/// of the destination are evaluated.
pub(crate) fn allowed(direction: Direction) -> IptablesTarget {
    match direction {
        Direction::Ingress => IptablesTarget::Accept,
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

/// The chain that all packets enter.
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

/// The chain that accepts packets of pods.
pub(crate) fn tail() -> Name {
    format!("{POLICY}TAIL").into()
}

/// The chain that allows neighbour discovery.
pub(crate) fn neighbours() -> Name {
    format!("{POLICY}NEIGHBOURS").into()
}

/// The chain that looks up the grants of a pod.
pub(crate) fn grant_lookup(direction: Direction) -> Name {
    format!("{POLICY}{}", upper_case(direction)).into()
}

/// The chain that marks a packet as passed to the next tier.
pub(crate) fn pass() -> Name {
    format!("{POLICY}PASS").into()
}

/// The chain of denied packets.
pub(crate) fn denied(direction: Direction) -> Name {
    format!("{POLICY}DENIED-{}", upper_case(direction)).into()
}

/// The root of the tree that leads to the chains of pods.
pub(crate) fn dispatch(direction: Direction) -> Name {
    format!("{POD}{}", upper_case(direction)).into()
}
