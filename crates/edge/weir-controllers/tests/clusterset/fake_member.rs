//! Members of the set without a cluster: a test writes their objects to the broker.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::fixture::{SET, at_broker, set};

/// A member without a cluster.
pub(crate) struct FakeMember {
    pub(crate) name: &'static str,
}

impl FakeMember {
    /// A member that renewed its lease at this time.
    pub(crate) fn new(name: &'static str, networks: &[&str], renewed: &str) -> Self {
        FakeMember::with_interests(name, networks, renewed, json!([]))
    }

    /// The same, with interests.
    pub(crate) fn with_interests(
        name: &'static str,
        networks: &[&str],
        renewed: &str,
        interests: Value,
    ) -> Self {
        let set = set();
        let member = json!({
            "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetMember",
            "metadata": {"name": name, "labels": {"submariner-io/clusterID": name}},
            "spec": {"clusterID": name, "clusterUID": name, "podCIDRs": networks, "interests": interests},
        });
        set.broker.create(&at_broker("clustersetmembers"), &member).unwrap();
        let lease = json!({
            "metadata": {"name": format!("weir-clusterset-{name}"), "labels": {"submariner-io/clusterID": name}},
            "spec": {"holderIdentity": name, "renewTime": renewed},
        });
        set.broker.create(&leases(), &lease).unwrap();
        FakeMember { name }
    }

    pub(crate) fn renew(&self, renewed: &str) {
        let path = format!("{}/weir-clusterset-{}", leases(), self.name);
        set().broker.patch(&path, &json!({"spec": {"renewTime": renewed}})).unwrap();
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str, address: &str) -> Value {
        json!({
            "apiVersion": "submariner.io/v1alpha1", "kind": "RemotePod",
            "metadata": {
                "name": format!("{}.{namespace}.{name}", self.name),
                "labels": {"app": "web", "submariner-io/clusterID": self.name},
            },
            "spec": {"clusterID": self.name, "podIPs": [address], "remoteNamespace": namespace, "podName": name},
        })
    }

    /// Publishes a namespace with labels.
    pub(crate) fn namespace(&self, name: &str, mut labels: Value) {
        labels["submariner-io/clusterID"] = self.name.into();
        let namespace = json!({
            "apiVersion": "submariner.io/v1alpha1", "kind": "RemoteNamespace",
            "metadata": {"name": format!("{}.{name}", self.name), "labels": labels},
            "spec": {"clusterID": self.name, "name": name},
        });
        set().broker.create(&at_broker("remotenamespaces"), &namespace).unwrap();
    }

    pub(crate) fn publish(&self, pod: &Value) {
        set().broker.create(&at_broker("remotepods"), pod).unwrap();
    }
}

pub(crate) fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{SET}/leases")
}

/// The current time in RFC 3339.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Converts days since 1970 to a date of the civil calendar.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let part = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * part + 2) / 5 + 1, if part < 10 { part + 3 } else { part - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000000Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// A policy that allows all pods of namespaces with its namespace's name.
pub(crate) fn everyone() -> Value {
    json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]})
}
