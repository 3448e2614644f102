use std::{
    fs,
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_kube::{Access, RetryPolicy, Watch};
use weir_model::{Change, Finding, Key, World};
use weir_runtime::SourceEvent;

/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(90);

/// Follows a cluster and remembers everything.
pub(crate) struct Observer {
    updates: Receiver<SourceEvent>,
    pub(crate) watch: Watch,
    pub(crate) world: World,
    pub(crate) findings: Vec<Finding>,
    pub(crate) unread: Vec<Finding>,
    pub(crate) in_sync: bool,
    /// What was put and removed since somebody last asked.
    pub(crate) put: Vec<Key>,
    pub(crate) removed: Vec<Key>,
    folder: TempDir,
}

impl Observer {
    /// Begins to follow, with a pace that suits a test.
    pub(crate) fn start(access: &weir_cluster::Access) -> Self {
        Observer::with(access, pace())
    }

    pub(crate) fn with(access: &weir_cluster::Access, pace: RetryPolicy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = access.write_kubeconfig(folder.path()).unwrap();
        let (news, updates) = mpsc::channel();
        let access = Access::new(Some(&kubeconfig), None);
        let watch = Watch::start(access, pace, move |update| news.send(update).is_ok()).unwrap();
        Observer {
            updates,
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

    /// Waits until it is so.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Observer) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            match self.updates.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(update) => self.take(update),
                Err(RecvTimeoutError::Timeout) => panic!(
                    "not within {PATIENCE:?}: {what}; in sync: {}, unread: {:#?}, findings: {:#?}, world: {:#?}",
                    self.in_sync, self.unread, self.findings, self.world
                ),
                Err(RecvTimeoutError::Disconnected) => panic!("the watch is gone before: {what}"),
            }
        }
    }

    /// Takes in what comes for some time.
    pub(crate) fn linger(&mut self, time: Duration) {
        let start = Instant::now();
        while let Ok(update) = self.updates.recv_timeout(time.saturating_sub(start.elapsed())) {
            self.take(update);
        }
    }

    /// Waits until everything was read once.
    #[track_caller]
    pub(crate) fn until_in_sync(&mut self) {
        self.until("in sync", |seen| seen.in_sync);
    }

    /// Forgets what was put and removed.
    pub(crate) fn forget(&mut self) {
        self.put.clear();
        self.removed.clear();
    }

    /// Shows another token from now on.
    pub(crate) fn replace_token(&self, token: &str) {
        fs::write(self.folder.path().join("token"), token).unwrap();
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn take(&mut self, update: SourceEvent) {
        for change in update.changes {
            match &change {
                Change::Put(object) => self.put.push(object.key()),
                Change::Remove(key) => self.removed.push(key.clone()),
            }
            self.world.apply(change);
        }
        assert!(!self.in_sync || update.in_sync, "once in sync is in sync for good");
        (self.findings, self.unread) = (update.findings, update.unread);
        self.in_sync = update.in_sync;
    }
}

/// The pace of tests: small pages, short waits.
pub(crate) fn pace() -> RetryPolicy {
    RetryPolicy {
        page_size: 3,
        first_retry: Duration::from_millis(50),
        longest_retry: Duration::from_millis(500),
        absence_poll: Duration::from_millis(300),
        ..RetryPolicy::default()
    }
}
