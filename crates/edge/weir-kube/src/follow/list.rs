//! Lists, in the first version that the API server serves.

use std::time::{Duration, Instant};

use kube::Client;
use weir_runtime::jitter;

use super::{
    Closed, Follower, Interrupted, NextRequest, ObjectSink, OnMissing, read::Page, start_wait,
};
use crate::{
    ApiError, WireObject as _,
    wire::{self, Definition, ListPage, PageStart, Unread},
};

/// The bytes per second that the comparisons of one follower may cost on average.
const COMPARISON_RATE: u64 = 10_000;

impl<S: ObjectSink> Follower<S> {
    /// Reads all objects. The sink learns which objects are gone when the list is complete.
    ///
    /// A short page of the latest state precedes the list. It shows whether the API server reaches
    /// etcd, and whether versions went back. A longer list can then come from the API server's cache.
    pub(super) async fn list(&mut self) -> Result<NextRequest, Interrupted> {
        self.open_watch = None;
        let client = self.connect().await?;
        self.definition = wire::definition_generation(&client, &self.spec).await;
        let asked = Instant::now();
        let Some((version, mut first)) = self.first_page(&client).await? else {
            return self.not_served(&client).await;
        };
        let answered_after = asked.elapsed();
        self.missing_since = None;
        self.sink.version_unknown(None).await?;
        if is_before(&first.head.resource_version, &self.position) {
            // The API server lost writes, as after a restore of etcd: the list is the truth, and
            // nothing that was seen before counts.
            self.is_reverted = true;
            self.sink.reverted().await?;
            self.position.clear();
            self.is_from_etcd = false;
            first = self.page(&client, version, PageStart::Latest, self.first_limit()).await?;
        }
        let latest = first.head.resource_version.clone();
        if first.head.next.is_none() {
            self.sink.begin_list();
            self.sink.page(first.items).await?;
            self.is_from_etcd = true;
            return self.complete_list(version, latest).await;
        }
        if self.served.is_empty() {
            let wait = start_wait(&self.policy, answered_after, first.head.remaining);
            if !wait.is_zero() {
                self.pause(wait).await;
            }
        }
        let position = if self.is_reverted {
            // The cache of another API server may still have the lost writes.
            self.read_pages(&client, version, PageStart::Latest).await?
        } else if let Some(position) = self.read_stream(&client, version, &latest).await? {
            position
        } else {
            self.read_cached(&client, version).await?
        };
        self.complete_list(version, position).await
    }

    /// Lists again although the watch works, and corrects what the watch missed.
    pub(super) async fn compare(&mut self) -> Result<NextRequest, Interrupted> {
        let client = self.connect().await?;
        let version = self.served;
        self.newest_on_page.clear();
        let position = self.read_cached(&client, version).await?;
        if is_before(&position, &self.position) {
            // Only a list of the latest state shows whether versions really went back.
            return Err(self.reverted().into());
        }
        self.complete_list(version, position).await
    }

    /// Reads all objects from the API server's cache, or in pages. If a version was reached before,
    /// the list is not older.
    async fn read_cached(
        &mut self,
        client: &Client,
        version: &'static str,
    ) -> Result<String, Interrupted> {
        let position = self.position.clone();
        let (cached, latest) = match &*position {
            "" => (PageStart::Cached, PageStart::Latest),
            position => (PageStart::NotOlderThan(position), PageStart::NotOlderThan(position)),
        };
        // Without events, old caches never reach a version of etcd, and wait for it.
        if !self.is_from_etcd
            && let Some(position) = self.read_whole(client, version, cached).await?
        {
            return Ok(position);
        }
        self.read_pages(client, version, latest).await
    }

    async fn complete_list(
        &mut self,
        version: &'static str,
        position: String,
    ) -> Result<NextRequest, Interrupted> {
        self.sink.complete_list(version).await?;
        (self.served, self.position, self.is_reverted) = (version, position, false);
        self.sink.reached(&self.position, false).await?;
        let by_size = Duration::from_secs(self.listed_bytes / COMPARISON_RATE);
        let interval = self.policy.comparison_interval.max(by_size);
        self.compare_at = Instant::now() + jitter(interval);
        self.list_backoff.reset();
        self.list_problem = None;
        self.report().await?;
        Ok(NextRequest::Watch)
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

    /// The most objects of the first page. Policies are seldom more than a page, and an old list of
    /// them would open what a new one closes. The page of pods only shows how new the list must be.
    fn first_limit(&self) -> u32 {
        let is_reduced = S::Raw::reads_protobuf(self.spec.resource.kind);
        if is_reduced { 1 } else { self.policy.page_size }
    }

    /// The first page, in the first version that is served; `None` if no version is.
    async fn first_page(
        &mut self,
        client: &Client,
    ) -> Result<Option<(&'static str, Page<S::Item>)>, ApiError> {
        let resource = self.spec.resource;
        for version in resource.versions {
            match self.page(client, version, PageStart::Latest, self.first_limit()).await {
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

    /// The API server does not serve the kind. Right after its start it does not serve any kind with a
    /// definition, so that only the definition itself proves that the kind is not installed.
    async fn not_served(&mut self, client: &Client) -> Result<NextRequest, Interrupted> {
        let missing = ApiError::Missing { resource: self.spec.resource.name() };
        if self.spec.on_missing != OnMissing::TreatAsEmpty {
            return Err(missing.into());
        }
        let since = self.missing_since.get_or_insert_with(Instant::now);
        let is_past_grace = since.elapsed() >= self.policy.absence_grace;
        let has_objects = !self.served.is_empty() || self.sink.can_have_objects();
        match wire::definition(client, &self.spec).await {
            // Without the right to read definitions, the follower waits for the grace period. This
            // proves too little to remove objects.
            Err(ApiError::Forbidden { .. }) if is_past_grace && !has_objects => {
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
        self.sink.complete_list("").await?;
        self.sink.reached("", false).await
    }
}

/// Whether a resourceVersion is lower than another one.
pub(super) fn is_before(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    number(one).zip(number(other)).is_some_and(|(one, other)| one < other)
}
