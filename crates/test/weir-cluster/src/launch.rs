//! Starts etcd and the API server, and waits until they are ready.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use weir_programs::{Missing, Programs};

use crate::{Options, api::BoxError, process::Process};

/// The time for a program to become ready on a busy machine.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// An error that prevents the start of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A program is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// An operating system error.
    #[error("cannot start a cluster")]
    Io(#[from] io::Error),
    /// A program exited or timed out.
    #[error("{program} is not ready; the end of its log:\n{log}")]
    NotReady {
        /// The program.
        program: &'static str,
        /// The end of its log.
        log: String,
    },
    /// The API server returned an error.
    #[error("the API server rejected a request")]
    Api(#[source] BoxError),
}

impl From<kube::Error> for StartError {
    fn from(error: kube::Error) -> Self {
        StartError::Api(error.into())
    }
}

pub(crate) fn start_store(
    programs: &Programs,
    folder: &Path,
    clients: SocketAddr,
    peers: SocketAddr,
) -> Result<Process, StartError> {
    let arguments = [
        format!("--data-dir={}", folder.join("store").display()),
        format!("--listen-client-urls=http://{clients}"),
        format!("--advertise-client-urls=http://{clients}"),
        format!("--listen-peer-urls=http://{peers}"),
        format!("--initial-advertise-peer-urls=http://{peers}"),
        format!("--initial-cluster=default=http://{peers}"),
    ];
    let log = folder.join("etcd.log");
    let mut store = Process::start(&programs.etcd, arguments, &log, Some(folder))?;
    let start = Instant::now();
    while TcpStream::connect(clients).is_err() {
        if store.has_ended() || start.elapsed() > READY_TIMEOUT {
            return Err(not_ready("etcd", folder));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(store)
}

pub(crate) fn start_server(
    programs: &Programs,
    options: &Options,
    folder: &Path,
    address: SocketAddr,
    store: SocketAddr,
) -> Result<Process, StartError> {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=http://{store}"),
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
        format!("--secure-port={}", address.port()),
        format!("--cert-dir={}", at("certificates")),
        format!("--token-auth-file={}", at("tokens")),
        "--authorization-mode=RBAC".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", at("checking-key")),
        format!("--service-account-signing-key-file={}", at("signing-key")),
        "--disable-admission-plugins=ServiceAccount".into(),
        "--allow-privileged=true".into(),
        // Do not wait for open watches at shutdown.
        "--shutdown-delay-duration=0s".into(),
    ];
    arguments.extend(options.flags.iter().cloned());
    Ok(Process::start(
        &programs.kube_apiserver,
        arguments,
        &folder.join("kube-apiserver.log"),
        None,
    )?)
}

/// Waits until the API server has created its certificate. Returns the certificate.
pub(crate) fn await_certificate(
    mut server: Process,
    program: &'static str,
    folder: &Path,
) -> Result<(Process, String), StartError> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(folder.join("certificates/apiserver.crt"));
        if let Ok(text) = text
            && text.trim_end().ends_with("-----END CERTIFICATE-----")
            && folder.join("certificates/apiserver.key").exists()
        {
            return Ok((server, text));
        }
        if server.has_ended() || start.elapsed() > READY_TIMEOUT {
            return Err(not_ready(program, folder));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn not_ready(program: &'static str, folder: &Path) -> StartError {
    let log = fs::read_to_string(folder.join(format!("{program}.log"))).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let log = lines[lines.len().saturating_sub(20)..].join("\n");
    StartError::NotReady { program, log }
}

/// Free addresses of the loopback interface.
pub(crate) fn free_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    // Keep all listeners open until the end, so that the addresses differ.
    let mut held = Vec::new();
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}
