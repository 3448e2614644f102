//! What a relay follows: the objects of the kinds that it serves, and the versions it has reached.

use std::{future::Future, pin::pin};

use futures::future::select;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use weir_api::{Tree, document::TreeValue};
use weir_model::{Change, Key, Object};

use super::KINDS;
use crate::{
    Access, ApiClient, Resource, RetryPolicy, WireObject as _,
    follow::{Closed, Follower, ObjectSink, Problem},
    kind::ModelKind,
    version_cache::{ReadObject, VersionCache},
};

/// The annotation in which kubectl keeps a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An event of a [`ClusterFeed`]. Kinds are the positions in a [`SyncPoint`](super::SyncPoint).
#[derive(Clone, Debug, PartialEq)]
pub enum FeedEvent {
    /// An object was created or changed. Policies come with the part of their JSON that agents read.
    /// An event of a watch, unlike an object in a list, has the version that is reached with it.
    Put(Object, Vec<u8>, Option<Version>),
    /// An object is gone. An event of a watch has the version that is reached with it.
    Remove(Key, Option<Version>),
    /// Objects of a list follow. They have versions up to this one, which is not reached yet.
    Seen(Version),
    /// All changes of a kind up to a resourceVersion were sent.
    Reached {
        /// The kind.
        kind: usize,
        /// The resourceVersion.
        version: u64,
        /// Whether a bookmark says so: no object changed.
        is_bookmark: bool,
    },
    /// All objects of a kind were sent.
    Listed {
        /// The kind.
        kind: usize,
        /// Whether the API server serves the kind.
        is_installed: bool,
    },
    /// Why a kind cannot be followed at the moment; `None` if it can.
    Problem(usize, Option<String>),
    /// The API server possibly serves another cluster: nothing that was sent before counts.
    Reset(String),
}

/// The position of a kind in a [`SyncPoint`](super::SyncPoint), and a resourceVersion.
pub type Version = (usize, u64);

/// Follows the kinds that a relay serves.
#[derive(Debug)]
pub struct ClusterFeed {
    reloads: Vec<watch::Sender<u64>>,
}

impl ClusterFeed {
    /// A feed, and the future that runs it until the receiver of `out` is dropped, or a follower
    /// ends.
    pub fn new(
        access: Access,
        policy: RetryPolicy,
        out: mpsc::Sender<FeedEvent>,
    ) -> (ClusterFeed, impl Future<Output = ()>) {
        let client = ApiClient::new(access);
        let mut reloads = Vec::new();
        let mut followers = Vec::new();
        for (position, kind) in KINDS.into_iter().enumerate() {
            let (reload, reloaded) = watch::channel(0);
            reloads.push(reload);
            let cache = VersionCache::new(kind);
            let sink = FeedSink { position, kind, cache, gone: Vec::new(), out: out.clone() };
            let follower = Follower::new(client.clone(), kind.spec(), policy, Some(reloaded), sink);
            followers.push(follower.run());
        }
        let run = async move {
            // An event of one kind must not wake the followers of the others.
            let mut tasks = JoinSet::new();
            followers.into_iter().for_each(|follower| _ = tasks.spawn(follower));
            select(pin!(tasks.join_next()), pin!(out.closed())).await;
        };
        (ClusterFeed { reloads }, run)
    }

    /// Lists a kind again, because its watch may be behind.
    pub fn reload(&self, kind: usize) {
        if let Some(reload) = self.reloads.get(kind) {
            reload.send_modify(|count| *count += 1);
        }
    }
}

/// Passes on the objects of one kind.
struct FeedSink {
    position: usize,
    kind: ModelKind,
    cache: VersionCache,
    /// The objects that the last list no longer has. They are sent with its version.
    gone: Vec<Key>,
    out: mpsc::Sender<FeedEvent>,
}

impl FeedSink {
    async fn send(&mut self, event: FeedEvent) -> Result<(), Closed> {
        self.out.send(event).await.map_err(|_| Closed)
    }

    async fn send_change(
        &mut self,
        change: Option<Change>,
        json: Vec<u8>,
        version: Option<u64>,
    ) -> Result<(), Closed> {
        let version = version.map(|version| (self.position, version));
        match change {
            None => Ok(()),
            Some(Change::Put(object)) => self.send(FeedEvent::Put(object, json, version)).await,
            Some(Change::Remove(key)) => self.send(FeedEvent::Remove(key, version)).await,
        }
    }
}

impl ObjectSink for FeedSink {
    type Raw = Tree;
    type Item = Option<(ReadObject, Vec<u8>)>;

    fn convert(&mut self, object: Tree) -> Self::Item {
        let json =
            if self.kind.policy_kind().is_some() { policy_json(&object) } else { Vec::new() };
        Some((self.cache.lower(object)?, json))
    }

    /// Agents can have objects of any kind from another relay.
    fn can_have_objects(&self) -> bool {
        true
    }

    fn begin_list(&mut self) {
        self.cache.begin_list();
    }

    async fn page(&mut self, items: Vec<Self::Item>) -> Result<(), Closed> {
        let newest = items.iter().flatten().map(|(reading, _)| reading.version).max();
        if let Some(newest) = newest {
            self.send(FeedEvent::Seen((self.position, newest))).await?;
        }
        for (reading, json) in items.into_iter().flatten() {
            let change = self.cache.put(reading);
            self.send_change(change, json, None).await?;
        }
        Ok(())
    }

    async fn complete_list(&mut self, version: &'static str) -> Result<(), Closed> {
        let gone = self.cache.complete_list();
        if !gone.is_empty() && self.cache.is_empty() {
            let name = self.kind.resource().name();
            return self
                .send(FeedEvent::Reset(format!("the API server lists no {name} any more")))
                .await;
        }
        self.gone = gone;
        let is_installed = !version.is_empty();
        self.send(FeedEvent::Listed { kind: self.position, is_installed }).await
    }

    async fn keep_list(&mut self) -> Result<(), Closed> {
        // Agents that have seen objects of this kind must not lose them.
        self.send(FeedEvent::Listed { kind: self.position, is_installed: true }).await
    }

    async fn put(&mut self, item: Self::Item) -> Result<(), Closed> {
        let Some((reading, json)) = item else { return Ok(()) };
        let version = reading.version;
        let change = self.cache.put(reading);
        self.send_change(change, json, Some(version)).await
    }

    async fn remove(&mut self, object: Tree) -> Result<(), Closed> {
        let version = object.resource_version().and_then(|version| version.parse().ok());
        let change = self.cache.remove(&object);
        self.send_change(change, Vec::new(), version).await
    }

    async fn reached(&mut self, position: &str, is_bookmark: bool) -> Result<(), Closed> {
        // A version that is not a number cannot be compared.
        let version = position.parse().ok();
        let gone = std::mem::take(&mut self.gone);
        if let Some(version) = version.filter(|_| !gone.is_empty()) {
            self.send(FeedEvent::Seen((self.position, version))).await?;
        }
        for key in gone {
            self.send(FeedEvent::Remove(key, None)).await?;
        }
        let Some(version) = version else { return Ok(()) };
        self.send(FeedEvent::Reached { kind: self.position, version, is_bookmark }).await
    }

    fn distrust(&mut self) {
        self.cache.distrust();
    }

    async fn reverted(&mut self) -> Result<(), Closed> {
        let name = self.kind.resource().name();
        self.send(FeedEvent::Reset(format!("the resource versions of {name} went back"))).await
    }

    async fn version_unknown(&mut self, resource: Option<Resource>) -> Result<(), Closed> {
        if let Some(resource) = resource {
            let (kind, versions) = (resource.name(), resource.versions.join(" or "));
            tracing::warn!(kind, versions, "the kind is not served in a version that weir reads");
        }
        Ok(())
    }

    async fn report(&mut self, problem: Option<Problem>) -> Result<(), Closed> {
        let problem = problem.map(|problem| format!("{}; {}", problem.message, problem.hint));
        self.send(FeedEvent::Problem(self.position, problem)).await
    }
}

/// The JSON of a policy without the parts that change without a meaning for its rules.
fn policy_json(policy: &Tree) -> Vec<u8> {
    let mut policy = policy.clone();
    let TreeValue::Map(entries) = &mut policy.value else { return Vec::new() };
    entries.retain(|entry| &*entry.key != "status");
    let metadata = entries.iter_mut().find(|entry| &*entry.key == "metadata");
    if let Some(TreeValue::Map(entries)) = metadata.map(|entry| &mut entry.value.value) {
        const PASSING: [&str; 3] = ["managedFields", "resourceVersion", "generation"];
        entries.retain(|entry| !PASSING.contains(&&*entry.key));
        let annotations = entries.iter_mut().find(|entry| &*entry.key == "annotations");
        if let Some(TreeValue::Map(entries)) = annotations.map(|entry| &mut entry.value.value) {
            entries.retain(|entry| &*entry.key != LAST_APPLIED);
        }
    }
    serde_json::to_vec(&Value::from(&policy)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The events of a sink that has one admin policy, when a list in this version has none.
    fn emptied(version: &'static str) -> Vec<FeedEvent> {
        let (kind, (out, mut events)) = (ModelKind::AdminNetworkPolicy, mpsc::channel(16));
        let (cache, gone) = (VersionCache::new(kind), Vec::new());
        let mut sink = FeedSink { position: 3, kind, cache, gone, out };
        let policy = Tree::from(&json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy",
            "metadata": {"name": "guard", "resourceVersion": "7"},
            "spec": {"priority": 1, "subject": {"namespaces": {}}},
        }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let done = runtime.block_on(async {
            sink.begin_list();
            let item = sink.convert(policy);
            sink.page(vec![item]).await?;
            sink.complete_list("v1alpha1").await?;
            sink.begin_list();
            sink.complete_list(version).await
        });
        assert!(done.is_ok());
        std::iter::from_fn(|| events.try_recv().ok()).collect()
    }

    #[test]
    fn a_kind_without_objects_or_without_its_definition_makes_the_relay_start_again() {
        for version in ["v1alpha1", ""] {
            let events = emptied(version);
            assert!(matches!(events.last(), Some(FeedEvent::Reset(_))), "{events:?}");
            let is_removal = |event: &FeedEvent| matches!(event, FeedEvent::Remove(..));
            assert!(!events.iter().any(is_removal), "{events:?}");
        }
    }

    #[test]
    fn a_policy_keeps_what_agents_read() {
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {
                "name": "a", "resourceVersion": "7", "generation": 1, "managedFields": [{}],
                "annotations": {LAST_APPLIED: "{}", "weir.dev/mode": "audit"},
            },
            "spec": {"podSelector": {}}, "status": {},
        });
        let kept = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "a", "annotations": {"weir.dev/mode": "audit"}},
            "spec": {"podSelector": {}},
        });
        let json: Value = serde_json::from_slice(&policy_json(&Tree::from(&policy))).unwrap();
        assert_eq!(json, kept);
    }
}
