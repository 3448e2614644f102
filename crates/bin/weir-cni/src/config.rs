use std::{path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use crate::error::{CONFIGURATION, CniError, DECODING, VERSION};

/// The versions of the specification that are spoken.
pub(crate) const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Where the agent listens, unless the configuration says otherwise.
const SOCKET: &str = "/run/weir/agent.sock";
/// How many seconds a pod waits, unless the configuration says otherwise, and how many it may.
const TIMEOUT: f64 = 10.0;
const TIMEOUTS: std::ops::RangeInclusive<f64> = 0.1..=60.0;
/// Where the runtime lists the attachments that are left.
const ATTACHMENTS: &str = "cni.dev/valid-attachments";

/// The configuration of the network, and of this plugin in it.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) network: String,
    pub(crate) socket: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    /// What the plugins before this one have done.
    pub(crate) result: Option<Value>,
    /// The containers that are left, if the runtime says so.
    pub(crate) left: Option<Vec<String>>,
}

/// What happens to a pod if the agent is away or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// It does not start.
    Refuse,
    /// It starts.
    Allow,
}

impl Config {
    /// Reads a configuration.
    pub(crate) fn read(text: &str) -> Result<Config, CniError> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            CniError::new(DECODING, "the network configuration is not JSON", error)
        })?;
        let Value::Object(fields) = value else {
            return Err(CniError::new(DECODING, "the network configuration is not an object", ""));
        };
        let version = fields.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            let spoken = format!("this plugin speaks {}", VERSIONS.join(", "));
            let what = format!("CNI version {version} is not supported");
            return Err(CniError::new(VERSION, what, spoken));
        }
        Ok(Config {
            network: text_of(&fields, "name")?.unwrap_or_default().to_owned(),
            socket: text_of(&fields, "socket")?.unwrap_or(SOCKET).into(),
            timeout: timeout(fields.get("timeout"))?,
            on_failure: on_failure(text_of(&fields, "onFailure")?)?,
            result: fields.get("prevResult").filter(|result| result.is_object()).cloned(),
            left: fields.get(ATTACHMENTS).map(containers).transpose()?,
        })
    }
}

/// The version that a configuration asks for, even if nothing else of it makes sense.
pub(crate) fn version_of(text: &str) -> String {
    let value = serde_json::from_str(text).unwrap_or(Value::Null);
    let version = value.get("cniVersion").and_then(Value::as_str);
    version.filter(|version| VERSIONS.contains(version)).unwrap_or("1.1.0").to_owned()
}

/// Reads what to do about failures.
pub(crate) fn on_failure(word: Option<&str>) -> Result<OnFailure, CniError> {
    match word {
        None | Some("refuse") => Ok(OnFailure::Refuse),
        Some("allow") => Ok(OnFailure::Allow),
        Some(other) => {
            let found = format!("expected refuse or allow, found {other:?}");
            Err(CniError::new(CONFIGURATION, "onFailure makes no sense", found))
        }
    }
}

/// Reads how long to wait.
pub(crate) fn timeout(value: Option<&Value>) -> Result<Duration, CniError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Duration::from_secs_f64(TIMEOUT));
    };
    match value.as_f64().filter(|seconds| TIMEOUTS.contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => {
            let found = format!("expected seconds, 0.1 to 60, found {value}");
            Err(CniError::new(CONFIGURATION, "timeout makes no sense", found))
        }
    }
}

fn text_of<'f>(fields: &'f Map<String, Value>, key: &str) -> Result<Option<&'f str>, CniError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(other) => {
            let found = format!("expected text, found {other}");
            Err(CniError::new(CONFIGURATION, format!("{key} makes no sense"), found))
        }
    }
}

fn containers(list: &Value) -> Result<Vec<String>, CniError> {
    let container = |one: &Value| Some(one.get("containerID")?.as_str()?.to_owned());
    let all = list.as_array().map(|list| list.iter().map(container).collect());
    all.flatten().ok_or_else(|| {
        let what = format!("{ATTACHMENTS} makes no sense");
        CniError::new(CONFIGURATION, what, "expected a list of objects with containerID")
    })
}
