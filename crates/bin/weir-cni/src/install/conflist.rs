//! Edits network configurations as text. This module does no I/O.

use std::path::Path;

use serde_json::{Map, Value};

use super::NAME;
use crate::config::VERSIONS;

/// The kind of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A list of plugins.
    List,
    /// One plugin.
    Single,
}

impl Kind {
    pub(crate) fn from_path(path: &Path) -> Kind {
        if path.extension().is_some_and(|extension| extension == "conflist") {
            Kind::List
        } else {
            Kind::Single
        }
    }
}

/// Why the plugin cannot be added to a configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The configuration is invalid.
    Invalid(String),
    /// Its CNI version does not support chained plugins.
    Version(String),
}

/// The list with the plugin as its last entry; `None` if it already is.
pub(crate) fn with(text: &str, plugin: &Value) -> Result<Option<String>, Reason> {
    let mut list = list(text)?;
    check_version(&list)?;
    let plugins = plugins(&mut list)?;
    if plugins.last() == Some(plugin) && plugins.iter().filter(|one| is_ours(one)).count() == 1 {
        return Ok(None);
    }
    plugins.retain(|one| !is_ours(one));
    plugins.push(plugin.clone());
    Ok(Some(written(list)))
}

/// The list without the plugin; `None` if it does not contain it.
pub(crate) fn without(text: &str) -> Result<Option<String>, Reason> {
    let mut list = list(text)?;
    let plugins = plugins(&mut list)?;
    let before = plugins.len();
    plugins.retain(|one| !is_ours(one));
    match plugins.len() {
        0 => Err(invalid("it would have no plugins left")),
        now if now == before => Ok(None),
        _ => Ok(Some(written(list))),
    }
}

/// Whether a list contains the plugin.
pub(crate) fn has(text: &str) -> bool {
    list(text).ok().and_then(|mut list| Some(plugins(&mut list).ok()?.iter().any(is_ours)))
        == Some(true)
}

/// Converts a single plugin to a list, with another plugin after it.
pub(crate) fn converted(text: &str, plugin: Option<&Value>) -> Result<String, Reason> {
    let mut single = list(text)?;
    if !single.get("type").is_some_and(Value::is_string) {
        return Err(invalid("it has no type"));
    }
    if single["type"] == "loopback" {
        return Err(invalid("it configures only the loopback interface"));
    }
    let Some(name) = single.shift_remove("name").filter(Value::is_string) else {
        return Err(invalid("it has no name"));
    };
    check_version(&single)?;
    let mut list = Map::new();
    list.extend(
        single.shift_remove("cniVersion").map(|version| ("cniVersion".to_owned(), version)),
    );
    list.insert("name".into(), name);
    let plugins = std::iter::once(Value::Object(single)).chain(plugin.cloned());
    list.insert("plugins".into(), plugins.collect());
    Ok(written(list))
}

/// Whether two configurations are equal as JSON.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    list(one).ok().zip(list(other).ok()).is_some_and(|(one, other)| one == other)
}

fn list(text: &str) -> Result<Map<String, Value>, Reason> {
    match serde_json::from_str(text) {
        Ok(Value::Object(list)) => Ok(list),
        Ok(_) => Err(invalid("it is not an object")),
        Err(error) => Err(Reason::Invalid(format!("it is not JSON: {error}"))),
    }
}

fn plugins(list: &mut Map<String, Value>) -> Result<&mut Vec<Value>, Reason> {
    if !list.get("name").is_some_and(Value::is_string) {
        return Err(invalid("it has no name"));
    }
    match list.get_mut("plugins") {
        Some(Value::Array(plugins))
            if !plugins.is_empty() && plugins.iter().all(|one| one["type"].is_string()) =>
        {
            Ok(plugins)
        }
        _ => Err(invalid("it has no list of plugins, each with a type")),
    }
}

fn check_version(list: &Map<String, Value>) -> Result<(), Reason> {
    let version = list.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
    if VERSIONS.contains(&version) { Ok(()) } else { Err(Reason::Version(version.to_owned())) }
}

fn is_ours(plugin: &Value) -> bool {
    plugin["type"] == NAME
}

fn written(list: Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(list))
}

fn invalid(why: &str) -> Reason {
    Reason::Invalid(why.to_owned())
}
