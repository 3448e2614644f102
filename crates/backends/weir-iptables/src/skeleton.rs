//! What is there in every ruleset, whatever the policies are.
//!
//! ```text
//!   KUBE-ROUTER-FORWARD ─ a pod of this node? ─► KUBE-NWPLCY-COMMON ─ part of a connection? ─► accepted
//!                                                  │ cut? ─► KUBE-NWPLCY-CUT: dropped
//!                                                  ├ source isolated?      ─► KUBE-NWPLCY-EGRESS  ─┐
//!                                                  ├ destination isolated? ─► KUBE-NWPLCY-INGRESS ─┤
//!                                                  └► KUBE-NWPLCY-TAIL: accepted                   │
//!   granted, or from itself? ─► back                                          ◄────────────────────┤
//!   KUBE-POD-FW-EGRESS, -INGRESS ─ by address ─► KUBE-POD-FW-… ─► KUBE-NWPLCY-…, denied or back    ◄┘
//! ```

use std::collections::BTreeMap;

use weir_datapath::Cause;
use weir_model::{Direction, Name};

use crate::{
    Act, Family, Hook, Kind, Match, Mode, Rule, Set, Side, dispatch,
    name::{DESTINATIONS, POD, POLICY, SOURCES, comment, in_family},
    objects::{Objects, Thing},
    ruleset::{ALLOWED, PASSED},
};

/// Enters it.
pub(crate) fn enter(objects: &mut Objects, mode: Mode) {
    for family in Family::BOTH {
        sets(objects, family);
        chains(objects, family, mode);
    }
}

fn sets(objects: &mut Objects, family: Family) {
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

fn chains(objects: &mut Objects, family: Family, mode: Mode) {
    let mut keep = |name: Name, rules| {
        objects.put_chain(family, &name, rules);
        objects.pin(Thing::Chain(family, name));
    };
    let is_local = |side| Match::In(local(family), vec![side]);
    let judged = || Act::Goto(common());
    let not_judged = Rule {
        comment: comment("traffic between pods and their node is not judged"),
        ..Rule::new([], Act::Return)
    };
    keep(Hook::Input.chain().into(), vec![not_judged]);
    keep(
        Hook::Forward.chain().into(),
        vec![
            Rule::new([is_local(Side::Source)], judged()),
            Rule::new([is_local(Side::Destination)], judged()),
        ],
    );
    // What leaves the node with the address of another machine is a service's, sent on by IPVS.
    keep(
        Hook::Output.chain().into(),
        vec![
            Rule::new([is_local(Side::Source)], judged()),
            Rule::new([is_local(Side::Destination), Match::Forwarded], judged()),
        ],
    );
    keep(common(), common_rules(family));
    keep(answers(), vec![Rule::new([], Act::Log(Cause::Answer)), Rule::new([], Act::Drop)]);
    keep(allow(), vec![Rule::new([], Act::Mark { value: ALLOWED, mask: ALLOWED })]);
    keep(pass(), vec![Rule::new([], Act::Mark { value: PASSED, mask: PASSED })]);
    keep(tail(), vec![Rule::new([], clear()), Rule::new([], Act::Accept)]);
    for direction in Direction::BOTH {
        let (here, there) = (Side::here(direction), Side::there(direction));
        let granted = Match::In(grants(direction, family), vec![here, Side::Destination, there]);
        let rules = vec![
            Rule::new([granted], Act::Return),
            Rule::new([Match::Itself(family)], Act::Return),
            Rule::new([], clear()),
            Rule::new([], Act::Goto(dispatch(direction))),
        ];
        keep(judge(direction), rules);
        let end = match mode {
            Mode::Enforce => Act::Drop,
            Mode::Audit => Act::Goto(allow()),
        };
        let rules = vec![Rule::new([], Act::Log(Cause::Rules(direction))), Rule::new([], end)];
        keep(denied(direction), rules);
        for (name, rules) in dispatch::tree(direction, &BTreeMap::new()) {
            keep(name, rules);
        }
    }
}

fn common_rules(family: Family) -> Vec<Rule> {
    let mut rules = vec![Rule::new([Match::Established], Act::Accept)];
    if family == Family::V6 {
        let all = (133..=137).map(Match::NeighbourDiscovery);
        rules.extend(all.map(|one| Rule::new([one], Act::Accept)));
    }
    let [from, to] = cut(family);
    let ended = [
        Match::In(from, vec![Side::Source, Side::Source, Side::Destination]),
        Match::In(to, vec![Side::Destination, Side::Destination, Side::Source]),
    ];
    rules.push(Rule::new(ended, Act::Goto(answers())));
    for direction in [Direction::Egress, Direction::Ingress] {
        let here = Match::In(isolated(direction, family), vec![Side::here(direction)]);
        rules.push(Rule::new([here], Act::Jump(judge(direction))));
    }
    rules.push(Rule::new([], Act::Goto(tail())));
    rules
}

fn clear() -> Act {
    Act::Mark { value: 0, mask: ALLOWED | PASSED }
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
pub(crate) fn local(family: Family) -> Name {
    in_family(family, &format!("{DESTINATIONS}LOCAL"))
}

/// The set of the pods that policies speak for.
pub(crate) fn isolated(direction: Direction, family: Family) -> Name {
    in_family(family, &format!("{}ISOLATED", prefix(direction)))
}

/// The set of what is granted to pods that have no chain of their own.
pub(crate) fn grants(direction: Direction, family: Family) -> Name {
    in_family(family, &format!("{}GRANTS", prefix(direction)))
}

/// The sets of packets that belong to connections which policies ended: by where they come from, and by where they go to.
pub(crate) fn cut(family: Family) -> [Name; 2] {
    [SOURCES, DESTINATIONS].map(|prefix| in_family(family, &format!("{prefix}CUT")))
}

fn common() -> Name {
    format!("{POLICY}COMMON").into()
}

/// Where packets of connections that policies ended go.
fn answers() -> Name {
    format!("{POLICY}CUT").into()
}

fn tail() -> Name {
    format!("{POLICY}TAIL").into()
}

fn judge(direction: Direction) -> Name {
    format!("{POLICY}{}", capital(direction)).into()
}

/// The chain that marks a packet as allowed.
pub(crate) fn allow() -> Name {
    format!("{POLICY}DEFAULT").into()
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
