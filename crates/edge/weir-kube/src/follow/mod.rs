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
//! * A page reaches the sink only if it was parsed completely and is a list with a resourceVersion.
//!   Objects are removed only by a complete list, a DELETED event, or the absence of the kind's
//!   definition.
//! * Every request that follows a failure waits for a back-off, including the list after 410 Gone.
//! * After a watch without an event or bookmark for `watch_silence`, the follower lists again and
//!   opens a short watch. If that watch is silent as well, it is reported. The report stays until a
//!   watch works. Bytes that complete no event do not count.
//! * A watch resumes after a failure only if the API server has reached its version.

mod events;
mod list;
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

use crate::{ApiClient, ApiError, client::Generation};

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
    /// The most objects on a page of the current list.
    page_size: u32,
    /// The highest resourceVersion of an object on the last page.
    newest_on_page: String,
    /// The size of the last list.
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
            page_size: policy.page_size,
            newest_on_page: String::new(),
            listed_bytes: 0,
            compare_at: Instant::now(),
            definition: None,
        }
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
        let is_silent = matches!(error, ApiError::Silent { .. });
        if error.is_about_access() || is_silent {
            self.client.renew(self.generation);
        }
        let is_list = matches!(step, NextRequest::List | NextRequest::Compare);
        let backoff = if is_list { &mut self.list_backoff } else { &mut self.watch_backoff };
        let is_repeated = backoff.failures() > 0;
        let wait = if is_silent { jitter(self.policy.first_retry) } else { backoff.next_delay() };
        let wait = wait.max(error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER));
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
