//! What an agent asks the API server for, from the audit log, which has nothing but the agent's
//! requests.

use std::{cell::Cell, collections::BTreeMap, fs, path::PathBuf};

use serde_json::{Value, json};

use crate::site::Desk;

/// How many there were, by verb and resource.
pub(crate) type Requests = BTreeMap<String, usize>;

/// The audit log.
pub(crate) struct Audit {
    log: PathBuf,
    policy: PathBuf,
    /// How many of its lines are known.
    known: Cell<usize>,
}

impl Audit {
    /// A log that a cluster may write.
    pub(crate) fn new(desk: &Desk) -> Self {
        let (log, policy) = (desk.path("audit.log"), desk.path("audit-policy.json"));
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
            "rules": [
                {"level": "Metadata", "users": ["system:serviceaccount:weir-system:weir-agent"]},
                {"level": "None"},
            ],
        });
        fs::write(&policy, rules.to_string()).unwrap();
        fs::write(&log, "").unwrap();
        Audit { log, policy, known: Cell::new(0) }
    }

    /// The flags of an API server that writes it.
    pub(crate) fn flags(&self) -> Vec<String> {
        let Audit { log, policy, .. } = self;
        vec![
            format!("--audit-log-path={}", log.display()),
            format!("--audit-policy-file={}", policy.display()),
        ]
    }

    /// The requests since this was asked last.
    pub(crate) fn since_last(&self) -> Requests {
        let text = fs::read_to_string(&self.log).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut requests = Requests::new();
        for line in &lines[self.known.replace(lines.len())..] {
            let event: Value = serde_json::from_str(line).unwrap();
            let verb = event["verb"].as_str().unwrap_or("?");
            let what = event["objectRef"]["resource"].as_str();
            // Discovery has no resource.
            let what = what.or(event["requestURI"].as_str()).unwrap_or("?");
            *requests.entry(format!("{verb} {what}")).or_default() += 1;
        }
        requests
    }
}
