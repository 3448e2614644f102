//! Leader election: of all processes that use the same lease, one holds it and is the leader.

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
use weir_kube::{ApiClient, ApiError};

use crate::{
    Controller, ControllerOptions,
    report::{ControllerReport, Role},
    standby::role_beside,
};

/// The annotation with the names of the controllers that the holder runs.
pub(crate) const CONTROLLERS_ANNOTATION: &str = "weir/controllers";
/// The resource, as errors name it.
pub(crate) const RESOURCE: &str = "leases.coordination.k8s.io";

/// Other processes consider the lease expired after this time without a renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The leader gives up after this time without a renewal. It is shorter than the lease, so that
/// there are never two leaders.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The interval between attempts to acquire or renew the lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The right to write, for as long as this process is the leader. It expires unless the lease is
/// renewed.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    deadline: Arc<Mutex<Instant>>,
}

impl Leadership {
    fn new(deadline: Instant) -> Self {
        Leadership { deadline: Arc::new(Mutex::new(deadline)) }
    }

    /// Whether another process may be the leader by now.
    pub(crate) fn is_expired(&self) -> bool {
        self.deadline() <= Instant::now()
    }

    fn deadline(&self) -> Instant {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, deadline: Instant) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }
}

/// A process that wants to become the leader.
#[derive(Debug)]
pub(crate) struct Candidate {
    client: ApiClient,
    namespace: String,
    /// The name of the lease.
    name: String,
    identity: String,
    /// The names of the controllers that it runs as the leader.
    controllers: Vec<&'static str>,
    observed: Observed,
    /// The role beside the holder of the lease when it was last read.
    beside: Role,
    leadership: Leadership,
    report: Arc<ControllerReport>,
    /// The last logged message, so that it is logged once.
    logged: String,
}

/// The last observed version of the lease, and when this process first observed it. Expiry is
/// measured with the local clock only, so that clocks of other machines do not matter.
type Observed = Option<(String, Instant)>;

/// The next request for the lease.
#[derive(Clone, Debug, PartialEq)]
enum LeaseAction {
    Wait,
    Create(Lease),
    Replace(Lease),
}

/// Why the lease cannot be acquired, with a hint.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(
        "there is no namespace {0}; create it with `kubectl create namespace {0}`, or name \
         another with --namespace"
    )]
    NoNamespace(String),
    #[error(
        "not allowed to {verb} it; grant that with a Role in namespace {namespace}: apiGroups \
         [\"coordination.k8s.io\"], resources [\"leases\"], verbs [\"get\", \"create\", \"update\"]; or \
         name another namespace with --namespace"
    )]
    Forbidden { verb: &'static str, namespace: String },
    #[error("{}; {}", .0.text(), .0.hint())]
    Read(ApiError),
}

impl Candidate {
    pub(crate) fn new(
        client: ApiClient,
        options: &ControllerOptions,
        report: Arc<ControllerReport>,
    ) -> Self {
        Candidate {
            client,
            namespace: options.namespace.clone(),
            name: options.lease.clone(),
            identity: options.identity.clone(),
            controllers: options.controllers.iter().map(Controller::name).collect(),
            observed: None,
            beside: role_beside(None, &[]),
            leadership: Leadership::new(Instant::now()),
            report,
            logged: String::new(),
        }
    }

    /// Waits until this process is the leader.
    pub(crate) async fn acquire(&mut self) -> Leadership {
        loop {
            match self.attempt().await {
                Ok(true) => {
                    self.log(String::new());
                    self.report.set_role(Role::Leader);
                    return self.leadership.clone();
                }
                Ok(false) => {
                    let text = match &self.beside {
                        Role::Unknown(why) | Role::Standby { warning: Some(why), .. } => why,
                        _ => "another process is the leader; waiting",
                    };
                    self.log(text.to_owned());
                    self.report.set_role(self.beside.clone());
                }
                Err(error) => {
                    let why = format!("cannot acquire the lease {}: {error}", self.path());
                    self.log(why.clone());
                    self.report.set_role(Role::Unknown(why));
                }
            }
            sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews the lease until that fails. Returns the role of this process after that.
    pub(crate) async fn hold(&mut self) -> Role {
        loop {
            sleep(RETRY_PERIOD).await;
            let left = self.leadership.deadline().saturating_duration_since(Instant::now());
            match timeout(left, self.attempt()).await {
                Ok(Ok(true)) => self.log(String::new()),
                Ok(Ok(false)) => {
                    self.leadership.extend(Instant::now());
                    self.log("another process has taken the lease".into());
                    return self.beside.clone();
                }
                Ok(Err(error)) => {
                    self.log(format!("cannot renew the lease {}: {error}", self.path()));
                }
                Err(_) => (),
            }
            if self.leadership.is_expired() {
                let why = "the lease could not be renewed in time";
                self.log(why.into());
                return Role::Unknown(why.into());
            }
        }
    }

    /// Gives up the lease, so that another process can acquire it immediately.
    pub(crate) async fn release(&mut self) {
        let held = self.get().await.ok().flatten();
        let Some(mut lease) = held.filter(|lease| holder(lease) == self.identity) else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        // If this fails, the lease expires.
        _ = self.put(&LeaseAction::Replace(lease)).await;
    }

    /// Tries once to acquire or renew the lease.
    async fn attempt(&mut self) -> Result<bool, LeaseError> {
        let start = Instant::now();
        let lease = self.get().await.map_err(|error| self.explain(error))?;
        self.beside = role_beside(lease.as_ref(), &self.controllers);
        let action = decide(lease, &self.identity, &mut self.observed, Instant::now());
        let is_held = action != LeaseAction::Wait && self.put(&action).await?;
        if is_held {
            self.leadership.extend(start + RENEW_DEADLINE);
        }
        Ok(is_held)
    }

    async fn get(&self) -> Result<Option<Lease>, ApiError> {
        let found = self.client.request("get", RESOURCE, async |client| {
            Api::<Lease>::namespaced(client, &self.namespace).get_opt(&self.name).await
        });
        found.await
    }

    /// Sends the request. `false` if another process changed the lease first.
    async fn put(&self, action: &LeaseAction) -> Result<bool, LeaseError> {
        let verb = if matches!(action, LeaseAction::Create(_)) { "create" } else { "update" };
        let params = PostParams::default();
        let sent = self.client.request(verb, RESOURCE, async |client| {
            let api = Api::<Lease>::namespaced(client, &self.namespace);
            match action {
                LeaseAction::Wait => Ok(false),
                LeaseAction::Create(lease) => {
                    api.create(&params, &self.sign(lease)).await.map(|_| true)
                }
                LeaseAction::Replace(lease) => {
                    api.replace(&self.name, &params, &self.sign(lease)).await.map(|_| true)
                }
            }
        });
        match sent.await {
            Err(ApiError::Refused { code: 409, .. }) => Ok(false),
            // Every API server has leases, so the namespace is missing.
            Err(ApiError::Missing { .. }) if verb == "create" => {
                Err(LeaseError::NoNamespace(self.namespace.clone()))
            }
            sent => sent.map_err(|error| self.explain(error)),
        }
    }

    /// The lease, as messages name it.
    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The error with a hint about this lease.
    fn explain(&self, error: ApiError) -> LeaseError {
        match error {
            ApiError::Forbidden { verb, .. } => {
                LeaseError::Forbidden { verb, namespace: self.namespace.clone() }
            }
            error => LeaseError::Read(error),
        }
    }

    /// Adds the name of the lease and the controllers of its holder.
    fn sign(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        lease.metadata.name = Some(self.name.clone());
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(CONTROLLERS_ANNOTATION.into(), self.controllers.join(","));
        lease
    }

    fn log(&mut self, text: String) {
        if !text.is_empty() && text != self.logged {
            tracing::warn!("{text}");
        }
        self.logged = text;
    }
}

/// Decides on the next request from the current lease.
fn decide(lease: Option<Lease>, me: &str, observed: &mut Observed, now: Instant) -> LeaseAction {
    let time = MicroTime(Timestamp::now());
    let spec = |since: Option<MicroTime>, transitions: i32| LeaseSpec {
        holder_identity: Some(me.into()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        acquire_time: since.or(Some(time.clone())),
        renew_time: Some(time.clone()),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = lease else {
        return LeaseAction::Create(Lease { spec: Some(spec(None, 0)), ..Lease::default() });
    };
    let spec_before = lease.spec.clone().unwrap_or_default();
    let transitions = spec_before.lease_transitions.unwrap_or_default();
    if holder(&lease) == me {
        lease.spec = Some(spec(spec_before.acquire_time, transitions));
        return LeaseAction::Replace(lease);
    }
    let version = lease.metadata.resource_version.clone().unwrap_or_default();
    let since = match observed {
        Some((last, since)) if *last == version => *since,
        _ => {
            *observed = Some((version, now));
            now
        }
    };
    if !holder(&lease).is_empty() && now < since + duration(&lease) {
        return LeaseAction::Wait;
    }
    lease.spec = Some(spec(None, transitions.saturating_add(1)));
    LeaseAction::Replace(lease)
}

/// The duration of a lease, as its holder declares it.
pub(crate) fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(LEASE_DURATION, Duration::from_secs)
}

/// The holder of a lease; empty if it has none.
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

    /// The holder after an action, and the number of transitions.
    fn after(action: LeaseAction) -> (String, Option<i32>) {
        match action {
            LeaseAction::Wait => ("wait".into(), None),
            LeaseAction::Create(lease) | LeaseAction::Replace(lease) => {
                (holder(&lease).into(), lease.spec.and_then(|spec| spec.lease_transitions))
            }
        }
    }

    #[test]
    fn a_lease_without_a_holder_is_acquired_immediately() {
        let now = Instant::now();
        assert!(matches!(decide(None, "me", &mut None, now), LeaseAction::Create(_)));
        assert_eq!(after(decide(None, "me", &mut None, now)), ("me".into(), Some(0)));
        let released = decide(Some(lease("", "1")), "me", &mut None, now);
        assert_eq!(after(released), ("me".into(), Some(4)));
    }

    #[test]
    fn a_lease_that_its_holder_does_not_renew_is_acquired_after_its_duration() {
        let (start, mut observed) = (Instant::now(), None);
        let mut at = |version: &str, seconds: u32| {
            after(decide(
                Some(lease("other", version)),
                "me",
                &mut observed,
                start + seconds * SECOND,
            ))
            .0
        };
        assert_eq!(at("1", 0), "wait");
        assert_eq!(at("1", 14), "wait");
        assert_eq!(at("2", 15), "wait");
        assert_eq!(at("2", 29), "wait");
        assert_eq!(at("2", 30), "me");
    }

    #[test]
    fn the_holder_renews_the_version_that_it_observed() {
        let LeaseAction::Replace(renewed) =
            decide(Some(lease("me", "7")), "me", &mut None, Instant::now())
        else {
            panic!("the lease must be renewed")
        };
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(after(LeaseAction::Replace(renewed)), ("me".into(), Some(3)));
    }

    #[test]
    fn leadership_expires_before_the_lease_does() {
        assert!(RENEW_DEADLINE + RETRY_PERIOD < LEASE_DURATION);
        let leadership = Leadership::new(Instant::now() + 60 * SECOND);
        assert!(!leadership.is_expired());
        leadership.extend(Instant::now());
        assert!(leadership.is_expired());
    }
}
