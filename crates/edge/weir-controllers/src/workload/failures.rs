use std::collections::BTreeMap;

use weir_kube::ObjectId;

/// The objects that do not have their desired policy, and why.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<ObjectId, String>);

/// A transition of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transition<'a> {
    /// The object fails, or fails for another reason than before.
    Failed(&'a str),
    /// The object no longer fails.
    Recovered,
}

impl Failures {
    /// Records why an object fails, or that it does not. Returns the transition if there is one.
    pub(super) fn record(
        &mut self,
        id: ObjectId,
        failure: Option<String>,
    ) -> Option<Transition<'_>> {
        match failure {
            Some(failure) if self.0.get(&id) == Some(&failure) => None,
            Some(failure) => {
                let recorded = self.0.entry(id).or_default();
                *recorded = failure;
                Some(Transition::Failed(recorded))
            }
            None => self.0.remove(&id).map(|_| Transition::Recovered),
        }
    }

    /// The number of objects that fail.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_until_it_changes() {
        let mut failures = Failures::default();
        let id = |name: &str| ObjectId::new("shop", name);
        let failed = |why: &str| Some(why.to_owned());
        assert_eq!(failures.record(id("a"), None), None);
        assert_eq!(failures.record(id("a"), failed("taken")), Some(Transition::Failed("taken")));
        assert_eq!(failures.record(id("a"), failed("taken")), None);
        assert_eq!(failures.record(id("b"), failed("taken")), Some(Transition::Failed("taken")));
        let other = failures.record(id("a"), failed("invalid"));
        assert_eq!(other, Some(Transition::Failed("invalid")));
        assert_eq!(failures.count(), 2);
        assert_eq!(failures.record(id("a"), None), Some(Transition::Recovered));
        assert_eq!(failures.record(id("a"), None), None);
        assert_eq!(failures.count(), 1);
    }
}
