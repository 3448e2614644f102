//! Manifests of a large cluster.

use std::{fmt::Write, fs, path::Path};

/// The number of Deployments in a namespace.
const PER_NAMESPACE: usize = 20;

/// The size of the input.
pub(crate) struct InputSize {
    /// The number of Deployments.
    pub(crate) workloads: usize,
    /// The number of NetworkPolicies for each.
    pub(crate) policies: usize,
}

impl InputSize {
    /// The name of the first policy of a Deployment.
    pub(crate) fn policy_name(&self, at: usize) -> String {
        format!("team-{:03}/app-{at}-0", at / PER_NAMESPACE)
    }

    /// Writes the manifests: chains of Deployments that accept connections from their neighbours,
    /// and from one other namespace.
    pub(crate) fn write(&self, folder: &Path) {
        let mut text = String::new();
        for namespace in 0..self.workloads.div_ceil(PER_NAMESPACE) {
            writeln!(
                text,
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: team-{namespace:03}, labels: {{team: t{namespace}}}}}\n---"
            )
            .unwrap();
        }
        for at in 0..self.workloads {
            let namespace = at / PER_NAMESPACE;
            writeln!(
                text,
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: app-{at}, namespace: team-{namespace:03}}}\n\
                 spec:\n  selector: {{matchLabels: {{app: a{at}}}}}\n  template:\n    metadata: {{labels: {{app: a{at}}}}}\n    \
                 spec: {{containers: [{{name: main, image: x, ports: [{{containerPort: 8080}}]}}]}}\n---"
            )
            .unwrap();
            for number in 0..self.policies {
                let peer = match number % 2 {
                    0 => {
                        format!("podSelector: {{matchLabels: {{app: a{}}}}}", at.saturating_sub(1))
                    }
                    _ => format!(
                        "namespaceSelector: {{matchLabels: {{team: t{}}}}}",
                        (namespace * 7 + at) % 97
                    ),
                };
                writeln!(
                    text,
                    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: app-{at}-{number}, namespace: team-{namespace:03}}}\n\
                     spec:\n  podSelector: {{matchLabels: {{app: a{at}}}}}\n  ingress:\n  - from: [{{{peer}}}]\n    ports: [{{port: 8080}}]\n---"
                )
                .unwrap();
            }
        }
        fs::write(folder.join("cluster.yaml"), text).unwrap();
    }
}
