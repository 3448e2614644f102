//! Relays that a test starts and stops.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use tempfile::TempDir;
use weir_kube::{Access, RetryPolicy};
use weir_relay::{CertificateFiles, RelayProcess, run_until};

use crate::{
    api::{Api, token},
    certificate::certificate,
};

/// The files of a test.
pub(crate) struct Files {
    folder: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = certificate();
        fs::write(folder.path().join("tls.crt"), certificate).unwrap();
        fs::write(folder.path().join("tls.key"), key).unwrap();
        Files { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file with the token of a name.
    pub(crate) fn token(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, token(name)).unwrap();
        path
    }
}

/// How followers retry in tests.
pub(crate) fn policy() -> RetryPolicy {
    RetryPolicy {
        first_retry: Duration::from_millis(50),
        longest_retry: Duration::from_millis(400),
        absence_grace: Duration::from_millis(200),
        ..RetryPolicy::default()
    }
}

/// An address that is free at the moment.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A running relay, stopped on drop.
pub(crate) struct Relay {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(api: &Api, files: &Files, listen: SocketAddr) -> Self {
        let options = RelayProcess {
            access: access(api, files),
            retry_policy: policy(),
            listen,
            certificate: CertificateFiles {
                certificate: files.path("tls.crt"),
                key: files.path("tls.key"),
            },
            agent_account: "weir/agent".into(),
            http: None,
        };
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let stopped = async move {
                while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            };
            run_until(&options, stopped).unwrap();
        });
        Relay { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

pub(crate) fn access(api: &Api, files: &Files) -> Access {
    Access::direct(&format!("http://{}", api.address), &files.token("api"), None)
}
