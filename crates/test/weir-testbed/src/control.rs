//! The control plane.

use std::{fs, path::Path, process::Command};

use crate::{
    TestbedError,
    config::{self, SERVICES, rack_v4},
    namespaces::{await_id, await_value, enter, run, start},
    programs::NodePrograms,
};

/// The port of the API server.
pub(crate) const API_PORT: u16 = 6443;

/// A command in the namespaces of the rack.
pub(crate) fn in_rack(rack: u32, program: &Path) -> Command {
    enter(rack, &["--pid", "--net", "--mount", "--ipc"], program)
}

/// Starts etcd.
pub(crate) fn start_store(
    folder: &Path,
    rack: u32,
    programs: &NodePrograms,
) -> Result<(), TestbedError> {
    let mut etcd = in_rack(rack, programs.path("etcd"));
    etcd.arg(format!("--data-dir={}", folder.join("disks/etcd").display()));
    etcd.arg("--unsafe-no-fsync");
    start(etcd, &folder.join("etcd.log")).map(|_| ())
}

/// Starts the API server. Returns its process id.
pub(crate) fn start_server(
    folder: &Path,
    rack: u32,
    programs: &NodePrograms,
) -> Result<u32, TestbedError> {
    /// This /proc belongs to the outer namespace of processes, so this is the id that others see.
    const WITH_ID: &str = r#"
file=$1; shift
read -r id _ </proc/self/stat
echo "$id" >"$file"
exec "$@""#;
    let at = |name: &str| folder.join(name).display().to_string();
    let id = folder.join("server");
    _ = fs::remove_file(&id);
    let mut server = in_rack(rack, Path::new("sh"));
    server.args(["-c", WITH_ID, "with-id"]).arg(&id).arg(programs.path("kube-apiserver"));
    // It creates its certificate and key before it reads them as keys of tokens.
    let key = at("certificates/apiserver.key");
    server.args([
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--bind-address={}", rack_v4(1)),
        format!("--advertise-address={}", rack_v4(1)),
        format!("--secure-port={API_PORT}"),
        format!("--cert-dir={}", at("certificates")),
        format!("--token-auth-file={}", at("tokens")),
        "--authorization-mode=RBAC".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={key}"),
        format!("--service-account-signing-key-file={key}"),
        "--allow-privileged=true".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--shutdown-delay-duration=0s".to_owned(),
    ]);
    if let Some(gates) = config::feature_gates(programs.minor) {
        server.arg(format!("--feature-gates={gates}"));
    }
    let log = folder.join("kube-apiserver.log");
    start(server, &log)?;
    await_id(&id, &log)
}

/// Waits until the API server is ready.
pub(crate) fn await_server(kubectl: impl Fn() -> Command) -> Result<(), TestbedError> {
    await_value("the API server", || {
        let ready = |path: &str| run(kubectl().args(["get", "--raw", path])).ok();
        ready("/readyz")?;
        ready("/api/v1/namespaces/default").map(|_| ())
    })
}

/// Waits until the API server has created its certificate.
pub(crate) fn await_certificate(folder: &Path) -> Result<(), TestbedError> {
    let file = folder.join("certificates/apiserver.crt");
    await_value("the certificate of the API server", || {
        let text = fs::read_to_string(&file).ok()?;
        text.trim_end().ends_with("-----END CERTIFICATE-----").then_some(())
    })
}

/// Starts the controller manager and the scheduler.
pub(crate) fn start_controllers(
    folder: &Path,
    rack: u32,
    programs: &NodePrograms,
) -> Result<(), TestbedError> {
    let at = |name: &str| folder.join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", at("kubeconfig"));
    let common = [kubeconfig, "--leader-elect=false".to_owned()];
    let mut manager = in_rack(rack, programs.path("kube-controller-manager"));
    manager.args(&common).args([
        format!("--service-account-private-key-file={}", at("certificates/apiserver.key")),
        format!("--root-ca-file={}", at("certificates/apiserver.crt")),
        format!("--cert-dir={}", at("manager")),
    ]);
    if programs.minor <= 20 {
        manager.arg("--feature-gates=IPv6DualStack=true");
    }
    start(manager, &folder.join("kube-controller-manager.log"))?;
    let mut scheduler = in_rack(rack, programs.path("kube-scheduler"));
    scheduler.args(&common).arg(format!("--cert-dir={}", at("scheduler")));
    start(scheduler, &folder.join("kube-scheduler.log")).map(|_| ())
}
