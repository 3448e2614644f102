//! The verdicts that a packet can get while rules change.

use weir_model::{Delta, Direction, Flow, Program, Verdict};

/// A program before, during and after a change. Rules and set members do not change atomically.
#[derive(Clone, Debug)]
pub struct Midway(Vec<Program>);

impl Midway {
    /// The states between `before` and the program after `delta`.
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

    /// Whether a packet can get this verdict. Each pod's rules are those before or after the change, and
    /// so are the members of their sets.
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

    /// Whether the nodes forward the packet during the whole change. They do not forward packets of a pod
    /// to itself or to its node.
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
