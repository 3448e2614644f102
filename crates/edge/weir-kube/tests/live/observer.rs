use std::{
    fs,
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_kube::{Access, ClusterKinds, ClusterWatch, RetryPolicy};
use weir_model::{Change, Finding, Key, World};
use weir_runtime::SourceEvent;

/// How long an expected event may take.
const DEADLINE: Duration = Duration::from_secs(90);

/// Follows a cluster and records all changes.
pub(crate) struct Observer {
    events: Receiver<SourceEvent>,
    pub(crate) watch: ClusterWatch,
    pub(crate) world: World,
    pub(crate) findings: Vec<Finding>,
    pub(crate) unread: Vec<Finding>,
    pub(crate) in_sync: bool,
    /// The objects that were put since the last call of `forget`.
    pub(crate) put: Vec<Key>,
    /// The objects that were removed since the last call of `forget`.
    pub(crate) removed: Vec<Key>,
    folder: TempDir,
}

impl Observer {
    /// Follows with short waits.
    pub(crate) fn start(access: &weir_cluster::Access) -> Self {
        Observer::with(access, policy())
    }

    pub(crate) fn with(access: &weir_cluster::Access, policy: RetryPolicy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
        let (sender, events) = mpsc::channel();
        let access = Access::new(Some(&kubeconfig), None);
        let send = move |event| sender.send(event).is_ok();
        let watch = ClusterWatch::start(access, policy, ClusterKinds::Policies, send).unwrap();
        Observer {
            events,
            watch,
            world: World::default(),
            findings: Vec::new(),
            unread: Vec::new(),
            in_sync: false,
            put: Vec::new(),
            removed: Vec::new(),
            folder,
        }
    }

    /// Applies events until the condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Observer) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            match self.events.recv_timeout(DEADLINE.saturating_sub(start.elapsed())) {
                Ok(event) => self.apply(event),
                Err(RecvTimeoutError::Timeout) => panic!(
                    "{what} did not happen within {DEADLINE:?}; in sync: {}, unread: {:#?}, findings: {:#?}, world: {:#?}",
                    self.in_sync, self.unread, self.findings, self.world
                ),
                Err(RecvTimeoutError::Disconnected) => panic!("the watch ended before: {what}"),
            }
        }
    }

    /// Applies the events of some time.
    pub(crate) fn linger(&mut self, time: Duration) {
        let start = Instant::now();
        while let Ok(event) = self.events.recv_timeout(time.saturating_sub(start.elapsed())) {
            self.apply(event);
        }
    }

    /// Waits until all kinds were listed.
    #[track_caller]
    pub(crate) fn until_in_sync(&mut self) {
        self.until("in sync", |seen| seen.in_sync);
    }

    /// Clears `put` and `removed`.
    pub(crate) fn forget(&mut self) {
        self.put.clear();
        self.removed.clear();
    }

    /// Replaces the token file.
    pub(crate) fn replace_token(&self, token: &str) {
        fs::write(self.folder.path().join("token"), token).unwrap();
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn apply(&mut self, event: SourceEvent) {
        for change in event.changes {
            match &change {
                Change::Put(object) => self.put.push(object.key()),
                Change::Remove(key) => self.removed.push(key.clone()),
            }
            self.world.apply(change);
        }
        assert!(!self.in_sync || event.in_sync, "a source in sync stays in sync");
        (self.findings, self.unread) = (event.findings, event.unread);
        self.in_sync = event.in_sync;
    }
}

/// Small pages and short waits.
pub(crate) fn policy() -> RetryPolicy {
    RetryPolicy {
        page_size: 3,
        first_retry: Duration::from_millis(50),
        longest_retry: Duration::from_millis(500),
        absence_poll: Duration::from_millis(300),
        ..RetryPolicy::default()
    }
}
