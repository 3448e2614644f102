//! What the pods of real clusters have beside the fields that policies see.

use serde_json::{Value, json};

/// Adds the fields of a container from a chart, of a service mesh and of a CNI plugin. With the
/// managed fields of the API server, a pod has about 5.5 kB.
pub(crate) fn enrich(pod: &mut Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    pod["metadata"]["generateName"] = "web-7d4f9c6b8-".into();
    pod["metadata"]["annotations"] = json!({
        "checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "cni.projectcalico.org/containerID":
            "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
        "kubectl.kubernetes.io/restartedAt": "2026-11-02T09:31:07Z",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": "9090",
        "prometheus.io/scrape": "true",
    });
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4f9c6b8",
        "uid": "7a1c6d0e-3b52-4c0c-9f60-0d4f8a9a2b11", "controller": true, "blockOwnerDeletion": true,
    }]);
    let spec = &mut pod["spec"];
    spec["serviceAccountName"] = "web".into();
    spec["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    spec["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532});
    spec["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    spec["volumes"] = json!([
        {"name": "config", "configMap": {"name": "web-config"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]);
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 10});
    let container = &mut spec["containers"][0];
    container["image"] = "registry.example.com/shop/web:v1.27.3".into();
    container["args"] = json!(["--config=/etc/web/config.yaml", "--log-level=info"]);
    container["env"] = json!([
        {"name": "POD_NAME", "value": name},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "DATABASE_HOST", "value": "postgres.databases.svc.cluster.local"},
        {"name": "DATABASE_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "web-db", "key": "password"}}},
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://otel-collector.observability:4317"},
    ]);
    container["resources"] = json!({
        "requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"},
    });
    container["livenessProbe"] = probe("/livez");
    container["readinessProbe"] = probe("/readyz");
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    container["volumeMounts"] = json!([
        {"name": "config", "mountPath": "/etc/web", "readOnly": true},
        {"name": "tmp", "mountPath": "/tmp"},
    ]);
}
