use std::{io, time::Duration};

use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::AttachParams};
use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::timeout,
};

use crate::{Access, ApiClient, ApiError};

/// The manager of the fields that [`AdminClient::apply`] sets.
const FIELD_MANAGER: &str = "weir";
/// How long a program in a pod may take.
const EXEC_TIMEOUT: Duration = Duration::from_secs(15);
/// The most output that is read of a program in a pod.
const MAX_OUTPUT_BYTES: u64 = 2 << 20;

/// The kinds that `weir install` applies: `apiVersion`, kind and plural.
const KINDS: [(&str, &str, &str); 7] = [
    ("v1", "Namespace", "namespaces"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings"),
    ("rbac.authorization.k8s.io/v1", "Role", "roles"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
];

/// A program to run in a container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCommand {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// Reads and writes single objects, and runs programs in pods, with the rights of a user.
pub struct AdminClient {
    runtime: Runtime,
    client: ApiClient,
}

impl AdminClient {
    /// A client for a cluster. This sends no request.
    pub fn new(access: Access) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(AdminClient { runtime, client: ApiClient::new(access) })
    }

    /// The objects of a list, by its URL path and query.
    pub fn list(&self, path: &str) -> Result<Vec<Value>, ApiError> {
        let mut list = self.send("list", path, Method::GET, None)?;
        Ok(match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        })
    }

    /// An object, by its URL path; `None` if it does not exist.
    pub fn get(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.send("get", path, Method::GET, None) {
            Err(ApiError::Absent { .. } | ApiError::Missing { .. }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Creates or changes an object with server-side apply. Fields of other managers conflict.
    pub fn apply(&self, object: &Value) -> Result<(), ApiError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", path_of(object)?);
        self.send("patch", &path, Method::PATCH, Some(object)).map(drop)
    }

    /// Deletes an object, and the pods of a DaemonSet before it. Does nothing if it does not exist.
    pub fn delete(&self, object: &Value) -> Result<(), ApiError> {
        let is_set = object["kind"] == "DaemonSet";
        let policy = if is_set { "Foreground" } else { "Background" };
        let options = serde_json::json!({"propagationPolicy": policy});
        match self.send("delete", &path_of(object)?, Method::DELETE, Some(&options)) {
            Err(ApiError::Absent { .. } | ApiError::Missing { .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Runs programs in pods concurrently and returns in order what each wrote to standard output,
    /// or why there is none. This needs `create` on pods/exec.
    pub fn run(&self, commands: &[PodCommand]) -> Vec<Result<String, ApiError>> {
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for (at, command) in commands.iter().cloned().enumerate() {
                let client = self.client.clone();
                tasks.spawn(async move {
                    let run = client.request("create", "pods/exec", |client| run(client, command));
                    let answer = timeout(EXEC_TIMEOUT, run).await;
                    let late = |_| Err(client.locate(ApiError::timed_out(EXEC_TIMEOUT)));
                    (at, answer.unwrap_or_else(late))
                });
            }
            let mut done = tasks.join_all().await;
            done.sort_by_key(|(at, _)| *at);
            done.into_iter().map(|(_, answer)| answer).collect()
        })
    }

    /// The body of an answer that is text, such as a log.
    pub fn text(&self, path: &str) -> Result<String, ApiError> {
        let request = Request::builder().uri(path).body(Vec::new()).map_err(|error| {
            ApiError::Garbled { resource: path.to_owned(), message: error.to_string() }
        })?;
        let send = |client: Client| async move { client.request_text(request).await };
        self.runtime.block_on(self.client.request("get", &resource_of(path), send))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn api(&self) -> &ApiClient {
        &self.client
    }

    fn send(
        &self,
        verb: &'static str,
        path: &str,
        method: Method,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let content = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.body(body).map_err(|error| ApiError::Garbled {
            resource: path.to_owned(),
            message: error.to_string(),
        })?;
        let resource = resource_of(path);
        let send = |client: Client| async move { client.request::<Value>(request).await };
        self.runtime.block_on(self.client.request(verb, &resource, send))
    }
}

async fn run(client: Client, command: PodCommand) -> Result<String, kube::Error> {
    let PodCommand { namespace, pod, container, command } = command;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let options = AttachParams::default().container(container).stderr(false);
    let mut process = pods.exec(&pod, command, &options).await?;
    let mut output = Vec::new();
    if let Some(stdout) = process.stdout() {
        stdout
            .take(MAX_OUTPUT_BYTES)
            .read_to_end(&mut output)
            .await
            .map_err(kube::Error::ReadEvents)?;
    }
    process.abort();
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// The URL path of an object.
fn path_of(object: &Value) -> Result<String, ApiError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let known = KINDS.iter().find(|known| known.0 == version && known.1 == kind);
    let Some((_, _, plural)) = known else {
        return Err(ApiError::Missing { resource: format!("{kind} of {version}") });
    };
    let root = if version.contains('/') { "apis" } else { "api" };
    let metadata = &object["metadata"];
    let namespace = match metadata["namespace"].as_str() {
        Some(namespace) => format!("/namespaces/{namespace}"),
        None => String::new(),
    };
    Ok(format!("/{root}/{version}{namespace}/{plural}/{}", text(&metadata["name"])))
}

/// The plural and the group of a URL path, as RBAC rules name them.
fn resource_of(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').skip(1).collect();
    let group = match parts.first() {
        Some(&"apis") => parts.get(1).copied(),
        _ => None,
    };
    parts.drain(..if group.is_some() { 3 } else { 2 }.min(parts.len()));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    let plural = parts.first().copied().unwrap_or_default();
    group.map_or(plural.to_owned(), |group| format!("{plural}.{group}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_have_their_paths_and_resources() {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "a", "namespace": "n"}});
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "r"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
        for (object, path, resource) in [
            (&account, "/api/v1/namespaces/n/serviceaccounts/a", "serviceaccounts"),
            (
                &role,
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/r",
                "clusterroles.rbac.authorization.k8s.io",
            ),
            (&namespace, "/api/v1/namespaces/n", "namespaces"),
        ] {
            assert_eq!(path_of(object).unwrap(), path);
            assert_eq!(resource_of(path), resource);
        }
        assert!(path_of(&json!({"apiVersion": "v1", "kind": "Secret"})).is_err());
        assert_eq!(resource_of("/apis/apps/v1/daemonsets?limit=1"), "daemonsets.apps");
    }
}
