//! The protocol between the CNI plugin and the agent: one request and one reply per connection to a
//! Unix socket, each a line of JSON.
//!
//! The plugin is a small program that container runtimes start for every pod, so this crate links
//! nothing but serde.

use std::{net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

/// A request of the plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum Request {
    /// A pod has new addresses. The agent replies when the pod's rules are in force there.
    Add(Waiting),
    /// The agent replies whether the pod's rules are in force.
    Check(Waiting),
    /// A pod's interface was removed.
    Del(Attachment),
    /// All attachments of the network are gone but those of these containers.
    Gc {
        /// The name of the network.
        network: String,
        /// The containers that remain.
        containers: Vec<String>,
    },
    /// The agent replies whether pods can be added.
    Status,
}

impl Request {
    /// Sets the longest time that the agent may wait, if this request waits.
    pub fn set_timeout(&mut self, timeout: Duration) {
        if let Request::Add(waiting) | Request::Check(waiting) = self {
            waiting.timeout = timeout.as_secs_f64();
        }
    }
}

/// An attachment, and how long to wait until its rules are in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// The attachment.
    #[serde(flatten)]
    pub attachment: Attachment,
    /// The longest time to wait, in seconds.
    timeout: f64,
}

impl Waiting {
    /// A request that does not wait, until its timeout is set.
    pub fn new(attachment: Attachment) -> Self {
        Waiting { attachment, timeout: 0.0 }
    }

    /// The longest time to wait; zero if the request's number is not a duration.
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout).unwrap_or_default()
    }
}

/// An interface of a pod, and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid, which earlier pods of this name did not have, if the plugin knows it.
    pub uid: Option<String>,
    /// The container id of the sandbox.
    pub container: String,
    /// The name of the interface in the sandbox.
    pub interface: String,
    /// The name of the network.
    pub network: String,
    /// The addresses of the interface.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The host's interfaces that the plugins created for it. One of them can be a bridge.
    #[serde(default)]
    pub links: Vec<String>,
}

/// The agent's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether the request succeeded.
    pub ok: bool,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<Result<(), String>> for Reply {
    fn from(result: Result<(), String>) -> Self {
        Reply { ok: result.is_ok(), reason: result.err() }
    }
}

impl From<Reply> for Result<(), String> {
    fn from(reply: Reply) -> Self {
        if reply.ok {
            Ok(())
        } else {
            Err(reply.reason.unwrap_or("the agent gives no reason".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &str = r#"{"verb":"add","namespace":"shop","name":"web","uid":"u","container":"c","interface":"eth0","network":"n","addresses":["10.0.0.1","fd00::1"],"links":["veth1"],"timeout":2.5}"#;

    #[test]
    fn requests_are_lines_of_json() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        let Request::Add(add) = read(ADD).unwrap() else { panic!("not an add") };
        assert_eq!(add.attachment.addresses.len(), 2);
        assert_eq!(add.timeout(), Duration::from_millis(2500));
        assert_eq!(serde_json::to_string(&Request::Add(add)).unwrap(), ADD);
        let older = ADD.replace(r#","links":["veth1"]"#, "");
        let Request::Add(add) = read(&older).unwrap() else { panic!("not an add") };
        assert!(add.attachment.links.is_empty(), "an older plugin reports none");
        assert_eq!(read(r#"{"verb":"status"}"#).unwrap(), Request::Status);
        for bad in ["", "{}", r#"{"verb":"jump"}"#, r#"{"verb":"add"}"#, "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_timeout_that_is_no_duration_is_zero() {
        for bad in ["-1.0", "1e300"] {
            let text = ADD.replace("2.5", bad);
            let Ok(Request::Add(add)) = serde_json::from_str(&text) else { panic!("{text}") };
            assert_eq!(add.timeout(), Duration::ZERO, "{bad}");
        }
    }
}
