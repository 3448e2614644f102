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
    /// Why it is not known who is where: in a word, and in a sentence.
    pub(crate) blind: Option<(&'static str, String)>,
    /// How many NetworkPolicies there are for it.
    pub(crate) written: usize,
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
        let (reason, message) = match (&self.unwritten, &self.wrong) {
            (None, None) => ("Written", "the NetworkPolicies are as they should be".into()),
            (Some((reason, message)), _) => (*reason, message.clone()),
            (None, Some(wrong)) => ("Invalid", wrong.clone()),
        };
        let programmed =
            Condition { kind: "Programmed", holds: reason == "Written", reason, message };
        let (reason, message) = self.degradation();
        let degraded =
            Condition { kind: "Degraded", holds: reason != "AsExpected", reason, message };
        [accepted, programmed, degraded]
    }

    /// What of all that it selects is not allowed, and why.
    fn degradation(&self) -> (&'static str, String) {
        let Summary { overlaps, contenders, unanswerable, .. } = &self.summary;
        match (&self.wrong, &self.blind) {
            (Some(wrong), _) => ("Invalid", format!("nothing is allowed: {wrong}")),
            (None, Some((reason, message))) => (*reason, message.clone()),
            (None, None) if *unanswerable => (
                "ReservedLabel",
                "a peer asks for labels of submariner-io/, which no cluster tells; it selects no remote pod".into(),
            ),
            (None, None) if !overlaps.is_empty() => {
                let some: Vec<String> = overlaps.iter().take(3).map(ToString::to_string).collect();
                let whose: Vec<&str> = contenders.iter().map(|cluster| &**cluster).collect();
                let text = format!(
                    "{} addresses lie in the podCIDRs of several clusters, of {}, and are not allowed: {}; say whose they are with --member-cidr",
                    overlaps.len(), whose.join(", "), some.join(", ")
                );
                ("OverlappingAddress", text)
            }
            (None, None) if !self.late.is_empty() => {
                ("ClusterStale", format!("no signs of life from {}", self.late.join(", ")))
            }
            (None, None) => ("AsExpected", "everything that it selects is allowed".into()),
        }
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
        if self.blind.is_none() {
            status["clusters"] = json!(self.summary.addresses.len());
            status["remoteAddresses"] = json!(self.summary.addresses.values().sum::<usize>());
        }
        status["networkPolicies"] = json!(self.written);
        (new.data["status"] != object.data["status"]).then(|| new.data["status"].take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(standing: &Standing) -> [(bool, &'static str, String); 3] {
        standing.conditions().map(|one| (one.holds, one.reason, one.message))
    }

    #[test]
    fn what_is_wrong_isolates_only_once_it_is_written() {
        let wrong = Some("spec: bad".to_owned());
        let standing =
            |unwritten| Standing { wrong: wrong.clone(), unwritten, ..Standing::default() };
        let [accepted, programmed, degraded] = said(&standing(None));
        assert!(!accepted.0 && accepted.2.contains("nothing is allowed"), "{accepted:?}");
        assert_eq!(programmed, (false, "Invalid", "spec: bad".into()));
        assert_eq!((degraded.0, degraded.1), (true, "Invalid"));
        let [accepted, programmed, degraded] =
            said(&standing(Some(("WriteFailed", "away".into()))));
        assert!(!accepted.0 && accepted.2.contains("not written yet"), "{accepted:?}");
        assert_eq!(programmed, (false, "WriteFailed", "away".into()));
        assert!(degraded.0);
    }

    #[test]
    fn all_is_well_only_if_all_is_known_and_all_is_allowed() {
        let well = Standing::default();
        let are = |standing: &Standing| said(standing).map(|(holds, reason, _)| (holds, reason));
        assert_eq!(are(&well), [(true, "Valid"), (true, "Written"), (false, "AsExpected")]);
        let blind = Standing { blind: Some(("IdTaken", "whose?".into())), ..well.clone() };
        assert_eq!(are(&blind)[2], (true, "IdTaken"));
        let late = Standing { late: vec!["west".into()], ..well.clone() };
        assert_eq!(are(&late)[2], (true, "ClusterStale"));
        let summary = Summary { unanswerable: true, ..Summary::default() };
        assert_eq!(are(&Standing { summary, ..well.clone() })[2], (true, "ReservedLabel"));
        let summary = Summary {
            overlaps: [std::net::IpAddr::from([10, 1, 0, 1])].into(),
            contenders: ["east".into(), "west".into()].into(),
            ..Summary::default()
        };
        let [_, programmed, degraded] = said(&Standing { summary, ..well });
        assert!(programmed.0, "what is written is as it should be");
        assert_eq!((degraded.0, degraded.1), (true, "OverlappingAddress"));
        assert!(degraded.2.contains("of east, west"), "{}", degraded.2);
    }

    #[test]
    fn who_has_not_read_the_broker_leaves_the_numbers_and_counts_what_is_there() {
        let policy = serde_json::json!({
            "metadata": {"name": "db"}, "status": {"clusters": 3, "remoteAddresses": 9, "networkPolicies": 7},
        });
        let policy: Object = serde_json::from_value(policy).unwrap();
        let blind = Some(("BrokerUnread", "away".into()));
        let standing = Standing { blind, written: 4, ..Standing::default() };
        let status = standing.status(&policy).unwrap();
        assert_eq!(
            (&status["clusters"], &status["remoteAddresses"], &status["networkPolicies"]),
            (&json!(3), &json!(9), &json!(4))
        );
        let status = Standing { blind: None, ..standing }.status(&policy).unwrap();
        assert_eq!((&status["clusters"], &status["remoteAddresses"]), (&json!(0), &json!(0)));
    }
}
