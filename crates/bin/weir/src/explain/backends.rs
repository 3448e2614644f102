//! Connections to Services and routes, which stand for one connection to each backend.

use std::io::Write;

use weir_api::Route;
use weir_model::{Flow, IpFamily, ServiceId, Verdict};
use weir_reach::ReachState;
use weir_view::explain::{addresses, check_network};

use super::ExplainCommand;
use crate::{
    exit::Exit,
    failure::Failure,
    flow_end::FlowEnd,
    ingress::{self, RouteTargets},
    present::{
        self, Schema,
        explanation_view::ExplanationView,
        service_view::{BackendView, RouteView, ServiceView},
    },
    service::{self, Client, ServiceTarget, Sources},
    source::Loaded,
};

/// A connection that a connection to a Service can become.
struct Attempt {
    from: FlowEnd,
    to: FlowEnd,
    flow: Flow,
}

/// A port of a Service, and the connections to its backends.
struct TargetAttempts<'w> {
    target: ServiceTarget<'w>,
    attempts: Vec<Attempt>,
}

impl ExplainCommand {
    /// Explains the connections to all backends of a Service: each with its verdict, and one of
    /// them, a denied one if there is any, in full.
    pub(super) fn explain_service(
        &self,
        out: &mut dyn Write,
        loaded: &Loaded,
        state: &ReachState,
        from: &FlowEnd,
        id: &ServiceId,
    ) -> anyhow::Result<Exit> {
        let service = service::find(&loaded.world, id)?;
        let mut target =
            ServiceTarget::find(&loaded.world, service, self.question().port()?, Client::Pod)?;
        let sources = Sources::find(&loaded.world, from, service);
        target.notes.extend(sources.note.clone());
        let attempts = self.attempts(loaded, &target, &sources)?;
        let reaches_itself = attempts.iter().any(|attempt| attempt.flow.from == attempt.flow.to);
        let has_admin_policies =
            loaded.world.policies.keys().any(|policy| !policy.kind.is_namespaced());
        if reaches_itself && has_admin_policies {
            target.notes.push(format!(
                "{from} is a backend itself: through the Service, admin policies apply to that \
                 connection, and this evaluation does not include them"
            ));
        }
        let all = [TargetAttempts { target, attempts }];
        self.write_attempts(out, loaded, state, &all, |view, services| {
            view.service = services.into_iter().next();
        })
    }

    /// Explains the connections of a route to the backends of its Services, in the same way.
    pub(super) fn explain_route(
        &self,
        out: &mut dyn Write,
        loaded: &Loaded,
        state: &ReachState,
        from: &FlowEnd,
        route: &Route,
    ) -> anyhow::Result<Exit> {
        if self.port.is_some() {
            let hint = "leave it out: the route names the ports of its Services";
            return Err(Failure::new("--port does not apply to a route", hint).into());
        }
        let sources = self.proxies(loaded, from, route)?;
        let RouteTargets { targets, mut notes } = RouteTargets::find(&loaded.world, route);
        let name = ingress::name(&route.id);
        if targets.is_empty() {
            let hint = match notes.is_empty() {
                true => "it names no Services".to_owned(),
                false => notes.join("; "),
            };
            return Err(Failure::new(format!("{name} leads to no backends"), hint).into());
        }
        notes.extend(sources.note.clone());
        let mut all = Vec::with_capacity(targets.len());
        for target in targets {
            let attempts = self.attempts(loaded, &target, &sources)?;
            all.push(TargetAttempts { target, attempts });
        }
        self.write_attempts(out, loaded, state, &all, |view, services| {
            view.route = Some(RouteView::new(name, &self.from, services, notes));
        })
    }

    /// The sources that policies see for connections of a route.
    fn proxies(&self, loaded: &Loaded, from: &FlowEnd, route: &Route) -> Result<Sources, Failure> {
        let pods = self.ingress.controllers().pods(Some(route), self.source.namespace(), loaded)?;
        let own = |note: Option<String>| Sources { ends: vec![from.clone()], note };
        match from {
            FlowEnd::Pod(id, _) if pods.contains(id) => Ok(own(None)),
            FlowEnd::Address(address) if pods.is_empty() => Ok(own(Some(format!(
                "the pods that serve this route are unknown, so {address} stands for them; name \
                 them with --ingress-controller"
            )))),
            _ if pods.is_empty() => Err(ingress::unknown_pods()),
            _ => Ok(Sources {
                note: Some(format!(
                    "policies see the pods that serve the route: {}; the connection from {from} to \
                     these is not evaluated",
                    ingress::listed(&pods)
                )),
                ends: pods.into_iter().map(|id| FlowEnd::Pod(id, 1)).collect(),
            }),
        }
    }

    /// Writes the verdicts of all attempts, and explains one of them in full: a denied one, if there
    /// is any.
    fn write_attempts(
        &self,
        out: &mut dyn Write,
        loaded: &Loaded,
        state: &ReachState,
        all: &[TargetAttempts<'_>],
        add_services: impl FnOnce(&mut ExplanationView, Vec<ServiceView>),
    ) -> anyhow::Result<Exit> {
        let attempts = || all.iter().flat_map(|one| &one.attempts);
        let verdict_of = |attempt: &Attempt| state.program.verdict(&attempt.flow);
        let verdict = attempts().map(verdict_of).max().unwrap_or(Verdict::Deny);
        let Some(shown) = attempts().find(|attempt| verdict_of(attempt) == verdict) else {
            let hint = "its backends have no addresses";
            return Err(Failure::new("there is no connection to evaluate", hint).into());
        };
        let Attempt { from, to, flow } = shown;
        let explained = self.question().explain(loaded, state, [from, to], *flow);
        let mut view = explained.view(loaded, [from, to]);
        let services = all.iter().map(|TargetAttempts { target, attempts }| {
            let backends = attempts.iter().map(|attempt| {
                let explanation = weir_engine::explain(&state.program, &attempt.flow);
                BackendView::new(&attempt.from, &attempt.to, &explanation)
            });
            ServiceView::new(target, &self.from, backends.collect())
        });
        add_services(&mut view, services.collect());
        match self.output.structured() {
            Some(form) => present::value(out, form, Schema::Explain, &view)?,
            None => present::explanation::write(out, &explained.explanation, &view)?,
        }
        Ok(verdict.into())
    }

    /// The connections that one connection to a Service can become.
    fn attempts(
        &self,
        loaded: &Loaded,
        target: &ServiceTarget<'_>,
        sources: &Sources,
    ) -> Result<Vec<Attempt>, Failure> {
        let family = self.ip_family.map(IpFamily::from);
        let (mut attempts, mut failure) = (Vec::new(), None);
        for backend in &target.backends {
            let to = match &backend.pod {
                Some(pod) => FlowEnd::Pod(pod.clone(), 1),
                None => FlowEnd::Address(backend.addresses[0]),
            };
            check_network(&to, loaded)?;
            for from in &sources.ends {
                check_network(from, loaded)?;
                let sources = (&*from.to_string(), from.addresses(loaded));
                let targets = (&*to.to_string(), backend.addresses.clone());
                match addresses(sources, targets, family) {
                    Ok((source, address)) => {
                        let (protocol, port) = (target.port.protocol, backend.port);
                        let flow = Flow { from: source, to: address, protocol, port };
                        attempts.push(Attempt { from: from.clone(), to: to.clone(), flow });
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        match failure {
            Some(failure) if attempts.is_empty() => Err(failure),
            _ => Ok(attempts),
        }
    }
}
