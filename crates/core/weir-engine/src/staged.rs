use std::collections::BTreeSet;

use weir_model::{Change, Key, Object, Policy, PolicyId, Program};

use crate::Engine;

/// The rules as they would be with all staged policies enforced, to report what these policies would
/// deny. They are compiled only while there is a staged policy.
#[derive(Debug, Default)]
pub struct StagedRules {
    /// The staged policies.
    policies: BTreeSet<PolicyId>,
    rules: Option<(Engine, Program)>,
}

impl StagedRules {
    /// Follows changes that `engine` has already applied.
    pub fn apply(&mut self, engine: &Engine, changes: &[Change]) {
        // The first staged policies, to be added to the facts of the engine.
        let mut first: Vec<Change> = Vec::new();
        for change in changes {
            match change {
                Change::Put(Object::Policy(policy)) if policy.staged => {
                    self.policies.insert(policy.id.clone());
                    if self.rules.is_none() {
                        first.push(enforced(change));
                    }
                }
                Change::Put(Object::Policy(Policy { id, .. }))
                | Change::Remove(Key::Policy(id)) => {
                    self.policies.remove(id);
                    first.retain(|change| !is_about(change, id));
                }
                _ => (),
            }
        }
        if self.policies.is_empty() {
            self.rules = None;
            return;
        }
        match &mut self.rules {
            Some((staged, program)) => {
                _ = program.apply(staged.apply(changes.iter().map(enforced)))
            }
            None => {
                let (mut staged, mut program) = (engine.sibling(), Program::default());
                program.apply(staged.apply(engine.facts().chain(first)));
                self.rules = Some((staged, program));
            }
        }
    }

    /// The rules; `None` if no policy is staged.
    pub fn program(&self) -> Option<&Program> {
        self.rules.as_ref().map(|(_, program)| program)
    }

    /// The staged policies.
    pub fn policies(&self) -> &BTreeSet<PolicyId> {
        &self.policies
    }
}

/// The change with an enforced policy instead of a staged one.
fn enforced(change: &Change) -> Change {
    match change {
        Change::Put(Object::Policy(policy)) => {
            Change::Put(Object::Policy(Policy { staged: false, ..policy.clone() }))
        }
        other => other.clone(),
    }
}

fn is_about(change: &Change, id: &PolicyId) -> bool {
    matches!(change, Change::Put(Object::Policy(policy)) if policy.id == *id)
}
