//! A controller in a thread, for the tests with real API servers.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::sync::oneshot;
use weir_cluster::{FaultCase, FaultProxy, FaultSubject, Right, http_get};
use weir_controllers::{Controller, ControllerError, ControllerOptions, run_until};
use weir_kube::RetryPolicy;

/// Long enough for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The permissions that every controller of NetworkPolicies needs.
pub(crate) const COMMON_RIGHTS: [Right; 3] = [
    Right {
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
        verbs: &["list", "watch", "create", "update", "delete"],
    },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "create", "update"],
    },
    Right { group: "", resources: &["events"], verbs: &["create", "patch"] },
];

/// Polls until `poll` returns a value.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A thread that runs a controller as a process would.
pub(crate) struct ControllerThread {
    http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ControllerError>>>,
    _folders: Vec<TempDir>,
}

impl ControllerThread {
    /// Starts a controller with its lease in `namespace`. It owns the folders with its credentials.
    pub(crate) fn spawn(
        controller: Controller,
        identity: &str,
        namespace: &str,
        kubeconfig: &Path,
        folders: Vec<TempDir>,
        retry_policy: RetryPolicy,
    ) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = free.local_addr().unwrap();
        drop(free);
        let options = ControllerOptions {
            access: weir_kube::Access::new(Some(kubeconfig), None),
            namespace: namespace.into(),
            lease: "weir-controller".into(),
            controllers: vec![controller],
            http: Some(http),
            identity: identity.into(),
            retry_policy,
        };
        let (stop, end) = oneshot::channel::<()>();
        let end = || {
            Ok(async {
                _ = end.await;
            })
        };
        let thread = thread::spawn(move || run_until(&options, end));
        ControllerThread { http, stop: Some(stop), thread: Some(thread), _folders: folders }
    }

    /// The HTTP status and body of a path.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        eventually("HTTP answers", || http_get(self.http, path))
    }
}

/// Stops the controller as SIGTERM does.
impl Drop for ControllerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// Short waits, for a controller behind a proxy with faults.
pub(crate) fn quick() -> RetryPolicy {
    RetryPolicy {
        page_size: 3,
        first_retry: Duration::from_millis(50),
        longest_retry: Duration::from_millis(500),
        absence_poll: Duration::from_millis(200),
        ..RetryPolicy::default()
    }
}

/// A controller, and what it maintains.
pub(crate) struct Maintained<S, C, A> {
    pub(crate) process: ControllerThread,
    /// The state that no fault may change.
    pub(crate) state: S,
    /// Makes a change in the API server.
    pub(crate) change: C,
    /// Whether a change has arrived.
    pub(crate) has_arrived: A,
}

impl<S, C, A> FaultSubject for Maintained<S, C, A>
where
    S: Fn() -> bool,
    C: Fn(usize),
    A: Fn(usize) -> bool,
{
    fn unready_reasons(&mut self) -> String {
        match self.process.get("/readyz") {
            (200, _) => String::new(),
            (_, reasons) => reasons,
        }
    }

    fn is_intact(&mut self) -> bool {
        (self.state)()
    }

    fn change(&mut self, number: usize) {
        (self.change)(number);
    }

    fn has_arrived(&mut self, number: usize) -> bool {
        (self.has_arrived)(number)
    }
}

/// Runs all cases that apply to controllers. `start` starts one with a retry policy, and a lease in
/// a namespace.
pub(crate) fn survives_faults<S: FaultSubject>(
    proxies: &[&FaultProxy],
    start: impl Fn(RetryPolicy, &'static str) -> S,
) {
    let mut numbers = 0..;
    let mut check = |cases: &[FaultCase], policy: RetryPolicy, namespace: &'static str| {
        let mut subject = start(policy, namespace);
        for case in cases {
            case.check(numbers.next().unwrap(), proxies, &mut subject);
        }
    };
    check(FaultCase::BROKEN_ANSWERS, quick(), "kube-system");
    let impatient = RetryPolicy { watch_silence: Duration::from_secs(4), ..quick() };
    check(&[FaultCase::SILENT_WATCHES], impatient, "default");
    let comparing = RetryPolicy { comparison_interval: Duration::from_secs(2), ..quick() };
    check(&[FaultCase::LOST_EVENTS], comparing, "kube-public");
}
