//! What was written where, and how HNS gave it back. A cache that survives the agent: the endpoints themselves are the truth.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Acl, PREFIX, document::Endpoint};

/// The form of the file. Another one is not read.
const SCHEMA: u32 = 1;

/// What the state file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    endpoints: BTreeMap<String, Tracked>,
}

/// What is known about an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Tracked {
    /// The pod it was written for.
    pod: String,
    /// What was wanted, and what HNS gave back for it.
    applied: String,
    seen: String,
    /// The ids of the rules.
    rules: BTreeSet<String>,
}

/// The file. Policies are for people and for other programs, and follow from the endpoints.
#[derive(Serialize, Deserialize)]
struct File {
    schema: u32,
    agent: String,
    #[serde(default)]
    policies: BTreeMap<String, Vec<RuleSet>>,
    endpoints: BTreeMap<String, Tracked>,
}

#[derive(Serialize, Deserialize)]
struct RuleSet {
    #[serde(rename = "EndpointID")]
    endpoint: String,
    #[serde(rename = "RuleIDs")]
    rules: Vec<String>,
}

impl Tracker {
    /// Reads a file.
    pub fn read(bytes: &[u8]) -> Result<Tracker, String> {
        let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match file.schema {
            SCHEMA => Ok(Tracker { endpoints: file.endpoints }),
            other => Err(format!("it has schema {other}, and {SCHEMA} was expected")),
        }
    }

    /// The file.
    pub fn text(&self, agent: &str) -> String {
        let mut policies: BTreeMap<String, Vec<RuleSet>> = BTreeMap::new();
        for (id, tracked) in &self.endpoints {
            let mut by_policy: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for rule in &tracked.rules {
                if let Some(policy) = policy(rule) {
                    by_policy.entry(policy).or_default().push(rule.clone());
                }
            }
            for (policy, rules) in by_policy {
                let set = RuleSet { endpoint: id.clone(), rules };
                policies.entry(policy).or_default().push(set);
            }
        }
        let (schema, endpoints) = (SCHEMA, self.endpoints.clone());
        let file = File { schema, agent: agent.to_owned(), policies, endpoints };
        serde_json::to_string_pretty(&file).unwrap_or_default()
    }

    /// An endpoint was given these rules, and HNS says that it has those.
    pub fn put(&mut self, endpoint: &str, pod: &str, desired: &[Acl], seen: &[Acl]) {
        let tracked = Tracked {
            pod: pod.to_owned(),
            applied: digest(desired),
            seen: digest(seen),
            rules: desired.iter().map(|acl| acl.id.clone()).collect(),
        };
        self.endpoints.insert(endpoint.to_owned(), tracked);
    }

    /// An endpoint has none of ours any more.
    pub fn remove(&mut self, endpoint: &str) {
        self.endpoints.remove(endpoint);
    }

    /// Forgets the endpoints that are no longer there.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.endpoints.retain(|id, _| is_there(id));
    }

    /// Whether something is known about an endpoint.
    pub fn knows(&self, endpoint: &str) -> bool {
        self.endpoints.contains_key(endpoint)
    }

    fn is_how_it_reads(&self, endpoint: &str, desired: &[Acl], ours: &[Acl]) -> bool {
        self.endpoints.get(endpoint).is_some_and(|tracked| {
            tracked.applied == digest(desired) && tracked.seen == digest(ours)
        })
    }
}

/// Whether an endpoint has the rules that it should have: word by word, or as HNS gave them back when they were written.
pub(crate) fn is_as_desired(endpoint: &Endpoint, acls: &[Acl], tracker: &Tracker) -> bool {
    let (desired, ours) = (endpoint.desired(acls), endpoint.ours());
    desired == ours || tracker.is_how_it_reads(&endpoint.id, &desired, &ours)
}

/// The policy that an id of ours speaks of: `namespace/name`, with its kind before it unless it is a NetworkPolicy.
fn policy(id: &str) -> Option<String> {
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
    use crate::{Action, Way};

    use super::*;

    fn acl(id: &str) -> Acl {
        Acl::new(id.into(), Way::In, Action::Allow, 2000)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let mut tracker = Tracker::default();
        let rules = [acl("weir:NetworkPolicy/shop/web#in.0"), acl("weir:tail-in")];
        tracker.put("e1", "shop/web-0", &rules, &rules);
        let text = tracker.text("1.2.3");
        assert_eq!(Tracker::read(text.as_bytes()), Ok(tracker));
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let set = &file["policies"]["shop/web"][0];
        assert_eq!(set["EndpointID"], "e1");
        assert_eq!(set["RuleIDs"][0], "weir:NetworkPolicy/shop/web#in.0");
    }

    #[test]
    fn what_is_broken_is_not_believed() {
        for text in [
            "",
            "{",
            "[]",
            "{\"schema\":1}",
            "\u{0}\u{0}",
            "{\"schema\":2,\"agent\":\"\",\"endpoints\":{}}",
        ] {
            assert!(Tracker::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn how_hns_gave_rules_back_is_remembered_for_these_rules_alone() {
        let mut tracker = Tracker::default();
        let (wanted, odd) = ([acl("weir:a")], [Acl { protocols: "6".into(), ..acl("weir:a") }]);
        tracker.put("e1", "shop/web", &wanted, &odd);
        assert!(tracker.is_how_it_reads("e1", &wanted, &odd));
        assert!(!tracker.is_how_it_reads("e1", &[acl("weir:b")], &odd), "something else is wanted");
        assert!(!tracker.is_how_it_reads("e1", &wanted, &wanted), "somebody changed it");
        assert!(!tracker.is_how_it_reads("e2", &wanted, &odd));
        tracker.retain(|id| id != "e1");
        assert_eq!(tracker, Tracker::default());
    }
}
