//! Runs a program once in the network of running pods, as an ephemeral container.

use std::{io, time::Duration};

use kube::{
    Client,
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{Access, ApiClient, ApiError, PODS};

/// How long the kubelet may take to start a container, with the pull of its image.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two requests for the status of a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The states of a container that has no image.
const PULL_FAILURES: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"];

/// A program for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRun {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The arguments after the image's entrypoint.
    pub arguments: Vec<String>,
}

/// Why a program did not run in a pod.
#[derive(Debug, thiserror::Error)]
pub enum PodRunError {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The kubelet does not start the container, or the program failed.
    #[error("the ephemeral container {container} of pod {pod} failed: {reason}")]
    Failed {
        /// The namespace and name of the pod.
        pod: String,
        /// The name of the container.
        container: String,
        /// The reason that the kubelet or the program gave.
        reason: String,
    },
    /// The kubelet reported no result.
    #[error("timed out waiting for the ephemeral container {container} of pod {pod}")]
    TimedOut {
        /// The namespace and name of the pod.
        pod: String,
        /// The name of the container.
        container: String,
    },
}

/// Runs programs in the network of pods.
///
/// This needs `get` on pods and `patch` on pods/ephemeralcontainers. The containers have no privileges.
/// Kubernetes keeps an ephemeral container in the list of its pod, also after it has ended.
pub struct PodRunner {
    runtime: Runtime,
    client: ApiClient,
    image: String,
}

impl PodRunner {
    /// A runner with the image of all containers. This sends no request.
    pub fn new(access: Access, image: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(PodRunner { runtime, client: ApiClient::new(access), image: image.into() })
    }

    /// Runs all programs concurrently. Returns in order what each wrote to `/dev/termination-log`.
    /// `name` is the name of the containers; a pod can have one container of a name.
    pub fn run(&self, name: &str, runs: &[PodRun]) -> Vec<Result<String, PodRunError>> {
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for (at, run) in runs.iter().cloned().enumerate() {
                let (client, name) = (self.client.clone(), name.to_owned());
                let container = container(&name, &self.image, &run.arguments);
                tasks.spawn(async move { (at, run_one(&client, &run, &name, &container).await) });
            }
            let mut done: Vec<_> = tasks.join_all().await;
            done.sort_by_key(|(at, _)| *at);
            done.into_iter().map(|(_, result)| result).collect()
        })
    }
}

/// The container: it meets the Pod Security level `restricted`.
fn container(name: &str, image: &str, arguments: &[String]) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

async fn run_one(
    client: &ApiClient,
    run: &PodRun,
    name: &str,
    container: &Value,
) -> Result<String, PodRunError> {
    let PodRun { namespace, pod, .. } = run;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let resource = format!("{}/ephemeralcontainers", PODS.name());
    client.request("patch", &resource, |client| add(client, &path, pod, container)).await?;
    let described = || format!("{namespace}/{pod}");
    let start = Instant::now();
    while start.elapsed() < START_TIMEOUT {
        sleep(POLL_INTERVAL).await;
        let status =
            client.request("get", &PODS.name(), |client| status(client, &path, pod)).await?;
        let failed = |reason: String| PodRunError::Failed {
            pod: described(),
            container: name.to_owned(),
            reason,
        };
        match outcome(&status, name) {
            Outcome::Running => (),
            Outcome::Ended(message) => return Ok(message),
            Outcome::Failed(reason) => return Err(failed(reason)),
        }
    }
    Err(PodRunError::TimedOut { pod: described(), container: name.to_owned() })
}

async fn add(client: Client, path: &str, pod: &str, container: &Value) -> Result<(), kube::Error> {
    // The second form is for API servers before 1.22, which admit no security context here. Each
    // ignores the other form.
    let mut without_context = container.clone();
    if let Some(fields) = without_context.as_object_mut() {
        fields.remove("securityContext");
    }
    let change = json!({
        "spec": {"ephemeralContainers": [container]},
        "ephemeralContainers": [without_context],
    });
    let request = Request::new(path).patch_subresource(
        "ephemeralcontainers",
        pod,
        &PatchParams::default(),
        &Patch::Strategic(change),
    );
    client.request::<Value>(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
}

async fn status(client: Client, path: &str, pod: &str) -> Result<Value, kube::Error> {
    let request = Request::new(path).get(pod, &kube::api::GetParams::default());
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

/// The state of a container.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Running,
    Ended(String),
    Failed(String),
}

/// The state of an ephemeral container in the status of its pod.
fn outcome(pod: &Value, name: &str) -> Outcome {
    let statuses = pod["status"]["ephemeralContainerStatuses"].as_array();
    let mut statuses = statuses.into_iter().flatten();
    let Some(status) = statuses.find(|status| status["name"] == name) else {
        return Outcome::Running;
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (waiting, ended) = (&status["state"]["waiting"], &status["state"]["terminated"]);
    if ended.is_object() {
        let message = text(&ended["message"]);
        return if ended["exitCode"] == 0 {
            Outcome::Ended(message)
        } else {
            Outcome::Failed(format!("{} {message}", text(&ended["reason"])).trim().to_owned())
        };
    }
    let reason = text(&waiting["reason"]);
    if PULL_FAILURES.contains(&&*reason) {
        return Outcome::Failed(format!("{reason}: {}", text(&waiting["message"])));
    }
    Outcome::Running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_pod_says_how_a_container_ended() {
        let with = |state: Value| {
            let status = json!({"name": "probe", "state": state});
            outcome(&json!({"status": {"ephemeralContainerStatuses": [status]}}), "probe")
        };
        assert_eq!(outcome(&json!({"status": {}}), "probe"), Outcome::Running);
        assert_eq!(with(json!({"running": {}})), Outcome::Running);
        assert_eq!(with(json!({"waiting": {"reason": "ContainerCreating"}})), Outcome::Running);
        assert_eq!(
            with(json!({"waiting": {"reason": "ErrImagePull", "message": "no registry"}})),
            Outcome::Failed("ErrImagePull: no registry".into())
        );
        assert_eq!(
            with(json!({"terminated": {"exitCode": 0, "message": "ad"}})),
            Outcome::Ended("ad".into())
        );
        assert_eq!(
            with(json!({"terminated": {"exitCode": 2, "reason": "Error"}})),
            Outcome::Failed("Error".into())
        );
    }
}
