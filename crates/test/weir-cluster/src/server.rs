use std::{
    fs, io,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_programs::{Missing, Programs};

use crate::{
    Access, Gate, Right,
    api::{Api, BoxError, Method},
    process::Process,
};

/// The time for a program to become ready on a busy machine.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of attempts, because another process can take a free port first.
const START_ATTEMPTS: usize = 3;

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

/// The options of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Additional flags for the API server.
    pub flags: Vec<String>,
}

/// A running garbage collector. Dropping it stops the collector.
#[derive(Debug)]
pub struct Collector {
    _process: Process,
}

/// An API server and its store.
#[derive(Debug)]
pub struct Cluster {
    /// The first field, so that it is stopped first.
    server: Option<Process>,
    _store: Process,
    programs: Programs,
    options: Options,
    folder: PathBuf,
    address: SocketAddr,
    store_address: SocketAddr,
    admin: Access,
    api: Api,
}

impl Cluster {
    /// Starts a cluster and waits until it is ready.
    pub fn start() -> Result<Self, StartError> {
        Cluster::with(Options::default())
    }

    /// Starts a cluster with options.
    pub fn with(options: Options) -> Result<Self, StartError> {
        let programs = Programs::find()?;
        for attempt in 1.. {
            match Cluster::attempt(&programs, &options) {
                Err(StartError::NotReady { log, .. })
                    if attempt < START_ATTEMPTS && log.contains("address already in use") => {}
                done => return done,
            }
        }
        unreachable!("the last attempt returns")
    }

    fn attempt(programs: &Programs, options: &Options) -> Result<Self, StartError> {
        // The watchdog of the store removes it.
        let folder = TempDir::with_prefix("weir-cluster-")?.keep();
        let [address, store_address, peers] = free_addresses()?;
        let token = secret()?;
        fs::write(folder.join("tokens"), format!("{token},admin,admin,system:masters\n"))?;
        let [private, public] = signing_keys()?;
        fs::write(folder.join("signing-key"), private)?;
        fs::write(folder.join("checking-key"), public)?;
        let store = start_store(programs, &folder, store_address, peers)?;
        let url = format!("https://{address}");
        let server = start_server(programs, options, &folder, address, store_address)?;
        let (server, ca) = await_certificate(server, "kube-apiserver", &folder)?;
        let admin = Access { url, ca, token };
        let api = Api::new(&admin).map_err(StartError::Api)?;
        let mut cluster = Cluster {
            server: Some(server),
            _store: store,
            programs: programs.clone(),
            options: options.clone(),
            folder,
            address,
            store_address,
            admin,
            api,
        };
        cluster.await_ready()?;
        Ok(cluster)
    }

    /// Credentials of the administrator.
    pub fn admin(&self) -> &Access {
        &self.admin
    }

    /// Creates a user with exactly these permissions. For an existing name it replaces the permissions and
    /// invalidates earlier tokens.
    pub fn user(&self, name: &str, rights: &[Right]) -> Result<Access, StartError> {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        for path in [
            format!("{accounts}/{name}"),
            format!("{rbac}/clusterroles/{name}"),
            format!("{rbac}/clusterrolebindings/{name}"),
        ] {
            match self.delete(&path) {
                Err(kube::Error::Api(status)) if status.is_not_found() => (),
                done => done?,
            }
        }
        let metadata = json!({"name": name});
        let rules: Vec<Value> = rights
            .iter()
            .map(|right| {
                json!({"apiGroups": [right.group], "resources": right.resources, "verbs": right.verbs})
            })
            .collect();
        self.create(accounts, &json!({"metadata": metadata}))?;
        self.create(
            &format!("{rbac}/clusterroles"),
            &json!({"metadata": metadata, "rules": rules}),
        )?;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        });
        self.create(&format!("{rbac}/clusterrolebindings"), &binding)?;
        Ok(self.account("default", name)?)
    }

    /// Credentials of an existing ServiceAccount.
    pub fn account(&self, namespace: &str, name: &str) -> Result<Access, kube::Error> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": []},
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let answer = self.create(&path, &request)?;
        let token = answer["status"]["token"].as_str().unwrap_or_default().to_owned();
        Ok(Access { token, ..self.admin.clone() })
    }

    /// A proxy to the API server that can be interrupted.
    pub fn gate(&self) -> Result<Gate, StartError> {
        Ok(Gate::to(self.address)?)
    }

    /// The same from a listener, which can be in another network namespace.
    pub fn gate_at(&self, listener: TcpListener) -> Result<Gate, StartError> {
        Ok(Gate::from(listener, self.address)?)
    }

    /// Creates an object in the collection at a path, for example `/api/v1/namespaces`.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.api.send(Method::Post, path, object)
    }

    /// Creates an object with dry run. Returns the object as the API server would store it.
    pub fn try_create(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.api.send(Method::DryPost, path, object)
    }

    /// Creates many objects concurrently.
    pub fn create_all(
        &self,
        objects: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<(), kube::Error> {
        self.api.send_all(Method::Post, objects)
    }

    /// Applies a merge patch to the object at a path, or to its status if the path ends in `/status`.
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value, kube::Error> {
        self.api.send(Method::Patch, path, change)
    }

    /// Patches many objects concurrently.
    pub fn patch_all(
        &self,
        changes: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<(), kube::Error> {
        self.api.send_all(Method::Patch, changes)
    }

    /// Deletes the object at a path without a grace period.
    pub fn delete(&self, path: &str) -> Result<(), kube::Error> {
        self.api.send(Method::Delete, path, &Value::Null).map(|_| ())
    }

    /// Gets the object at a path.
    pub fn get(&self, path: &str) -> Result<Value, kube::Error> {
        self.api.text(path).map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Starts Kubernetes' garbage collector. It deletes the dependents of deleted objects until it is
    /// dropped.
    pub fn collect_garbage(&self) -> Result<Collector, StartError> {
        let program = weir_programs::garbage_collector()?;
        let folder = self.folder.join("collector");
        fs::create_dir_all(&folder)?;
        let kubeconfig = self.admin.write_kubeconfig(&folder)?;
        let log = self.folder.join("garbage-collector.log");
        Ok(Collector { _process: Process::start(&program, [kubeconfig], &log, None)? })
    }

    /// Stops the API server but not the store.
    pub fn stop_server(&mut self) {
        self.server = None;
    }

    /// Restarts the API server at the same address and waits until it is ready.
    pub fn start_server(&mut self) -> Result<(), StartError> {
        self.server = None;
        let Cluster { programs, options, folder, address, store_address, .. } = self;
        self.server = Some(start_server(programs, options, folder, *address, *store_address)?);
        self.await_ready()
    }

    /// Compacts the store: watches from earlier resource versions get 410 Gone.
    pub fn compact(&self) -> Result<(), StartError> {
        let answer = self.request_store("/v3/kv/range", &json!({"key": "AA=="}))?;
        let revision = answer["header"]["revision"].as_str().unwrap_or_default().to_owned();
        self.request_store("/v3/kv/compaction", &json!({"revision": revision, "physical": true}))?;
        Ok(())
    }

    /// The folder with the logs of etcd and the API server.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The address of the store.
    pub(crate) fn store_address(&self) -> SocketAddr {
        self.store_address
    }

    /// Sends a request to the store's JSON gateway.
    fn request_store(&self, path: &str, body: &Value) -> Result<Value, StartError> {
        let mut stream = TcpStream::connect(self.store_address)?;
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.store_address,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let refused = || StartError::Api(format!("the store returned {answer:?}").into());
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(refused)?;
        if !head.contains(" 200 ") {
            return Err(refused());
        }
        serde_json::from_str(body).map_err(|_| refused())
    }

    fn await_ready(&mut self) -> Result<(), StartError> {
        let start = Instant::now();
        loop {
            // It is ready after it has created its default namespace.
            if self.api.text("/readyz").is_ok()
                && self.api.text("/api/v1/namespaces/default").is_ok()
            {
                return Ok(());
            }
            let has_ended = self.server.as_mut().is_none_or(Process::has_ended);
            if has_ended || start.elapsed() > READY_TIMEOUT {
                return Err(not_ready("kube-apiserver", &self.folder));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn start_store(
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

fn start_server(
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

fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The key that the API server signs tokens with, and the key that it verifies them with, as PEM.
fn signing_keys() -> io::Result<[String; 2]> {
    use base64::Engine;
    /// The DER header of a public key on the curve P-256.
    const POINT: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
    let fail = |_| io::Error::other("cannot generate a key");
    let private = EcdsaKeyPair::generate_pkcs8(kind, &random).map_err(fail)?;
    let pair = EcdsaKeyPair::from_pkcs8(kind, private.as_ref(), &random)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let public = [&POINT, pair.public_key().as_ref()].concat();
    let pem = |label: &str, bytes: &[u8]| {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    Ok([pem("PRIVATE KEY", private.as_ref()), pem("PUBLIC KEY", &public)])
}
