//! The one follower: lists the objects of a kind, watches them, and recovers from every failure.
//!
//! ```text
//!          ┌──────── failure: back-off ─────────┐   ┌── end: resume ──┐
//!          ▼                                    │   ▼                 │
//!        List ── complete ───────────────────────► Watch ─────────────┤
//!          ▲                                        │                 │
//!          ├── 410, 404, unreadable: back-off ──────┤   other failure: │
//!          └── silence: new client ─────────────────┘   back-off ──────┘
//! ```
//!
//! The follower is generic over its [`ObjectSink`]: the agent lowers objects to changes of the model, and
//! controllers keep typed values.
//!
//! *Invariants*
//!
//! * A page reaches the sink only if it was parsed completely and is a list with a resourceVersion.
//!   Objects are removed only by a complete list, a DELETED event, or the absence of the kind's
//!   definition.
//! * Every request that follows a failure waits for a back-off, including the list after 410 Gone.
//! * A watch without an event or bookmark for `watch_silence` is reported, and the follower lists
//!   again. The report stays until a watch works.

mod events;
mod sink;

use std::{
    future::pending,
    pin::pin,
    time::{Duration, Instant},
};

pub use events::{ObjectEvent, follow};
use futures::future::{Either, select};
use kube::Client;
pub(crate) use sink::{Closed, ObjectSink, Problem};
use tokio::{
    sync::watch,
    time::{sleep, sleep_until},
};
use weir_runtime::{Backoff, jitter};

use crate::{
    ApiClient, ApiError, Resource,
    client::Generation,
    wire::{self, Definition, ListPage, WatchEvent},
};

/// The longest watch. The API server ends it.
const WATCH_SECONDS: u32 = 290;
/// The duration of the first watch after a silence. The API server sends a bookmark 2 s before it
/// ends a watch, so that a short watch quickly shows whether events arrive.
const PROBE_SECONDS: u32 = 10;
/// A watch that failed before counts as working when it has been open for this long.
const WORKING_AFTER: Duration = Duration::from_secs(1);
/// A watch that lasted this long counts as a success, however it ended.
const SUCCESS_AFTER: Duration = Duration::from_secs(10);
/// The longest wait that the API server can request with Retry-After.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The objects to follow.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    /// The kind.
    pub resource: Resource,
    /// The namespace; all namespaces if empty.
    pub namespace: String,
    /// A label selector in kubectl's syntax; all objects if empty.
    pub labels: String,
    /// A field selector in kubectl's syntax; all objects if empty.
    pub fields: String,
    /// The reaction if the API server does not serve the kind.
    pub on_missing: OnMissing,
}

/// The reaction to a kind that the API server does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnMissing {
    /// Report the failure and retry.
    Fail,
    /// Report that the kind is not installed, with this hint, and retry.
    FailWithHint(String),
    /// Treat the kind as one without objects, after checking that its CustomResourceDefinition does
    /// not exist, and poll until it is installed.
    TreatAsEmpty,
}

impl WatchSpec {
    /// All objects of a kind that every cluster has.
    pub fn all(resource: Resource) -> Self {
        let all = String::new;
        let on_missing = OnMissing::Fail;
        WatchSpec { resource, namespace: all(), labels: all(), fields: all(), on_missing }
    }
}

/// Page size, retry waits and timeouts of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of objects on a page of a list.
    pub page_size: u32,
    /// The wait after the first failure. Each further failure doubles it.
    pub first_retry: Duration,
    /// The longest wait after a failure.
    pub longest_retry: Duration,
    /// The time between two checks whether an optional kind has been installed.
    pub absence_poll: Duration,
    /// The time that a kind must be missing before it counts as not installed, if the follower is
    /// not allowed to read its definition.
    pub absence_grace: Duration,
    /// The longest time without an event or bookmark on a watch.
    pub watch_silence: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            page_size: 500,
            first_retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(30),
            absence_poll: Duration::from_secs(30),
            absence_grace: Duration::from_secs(60),
            // The API server sends a bookmark every minute.
            watch_silence: Duration::from_secs(90),
        }
    }
}

/// Follows the objects of one kind for one sink.
pub(crate) struct Follower<S> {
    client: ApiClient,
    spec: WatchSpec,
    policy: RetryPolicy,
    /// Counts the requests to list everything again.
    reload: Option<watch::Receiver<u64>>,
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
}

/// The next request of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRequest {
    List,
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

/// The end of a wait on an open watch.
enum Waited<R> {
    Event(Result<Option<WatchEvent<R>>, ApiError>),
    TimedOut,
    Reload,
}

impl<S: ObjectSink> Follower<S> {
    pub(crate) fn new(
        client: ApiClient,
        spec: WatchSpec,
        policy: RetryPolicy,
        reload: Option<watch::Receiver<u64>>,
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
        }
    }

    /// Runs until the receiver of the events is gone.
    pub(crate) async fn run(mut self) {
        let mut step = NextRequest::List;
        loop {
            let ended = match step {
                NextRequest::List => self.list().await,
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

    /// Reads all pages. The sink gets new and changed objects with each page, and learns which
    /// objects are gone when the list is complete.
    async fn list(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let Some((version, mut page)) = self.first_page(&client).await? else {
            return self.not_served(&client).await;
        };
        self.missing_since = None;
        self.sink.version_unknown(None).await?;
        if is_before(&page.resource_version, &self.position) {
            // The API server lost writes, as after a restore of etcd: the list is the truth, and
            // nothing that was seen before counts.
            self.sink.distrust();
            page = self.page(&client, version, None).await?;
        }
        self.sink.begin_list();
        let position = loop {
            self.sink.page(page.items).await?;
            let Some(token) = page.next else { break page.resource_version };
            page = self.page(&client, version, Some(&token)).await?;
        };
        self.sink.complete_list(version).await?;
        (self.served, self.position) = (version, position);
        self.list_backoff.reset();
        self.list_problem = None;
        self.report().await?;
        Ok(NextRequest::Watch)
    }

    /// The first page in the first version that is served; `None` if no version is.
    async fn first_page(
        &mut self,
        client: &Client,
    ) -> Result<Option<(&'static str, ListPage<S::Item>)>, ApiError> {
        let resource = self.spec.resource;
        for version in resource.versions {
            match self.page(client, version, None).await {
                Err(ApiError::Missing { .. }) => (),
                // The API server checks permissions before it checks whether the kind exists.
                Err(error @ ApiError::Forbidden { .. })
                    if self.spec.on_missing == OnMissing::TreatAsEmpty =>
                {
                    let api_version = resource.api_version(version);
                    if wire::is_served(client, &api_version, resource.plural).await? {
                        return Err(error);
                    }
                }
                page => return page.map(|page| Some((*version, page))),
            }
        }
        Ok(None)
    }

    async fn page(
        &mut self,
        client: &Client,
        version: &str,
        after: Option<&str>,
    ) -> Result<ListPage<S::Item>, ApiError> {
        let size = self.policy.page_size;
        let bytes = wire::page_bytes(client, &self.spec, version, size, after).await?;
        ListPage::parse(&bytes, &self.spec, version, |object| self.sink.convert(object))
    }

    /// The API server does not serve the kind. Right after its start it does not serve any kind with a
    /// definition, so that only the definition itself proves that the kind is not installed.
    async fn not_served(&mut self, client: &Client) -> Result<NextRequest, Interrupted> {
        let missing = ApiError::Missing { resource: self.spec.resource.name() };
        if self.spec.on_missing != OnMissing::TreatAsEmpty {
            return Err(missing.into());
        }
        let since = self.missing_since.get_or_insert_with(Instant::now);
        let is_past_grace = since.elapsed() >= self.policy.absence_grace;
        match wire::definition(client, &self.spec).await {
            // Without the right to read definitions, the follower waits for the grace period.
            Err(ApiError::Forbidden { .. }) if is_past_grace => self.not_installed().await?,
            Ok(Definition::Absent) => self.not_installed().await?,
            // The stored objects are still meant, only not readable: the sink keeps them.
            Ok(Definition::OtherVersions) => {
                self.sink.version_unknown(Some(self.spec.resource)).await?;
                self.sink.keep_list().await?;
            }
            Ok(Definition::Served) if is_past_grace => return Err(missing.into()),
            Ok(Definition::Served) | Err(ApiError::Forbidden { .. }) => {
                self.pause(jitter(self.policy.first_retry)).await;
                return Ok(NextRequest::List);
            }
            Err(error) => return Err(error.into()),
        }
        self.list_backoff.reset();
        (self.list_problem, self.watch_problem, self.is_probing) = (None, None, false);
        self.report().await?;
        self.pause(jitter(self.policy.absence_poll)).await;
        Ok(NextRequest::List)
    }

    async fn not_installed(&mut self) -> Result<(), Closed> {
        self.sink.version_unknown(None).await?;
        self.sink.begin_list();
        self.sink.complete_list("").await
    }

    /// Watches from the current position until the watch ends.
    async fn watch(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let seconds = if self.is_probing { self.probe_seconds() } else { WATCH_SECONDS };
        let opening = wire::watch(&client, &self.spec, self.served, &self.position, seconds);
        let mut watch = opening.await?;
        let opened = Instant::now();
        let mut last_event = None;
        loop {
            // After a silence, only an event proves that the watch works.
            let confirm_at =
                (self.watch_problem.is_some() && !self.is_probing).then(|| opened + WORKING_AFTER);
            let silent_at = last_event.unwrap_or(opened) + self.policy.watch_silence;
            let until = confirm_at.unwrap_or(silent_at).min(silent_at);
            match self.wait_for_event(&mut watch, until).await {
                Waited::Event(Ok(Some(event))) => {
                    last_event = Some(Instant::now());
                    self.watch_backoff.reset();
                    self.watch_works().await?;
                    self.deliver(event).await?;
                }
                Waited::Event(Ok(None)) => {
                    let lasted = opened.elapsed();
                    if lasted > SUCCESS_AFTER {
                        self.watch_backoff.reset();
                    }
                    // A watch that the API server ends on time works, even without bookmarks.
                    if lasted + Duration::from_secs(1) > Duration::from_secs(seconds.into()) {
                        self.watch_works().await?;
                    } else if last_event.is_none() && lasted < WORKING_AFTER {
                        let resource = self.spec.resource.name();
                        return Err(ApiError::Ended { resource }.into());
                    }
                    return Ok(NextRequest::Watch);
                }
                Waited::Event(Err(error)) => {
                    if opened.elapsed() > SUCCESS_AFTER {
                        self.watch_backoff.reset();
                    }
                    return Err(error.into());
                }
                Waited::TimedOut if Instant::now() < silent_at => self.watch_works().await?,
                Waited::TimedOut => {
                    let resource = self.spec.resource.name();
                    let after = self.policy.watch_silence;
                    return Err(ApiError::Silent { resource, after }.into());
                }
                Waited::Reload => {
                    self.sink.distrust();
                    return Ok(NextRequest::List);
                }
            }
        }
    }

    /// Short enough that the bookmark arrives before the watch counts as silent.
    fn probe_seconds(&self) -> u32 {
        let half = u32::try_from(self.policy.watch_silence.as_secs() / 2).unwrap_or(u32::MAX);
        half.clamp(3, PROBE_SECONDS)
    }

    async fn wait_for_event(
        &mut self,
        watch: &mut wire::WatchStream,
        until: Instant,
    ) -> Waited<S::Raw> {
        let (event, timer) = (pin!(watch.next()), pin!(sleep_until(until.into())));
        let reloaded = pin!(reloaded(&mut self.reload));
        match select(event, select(timer, reloaded)).await {
            Either::Left((event, _)) => Waited::Event(event),
            Either::Right((Either::Left(_), _)) => Waited::TimedOut,
            Either::Right((Either::Right(_), _)) => Waited::Reload,
        }
    }

    /// Hands an event to the sink, and only then advances the position: a watch that fails in
    /// between delivers the event again.
    async fn deliver(&mut self, event: WatchEvent<S::Raw>) -> Result<(), Closed> {
        let position = event.resource_version();
        match event {
            WatchEvent::Put(object) => {
                let item = self.sink.convert(object);
                self.sink.put(item).await?;
            }
            WatchEvent::Removed(object) => self.sink.remove(object).await?,
            WatchEvent::Bookmark(_) => (),
        }
        if let Some(position) = position {
            self.position = position;
        }
        Ok(())
    }

    async fn watch_works(&mut self) -> Result<(), Closed> {
        self.is_probing = false;
        self.watch_problem = None;
        self.report().await
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
        let backoff = match step {
            NextRequest::List => &mut self.list_backoff,
            NextRequest::Watch => &mut self.watch_backoff,
        };
        let is_repeated = backoff.failures() > 0;
        let wait = if is_silent { jitter(self.policy.first_retry) } else { backoff.next_delay() };
        let wait = wait.max(error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER));
        // These failures are part of normal operation, unless they repeat.
        let is_normal = matches!(
            (&error, step),
            (ApiError::Gone { .. }, _)
                | (ApiError::Missing { .. } | ApiError::Ended { .. }, NextRequest::Watch)
        );
        if is_repeated || !is_normal {
            let problem = Some(self.problem(&error));
            match step {
                NextRequest::List => self.list_problem = problem,
                NextRequest::Watch => self.watch_problem = problem,
            }
            self.report().await?;
        }
        self.is_probing |= is_silent;
        self.pause(wait).await;
        Ok(match (step, error) {
            (NextRequest::List, _) => NextRequest::List,
            (
                NextRequest::Watch,
                ApiError::Gone { .. }
                | ApiError::Missing { .. }
                | ApiError::Garbled { .. }
                | ApiError::Silent { .. },
            ) => NextRequest::List,
            (NextRequest::Watch, ApiError::Ended { .. }) if is_repeated => NextRequest::List,
            (NextRequest::Watch, _) => NextRequest::Watch,
        })
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
    async fn pause(&mut self, wait: Duration) {
        let is_reload = {
            let (timer, reloaded) = (pin!(sleep(wait)), pin!(reloaded(&mut self.reload)));
            matches!(select(timer, reloaded).await, Either::Right(_))
        };
        if is_reload {
            self.sink.distrust();
        }
    }
}

/// Waits for the next request to reload.
async fn reloaded(reload: &mut Option<watch::Receiver<u64>>) {
    if let Some(reload) = reload
        && reload.changed().await.is_ok()
    {
        return;
    }
    pending().await
}

/// Whether a resourceVersion is lower than another one.
fn is_before(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    number(one).zip(number(other)).is_some_and(|(one, other)| one < other)
}
