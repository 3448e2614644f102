//! What a packet may meet that is under way while rules change.

use weir_model::{Delta, Direction, Flow, Program, Verdict};

/// A program before a change, half-way and after it: rules and members of sets are not changed at one instant.
#[derive(Clone, Debug)]
pub struct Midway(Vec<Program>);

impl Midway {
    /// Between a program and what a change makes of it.
    pub fn new(before: &Program, delta: &Delta) -> Self {
        let Delta { endpoints, sets } = delta.clone();
        let rules = Delta { endpoints, ..Delta::default() };
        let members = Delta { sets, ..Delta::default() };
        let changes = [Delta::default(), rules, members, delta.clone()];
        let after = changes.map(|change| {
            let mut program = before.clone();
            program.apply(change);
            program
        });
        Midway(after.into())
    }

    /// Whether a packet may meet this verdict: each pod's rules are those before the change or those after it, and so are the
    /// members of the sets that they name.
    pub fn may_be(&self, flow: &Flow, verdict: Verdict) -> bool {
        let mut sides = Direction::BOTH.into_iter().map(|direction| {
            let verdicts = self.0.iter().map(|program| program.side(flow, direction));
            verdicts.collect::<Vec<_>>()
        });
        match verdict {
            Verdict::Allow => sides.all(|side| side.contains(&Verdict::Allow)),
            Verdict::Deny => sides.any(|side| side.contains(&Verdict::Deny)),
        }
    }

    /// Whether a packet is passed on by the node of every pod at its ends, all the while: those of a pod to itself or its node are
    /// not.
    pub fn is_forwarded(&self, flow: &Flow) -> bool {
        let everywhere = |program: &Program| {
            Direction::BOTH.into_iter().all(|direction| {
                let (here, _) = flow.ends(direction);
                program.owner(here).is_none() || program.judged(flow, direction).is_some()
            })
        };
        self.0.iter().all(everywhere)
    }
}
