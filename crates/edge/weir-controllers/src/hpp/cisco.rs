//! The settings of Cisco's own controller and host agents, which can conflict with this controller.

use kube::api::ListParams;
use serde_json::Value;
use weir_kube::{ApiClient, ApiError, ObjectEvent, Resource, WatchSpec};

/// The namespace of aci-containers, in which it keeps its host protection objects.
pub(super) const NAMESPACE: &str = "aci-containers-system";
/// The ConfigMap with the settings of its parts.
const NAME: &str = "aci-containers-config";
/// The switch with which they write host protection objects and files themselves.
const SWITCH: &str = "enable-hpp-direct";

const CONFIG_MAPS: Resource =
    Resource { group: "", versions: &["v1"], kind: "ConfigMap", plural: "configmaps" };

/// The ConfigMap of aci-containers.
pub(super) fn watch() -> WatchSpec {
    WatchSpec {
        namespace: NAMESPACE.into(),
        fields: format!("metadata.name={NAME}"),
        ..WatchSpec::all(CONFIG_MAPS)
    }
}

/// Why the settings conflict with this controller; `None` if they do not.
pub(super) fn read_conflict(config: Value) -> Option<String> {
    let is_on = |part: &str| {
        let text = config["data"][part].as_str().unwrap_or_default();
        let settings: Value = serde_json::from_str(text).unwrap_or_default();
        settings[SWITCH] == true
    };
    let parts: Vec<&str> =
        ["controller-config", "host-agent-config"].into_iter().filter(|part| is_on(part)).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "`{SWITCH}` is true in {} of the ConfigMap {NAMESPACE}/{NAME}: aci-containers would \
             write the same objects and files; set it to false and restart aci-containers",
            parts.join(" and ")
        )
    })
}

/// Why the settings conflict with this controller, from one request.
pub(super) async fn fetch_conflict(client: &ApiClient) -> Result<Option<String>, ApiError> {
    let name = CONFIG_MAPS.name();
    let params = ListParams::default().fields(&watch().fields);
    let list = client.request("list", &name, async |client| {
        CONFIG_MAPS.api(client, "v1", NAMESPACE).list(&params).await
    });
    let found = list.await?.items.into_iter();
    let mut found = found.filter_map(|config| serde_json::to_value(config).ok());
    Ok(found.find_map(read_conflict))
}

/// What is known about the settings of aci-containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum CiscoSettings {
    /// They have not been read yet.
    #[default]
    Unknown,
    /// They do not conflict, or are not there, or cannot be read.
    Compatible,
    /// They conflict, and why.
    Conflicting(String),
}

impl CiscoSettings {
    pub(super) fn apply(&mut self, event: ObjectEvent<Option<String>>) {
        let conflict = match event {
            ObjectEvent::Put(item) => item.value,
            ObjectEvent::Listed { items, .. } => items.into_iter().find_map(|item| item.value),
            ObjectEvent::Removed(_) => None,
            ObjectEvent::Unavailable(_) if *self == CiscoSettings::Unknown => None,
            ObjectEvent::Available | ObjectEvent::Unavailable(_) => return,
        };
        *self = conflict.map_or(CiscoSettings::Compatible, CiscoSettings::Conflicting);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_switch_conflicts_wherever_it_is_set() {
        let config = |controller: &str, agent: &str| json!({"data": {"controller-config": controller, "host-agent-config": agent}});
        let on = r#"{"enable-hpp-direct": true}"#;
        let off = r#"{"enable-hpp-direct": false}"#;
        for fine in [config(off, "{}"), config("no JSON", ""), json!({}), Value::Null] {
            assert_eq!(read_conflict(fine), None);
        }
        let why = read_conflict(config(on, on)).unwrap();
        assert!(why.contains("in controller-config and host-agent-config of"), "{why}");
        let why = read_conflict(config(off, on)).unwrap();
        assert!(why.contains("in host-agent-config of"), "{why}");
    }
}
