//! Lists, in the first version that the API server serves: one page, or a whole list from the API
//! server's cache, or all pages.

use std::time::{Duration, Instant};

use kube::Client;
use weir_runtime::jitter;

use super::{Closed, Follower, Interrupted, NextRequest, ObjectSink, OnMissing};
use crate::{
    ApiError, WireObject,
    wire::{self, Definition, ListPage, PageStart, Unread},
};

/// The bytes per second that the comparisons of one follower may cost on average.
const COMPARISON_RATE: u64 = 10_000;

impl<S: ObjectSink> Follower<S> {
    /// Reads all pages. The sink gets new and changed objects with each page, and learns which
    /// objects are gone when the list is complete.
    pub(super) async fn list(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        self.definition = wire::definition_generation(&client, &self.spec).await;
        let Some((version, mut page)) = self.first_page(&client).await? else {
            return self.not_served(&client).await;
        };
        self.missing_since = None;
        self.sink.version_unknown(None).await?;
        if is_before(&page.resource_version, &self.position) {
            // The API server lost writes, as after a restore of etcd: the list is the truth, and
            // nothing that was seen before counts.
            self.sink.reverted().await?;
            page = self.page(&client, version, PageStart::Latest).await?;
        }
        self.read_pages(&client, version, page).await
    }

    /// Lists again although the watch works, and corrects what the watch missed.
    pub(super) async fn compare(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let (version, position) = (self.served, self.position.clone());
        let page = self.page(&client, version, PageStart::NotOlderThan(&position)).await?;
        if is_before(&page.resource_version, &position) {
            // Only a list of the latest state shows whether versions really went back.
            return Err(self.reverted().into());
        }
        self.read_pages(&client, version, page).await
    }

    /// Checks that the API server has reached the current position, before a watch resumes there.
    /// A watch from a version in the future is silent, and then skips events.
    pub(super) async fn resume(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let start = PageStart::NotOlderThan(&self.position);
        let bytes = wire::page_bytes(&client, &self.spec, self.served, &mut 1, start).await?;
        let page = ListPage::parse(&bytes, &self.spec, self.served, |_: Unread| ())?;
        if is_before(&page.resource_version, &self.position) {
            return Err(self.reverted().into());
        }
        Ok(NextRequest::Watch)
    }

    pub(super) fn reverted(&self) -> ApiError {
        ApiError::Reverted { resource: self.spec.resource.name() }
    }

    /// Reads the objects after the first page, and completes the list.
    async fn read_pages(
        &mut self,
        client: &Client,
        version: &'static str,
        mut page: ListPage<S::Item>,
    ) -> Result<NextRequest, Interrupted> {
        let mut position = page.resource_version.clone();
        if page.next.is_some()
            && let Some(version_of_list) = self.read_whole(client, version).await?
        {
            position = version_of_list;
            page.next = None;
        } else {
            self.sink.begin_list();
            self.sink.page(page.items).await?;
        }
        while let Some(token) = page.next {
            page = self.page(client, version, PageStart::After(&token)).await?;
            if page.resource_version != position || page.next.as_ref() == Some(&token) {
                let message = "its pages are not of one list".into();
                return Err(
                    ApiError::Garbled { resource: self.spec.resource.name(), message }.into()
                );
            }
            self.sink.page(page.items).await?;
        }
        self.sink.complete_list(version).await?;
        (self.served, self.position) = (version, position);
        let by_size = Duration::from_secs(self.listed_bytes / COMPARISON_RATE);
        let interval = self.policy.comparison_interval.max(by_size);
        self.compare_at = Instant::now() + jitter(interval);
        self.list_backoff.reset();
        self.list_problem = None;
        self.report().await?;
        Ok(NextRequest::Watch)
    }

    /// Reads a long list from the API server's cache in one response, and returns its version.
    /// `None` if the API server cannot, or if its cache is older than objects of the first page or
    /// than the current position.
    async fn read_whole(
        &mut self,
        client: &Client,
        version: &'static str,
    ) -> Result<Option<String>, Interrupted> {
        if !S::Raw::reads_protobuf(&self.spec.resource.type_meta(version).kind) {
            return Ok(None);
        }
        let mut list = match wire::open_list(client, &self.spec, version).await {
            Ok(Some(list)) => list,
            Err(error) if error.is_about_access() => return Err(error.into()),
            Ok(None) | Err(_) => return Ok(None),
        };
        let mut has_begun = false;
        loop {
            let objects = match list.next::<S::Raw>().await {
                Ok(Some(objects)) => objects,
                Ok(None) => break,
                Err(error) if error.is_about_access() => return Err(error.into()),
                // Pages may work, for example behind a proxy that limits responses.
                Err(error) => {
                    let resource = self.spec.resource.name();
                    tracing::warn!(resource, %error, "cannot read the whole list, reading pages");
                    return Ok(None);
                }
            };
            if !has_begun {
                let position = list.resource_version();
                if is_before(position, &self.newest_on_page) || is_before(position, &self.position)
                {
                    return Ok(None);
                }
                self.sink.begin_list();
                has_begun = true;
            }
            let items = objects.into_iter().map(|object| self.sink.convert(object)).collect();
            self.sink.page(items).await?;
        }
        self.listed_bytes = list.received_bytes;
        // A list without objects is shorter than the first page, and therefore too old.
        Ok(has_begun.then(|| list.resource_version().to_owned()))
    }

    /// The first page in the first version that is served; `None` if no version is.
    async fn first_page(
        &mut self,
        client: &Client,
    ) -> Result<Option<(&'static str, ListPage<S::Item>)>, ApiError> {
        let resource = self.spec.resource;
        for version in resource.versions {
            match self.page(client, version, PageStart::Latest).await {
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
        start: PageStart<'_>,
    ) -> Result<ListPage<S::Item>, ApiError> {
        if !matches!(start, PageStart::After(_)) {
            (self.page_size, self.listed_bytes) = (self.policy.page_size, 0);
        }
        let bytes =
            wire::page_bytes(client, &self.spec, version, &mut self.page_size, start).await?;
        self.listed_bytes += bytes.len() as u64;
        let mut newest = String::new();
        let page = ListPage::parse(&bytes, &self.spec, version, |object: S::Raw| {
            if let Some(version) = object.resource_version()
                && !is_before(version, &newest)
            {
                newest = version.into();
            }
            self.sink.convert(object)
        });
        self.newest_on_page = newest;
        page
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
        let was_served = !self.served.is_empty();
        match wire::definition(client, &self.spec).await {
            // Without the right to read definitions, the follower waits for the grace period. This
            // proves too little to remove objects.
            Err(ApiError::Forbidden { .. }) if is_past_grace && !was_served => {
                self.not_installed().await?;
            }
            Err(ApiError::Forbidden { .. }) if is_past_grace => return Err(missing.into()),
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
        self.served = "";
        self.sink.version_unknown(None).await?;
        self.sink.begin_list();
        self.sink.complete_list("").await
    }
}

/// Whether a resourceVersion is lower than another one.
pub(super) fn is_before(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    number(one).zip(number(other)).is_some_and(|(one, other)| one < other)
}
