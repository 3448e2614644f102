//! Watches: events from the current position, until the watch ends, fails or is silent.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use tokio::time::sleep_until;
use weir_runtime::jitter;

use super::{Closed, Follower, Interrupted, NextRequest, ObjectSink, list::is_before, reloaded};
use crate::{
    ApiError,
    wire::{self, WatchEvent, WatchStart},
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

/// The end of a wait on an open watch.
enum Waited<R> {
    Event(Result<Option<WatchEvent<R>>, ApiError>),
    TimedOut,
    Reload,
}

impl<S: ObjectSink> Follower<S> {
    /// Watches from the current position until the watch ends.
    pub(super) async fn watch(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let listed = self.open_watch.take();
        // A watch that sent the list works.
        let mut last_event = listed.is_some().then(Instant::now);
        let mut watch = match listed {
            Some(watch) => watch,
            None => {
                let (start, seconds) = (WatchStart::After(&self.position), self.watch_seconds());
                wire::watch::<S::Raw>(&client, &self.spec, self.served, start, seconds).await?
            }
        };
        // With another schema, the API server returns the same objects with other fields. It ends
        // all watches of the kind when the definition changes.
        let definition = wire::definition_generation(&client, &self.spec).await;
        if self.definition.zip(definition).is_some_and(|(old, new)| old != new) {
            self.sink.distrust();
            self.pause(jitter(self.policy.first_retry)).await;
            return Ok(NextRequest::List);
        }
        self.definition = self.definition.or(definition);
        let (opened, seconds) = (watch.opened, watch.seconds);
        loop {
            // After a silence, only an event proves that the watch works.
            let confirm_at =
                (self.watch_problem.is_some() && !self.is_probing).then(|| opened + WORKING_AFTER);
            let silent_at = last_event.unwrap_or(opened) + self.policy.watch_silence;
            // A watch that failed before must first prove that it works.
            let compare_at = self.watch_problem.is_none().then_some(self.compare_at);
            let until =
                [confirm_at, compare_at].into_iter().flatten().fold(silent_at, Instant::min);
            match self.wait_for_event(&mut watch, until).await {
                Waited::Event(Ok(Some(event))) => {
                    last_event = Some(Instant::now());
                    let position = event.resource_version();
                    if position.is_some_and(|position| is_before(&position, &self.position)) {
                        return Err(self.reverted().into());
                    }
                    self.is_probing = false;
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
                        return Ok(NextRequest::Watch);
                    }
                    if lasted < SUCCESS_AFTER {
                        let resource = self.spec.resource.name();
                        return Err(ApiError::Ended { resource }.into());
                    }
                    return Ok(NextRequest::Resume);
                }
                Waited::Event(Err(error)) => {
                    if opened.elapsed() > SUCCESS_AFTER {
                        self.watch_backoff.reset();
                    }
                    return Err(error.into());
                }
                Waited::TimedOut if Instant::now() >= silent_at => {
                    let resource = self.spec.resource.name();
                    let after = self.policy.watch_silence;
                    return Err(ApiError::Silent { resource, after }.into());
                }
                Waited::TimedOut if confirm_at.is_some() => self.watch_works().await?,
                Waited::TimedOut => return Ok(NextRequest::Compare),
                Waited::Reload => {
                    self.sink.distrust();
                    return Ok(NextRequest::List);
                }
            }
        }
    }

    pub(super) fn watch_seconds(&self) -> u32 {
        if self.is_probing { self.probe_seconds() } else { WATCH_SECONDS }
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
        let is_bookmark = matches!(event, WatchEvent::Bookmark(_));
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
            self.is_from_etcd = false;
            self.sink.reached(&self.position, is_bookmark).await?;
        }
        Ok(())
    }

    async fn watch_works(&mut self) -> Result<(), Closed> {
        self.is_probing = false;
        self.watch_problem = None;
        self.report().await
    }
}
