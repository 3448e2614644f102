use serde_json::{Value, json};
use weir_clusterset::Summary;

use crate::{Condition, Object, condition};

/// What there is to say about a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// What is wrong with what it says.
    pub(crate) wrong: Option<String>,
    /// Why it is not written as it should be.
    pub(crate) unwritten: Option<(&'static str, String)>,
    /// Whether everything on the broker was read.
    pub(crate) is_synced: bool,
    /// The clusters whose addresses it allows and that miss signs of life.
    pub(crate) late: Vec<String>,
    /// The policy in numbers.
    pub(crate) summary: Summary,
}

impl Standing {
    /// The conditions, from the one to look at first.
    pub(crate) fn conditions(&self) -> [Condition; 3] {
        let accepted = match &self.wrong {
            None => Condition {
                kind: "Accepted",
                holds: true,
                reason: "Valid",
                message: "the policy can be read".into(),
            },
            Some(wrong) => Condition {
                kind: "Accepted",
                holds: false,
                reason: "Invalid",
                message: match &self.unwritten {
                    None => format!("{wrong}; its pods are isolated, and nothing is allowed"),
                    Some(_) => format!(
                        "{wrong}; it should isolate its pods and allow nothing, but that is not written yet"
                    ),
                },
            },
        };
        let programmed = match &self.unwritten {
            None => Condition {
                kind: "Programmed",
                holds: true,
                reason: "Written",
                message: "the NetworkPolicies are as they should be".into(),
            },
            Some((reason, message)) => {
                Condition { kind: "Programmed", holds: false, reason, message: message.clone() }
            }
        };
        let Summary { overlaps, unanswerable, .. } = &self.summary;
        let (reason, message) = match () {
            () if !self.is_synced => {
                ("BrokerUnread", "remote pods stay as they are: the broker was not read yet".into())
            }
            () if *unanswerable => (
                "ReservedLabel",
                "a peer asks for labels of submariner-io/, which no cluster tells; it selects no remote pod".into(),
            ),
            () if !overlaps.is_empty() => {
                let some: Vec<String> = overlaps.iter().take(3).map(ToString::to_string).collect();
                let count = overlaps.len();
                ("OverlappingAddress", format!(
                    "{count} addresses lie in the podCIDRs of several clusters, and are not allowed: {}", some.join(", ")
                ))
            }
            () if !self.late.is_empty() => {
                ("ClusterStale", format!("no signs of life from {}", self.late.join(", ")))
            }
            () => ("AsExpected", "everything that it selects is allowed".into()),
        };
        let degraded =
            Condition { kind: "Degraded", holds: reason != "AsExpected", reason, message };
        [accepted, programmed, degraded]
    }

    /// The status that an object should have; `None` if it has it.
    pub(crate) fn status(&self, object: &Object) -> Option<Value> {
        let mut new = object.clone();
        if !new.data["status"].is_object() {
            new.data["status"] = json!({});
        }
        for one in self.conditions() {
            if let Some(conditions) = condition::with(&new, &one) {
                new.data["status"]["conditions"] = conditions.into();
            }
        }
        let status = &mut new.data["status"];
        status["observedGeneration"] = json!(object.metadata.generation);
        // Who has not read the broker does not know.
        if self.is_synced {
            status["clusters"] = json!(self.summary.addresses.len());
            status["remoteAddresses"] = json!(self.summary.addresses.values().sum::<usize>());
        }
        status["networkPolicies"] = json!(self.summary.policies);
        (new.data["status"] != object.data["status"]).then(|| new.data["status"].take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_isolates_only_once_it_is_written() {
        let wrong = Some("spec: bad".to_owned());
        let said = |unwritten| {
            let standing = Standing { wrong: wrong.clone(), unwritten, ..Standing::default() };
            standing.conditions().map(|one| (one.holds, one.reason, one.message))
        };
        let [accepted, programmed, _] = said(None);
        assert!(!accepted.0 && accepted.2.contains("nothing is allowed"), "{accepted:?}");
        assert!(programmed.0);
        let [accepted, programmed, _] = said(Some(("WriteFailed", "away".into())));
        assert!(!accepted.0 && accepted.2.contains("not written yet"), "{accepted:?}");
        assert_eq!(programmed, (false, "WriteFailed", "away".into()));
    }
}
