use serde_json::{Value, json};
use weir_clusterset::Summary;
use weir_kube::KubeObject;

use crate::condition::{self, Condition};

/// At most this many rejected pods are named in a message.
const MAX_PODS_SHOWN: usize = 3;

/// The state of a policy, for its `status`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyStatus {
    /// Why the spec is invalid.
    pub(crate) invalid: Option<String>,
    /// Why the NetworkPolicies are not as desired: a reason and a message.
    pub(crate) unwritten: Option<(&'static str, String)>,
    /// Why the remote pods are not known: a reason and a message.
    pub(crate) unsynced: Option<(&'static str, String)>,
    /// The number of NetworkPolicies that implement the policy.
    pub(crate) network_policies: usize,
    /// The clusters with allowed addresses whose leases are not renewed.
    pub(crate) stale: Vec<String>,
    /// The clusters with selected pods whose leases have expired.
    pub(crate) expired: Vec<String>,
    /// The policy in numbers.
    pub(crate) summary: Summary,
}

impl PolicyStatus {
    /// The conditions, the most important one first.
    pub(crate) fn conditions(&self) -> [Condition; 3] {
        let accepted = match &self.invalid {
            None => Condition {
                kind: "Accepted",
                holds: true,
                reason: "Valid",
                message: "the policy is valid".into(),
            },
            Some(error) => Condition {
                kind: "Accepted",
                holds: false,
                reason: "Invalid",
                message: match &self.unwritten {
                    None => format!("{error}; its pods are isolated, and nothing is allowed"),
                    Some(_) => format!(
                        "{error}; the policy must isolate its pods and allow nothing, but its \
                         NetworkPolicies are not written yet"
                    ),
                },
            },
        };
        let (reason, message) = match (&self.unwritten, &self.invalid) {
            (None, None) => ("Written", "the NetworkPolicies are as desired".into()),
            (Some((reason, message)), _) => (*reason, message.clone()),
            (None, Some(error)) => ("Invalid", error.clone()),
        };
        let programmed =
            Condition { kind: "Programmed", holds: reason == "Written", reason, message };
        let (reason, message) = self.degradation();
        let degraded =
            Condition { kind: "Degraded", holds: reason != "AsExpected", reason, message };
        [accepted, programmed, degraded]
    }

    /// Why not everything that the policy selects is allowed: a reason and a message.
    fn degradation(&self) -> (&'static str, String) {
        let Summary { overlaps, overlapping_clusters, reserved_labels, .. } = &self.summary;
        if let Some(error) = &self.invalid {
            return ("Invalid", format!("nothing is allowed: {error}"));
        }
        if let Some((reason, message)) = &self.unsynced {
            return (*reason, message.clone());
        }
        if let Some((reason, message)) = &self.unwritten {
            return (*reason, format!("not everything is allowed: {message}"));
        }
        match self.unallowed() {
            _ if *reserved_labels => (
                "ReservedLabel",
                "a peer selects labels with the prefix submariner-io/, which clusters do not \
                 publish; it matches no remote pod"
                    .into(),
            ),
            _ if !overlaps.is_empty() => {
                let some: Vec<String> = overlaps.iter().take(3).map(ToString::to_string).collect();
                let clusters: Vec<&str> =
                    overlapping_clusters.iter().map(|cluster| &**cluster).collect();
                let text = format!(
                    "{} addresses lie in the podCIDRs of several clusters, of {}, and are not \
                     allowed: {}; assign the networks with --member-cidr",
                    overlaps.len(),
                    clusters.join(", "),
                    some.join(", ")
                );
                ("OverlappingAddress", text)
            }
            Some(unallowed) => unallowed,
            None if !self.stale.is_empty() => {
                ("ClusterStale", format!("no heartbeats from {}", self.stale.join(", ")))
            }
            None => ("AsExpected", "everything that the policy selects is allowed".into()),
        }
    }

    /// Why pods that the policy selects are not accepted from their clusters: a reason and a
    /// message.
    fn unallowed(&self) -> Option<(&'static str, String)> {
        let Summary { rejected, absent, .. } = &self.summary;
        let mut ignored =
            absent.iter().filter(|cluster| !self.expired.contains(&cluster.to_string()));
        if !self.expired.is_empty() {
            let text = format!(
                "the selected pods of {} are not allowed: the cluster has not renewed its lease \
                 within --cluster-expiry",
                self.expired.join(", ")
            );
            return Some(("ClusterExpired", text));
        }
        if let Some(first) = ignored.next() {
            let names: Vec<&str> = [first].into_iter().chain(ignored).map(|name| &**name).collect();
            let text = format!(
                "the selected pods of {} are not allowed: the cluster has no --member-cidr, or \
                 its ClusterSetMember and lease on the broker are invalid or not read yet",
                names.join(", ")
            );
            return Some(("ClusterIgnored", text));
        }
        let some = rejected.iter().take(MAX_PODS_SHOWN);
        let some: Vec<String> =
            some.map(|id| format!("{}:{}/{}", id.cluster, id.namespace, id.name)).collect();
        (!rejected.is_empty()).then(|| {
            let text = format!(
                "{} selected pods have addresses outside of their cluster's networks or inside of \
                 ours, which are not allowed: {}",
                rejected.len(),
                some.join(", ")
            );
            ("AddressRejected", text)
        })
    }

    /// The desired status of the object; `None` if it has that status already.
    pub(crate) fn status(&self, object: &KubeObject) -> Option<Value> {
        let mut new = object.clone();
        if !new.data["status"].is_object() {
            new.data["status"] = json!({});
        }
        for one in self.conditions() {
            if let Some(conditions) = condition::merge(&new, &one) {
                new.data["status"]["conditions"] = conditions.into();
            }
        }
        let status = &mut new.data["status"];
        status["observedGeneration"] = json!(object.metadata.generation);
        // Before the broker is listed, the numbers are unknown.
        if self.unsynced.is_none() {
            status["clusters"] = json!(self.summary.addresses.len());
            status["remoteAddresses"] = json!(self.summary.addresses.values().sum::<usize>());
        }
        status["networkPolicies"] = json!(self.network_policies);
        (new.data["status"] != object.data["status"]).then(|| new.data["status"].take())
    }
}

#[cfg(test)]
mod tests {
    use weir_clusterset::RemoteId;

    use super::*;

    fn conditions(status: &PolicyStatus) -> [(bool, &'static str, String); 3] {
        status.conditions().map(|one| (one.holds, one.reason, one.message))
    }

    #[test]
    fn an_invalid_policy_isolates_only_once_it_is_written() {
        let invalid = Some("spec: bad".to_owned());
        let status =
            |unwritten| PolicyStatus { invalid: invalid.clone(), unwritten, ..Default::default() };
        let [accepted, programmed, degraded] = conditions(&status(None));
        assert!(!accepted.0 && accepted.2.contains("nothing is allowed"), "{accepted:?}");
        assert_eq!(programmed, (false, "Invalid", "spec: bad".into()));
        assert_eq!((degraded.0, degraded.1), (true, "Invalid"));
        let [accepted, programmed, degraded] =
            conditions(&status(Some(("WriteFailed", "timeout".into()))));
        assert!(!accepted.0 && accepted.2.contains("not written yet"), "{accepted:?}");
        assert_eq!(programmed, (false, "WriteFailed", "timeout".into()));
        assert!(degraded.0);
    }

    #[test]
    fn a_policy_is_degraded_unless_all_remote_pods_are_known_and_allowed() {
        let healthy = PolicyStatus::default();
        let reasons =
            |status: &PolicyStatus| conditions(status).map(|(holds, reason, _)| (holds, reason));
        assert_eq!(reasons(&healthy), [(true, "Valid"), (true, "Written"), (false, "AsExpected")]);
        let unsynced = Some(("IdTaken", "another cluster".into()));
        let unsynced = PolicyStatus { unsynced, ..healthy.clone() };
        assert_eq!(reasons(&unsynced)[2], (true, "IdTaken"));
        let stale = PolicyStatus { stale: vec!["west".into()], ..healthy.clone() };
        assert_eq!(reasons(&stale)[2], (true, "ClusterStale"));
        let conflict = Some(("NameConflict", "taken".into()));
        let conflict = PolicyStatus { unwritten: conflict, ..healthy.clone() };
        assert_eq!(reasons(&conflict)[1..], [(false, "NameConflict"), (true, "NameConflict")]);
        let id = |name: &str| RemoteId {
            cluster: "west".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let summary = Summary { rejected: [id("a"), id("b")].into(), ..Summary::default() };
        let rejected = PolicyStatus { summary, ..healthy.clone() };
        assert_eq!(reasons(&rejected)[2], (true, "AddressRejected"));
        let text = &conditions(&rejected)[2].2;
        assert!(text.starts_with("2 selected pods") && text.contains("west:shop/a"), "{text}");
        let summary = Summary { absent: ["north".into()].into(), ..Summary::default() };
        let ignored = PolicyStatus { summary, ..healthy.clone() };
        assert_eq!(reasons(&ignored)[2], (true, "ClusterIgnored"));
        let expired = PolicyStatus { expired: vec!["north".into()], ..ignored };
        assert_eq!(reasons(&expired)[2], (true, "ClusterExpired"));
        assert!(conditions(&expired)[2].2.contains("pods of north are not allowed"));
        let summary = Summary { reserved_labels: true, ..Summary::default() };
        let reserved = PolicyStatus { summary, ..healthy.clone() };
        assert_eq!(reasons(&reserved)[2], (true, "ReservedLabel"));
        let summary = Summary {
            overlaps: [std::net::IpAddr::from([10, 1, 0, 1])].into(),
            overlapping_clusters: ["east".into(), "west".into()].into(),
            ..Summary::default()
        };
        let [_, programmed, degraded] = conditions(&PolicyStatus { summary, ..healthy });
        assert!(programmed.0, "the NetworkPolicies are as desired");
        assert_eq!((degraded.0, degraded.1), (true, "OverlappingAddress"));
        assert!(degraded.2.contains("of east, west"), "{}", degraded.2);
    }

    #[test]
    fn before_the_broker_is_listed_the_remote_numbers_stay() {
        let policy = serde_json::json!({
            "metadata": {"name": "db"}, "status": {"clusters": 3, "remoteAddresses": 9, "networkPolicies": 7},
        });
        let policy: KubeObject = serde_json::from_value(policy).unwrap();
        let unsynced = Some(("BrokerUnread", "not listed".into()));
        let desired = PolicyStatus { unsynced, network_policies: 4, ..PolicyStatus::default() };
        let status = desired.status(&policy).unwrap();
        assert_eq!(
            (&status["clusters"], &status["remoteAddresses"], &status["networkPolicies"]),
            (&json!(3), &json!(9), &json!(4))
        );
        let status = PolicyStatus { unsynced: None, ..desired }.status(&policy).unwrap();
        assert_eq!((&status["clusters"], &status["remoteAddresses"]), (&json!(0), &json!(0)));
    }
}
