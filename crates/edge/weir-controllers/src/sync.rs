//! Readiness of followed kinds.

use weir_kube::{ObjectEvent, Resource, Store};

/// The state of a followed kind.
pub(crate) trait Followed {
    /// Whether the kind was listed at least once.
    fn is_in_sync(&self) -> bool;
    /// Why the kind cannot be followed at the moment.
    fn problem(&self) -> Option<&str>;
}

impl<T> Followed for Store<T> {
    fn is_in_sync(&self) -> bool {
        self.is_in_sync()
    }

    fn problem(&self) -> Option<&str> {
        self.problem()
    }
}

/// The state of a kind whose objects are not kept in a [`Store`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ListState {
    is_listed: bool,
    problem: Option<String>,
}

impl ListState {
    /// Records an event.
    pub(crate) fn observe<T>(&mut self, event: &ObjectEvent<T>) {
        match event {
            ObjectEvent::Listed { .. } => self.is_listed = true,
            ObjectEvent::Available => self.problem = None,
            ObjectEvent::Unavailable(problem) => self.problem = Some(problem.clone()),
            ObjectEvent::Put(_) | ObjectEvent::Removed(_) => (),
        }
    }
}

impl Followed for ListState {
    fn is_in_sync(&self) -> bool {
        self.is_listed
    }

    fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

/// Why kinds are not ready: they cannot be followed, or are not listed yet. Kinds with the same
/// problem are reported once.
pub(crate) fn unready<'a, F: Followed + 'a>(
    inputs: impl IntoIterator<Item = (&'a F, &'a Resource)>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    for (input, resource) in inputs {
        let reason = match input.problem() {
            Some(problem) => problem.to_owned(),
            None if !input.is_in_sync() => format!("{} has not been listed yet", resource.name()),
            None => continue,
        };
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use weir_kube::NETWORK_POLICIES;

    use super::*;

    #[test]
    fn a_kind_is_ready_once_it_is_listed_and_has_no_problem() {
        let mut sync = ListState::default();
        let store = Store::<()>::default();
        let reasons = |sync: &ListState| unready([(sync, &NETWORK_POLICIES)]);
        assert_eq!(reasons(&sync), ["networkpolicies.networking.k8s.io has not been listed yet"]);
        assert!(!Followed::is_in_sync(&store));
        sync.observe(&ObjectEvent::<()>::Listed { version: "v1", items: Vec::new() });
        assert_eq!(reasons(&sync), [""; 0]);
        sync.observe(&ObjectEvent::<()>::Unavailable("timeout".into()));
        assert_eq!(reasons(&sync), ["timeout"]);
        let both = [(&sync, &NETWORK_POLICIES); 2];
        assert_eq!(unready(both), ["timeout"], "the same problem is reported once");
        sync.observe(&ObjectEvent::<()>::Available);
        assert_eq!(reasons(&sync), [""; 0]);
    }
}
