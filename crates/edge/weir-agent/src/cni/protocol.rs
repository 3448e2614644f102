use std::{net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};
use weir_model::PodId;

use super::LONGEST;

/// What a plugin wants. One line of JSON each.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub(crate) enum Request {
    /// A pod got these addresses. The answer comes when its rules are in force there.
    Add(Waiting),
    /// Are its rules in force there?
    Check(Waiting),
    /// An attachment is gone.
    Del(Attachment),
    /// Of a network only these containers are left.
    Gc { network: String, containers: Vec<String> },
    /// Can pods be added?
    Status,
}

/// An attachment, and how long to wait for it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Waiting {
    #[serde(flatten)]
    pub(crate) attachment: Attachment,
    /// In seconds.
    pub(crate) timeout: f64,
}

impl Waiting {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout).unwrap_or_default().min(LONGEST)
    }
}

/// A pod's interface and the addresses it has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// What tells the pod from others that had its name before, if the plugin was told.
    pub(crate) uid: Option<String>,
    /// The sandbox.
    pub(crate) container: String,
    pub(crate) interface: String,
    pub(crate) network: String,
    #[serde(default)]
    pub(crate) addresses: Vec<IpAddr>,
}

impl Attachment {
    pub(crate) fn pod(&self) -> PodId {
        PodId::new(&*self.namespace, &*self.name)
    }
}

/// What a plugin hears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl From<Result<(), String>> for Answer {
    fn from(result: Result<(), String>) -> Self {
        Answer { ok: result.is_ok(), reason: result.err() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_json() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        let Request::Add(add) = read(
            r#"{"verb":"add","namespace":"shop","name":"web","uid":"u","container":"c","interface":"eth0","network":"n","addresses":["10.0.0.1","fd00::1"],"timeout":2.5}"#,
        )
        .unwrap() else {
            panic!("not an add")
        };
        assert_eq!(
            (add.attachment.addresses.len(), add.timeout()),
            (2, Duration::from_millis(2500))
        );
        assert_eq!(read(r#"{"verb":"status"}"#).unwrap(), Request::Status);
        for bad in ["", "{}", r#"{"verb":"jump"}"#, r#"{"verb":"add"}"#, "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nobody_waits_for_ever() {
        let attachment = Attachment {
            namespace: "shop".into(),
            name: "web".into(),
            uid: None,
            container: String::new(),
            interface: String::new(),
            network: String::new(),
            addresses: Vec::new(),
        };
        let wait = |timeout| Waiting { attachment: attachment.clone(), timeout }.timeout();
        assert_eq!(
            [wait(1e9), wait(-1.0), wait(f64::NAN)],
            [LONGEST, Duration::ZERO, Duration::ZERO]
        );
    }
}
