//! Who is in charge: of many processes, the one that holds the lease.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};
use tokio::time::{sleep, timeout};
use weir_kube::ReadError;

use crate::{
    Controller, Options, Server,
    report::{Charge, Report},
};

/// The annotation that tells which controllers the holder runs.
pub(crate) const CONTROLLERS: &str = "weir/controllers";
/// What is asked for.
pub(crate) const RESOURCE: &str = "leases.coordination.k8s.io";

/// How long a lease holds without being renewed, as others see it.
const DURATION: Duration = Duration::from_secs(15);
/// How long it holds as we see it: less, so that there are never two.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is renewed, or looked at.
const RETRY: Duration = Duration::from_secs(2);

/// A time in charge. It is over when the lease was not renewed in time.
#[derive(Clone, Debug)]
pub struct Term {
    until: Arc<Mutex<Instant>>,
}

impl Term {
    fn new(until: Instant) -> Self {
        Term { until: Arc::new(Mutex::new(until)) }
    }

    /// Whether somebody else may be in charge by now.
    pub fn is_over(&self) -> bool {
        self.until() <= Instant::now()
    }

    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// One who wants to be in charge.
#[derive(Debug)]
pub(crate) struct Candidate {
    server: Server,
    namespace: String,
    /// The name of the lease.
    name: String,
    identity: String,
    /// The names of the controllers that it would run.
    controllers: String,
    seen: Seen,
    term: Term,
    report: Arc<Report>,
    /// What was last said about it, so that it is said once.
    said: String,
}

/// The version of the lease that was last seen, and since when. Clocks of others are not relied on.
type Seen = Option<(String, Instant)>;

/// What to do about the lease.
#[derive(Clone, Debug, PartialEq)]
enum Move {
    Wait,
    Create(Lease),
    Replace(Lease),
}

/// Why the lease cannot be taken, and what helps.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(
        "there is no namespace {0}; create it with `kubectl create namespace {0}`, or name another with --namespace"
    )]
    NoNamespace(String),
    #[error("{}; {}", .0.text(), .0.hint())]
    Read(#[from] ReadError),
}

/// Whether it is the namespace that is not there, and not the API.
fn is_about_namespace(status: &kube::core::Status) -> bool {
    let kind = status.details.as_ref().map(|details| &*details.kind);
    status.code == 404 && kind == Some("namespaces")
}

impl Candidate {
    pub(crate) fn new(server: Server, options: &Options, report: Arc<Report>) -> Self {
        let names: Vec<&str> = options.controllers.iter().map(Controller::name).collect();
        Candidate {
            server,
            namespace: options.namespace.clone(),
            name: options.lease.clone(),
            identity: options.identity.clone(),
            controllers: names.join(","),
            seen: None,
            term: Term::new(Instant::now()),
            report,
            said: String::new(),
        }
    }

    /// Waits until we are in charge.
    pub(crate) async fn acquire(&mut self) -> Term {
        loop {
            match self.attempt().await {
                Ok(true) => {
                    self.say(String::new());
                    self.report.lead(Charge::Ours);
                    return self.term.clone();
                }
                Ok(false) => {
                    self.say("another process is in charge; waiting".into());
                    self.report.lead(Charge::Another);
                }
                Err(error) => {
                    let why = format!("cannot take the lease: {error}");
                    self.say(why.clone());
                    self.report.lead(Charge::Unknown(why));
                }
            }
            sleep(RETRY).await;
        }
    }

    /// Stays in charge for as long as possible. Returns who is in charge then.
    pub(crate) async fn hold(&mut self) -> Charge {
        loop {
            sleep(RETRY).await;
            let left = self.term.until().saturating_duration_since(Instant::now());
            match timeout(left, self.attempt()).await {
                Ok(Ok(true)) => self.say(String::new()),
                Ok(Ok(false)) => {
                    self.term.extend(Instant::now());
                    self.say("another process has taken the lease".into());
                    return Charge::Another;
                }
                Ok(Err(error)) => {
                    self.say(format!("cannot renew the lease: {error}"));
                }
                Err(_) => (),
            }
            if self.term.is_over() {
                let why = "the lease could not be renewed in time";
                self.say(why.into());
                return Charge::Unknown(why.into());
            }
        }
    }

    /// Lets others be in charge at once.
    pub(crate) async fn release(&mut self) {
        let held = self.get().await.ok().flatten();
        let Some(mut lease) = held.filter(|lease| holder(lease) == self.identity) else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        // If it does not work, they wait for a while.
        _ = self.put(&Move::Replace(lease)).await;
    }

    /// Tries once to take the lease, or to keep it.
    async fn attempt(&mut self) -> Result<bool, LeaseError> {
        let start = Instant::now();
        let lease = self.get().await?;
        let step = decide(lease, &self.identity, &mut self.seen, Instant::now());
        let is_held = step != Move::Wait && self.put(&step).await?;
        if is_held {
            self.term.extend(start + DEADLINE);
        }
        Ok(is_held)
    }

    async fn get(&self) -> Result<Option<Lease>, ReadError> {
        let found = self.server.ask("get", RESOURCE, async |client| {
            Api::<Lease>::namespaced(client, &self.namespace).get_opt(&self.name).await
        });
        found.await
    }

    /// Whether nobody was faster.
    async fn put(&self, step: &Move) -> Result<bool, LeaseError> {
        let (verb, params) = match step {
            Move::Create(_) => ("create", PostParams::default()),
            _ => ("update", PostParams::default()),
        };
        let done = self.server.answer(async |client| {
            let api = Api::<Lease>::namespaced(client, &self.namespace);
            match step {
                Move::Wait => Ok(false),
                Move::Create(lease) => api.create(&params, &self.sign(lease)).await.map(|_| true),
                Move::Replace(lease) => {
                    api.replace(&self.name, &params, &self.sign(lease)).await.map(|_| true)
                }
            }
        });
        match done.await? {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(kube::Error::Api(status)) if is_about_namespace(&status) => {
                Err(LeaseError::NoNamespace(self.namespace.clone()))
            }
            Err(error) => Err(ReadError::from_kube(error, verb, RESOURCE).into()),
            Ok(done) => Ok(done),
        }
    }

    /// The lease with its name, and with what its holder runs.
    fn sign(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        lease.metadata.name = Some(self.name.clone());
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(CONTROLLERS.into(), self.controllers.clone());
        lease
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() && text != self.said {
            tracing::warn!("{text}");
        }
        self.said = text;
    }
}

/// What to do about the lease as it is now.
fn decide(lease: Option<Lease>, me: &str, seen: &mut Seen, now: Instant) -> Move {
    let time = MicroTime(Timestamp::now());
    let spec = |since: Option<MicroTime>, transitions: i32| LeaseSpec {
        holder_identity: Some(me.into()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: since.or(Some(time.clone())),
        renew_time: Some(time.clone()),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = lease else {
        return Move::Create(Lease { spec: Some(spec(None, 0)), ..Lease::default() });
    };
    let known = lease.spec.clone().unwrap_or_default();
    let transitions = known.lease_transitions.unwrap_or_default();
    if holder(&lease) == me {
        lease.spec = Some(spec(known.acquire_time, transitions));
        return Move::Replace(lease);
    }
    let version = lease.metadata.resource_version.clone().unwrap_or_default();
    let since = match seen {
        Some((last, since)) if *last == version => *since,
        _ => {
            *seen = Some((version, now));
            now
        }
    };
    if !holder(&lease).is_empty() && now < since + duration(&lease) {
        return Move::Wait;
    }
    lease.spec = Some(spec(None, transitions.saturating_add(1)));
    Move::Replace(lease)
}

/// How long a lease holds without being renewed, as its holder says.
pub(crate) fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DURATION, Duration::from_secs)
}

/// Who holds a lease; nobody if it is empty.
pub(crate) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(holder: &str, version: &str) -> Lease {
        let metadata =
            ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() };
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    /// Who holds the lease after a move, and how often that has changed.
    fn after(step: Move) -> (String, Option<i32>) {
        match step {
            Move::Wait => ("wait".into(), None),
            Move::Create(lease) | Move::Replace(lease) => {
                (holder(&lease).into(), lease.spec.and_then(|spec| spec.lease_transitions))
            }
        }
    }

    #[test]
    fn a_lease_that_nobody_holds_is_taken_at_once() {
        let now = Instant::now();
        assert!(matches!(decide(None, "me", &mut None, now), Move::Create(_)));
        assert_eq!(after(decide(None, "me", &mut None, now)), ("me".into(), Some(0)));
        let given_up = decide(Some(lease("", "1")), "me", &mut None, now);
        assert_eq!(after(given_up), ("me".into(), Some(4)));
    }

    #[test]
    fn a_lease_that_another_renews_is_waited_for_and_one_that_it_does_not_is_taken() {
        let (start, mut seen) = (Instant::now(), None);
        let mut at = |version: &str, seconds: u32| {
            after(decide(Some(lease("other", version)), "me", &mut seen, start + seconds * SECOND))
                .0
        };
        assert_eq!(at("1", 0), "wait");
        assert_eq!(at("1", 14), "wait");
        assert_eq!(at("2", 15), "wait");
        assert_eq!(at("2", 29), "wait");
        assert_eq!(at("2", 30), "me");
    }

    #[test]
    fn our_own_lease_is_renewed_in_the_version_that_we_know() {
        let Move::Replace(renewed) =
            decide(Some(lease("me", "7")), "me", &mut None, Instant::now())
        else {
            panic!("it is ours")
        };
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(after(Move::Replace(renewed)), ("me".into(), Some(3)));
    }

    #[test]
    fn a_term_ends_before_others_may_begin() {
        assert!(DEADLINE + RETRY < DURATION);
        let term = Term::new(Instant::now() + 60 * SECOND);
        assert!(!term.is_over());
        term.extend(Instant::now());
        assert!(term.is_over());
    }
}
