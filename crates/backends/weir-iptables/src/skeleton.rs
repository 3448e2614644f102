//! What is there in every ruleset, whatever the policies are: the sets and chains with fixed names.
//!
//! ```text
//!   KUBE-NWPLCY-EGRESS, -INGRESS ─ granted? ─► let pass
//!    └► KUBE-NWPLCY-DENIED-EGRESS, -INGRESS ─ from the pod itself, through a service? ─► let pass
//!        └► reported, dropped
//!   KUBE-NWPLCY-CUT: answers of connections that were cut are reported, dropped
//! ```

use std::collections::BTreeMap;

use weir_datapath::{Cause, Mode};
use weir_model::{Direction, IpFamily, Name};

use crate::{
    Act, Hook, Kind, Match, Rule, Set, Side,
    gate::Gate,
    name::{DESTINATIONS, POD, POLICY, SOURCES, comment, in_family},
    objects::{Objects, Thing},
    ruleset::PASSED,
};

/// Enters it.
pub(crate) fn enter(objects: &mut Objects, mode: Mode) {
    for family in IpFamily::BOTH {
        sets(objects, family);
        chains(objects, family, mode);
    }
}

fn sets(objects: &mut Objects, family: IpFamily) {
    let mut keep = |name: Name, kind| {
        objects.add_set(&name, Set { kind, family, entries: BTreeMap::new() });
        objects.pin(Thing::Set(name));
    };
    keep(local(family), Kind::Pods);
    for direction in Direction::BOTH {
        keep(isolated(direction, family), Kind::Isolated);
        keep(grants(direction, family), Kind::Grants);
    }
    cut(family).into_iter().for_each(|name| keep(name, Kind::Cut));
}

fn chains(objects: &mut Objects, family: IpFamily, mode: Mode) {
    let mut keep = |name: Name, rules| {
        objects.put_chain(family, &name, rules);
        objects.pin(Thing::Chain(family, name));
    };
    let not_judged = Rule {
        comment: comment("traffic between pods and their node is not judged"),
        ..Rule::new([], Act::Return)
    };
    keep(Hook::Input.chain().into(), vec![not_judged]);
    keep(Hook::Forward.chain().into(), vec![Rule::new([], Act::Goto(common()))]);
    for (name, rules) in Gate::default().chains(family) {
        keep(name, rules);
    }
    keep(answers(), vec![Rule::new([], Act::Log(Cause::Answer)), Rule::new([], Act::Drop)]);
    keep(pass(), vec![Rule::new([], Act::Mark { value: PASSED, mask: PASSED })]);
    if family == IpFamily::V6 {
        let discovery = (133..=137).map(Match::NeighbourDiscovery);
        let pass = |one| Rule::new([one], Act::Goto(tail()));
        keep(neighbours(), discovery.map(pass).collect());
    }
    for direction in Direction::BOTH {
        let (here, there) = (Side::here(direction), Side::there(direction));
        let granted = Match::In(grants(direction, family), vec![here, Side::Destination, there]);
        let granted = Rule::new([granted], allowed(direction));
        keep(judge(direction), vec![granted, Rule::new([], Act::Goto(denied(direction)))]);
        let end = match mode {
            Mode::Enforce => Act::Drop,
            Mode::Audit => allowed(direction),
        };
        let itself = Rule::new([Match::Itself(family)], allowed(direction));
        let log = Rule::new([], Act::Log(Cause::Rules(direction)));
        keep(denied(direction), vec![itself, log, Rule::new([], end)]);
        keep(dispatch(direction), Vec::new());
    }
}

/// What becomes of a packet that the rules of one direction allow. Who may leave is next asked who may come in.
pub(crate) fn allowed(direction: Direction) -> Act {
    match direction {
        Direction::Ingress => Act::Accept,
        Direction::Egress => Act::Goto(default()),
    }
}

fn prefix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => DESTINATIONS,
        Direction::Egress => SOURCES,
    }
}

fn capital(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "INGRESS",
        Direction::Egress => "EGRESS",
    }
}

/// The set of the pods of this node.
pub(crate) fn local(family: IpFamily) -> Name {
    in_family(family, &format!("{DESTINATIONS}LOCAL"))
}

/// The set of the pods that policies speak for.
pub(crate) fn isolated(direction: Direction, family: IpFamily) -> Name {
    in_family(family, &format!("{}ISOLATED", prefix(direction)))
}

/// The set of what is granted to pods that have no chain of their own.
pub(crate) fn grants(direction: Direction, family: IpFamily) -> Name {
    in_family(family, &format!("{}GRANTS", prefix(direction)))
}

/// The sets of packets that belong to connections which policies ended: by where they come from, and by where they go to.
pub(crate) fn cut(family: IpFamily) -> [Name; 2] {
    [SOURCES, DESTINATIONS].map(|prefix| in_family(family, &format!("{prefix}CUT")))
}

/// The chain that all packets come to.
pub(crate) fn common() -> Name {
    format!("{POLICY}COMMON").into()
}

/// Where packets of connections that policies ended go.
pub(crate) fn answers() -> Name {
    format!("{POLICY}CUT").into()
}

/// The chain of what may leave, whoever it is sent to.
pub(crate) fn default() -> Name {
    format!("{POLICY}DEFAULT").into()
}

/// The chain that lets pass what is of a pod.
pub(crate) fn tail() -> Name {
    format!("{POLICY}TAIL").into()
}

/// The chain that lets neighbours find each other.
pub(crate) fn neighbours() -> Name {
    format!("{POLICY}NEIGHBOURS").into()
}

/// The chain that asks what was granted to a pod.
pub(crate) fn judge(direction: Direction) -> Name {
    format!("{POLICY}{}", capital(direction)).into()
}

/// The chain that marks a packet as left to the next tier.
pub(crate) fn pass() -> Name {
    format!("{POLICY}PASS").into()
}

/// The chain that what is denied goes to.
pub(crate) fn denied(direction: Direction) -> Name {
    format!("{POLICY}DENIED-{}", capital(direction)).into()
}

/// The chain that leads to those of pods, by address.
pub(crate) fn dispatch(direction: Direction) -> Name {
    format!("{POD}{}", capital(direction)).into()
}
