use serde_json::Value;
use weir_controllers::Object;

/// An object as text, with what its follower needs to know. All of a kind are there as a whole before they are taken in, and as text they need a
/// tenth of the room.
pub(crate) fn pressed(object: Object) -> Object {
    let text = serde_json::to_string(&object).unwrap_or_default();
    let mut pressed =
        Object { types: None, metadata: Default::default(), data: Value::String(text) };
    pressed.metadata.name = object.metadata.name;
    pressed.metadata.resource_version = object.metadata.resource_version;
    pressed
}

/// The object that was pressed, as the API has it.
pub(crate) fn unpressed(object: &Object) -> Value {
    serde_json::from_str(object.data.as_str().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_pressed_is_one_text_that_says_the_same() {
        let value = json!({
            "apiVersion": "aci.hpp/v1",
            "kind": "HostprotRemoteIpContainer",
            "metadata": {"name": "shop", "namespace": "aci", "resourceVersion": "7", "annotations": {"weir/seal": "x"}},
            "spec": {"name": "shop", "hostprotRemoteIp": [{"addr": "10.0.0.1", "hppEpLabel": [{"key": "ä", "value": "\"\\"}]}]},
        });
        let object = pressed(serde_json::from_value(value.clone()).unwrap());
        assert!(object.data.is_string() && object.metadata.annotations.is_none());
        assert_eq!(object.metadata.name.as_deref(), Some("shop"));
        assert_eq!(object.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(unpressed(&object), value);
    }
}
