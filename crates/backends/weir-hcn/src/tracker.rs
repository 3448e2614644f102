//! Records which ACLs the backend wrote to each endpoint, and how HNS returned them. The record
//! survives restarts in the state file. It is a cache: the endpoints are authoritative.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Acl, HnsEndpoint, PREFIX};

/// The version of the file format. Other versions are rejected.
const SCHEMA: u32 = 1;

/// The content of the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    endpoints: BTreeMap<String, Tracked>,
}

/// The record of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Tracked {
    /// The pod that the ACLs were written for.
    pod: String,
    /// The digest of the desired ACLs.
    applied: String,
    /// The digest of the ACLs that HNS returned after the write.
    seen: String,
    /// The ids of the ACLs.
    rules: BTreeSet<String>,
}

/// The format of the state file. weir does not read `policies`, which is for people and other
/// programs.
#[derive(Serialize, Deserialize)]
struct TrackerFile {
    schema: u32,
    agent: String,
    #[serde(default)]
    policies: BTreeMap<String, Vec<EndpointRuleIds>>,
    endpoints: BTreeMap<String, Tracked>,
}

/// The ACLs of one policy on one endpoint.
#[derive(Serialize, Deserialize)]
struct EndpointRuleIds {
    #[serde(rename = "EndpointID")]
    endpoint: String,
    #[serde(rename = "RuleIDs")]
    rules: Vec<String>,
}

impl Tracker {
    /// Whether no ACL was written to any endpoint.
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Parses a file.
    pub fn parse(bytes: &[u8]) -> Result<Tracker, String> {
        let file: TrackerFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match file.schema {
            SCHEMA => Ok(Tracker { endpoints: file.endpoints }),
            other => Err(format!("it has schema {other}, and {SCHEMA} was expected")),
        }
    }

    /// The text of the file.
    pub fn text(&self, agent: &str) -> String {
        let mut policies: BTreeMap<String, Vec<EndpointRuleIds>> = BTreeMap::new();
        for (id, tracked) in &self.endpoints {
            let mut by_policy: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for rule in &tracked.rules {
                if let Some(policy) = policy_of_acl(rule) {
                    by_policy.entry(policy).or_default().push(rule.clone());
                }
            }
            for (policy, rules) in by_policy {
                let set = EndpointRuleIds { endpoint: id.clone(), rules };
                policies.entry(policy).or_default().push(set);
            }
        }
        let (schema, endpoints) = (SCHEMA, self.endpoints.clone());
        let file = TrackerFile { schema, agent: agent.to_owned(), policies, endpoints };
        serde_json::to_string_pretty(&file).unwrap_or_default()
    }

    /// Records the desired ACLs of an endpoint, and the ACLs that HNS returned.
    pub fn put(&mut self, endpoint: &str, pod: &str, desired: &[Acl], seen: &[Acl]) {
        let tracked = Tracked {
            pod: pod.to_owned(),
            applied: digest(desired),
            seen: digest(seen),
            rules: desired.iter().map(|acl| acl.id.to_string()).collect(),
        };
        self.endpoints.insert(endpoint.to_owned(), tracked);
    }

    /// Removes the record of an endpoint.
    pub fn remove(&mut self, endpoint: &str) {
        self.endpoints.remove(endpoint);
    }

    /// Removes the records of deleted endpoints.
    pub fn retain(&mut self, has_endpoint: impl Fn(&str) -> bool) {
        self.endpoints.retain(|id, _| has_endpoint(id));
    }

    /// Whether there is a record of an endpoint.
    pub fn contains(&self, endpoint: &str) -> bool {
        self.endpoints.contains_key(endpoint)
    }

    /// Whether HNS returned exactly `ours` after these ACLs were written.
    fn is_known_form(&self, endpoint: &str, desired: &[Acl], ours: &[Acl]) -> bool {
        self.endpoints.get(endpoint).is_some_and(|tracked| {
            tracked.applied == digest(desired) && tracked.seen == digest(ours)
        })
    }
}

/// Whether an endpoint has the desired ACLs: exactly, or in the form that HNS returned when they
/// were written.
pub(crate) fn has_desired_acls(endpoint: &HnsEndpoint, acls: &[Acl], tracker: &Tracker) -> bool {
    let (desired, ours) = (endpoint.desired(acls), endpoint.ours());
    desired == ours || tracker.is_known_form(&endpoint.id, &desired, &ours)
}

/// The policy in the id of one of our ACLs: `namespace/name`, and its kind before that unless it is
/// a NetworkPolicy.
fn policy_of_acl(id: &str) -> Option<String> {
    let (policy, _) = id.strip_prefix(PREFIX)?.rsplit_once('#')?;
    Some(policy.strip_prefix("NetworkPolicy/").unwrap_or(policy).to_owned())
}

fn digest(acls: &[Acl]) -> String {
    let mut hash = Sha256::new();
    for acl in acls {
        hash.update(acl.to_string().as_bytes());
        hash.update(b"\n");
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::{AclAction, AclDirection};

    use super::*;

    fn acl(id: &str) -> Acl {
        Acl::new(id.into(), AclDirection::In, AclAction::Allow, 2000)
    }

    #[test]
    fn the_file_survives_a_round_trip() {
        let mut tracker = Tracker::default();
        let rules = [acl("weir:NetworkPolicy/shop/web#in.0"), acl("weir:tail-in")];
        tracker.put("e1", "shop/web-0", &rules, &rules);
        let text = tracker.text("1.2.3");
        assert_eq!(Tracker::parse(text.as_bytes()), Ok(tracker));
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let set = &file["policies"]["shop/web"][0];
        assert_eq!(set["EndpointID"], "e1");
        assert_eq!(set["RuleIDs"][0], "weir:NetworkPolicy/shop/web#in.0");
    }

    #[test]
    fn an_invalid_file_is_rejected() {
        for text in [
            "",
            "{",
            "[]",
            "{\"schema\":1}",
            "\u{0}\u{0}",
            "{\"schema\":2,\"agent\":\"\",\"endpoints\":{}}",
        ] {
            assert!(Tracker::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_returned_form_is_accepted_only_for_the_same_desired_acls() {
        let mut tracker = Tracker::default();
        let (desired, odd) = ([acl("weir:a")], [Acl { protocols: "6".into(), ..acl("weir:a") }]);
        tracker.put("e1", "shop/web", &desired, &odd);
        assert!(tracker.is_known_form("e1", &desired, &odd));
        assert!(!tracker.is_known_form("e1", &[acl("weir:b")], &odd), "other ACLs are desired");
        assert!(!tracker.is_known_form("e1", &desired, &desired), "another program changed them");
        assert!(!tracker.is_known_form("e2", &desired, &odd));
        tracker.retain(|id| id != "e1");
        assert_eq!(tracker, Tracker::default());
    }
}
