//! Lists of plugins, as text. Nothing here touches a file.

use std::path::Path;

use serde_json::{Map, Value};

use super::NAME;
use crate::config::VERSIONS;

/// What a file of configuration holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A list of plugins.
    List,
    /// One plugin.
    Single,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> Kind {
        match path.extension().is_some_and(|extension| extension == "conflist") {
            true => Kind::List,
            false => Kind::Single,
        }
    }
}

/// Why a configuration cannot have the plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is none.
    Senseless(String),
    /// Its version has no chained plugins.
    Version(String),
}

/// A list with the plugin as its last, exactly as given; `None` if it is.
pub(crate) fn with(text: &str, plugin: &Value) -> Result<Option<String>, Reason> {
    let mut list = list(text)?;
    versioned(&list)?;
    let plugins = plugins(&mut list)?;
    if plugins.last() == Some(plugin) && plugins.iter().filter(|one| is_ours(one)).count() == 1 {
        return Ok(None);
    }
    plugins.retain(|one| !is_ours(one));
    plugins.push(plugin.clone());
    Ok(Some(written(list)))
}

/// A list without the plugin; `None` if it does not have it.
pub(crate) fn without(text: &str) -> Result<Option<String>, Reason> {
    let mut list = list(text)?;
    let plugins = plugins(&mut list)?;
    let before = plugins.len();
    plugins.retain(|one| !is_ours(one));
    match plugins.len() {
        0 => Err(senseless("it would have no plugin left")),
        now if now == before => Ok(None),
        _ => Ok(Some(written(list))),
    }
}

/// Whether a list has the plugin.
pub(crate) fn has(text: &str) -> bool {
    list(text).ok().and_then(|mut list| Some(plugins(&mut list).ok()?.iter().any(is_ours)))
        == Some(true)
}

/// One plugin as a list, and another one after it.
pub(crate) fn converted(text: &str, plugin: Option<&Value>) -> Result<String, Reason> {
    let mut single = list(text)?;
    if !single.get("type").is_some_and(Value::is_string) {
        return Err(senseless("it has no type"));
    }
    if single["type"] == "loopback" {
        return Err(senseless("it is about the loopback alone"));
    }
    let Some(name) = single.shift_remove("name").filter(Value::is_string) else {
        return Err(senseless("it has no name"));
    };
    versioned(&single)?;
    let mut list = Map::new();
    list.extend(
        single.shift_remove("cniVersion").map(|version| ("cniVersion".to_owned(), version)),
    );
    list.insert("name".into(), name);
    let plugins = std::iter::once(Value::Object(single)).chain(plugin.cloned());
    list.insert("plugins".into(), plugins.collect());
    Ok(written(list))
}

/// Whether two texts say the same.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    list(one).ok().zip(list(other).ok()).is_some_and(|(one, other)| one == other)
}

fn list(text: &str) -> Result<Map<String, Value>, Reason> {
    match serde_json::from_str(text) {
        Ok(Value::Object(list)) => Ok(list),
        Ok(_) => Err(senseless("it is not an object")),
        Err(error) => Err(Reason::Senseless(format!("it is not JSON: {error}"))),
    }
}

fn plugins(list: &mut Map<String, Value>) -> Result<&mut Vec<Value>, Reason> {
    if !list.get("name").is_some_and(Value::is_string) {
        return Err(senseless("it has no name"));
    }
    match list.get_mut("plugins") {
        Some(Value::Array(plugins))
            if !plugins.is_empty() && plugins.iter().all(|one| one["type"].is_string()) =>
        {
            Ok(plugins)
        }
        _ => Err(senseless("it has no list of plugins, each with a type")),
    }
}

fn versioned(list: &Map<String, Value>) -> Result<(), Reason> {
    let version = list.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
    match VERSIONS.contains(&version) {
        true => Ok(()),
        false => Err(Reason::Version(version.to_owned())),
    }
}

fn is_ours(plugin: &Value) -> bool {
    plugin["type"] == NAME
}

fn written(list: Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(list))
}

fn senseless(why: &str) -> Reason {
    Reason::Senseless(why.to_owned())
}
