//! Objects for the tests.

use serde_json::{Value, json};

use crate::site::{Site, image, iptables_image};

/// A namespace.
pub(crate) fn namespace(name: &str) -> Value {
    let labels = json!({"kubernetes.io/metadata.name": name});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A pod on a node, with the label `pod`. It runs a program of the image.
pub(crate) fn pod(namespace: &str, name: &str, node: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"pod": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": image(),
                "imagePullPolicy": "Never",
                "command": command,
                // Without a request, a busy machine hardly lets it run.
                "resources": {"requests": {"cpu": "20m"}},
            }],
        },
    })
}

/// A pod that does nothing.
pub(crate) fn idle(namespace: &str, name: &str, node: &str) -> Value {
    pod(namespace, name, node, &["/usr/local/bin/weir", "pause"])
}

/// A pod that does nothing, whose container has a shell.
pub(crate) fn with_shell(namespace: &str, name: &str, node: &str) -> Value {
    let mut pod = idle(namespace, name, node);
    pod["spec"]["containers"][0]["image"] = iptables_image().into();
    pod
}

/// A pod that accepts connections.
pub(crate) fn server(namespace: &str, name: &str, node: &str, port: u16) -> Value {
    pod(namespace, name, node, &["/usr/local/bin/helper", "serve", &port.to_string()])
}

/// A policy.
pub(crate) fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    })
}

/// A policy that denies everything to and from the pods of a namespace.
pub(crate) fn deny_all(namespace: &str) -> Value {
    policy(namespace, "deny-all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
}

impl Site {
    /// Waits until pods are ready.
    #[track_caller]
    pub(crate) fn await_pods(&self, namespace: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| format!("pod/{name}")).collect();
        let mut words = vec!["-n", namespace, "wait", "--for=condition=Ready", "--timeout=120s"];
        words.extend(names.iter().map(String::as_str));
        self.kubectl(&words);
    }

    /// The first address of a pod.
    pub(crate) fn address(&self, namespace: &str, pod: &str) -> String {
        self.field(namespace, &format!("pod/{pod}"), ".status.podIP")
    }

    /// Deletes a namespace, without waiting for its end.
    pub(crate) fn delete_namespace(&self, name: &str) {
        self.kubectl(&["delete", "namespace", name, "--wait=false"]);
    }
}
