//! Runs `weir check` on every node before an agent does, in a pod that lives for some seconds.

use std::{
    io::Write,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_kube::{AdminClient, ApiError};

use super::{InstallDatapath, explain, manifests::Settings};
use crate::present::plain::Plain;

/// The name of the DaemonSet.
const NAME: &str = "weir-check";
/// The lock of iptables-legacy.
const LOCK: &str = "/run/xtables.lock";
/// The longest wait for all nodes. A node that is down never answers.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The time between two requests.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Writes what each node lacks.
pub(crate) fn run(
    client: &AdminClient,
    namespace: &str,
    settings: &Settings,
    timeout: Duration,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let set = daemon_set(namespace, settings);
    client.apply(&set).map_err(explain)?;
    let answers = await_answers(client, namespace, timeout.min(MAX_WAIT));
    client.delete(&set).map_err(explain)?;
    let (answers, pods) = answers.map_err(explain)?;
    let passed = answers.iter().filter(|(_, lacks)| lacks.is_empty()).count();
    for (node, lacks) in &answers {
        for line in lacks {
            writeln!(out, "node {}: {}", Plain(node), Plain(line))?;
        }
    }
    let datapath = settings.datapath.name();
    Ok(writeln!(out, "checked nodes: {passed} of {pods} have all that {datapath} needs")?)
}

/// A node, and what it lacks.
type NodeAnswer = (String, Vec<String>);

/// Waits until all pods of the DaemonSet have answered, or until the time is over. Returns the answers
/// and the number of nodes that should have a pod.
fn await_answers(
    client: &AdminClient,
    namespace: &str,
    timeout: Duration,
) -> Result<(Vec<NodeAnswer>, u64), ApiError> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{NAME}");
    let selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Dcheck";
    let pods = format!("/api/v1/namespaces/{namespace}/pods?{selector}");
    let start = Instant::now();
    loop {
        let status = client.get(&path)?.map(|set| set["status"].clone()).unwrap_or_default();
        let is_observed = status["observedGeneration"].is_u64();
        let desired = status["desiredNumberScheduled"].as_u64().unwrap_or_default();
        let found = client.list(&pods)?;
        let answered = found.iter().filter(|pod| answer(pod).is_some()).count();
        let is_over = start.elapsed() >= timeout;
        if is_over || is_observed && answered as u64 >= desired {
            let all = found.iter().map(|pod| {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or("?").to_owned();
                (node, answer(pod).unwrap_or_else(|| vec!["the check did not end in time".into()]))
            });
            let mut all: Vec<NodeAnswer> = all.collect();
            all.sort();
            return Ok((all, desired));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// What a pod reports: nothing if the node lacks nothing; `None` while the check runs.
fn answer(pod: &Value) -> Option<Vec<String>> {
    let status = pod["status"]["initContainerStatuses"].get(0)?;
    // A check that failed is started again.
    let ended = [&status["state"], &status["lastState"]].map(|state| &state["terminated"]);
    if let Some(ended) = ended.into_iter().find(|ended| ended.is_object()) {
        let text = ended["message"].as_str().unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let is_passed = ended["exitCode"] == 0;
        return Some(match (is_passed, lines.is_empty()) {
            (true, _) => Vec::new(),
            (false, false) => lines,
            (false, true) => vec![format!("the check failed: {}", ended["reason"])],
        });
    }
    let waiting = &status["state"]["waiting"];
    let reason = waiting["reason"].as_str().filter(|reason| *reason != "PodInitializing")?;
    let message = waiting["message"].as_str().unwrap_or_default();
    let is_failure = ["Err", "Invalid", "BackOff"].iter().any(|part| reason.contains(part));
    is_failure.then(|| vec![format!("the check cannot start: {reason}: {message}")])
}

/// Pods with the rights of an agent, and with CAP_SYS_ADMIN, to try rules in a network namespace.
fn daemon_set(namespace: &str, settings: &Settings) -> Value {
    let labels = json!({
        "app.kubernetes.io/name": "weir",
        "app.kubernetes.io/instance": "weir",
        "app.kubernetes.io/component": "check",
    });
    let confined = |user: u32, add: &[&str]| {
        json!({
            "runAsUser": user,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": add},
        })
    };
    let datapath = format!("--datapath={}", settings.datapath.name());
    // The lock that all iptables users of the node share.
    let (mounts, volumes) = match settings.datapath {
        InstallDatapath::Nftables => (json!([]), json!([])),
        InstallDatapath::Iptables => (
            json!([{"name": "xtables-lock", "mountPath": LOCK}]),
            json!([{"name": "xtables-lock", "hostPath": {"path": LOCK, "type": "FileOrCreate"}}]),
        ),
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "100%"},
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "priorityClassName": "system-node-critical",
                    "hostNetwork": true,
                    "dnsPolicy": "Default",
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "tolerations": [{"operator": "Exists"}],
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "initContainers": [{
                        "name": "check",
                        "image": settings.image,
                        "imagePullPolicy": "IfNotPresent",
                        "args": ["check", datapath],
                        // Its output becomes part of the status of the pod.
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "securityContext": confined(0, &["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]),
                        "volumeMounts": mounts,
                    }],
                    "containers": [{
                        "name": "done",
                        "image": settings.image,
                        "imagePullPolicy": "IfNotPresent",
                        "args": ["pause"],
                        "securityContext": confined(65535, &[]),
                    }],
                    "volumes": volumes,
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Value {
        json!({"status": {"initContainerStatuses": [status]}})
    }

    #[test]
    fn the_output_of_a_check_is_what_the_node_lacks() {
        let ended = |code: i32, text: &str| json!({"terminated": {"exitCode": code, "message": text, "reason": "Error"}});
        assert_eq!(answer(&json!({})), None);
        assert_eq!(answer(&pod(json!({"state": {"running": {}}}))), None);
        let initializing = json!({"state": {"waiting": {"reason": "PodInitializing"}}});
        assert_eq!(answer(&pod(initializing)), None);
        assert_eq!(answer(&pod(json!({"state": ended(0, "")}))), Some(Vec::new()));
        let lines = Some(vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(answer(&pod(json!({"state": ended(1, "one\ntwo\n")}))), lines);
        let again = json!({
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": ended(1, "one\ntwo\n"),
        });
        assert_eq!(answer(&pod(again)), lines);
        let failed = answer(&pod(json!({"state": ended(137, "")}))).unwrap();
        assert!(failed[0].contains("the check failed"), "{failed:?}");
        let pull = json!({"state": {"waiting": {"reason": "ErrImagePull", "message": "no host"}}});
        assert_eq!(answer(&pod(pull)).unwrap(), ["the check cannot start: ErrImagePull: no host"]);
    }
}
