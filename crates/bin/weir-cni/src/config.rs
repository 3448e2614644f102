use std::{path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use crate::error::{CONFIGURATION, CniError, DECODING, VERSION};

/// The supported versions of the CNI specification.
pub(crate) const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The default socket of the agent.
const DEFAULT_SOCKET: &str = "/run/weir/agent.sock";
/// The default timeout, in seconds.
const DEFAULT_TIMEOUT: f64 = 10.0;
/// The valid timeouts, in seconds.
const TIMEOUT_RANGE: std::ops::RangeInclusive<f64> = 0.1..=60.0;
/// The field in which the runtime lists the valid attachments.
const ATTACHMENTS: &str = "cni.dev/valid-attachments";

/// The configuration of the network and of this plugin.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) network: String,
    pub(crate) socket: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    /// The result of the previous plugins.
    pub(crate) result: Option<Value>,
    /// The containers that still exist, if the runtime lists them.
    pub(crate) valid_containers: Option<Vec<String>>,
}

/// The treatment of a pod if the agent is unreachable or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Do not start it.
    Refuse,
    /// Start it.
    Allow,
}

impl Config {
    /// Parses a configuration.
    pub(crate) fn parse(text: &str) -> Result<Config, CniError> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            CniError::new(DECODING, "the network configuration is not JSON", error)
        })?;
        let Value::Object(fields) = value else {
            return Err(CniError::new(DECODING, "the network configuration is not an object", ""));
        };
        let version = fields.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            let supported = format!("supported versions: {}", VERSIONS.join(", "));
            let what = format!("CNI version {version} is not supported");
            return Err(CniError::new(VERSION, what, supported));
        }
        Ok(Config {
            network: text_of(&fields, "name")?.unwrap_or_default().to_owned(),
            socket: text_of(&fields, "socket")?.unwrap_or(DEFAULT_SOCKET).into(),
            timeout: timeout(fields.get("timeout"))?,
            on_failure: on_failure(text_of(&fields, "onFailure")?)?,
            result: fields.get("prevResult").filter(|result| result.is_object()).cloned(),
            valid_containers: fields.get(ATTACHMENTS).map(containers).transpose()?,
        })
    }
}

/// The version of a configuration, even if the rest of it is invalid.
pub(crate) fn version_of(text: &str) -> String {
    let value = serde_json::from_str(text).unwrap_or(Value::Null);
    let version = value.get("cniVersion").and_then(Value::as_str);
    version.filter(|version| VERSIONS.contains(version)).unwrap_or("1.1.0").to_owned()
}

/// Parses `onFailure`.
pub(crate) fn on_failure(word: Option<&str>) -> Result<OnFailure, CniError> {
    match word {
        None | Some("refuse") => Ok(OnFailure::Refuse),
        Some("allow") => Ok(OnFailure::Allow),
        Some(other) => {
            let found = format!("expected refuse or allow, found {other:?}");
            Err(CniError::new(CONFIGURATION, "invalid onFailure", found))
        }
    }
}

/// Parses `timeout`.
pub(crate) fn timeout(value: Option<&Value>) -> Result<Duration, CniError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Duration::from_secs_f64(DEFAULT_TIMEOUT));
    };
    match value.as_f64().filter(|seconds| TIMEOUT_RANGE.contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => {
            let found = format!("expected a number of seconds from 0.1 to 60, found {value}");
            Err(CniError::new(CONFIGURATION, "invalid timeout", found))
        }
    }
}

fn text_of<'f>(fields: &'f Map<String, Value>, key: &str) -> Result<Option<&'f str>, CniError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(other) => {
            let found = format!("expected a string, found {other}");
            Err(CniError::new(CONFIGURATION, format!("invalid {key}"), found))
        }
    }
}

fn containers(list: &Value) -> Result<Vec<String>, CniError> {
    let container = |one: &Value| Some(one.get("containerID")?.as_str()?.to_owned());
    let all = list.as_array().map(|list| list.iter().map(container).collect());
    all.flatten().ok_or_else(|| {
        let what = format!("invalid {ATTACHMENTS}");
        CniError::new(CONFIGURATION, what, "expected a list of objects with containerID")
    })
}
