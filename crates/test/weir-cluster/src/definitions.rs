use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Access, Cluster, StartError,
    api::{Api, Method},
    launch::{READY_TIMEOUT, await_certificate, free_addresses, not_ready},
    process::Process,
};

/// The name of the program and of its log.
const PROGRAM: &str = "apiextensions-apiserver";

/// A second API server that serves CustomResourceDefinitions and their objects only. It is newer than
/// the first and evaluates CEL rules. It uses the first for authorization and namespaces.
#[derive(Debug)]
pub struct Definitions {
    _process: Process,
    api: Api,
}

impl Cluster {
    /// Starts an API server for definitions and waits until it is ready. The first server does not see its
    /// objects.
    pub fn definitions(&self) -> Result<Definitions, StartError> {
        let program = weir_programs::definitions_server()?;
        let folder = self.folder().join("definitions");
        fs::create_dir_all(&folder)?;
        let kubeconfig = self.admin().write_kubeconfig(&folder)?;
        let kubeconfig = kubeconfig.display();
        let [address] = free_addresses()?;
        let arguments = [
            format!("--etcd-servers=http://{}", self.store_address()),
            format!("--bind-address={}", address.ip()),
            format!("--secure-port={}", address.port()),
            format!("--cert-dir={}", folder.join("certificates").display()),
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            // These plugins watch kinds that the first server does not have.
            "--disable-admission-plugins=MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook".into(),
            "--enable-priority-and-fairness=false".into(),
        ];
        let log = folder.join(format!("{PROGRAM}.log"));
        let process = Process::start(&program, arguments, &log, None)?;
        let (mut process, ca) = await_certificate(process, PROGRAM, &folder)?;
        let access = Access { url: format!("https://{address}"), ca, ..self.admin().clone() };
        let api = Api::new(&access).map_err(StartError::Api)?;
        let start = Instant::now();
        while api.text("/readyz").is_err() {
            if process.has_ended() || start.elapsed() > READY_TIMEOUT {
                return Err(not_ready(PROGRAM, &folder));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Definitions { _process: process, api })
    }
}

impl Definitions {
    /// Creates an object in the collection at a path.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.api.send(Method::Post, path, object)
    }

    /// Gets the object at a path.
    pub fn get(&self, path: &str) -> Result<Value, kube::Error> {
        self.api.text(path).map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}
