//! An API server and its store, and requests to them.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_programs::{Missing, Programs};

use crate::{
    Access, FaultProxy, Gate, Right, StartError,
    api::{Api, Method},
    http_get,
    keys::{random_token, signing_keys},
    launch::{
        READY_TIMEOUT, await_certificate, free_addresses, not_ready, start_server, start_store,
    },
    process::Process,
};

/// The number of attempts, because another process can take a free port first.
const START_ATTEMPTS: usize = 3;

/// The options of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Additional flags for the API server.
    pub flags: Vec<String>,
}

impl Options {
    /// An API server for pods with addresses of both families. Kubernetes 1.20 needs a feature gate for
    /// them, which later versions removed.
    pub fn dual_stack() -> Result<Self, Missing> {
        let minor = Programs::find()?.minor_version();
        let needs_gate = minor.is_some_and(|minor| minor <= 20);
        let gate = needs_gate.then(|| "--feature-gates=IPv6DualStack=true".to_owned());
        Ok(Options { flags: gate.into_iter().collect() })
    }
}

/// A running garbage collector. Dropping it stops the collector.
#[derive(Debug)]
pub struct Collector {
    _process: Process,
}

/// The data of a store.
#[derive(Debug)]
pub struct Backup {
    folder: PathBuf,
}

/// An API server and its store.
#[derive(Debug)]
pub struct Cluster {
    /// The first field, so that it is stopped first.
    server: Option<Process>,
    store: Option<Process>,
    programs: Programs,
    options: Options,
    folder: PathBuf,
    address: SocketAddr,
    store_address: SocketAddr,
    /// The address of the store for other members of its cluster.
    peers: SocketAddr,
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
        let token = random_token()?;
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
            store: Some(store),
            peers,
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

    /// Whether the API server is of this minor version of Kubernetes, or of a later one. One of an unknown
    /// version counts as the newest.
    pub fn is_at_least(&self, minor: u32) -> bool {
        self.programs.minor_version().is_none_or(|own| own >= minor)
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
        let token = self.token(namespace, name, &[])?;
        Ok(Access { token, ..self.admin.clone() })
    }

    /// A token of an existing ServiceAccount. Without audiences, it is for the API server.
    pub fn token(
        &self,
        namespace: &str,
        name: &str,
        audiences: &[&str],
    ) -> Result<String, kube::Error> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": audiences},
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let answer = self.create(&path, &request)?;
        Ok(answer["status"]["token"].as_str().unwrap_or_default().to_owned())
    }

    /// A proxy to the API server that can be interrupted.
    pub fn gate(&self) -> Result<Gate, StartError> {
        Ok(Gate::to(self.address)?)
    }

    /// A proxy to the API server that changes or replaces responses.
    pub fn fault_proxy(&self) -> Result<FaultProxy, StartError> {
        Ok(FaultProxy::to(&self.admin)?)
    }

    /// The same as `fault_proxy` from a listener, which can be in another network namespace.
    pub fn fault_proxy_at(&self, listener: TcpListener) -> Result<FaultProxy, StartError> {
        Ok(FaultProxy::from(listener, &self.admin)?)
    }

    /// The same as `gate` from a listener, which can be in another network namespace.
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

    /// The metrics of the store; `None` if it does not answer.
    pub fn store_metrics(&self) -> Option<String> {
        http_get(self.store_address, "/metrics").map(|(_, text)| text)
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

    /// Stops the API server and the store, and saves the data of the store.
    pub fn back_up(&mut self) -> Result<Backup, StartError> {
        self.server = None;
        self.stop_store();
        let backup = self.folder.join("backup");
        copy_folder(&self.folder.join("store"), &backup)?;
        self.start_store()?;
        self.start_server()?;
        Ok(Backup { folder: backup })
    }

    /// Replaces the data of the store by a backup, and restarts both programs. Resource versions go
    /// back.
    pub fn restore(&mut self, backup: &Backup) -> Result<(), StartError> {
        self.server = None;
        self.stop_store();
        let store = self.folder.join("store");
        fs::remove_dir_all(&store)?;
        copy_folder(&backup.folder, &store)?;
        self.start_store()?;
        self.start_server()
    }

    fn stop_store(&mut self) {
        if let Some(store) = self.store.take() {
            store.stop_and_keep_folder(&self.folder);
        }
    }

    fn start_store(&mut self) -> Result<(), StartError> {
        let Cluster { programs, folder, store_address, peers, .. } = self;
        self.store = Some(start_store(programs, folder, *store_address, *peers)?);
        Ok(())
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

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
