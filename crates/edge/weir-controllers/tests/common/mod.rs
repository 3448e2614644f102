//! A controller in a thread, for the tests with real API servers.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use weir_cluster::{Fault, FaultProxy, Right, http_get};
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
            retry_policy: RetryPolicy {
                page_size: 3,
                first_retry: Duration::from_millis(50),
                longest_retry: Duration::from_millis(500),
                absence_poll: Duration::from_millis(200),
                ..RetryPolicy::default()
            },
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

/// Injects broken responses to all lists, one kind after the other. The controller must report each,
/// and `is_unchanged` must hold all the time.
pub(crate) fn survives_broken_lists(
    proxy: &FaultProxy,
    controller: &ControllerThread,
    is_unchanged: impl Fn() -> bool,
) {
    eventually("the controller is ready", || (controller.get("/readyz").0 == 200).then_some(()));
    let empty_without_version: fn(&mut Value) = |list| {
        list["items"] = json!([]);
        list["metadata"] = json!({});
    };
    let without_items: fn(&mut Value) = |list| {
        list.as_object_mut().and_then(|fields| fields.remove("items"));
    };
    let other_kind: fn(&mut Value) = |list| {
        list["items"] = json!([]);
        list["kind"] = "Status".into();
    };
    for fault in [
        Fault::Edit(empty_without_version),
        Fault::Edit(without_items),
        Fault::Edit(other_kind),
        Fault::Cut,
        Fault::Answer(200, "<html></html>".into()),
        Fault::Answer(404, "404 page not found".into()),
        Fault::Answer(410, r#"{"kind":"Status","code":410,"message":"expired"}"#.into()),
        Fault::Answer(503, r#"{"kind":"Status","code":503,"message":"overloaded"}"#.into()),
    ] {
        let chosen = fault.clone();
        proxy.inject(move |request| {
            let is_list = request.is_list() || request.is_of("leases") && request.method == "GET";
            is_list.then(|| chosen.clone())
        });
        proxy.cut();
        let (before, start) = (proxy.requests(|_| true).len(), Instant::now());
        eventually("the fault is reported", || (controller.get("/readyz").0 == 503).then_some(()));
        thread::sleep(Duration::from_millis(700));
        assert!(is_unchanged(), "{fault:?}");
        let requests = proxy.requests(|_| true).len() - before;
        let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 1;
        // Several followers, which each send up to 20 requests in the first second.
        assert!(requests < 300 * seconds, "{requests} requests in {seconds} s");
        proxy.heal();
        eventually("it is ready again", || (controller.get("/readyz").0 == 200).then_some(()));
        assert!(is_unchanged(), "{fault:?}");
    }
}
