//! The ways to read a list: as the first events of a watch, in one response from the API server's
//! cache, or in pages.

use std::{io, mem, time::Duration};

use kube::Client;
use tokio::task::JoinSet;

use super::{Follower, Interrupted, ObjectSink, list::is_before};
use crate::{
    ApiError, WatchSpec, WireObject,
    wire::{self, ListHead, ListStream, PageStart, Patience, WatchEvent, WatchStart},
};

/// How long the API server may take to send the next bytes of a list as events. One that ignores the
/// request for such a list sends nothing.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);
/// The number of objects after which the sink gets them.
const BATCH_OBJECTS: usize = 200;

/// A page that was read completely.
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) head: ListHead,
}

impl<S: ObjectSink> Follower<S> {
    /// Reads one page.
    pub(super) async fn page(
        &mut self,
        client: &Client,
        version: &str,
        start: PageStart<'_>,
        limit: u32,
    ) -> Result<Page<S::Item>, ApiError> {
        let opening = wire::open_list::<S::Raw>(client, &self.spec, version, start, Some(limit));
        let mut list = opening.await?;
        let (mut items, mut newest) = (Vec::new(), String::new());
        while let Some(objects) = list.next::<S::Raw>().await? {
            for object in objects {
                if let Some(version) = object.resource_version()
                    && !is_before(version, &newest)
                {
                    newest = version.into();
                }
                items.push(self.sink.convert(object));
            }
        }
        self.newest_on_page = newest;
        self.listed_bytes = list.expanded_bytes;
        Ok(Page { items, head: self.head_of(&list)? })
    }

    /// Reads all objects as the first events of a watch, in a state that is not older than a version.
    /// The watch then goes on. Returns the version of the list; `None` if the API server does not
    /// serve such lists.
    pub(super) async fn read_stream(
        &mut self,
        client: &Client,
        version: &str,
        at_least: &str,
    ) -> Result<Option<String>, Interrupted> {
        if self.client.refuses_streams() {
            return Ok(None);
        }
        let start = WatchStart::AllObjects(at_least);
        let seconds = self.watch_seconds();
        let opening = wire::watch::<S::Raw>(client, &self.spec, version, start, seconds);
        let mut stream = match opening.await {
            Ok(stream) => stream,
            Err(error) => return self.without_stream(error),
        };
        let (mut items, mut patience) = (Vec::new(), Patience::new(STREAM_PATIENCE));
        self.sink.begin_list();
        let position = loop {
            let received = stream.received_bytes;
            match patience.wait(received, stream.next::<S::Raw>()).await {
                Some(Ok(Some(WatchEvent::Put(object)))) => {
                    items.push(self.sink.convert(object));
                    if items.len() >= BATCH_OBJECTS {
                        self.sink.page(mem::take(&mut items)).await?;
                    }
                }
                Some(Ok(Some(WatchEvent::Removed(object)))) => {
                    self.sink.page(mem::take(&mut items)).await?;
                    self.sink.remove(object).await?;
                }
                Some(Ok(Some(WatchEvent::Bookmark(object)))) if object.ends_initial_events() => {
                    break object.resource_version().unwrap_or_default().to_owned();
                }
                Some(Ok(Some(WatchEvent::Bookmark(_)))) => (),
                Some(Ok(None)) => {
                    let resource = self.spec.resource.name();
                    return self.without_stream(ApiError::Ended { resource });
                }
                Some(Err(error)) => return self.without_stream(error),
                None => {
                    let resource = self.spec.resource.name();
                    let after = patience.spent;
                    return self.without_stream(ApiError::Silent { resource, after });
                }
            }
        };
        if position.is_empty() || is_before(&position, at_least) {
            return self.without_stream(self.reverted());
        }
        self.sink.page(items).await?;
        self.listed_bytes = stream.received_bytes;
        self.is_from_etcd = false;
        self.open_watch = Some(stream);
        Ok(Some(position))
    }

    /// Reads all objects in one response from the API server's cache, and returns its version.
    /// `None` if the API server cannot, or if its cache is older than objects of the first page or
    /// than the current position.
    pub(super) async fn read_whole(
        &mut self,
        client: &Client,
        version: &str,
        start: PageStart<'_>,
    ) -> Result<Option<String>, Interrupted> {
        let opening = wire::open_list::<S::Raw>(client, &self.spec, version, start, None);
        let mut list = match opening.await {
            Ok(list) => list,
            Err(error) => return self.without_whole(error),
        };
        let (mut items, mut has_begun) = (Vec::new(), false);
        loop {
            let objects = match list.next::<S::Raw>().await {
                Ok(objects) => objects,
                Err(error) => return self.without_whole(error),
            };
            let is_end = objects.is_none();
            items.extend(objects.into_iter().flatten().map(|object| self.sink.convert(object)));
            // Custom resources have their version after the last object.
            let Some(is_current) = list.head().map(|head| self.is_current(head)) else { continue };
            // A list without objects is shorter than the first page, and therefore too old.
            if !is_current || (is_end && items.is_empty() && !has_begun) {
                return Ok(None);
            }
            if is_end || items.len() >= BATCH_OBJECTS {
                if !mem::replace(&mut has_begun, true) {
                    self.sink.begin_list();
                }
                self.sink.page(mem::take(&mut items)).await?;
            }
            if is_end {
                self.listed_bytes = list.expanded_bytes;
                return Ok(list.head().map(|head| head.resource_version.clone()));
            }
        }
    }

    /// Reads all pages, and returns the version of the list. While one page is parsed, the API server
    /// already prepares the next one.
    pub(super) async fn read_pages(
        &mut self,
        client: &Client,
        version: &'static str,
        start: PageStart<'_>,
    ) -> Result<String, Interrupted> {
        let limit = Some(self.policy.page_size);
        let mut list = wire::open_list::<S::Raw>(client, &self.spec, version, start, limit).await?;
        let (mut before, mut bytes) = (None::<ListHead>, 0);
        self.sink.begin_list();
        loop {
            let (mut items, mut ahead) = (Vec::new(), JoinSet::new());
            while let Some(objects) = list.next::<S::Raw>().await? {
                if ahead.is_empty()
                    && let Some(token) = list.head().and_then(|head| head.next.clone())
                {
                    let (client, spec) = (client.clone(), self.spec.clone());
                    ahead.spawn(open_after::<S::Raw>(client, spec, version, token, limit));
                }
                items.extend(objects.into_iter().map(|object| self.sink.convert(object)));
            }
            bytes += list.expanded_bytes;
            let head = self.head_of(&list)?;
            let is_of_another = |before: &ListHead| {
                before.resource_version != head.resource_version || before.next == head.next
            };
            if before.as_ref().is_some_and(is_of_another) {
                let message = "its pages are not of one list".into();
                let resource = self.spec.resource.name();
                return Err(ApiError::Garbled { resource, message }.into());
            }
            self.sink.page(items).await?;
            let Some(token) = head.next.clone() else {
                self.listed_bytes = bytes;
                self.is_from_etcd = true;
                return Ok(head.resource_version);
            };
            if ahead.is_empty() {
                let (client, spec) = (client.clone(), self.spec.clone());
                ahead.spawn(open_after::<S::Raw>(client, spec, version, token, limit));
            }
            while let Some(opened) = ahead.join_next().await {
                list = opened.map_err(io::Error::other).map_err(ApiError::from)??;
            }
            before = Some(head);
        }
    }

    fn head_of(&self, list: &ListStream) -> Result<ListHead, ApiError> {
        list.head().cloned().ok_or_else(|| ApiError::Garbled {
            resource: self.spec.resource.name(),
            message: "the list has no metadata".into(),
        })
    }

    /// Whether a list is complete, and as new as everything that was read before.
    fn is_current(&self, head: &ListHead) -> bool {
        let version = &head.resource_version;
        head.next.is_none()
            && !is_before(version, &self.newest_on_page)
            && !is_before(version, &self.position)
    }

    fn without_stream(&mut self, error: ApiError) -> Result<Option<String>, Interrupted> {
        // A failure of all watches does not concern lists.
        if must_wait(&error) && !matches!(error, ApiError::Gone { .. }) {
            return Err(error.into());
        }
        let resource = self.spec.resource.name();
        tracing::debug!(resource, %error, "the API server does not send lists as events");
        self.client.refused_stream();
        Ok(None)
    }

    fn without_whole(&self, error: ApiError) -> Result<Option<String>, Interrupted> {
        if must_wait(&error) {
            return Err(error.into());
        }
        // Pages may work, for example behind a proxy that limits responses.
        let resource = self.spec.resource.name();
        if let ApiError::Reverted { .. } = error {
            tracing::debug!(resource, "the cache lags, reading pages");
        } else {
            tracing::warn!(resource, %error, "cannot read the whole list, reading pages");
        }
        Ok(None)
    }
}

/// Requests the page after the one with a token.
async fn open_after<R: WireObject>(
    client: Client,
    spec: WatchSpec,
    version: &'static str,
    token: String,
    limit: Option<u32>,
) -> Result<ListStream, ApiError> {
    wire::open_list::<R>(&client, &spec, version, PageStart::After(&token), limit).await
}

/// Whether another request for the same objects would fail, too, or overload the API server.
fn must_wait(error: &ApiError) -> bool {
    let is_final = matches!(
        error,
        ApiError::Gone { .. } | ApiError::Missing { .. } | ApiError::Forbidden { .. }
    );
    is_final || error.is_about_access() || error.is_temporary()
}
