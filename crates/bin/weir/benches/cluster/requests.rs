//! The requests of an agent to the API server, from an audit log that contains only these.

use std::{cell::Cell, collections::BTreeMap, fs, path::PathBuf};

use serde_json::{Value, json};

use crate::site::Scratch;

/// The number of requests, by verb and resource.
pub(crate) type Requests = BTreeMap<String, usize>;

/// The audit log.
pub(crate) struct Audit {
    log: PathBuf,
    policy: PathBuf,
    /// The number of lines read so far.
    known: Cell<usize>,
}

impl Audit {
    /// Creates the files for a log.
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let (log, policy) = (scratch.path("audit.log"), scratch.path("audit-policy.json"));
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

    /// The flags of an API server that writes the log.
    pub(crate) fn flags(&self) -> Vec<String> {
        let Audit { log, policy, .. } = self;
        vec![
            format!("--audit-log-path={}", log.display()),
            format!("--audit-policy-file={}", policy.display()),
        ]
    }

    /// The requests since the last call.
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
