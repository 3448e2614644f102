//! The one follower: lists the objects of a kind, watches them, and recovers from every failure.
//!
//! ```text
//!   ┌─ failure: back-off          complete, or failure
//!   ▼                          ┌──────────────────────── Compare
//!  List ── complete ──────┐    ▼        interval over ──────▲
//!   ▲                     └─► Watch ────────────────────────┘
//!   │                          ▲ │ ▲
//!   │         version reached ─┘ │ └─ end on time
//!   │                 Resume ◄───┤ other failure: back-off
//!   │                   │        │
//!   └─ 410, 404, silence, unreadable, versions that went back: back-off
//! ```
//!
//! The follower is generic over its [`ObjectSink`]: the agent lowers objects to changes of the
//! model, and controllers keep typed values.
//!
//! *Invariants*
//!
//! * A list counts only if it has a resourceVersion that is not lower than any that was seen before, or
//!   if the latest state of the API server is older, too. A list as events states its version after its
//!   objects, which reach the sink before; if it is older, another list follows.
//!   Objects are removed only by a complete list, a DELETED event, or the absence of the kind's
//!   definition.
//! * Every request that follows a failure waits for a back-off, including the list after 410 Gone.
//! * After a watch without an event or bookmark for `watch_silence`, the follower lists again and
//!   opens a short watch. If that watch is silent as well, it is reported. The report stays until a
//!   watch works. Bytes that complete no event do not count.
//! * A watch resumes after a failure only if the API server has reached its version.

mod events;
mod list;
mod read;
mod sink;
mod spec;
mod watch;

use std::{
    future::pending,
    pin::pin,
    time::{Duration, Instant},
};

pub use events::{ObjectEvent, follow};
use futures::future::{Either, select};
use kube::Client;
pub(crate) use sink::{Closed, ObjectSink, Problem};
pub use spec::{OnMissing, RetryPolicy, WatchSpec};
use tokio::{sync::watch::Receiver, time::sleep};
use weir_runtime::{Backoff, jitter};

use crate::{ApiClient, ApiError, client::Generation, wire::WatchStream};

/// The bytes per second that one follower expects to get when all agents list again. Their lists
/// begin within the time that this rate needs.
const SPREAD_RATE: u64 = 10_000_000;
/// The longest time within which the lists of all agents begin.
const MAX_SPREAD: Duration = Duration::from_secs(30);
/// An API server that needs so long for the first page of a list is busy.
const BUSY_AFTER: Duration = Duration::from_millis(250);
/// The longest wait that the API server can request with Retry-After.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Follows the objects of one kind for one sink.
pub(crate) struct Follower<S> {
    client: ApiClient,
    spec: WatchSpec,
    policy: RetryPolicy,
    /// Counts the requests to list everything again.
    reload: Option<Receiver<u64>>,
    sink: S,
    generation: Generation,
    /// The API version that the last complete list used.
    served: &'static str,
    /// The resourceVersion of the last complete list, event or bookmark.
    position: String,
    list_backoff: Backoff,
    watch_backoff: Backoff,
    list_problem: Option<Problem>,
    watch_problem: Option<Problem>,
    reported: Option<Problem>,
    /// Set after a silence, until a watch works again.
    is_probing: bool,
    missing_since: Option<Instant>,
    /// The highest resourceVersion of an object in the latest state that was read before a list.
    newest_on_page: String,
    /// Whether versions went back since the last complete list.
    is_reverted: bool,
    /// Whether the version comes from a list that etcd can have answered, and from no event since.
    is_from_etcd: bool,
    /// The watch that sent the last list.
    open_watch: Option<WatchStream>,
    /// The size of the last list, not compressed.
    listed_bytes: u64,
    /// When everything is compared with a new list.
    compare_at: Instant,
    /// The generation of the kind's CustomResourceDefinition at the last list. `None` if unknown.
    definition: Option<i64>,
}

/// The next request of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRequest {
    List,
    /// A list while the watch works.
    Compare,
    /// The check before a watch goes on after a failure.
    Resume,
    Watch,
}

/// Why a step did not complete.
enum Interrupted {
    Failed(ApiError),
    /// The receiver of the events is gone.
    Closed,
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Interrupted::Failed(error)
    }
}

impl From<Closed> for Interrupted {
    fn from(_: Closed) -> Self {
        Interrupted::Closed
    }
}

impl<S: ObjectSink> Follower<S> {
    pub(crate) fn new(
        client: ApiClient,
        spec: WatchSpec,
        policy: RetryPolicy,
        reload: Option<Receiver<u64>>,
        sink: S,
    ) -> Self {
        let backoff = || Backoff::new(policy.first_retry, policy.longest_retry);
        Follower {
            client,
            spec,
            policy,
            reload,
            sink,
            generation: Generation::default(),
            served: "",
            position: String::new(),
            list_backoff: backoff(),
            watch_backoff: backoff(),
            list_problem: None,
            watch_problem: None,
            reported: None,
            is_probing: false,
            missing_since: None,
            newest_on_page: String::new(),
            is_reverted: false,
            is_from_etcd: false,
            open_watch: None,
            listed_bytes: 0,
            compare_at: Instant::now(),
            definition: None,
        }
    }

    /// Starts from what another source has reached: an older list means that versions went back.
    #[must_use]
    pub(crate) fn not_before(mut self, version: u64) -> Self {
        if version > 0 {
            self.position = version.to_string();
            self.is_from_etcd = true;
        }
        self
    }

    /// Runs until the receiver of the events is gone.
    pub(crate) async fn run(mut self) {
        let mut step = NextRequest::List;
        loop {
            let ended = match step {
                NextRequest::List => self.list().await,
                NextRequest::Compare => self.compare().await,
                NextRequest::Resume => self.resume().await,
                NextRequest::Watch => self.watch().await,
            };
            let next = match ended {
                Err(Interrupted::Failed(error)) => self.recover(step, error).await,
                ended => ended,
            };
            match next {
                Ok(next) => step = next,
                Err(_) => return,
            }
        }
    }

    /// Reports a failure, waits, and decides how to go on.
    async fn recover(
        &mut self,
        step: NextRequest,
        error: ApiError,
    ) -> Result<NextRequest, Interrupted> {
        let error = self.client.locate(error);
        let is_silent = matches!(error, ApiError::Silent { .. });
        if error.is_about_access() || is_silent {
            self.client.renew(self.generation);
        }
        let is_list = matches!(step, NextRequest::List | NextRequest::Compare);
        let backoff = if is_list { &mut self.list_backoff } else { &mut self.watch_backoff };
        let is_repeated = backoff.failures() > 0;
        let wait = if is_silent { jitter(self.policy.first_retry) } else { backoff.next_delay() };
        let wait = wait.max(error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER));
        let wait =
            if let ApiError::Gone { .. } = error { wait + spread(self.listed_bytes) } else { wait };
        // These failures are part of normal operation, unless they repeat.
        let is_normal = match &error {
            ApiError::Gone { .. } => true,
            ApiError::Missing { .. } | ApiError::Ended { .. } => step != NextRequest::List,
            ApiError::Reverted { .. } => false,
            _ => step == NextRequest::Compare,
        };
        let must_report = if is_silent { self.is_probing } else { is_repeated || !is_normal };
        if must_report {
            let problem = Some(self.problem(&error));
            let place = if is_list { &mut self.list_problem } else { &mut self.watch_problem };
            *place = problem;
            self.report().await?;
        }
        self.is_probing |= is_silent;
        let must_list = match &error {
            ApiError::Gone { .. } | ApiError::Garbled { .. } | ApiError::TooLarge { .. } => {
                step != NextRequest::Compare
            }
            ApiError::Missing { .. } | ApiError::Silent { .. } | ApiError::Reverted { .. } => true,
            ApiError::Ended { .. } => is_repeated,
            _ => step == NextRequest::List,
        };
        if step == NextRequest::Compare && !must_list {
            // The watch goes on in the meantime.
            self.compare_at = Instant::now() + wait;
            return Ok(NextRequest::Watch);
        }
        let waited = self.pause(wait).await;
        let must_list = must_list || waited == Pause::Reload;
        Ok(if must_list { NextRequest::List } else { NextRequest::Resume })
    }

    fn problem(&self, error: &ApiError) -> Problem {
        let name = self.spec.resource.name();
        match (error, &self.spec.on_missing) {
            (ApiError::Missing { .. }, OnMissing::FailWithHint(hint)) => Problem {
                message: format!("{name} is not installed"),
                hint: hint.clone(),
                is_about_access: false,
            },
            _ => {
                let is_about_access = error.is_about_access();
                // All kinds share one connection. The same message for all is reported once.
                let subject = if is_about_access { "the cluster" } else { &*name };
                Problem {
                    message: format!("cannot watch {subject}: {}", error.text()),
                    hint: error.hint(),
                    is_about_access,
                }
            }
        }
    }

    /// Sends the current problem to the sink, if it changed.
    async fn report(&mut self) -> Result<(), Closed> {
        let problem = self.list_problem.as_ref().or(self.watch_problem.as_ref()).cloned();
        if self.reported != problem {
            self.reported.clone_from(&problem);
            self.sink.report(problem).await?;
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<Client, ApiError> {
        let (client, generation) = self.client.connect().await?;
        self.generation = generation;
        Ok(client)
    }

    /// Waits. A request to reload ends the wait.
    async fn pause(&mut self, wait: Duration) -> Pause {
        let is_reload = {
            let (timer, reloaded) = (pin!(sleep(wait)), pin!(reloaded(&mut self.reload)));
            matches!(select(timer, reloaded).await, Either::Right(_))
        };
        if !is_reload {
            return Pause::Over;
        }
        self.sink.distrust();
        Pause::Reload
    }
}

/// A random wait before a list of this size. After a restart of the API server, the watches of all
/// agents can end with 410 at the same time.
fn spread(listed_bytes: u64) -> Duration {
    random_up_to(Duration::from_millis(listed_bytes / (SPREAD_RATE / 1000)))
}

/// A random wait before the first list, of so many objects, if the API server is busy: other agents
/// may be starting, too.
fn start_wait(policy: &RetryPolicy, answered_after: Duration, objects: u64) -> Duration {
    if answered_after < BUSY_AFTER {
        return Duration::ZERO;
    }
    let thousands = u32::try_from(objects / 1000).unwrap_or(u32::MAX);
    random_up_to(policy.start_spread.saturating_mul(thousands))
}

fn random_up_to(longest: Duration) -> Duration {
    let longest = longest.min(MAX_SPREAD);
    jitter(2 * longest).saturating_sub(longest)
}

/// The end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Over,
    /// The follower must list everything again.
    Reload,
}

/// Waits for the next request to reload.
async fn reloaded(reload: &mut Option<Receiver<u64>>) {
    if let Some(reload) = reload
        && reload.changed().await.is_ok()
    {
        return;
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_lists_are_spread() {
        assert_eq!(spread(5_000), Duration::ZERO);
        let waits: Vec<Duration> = (0..100).map(|_| spread(200_000_000)).collect();
        let (shortest, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*longest <= Duration::from_secs(20), "{longest:?}");
        assert!(*longest - *shortest > Duration::from_secs(5), "{shortest:?} {longest:?}");
        assert!(spread(u64::MAX) <= MAX_SPREAD);
    }

    #[test]
    fn a_start_waits_only_for_a_busy_api_server_and_before_a_long_list() {
        let policy = RetryPolicy::default();
        let (quick, slow) = (Duration::from_millis(20), Duration::from_millis(400));
        assert_eq!(start_wait(&policy, quick, 50_000), Duration::ZERO);
        assert_eq!(start_wait(&policy, slow, 999), Duration::ZERO);
        let waits: Vec<Duration> = (0..100).map(|_| start_wait(&policy, slow, 50_000)).collect();
        let (shortest, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*longest <= Duration::from_secs(1), "{longest:?}");
        assert!(*longest - *shortest > Duration::from_millis(250), "{shortest:?} {longest:?}");
        assert!(start_wait(&policy, slow, u64::MAX) <= MAX_SPREAD);
        assert_eq!(start_wait(&policy.for_one_list(), slow, 50_000), Duration::ZERO);
    }
}
