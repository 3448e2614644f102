use crate::{
    ApplyError, ApplyErrorKind, Datapath, Diagnostics, Drift, EnforceGuard, Guard, Journal,
    NodeLinks, Planner, Records, TerminateFlows,
};

/// A datapath that enforces policies, with the guard and the journal of another one.
#[derive(Debug)]
pub struct Guarded<P, G> {
    /// It enforces the policies.
    pub policies: P,
    /// It has the guard and the journal, and enforces no policies.
    pub guard: G,
}

impl<P: Datapath, G: Datapath> Datapath for Guarded<P, G> {
    type Planner = P::Planner;

    fn planner(&self) -> P::Planner {
        self.policies.planner()
    }

    fn installed(&mut self) -> Result<<P::Planner as Planner>::Installed, ApplyError> {
        self.policies.installed()
    }

    fn apply(&mut self, plan: &<P::Planner as Planner>::Plan) -> Result<(), ApplyError> {
        self.policies.apply(plan)
    }

    fn drift(&mut self, planner: &P::Planner) -> Result<Drift, ApplyError> {
        self.policies.drift(planner)
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.policies.remove()?;
        self.guard.remove()
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        let mut denied = self.policies.denied()?;
        denied.extend(self.guard.denied()?);
        Ok(denied)
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<P::Planner>> {
        self.policies.flows()
    }

    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        self.guard.guard()?;
        Some(self)
    }

    fn journal(&mut self) -> Option<&mut dyn Journal> {
        self.guard.journal()
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics<P::Planner>> {
        self.policies.diagnostics()
    }
}

impl<P: Datapath, G: Datapath> Guarded<P, G> {
    fn enforcer(&mut self) -> Result<&mut dyn EnforceGuard, ApplyError> {
        self.guard.guard().ok_or_else(|| ApplyError {
            kind: ApplyErrorKind::Unavailable,
            what: "the datapath has no guard".into(),
            source: "its guard enforces none".into(),
        })
    }
}

impl<P: Datapath, G: Datapath> EnforceGuard for Guarded<P, G> {
    fn changed_links(&mut self) -> Result<Option<NodeLinks>, ApplyError> {
        self.enforcer()?.changed_links()
    }

    fn records(&mut self) -> Result<Records, ApplyError> {
        self.enforcer()?.records()
    }

    fn enforce(&mut self, guard: &Guard) -> Result<Vec<String>, ApplyError> {
        self.policies.respect_guard(guard)?;
        self.enforcer()?.enforce(guard)
    }

    fn guard_drifted(&mut self, guard: &Guard) -> Result<bool, ApplyError> {
        self.enforcer()?.guard_drifted(guard)
    }
}
