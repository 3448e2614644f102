//! Pods, nodes and namespaces from protocol buffers, reduced to the fields that weir reads.
//!
//! The numbers of the fields are those of `generated.proto` in k8s.io/api/core/v1 and in
//! k8s.io/apimachinery/pkg/apis/meta/v1. Numbers are never used again for other fields.
//!
//! *Invariant*: a reduced object leads to the same objects of the model as its JSON form. A test
//! with a real API server compares both. A field that the lowering of these kinds begins to read
//! must be added here.

use k8s_openapi::jiff::Timestamp;
use weir_api::document::{MapEntry, Tree, TreeValue};

use super::protobuf::{Field, Fields, Malformed, message, number, user_text};

/// The kinds that have a reduced form.
pub(super) const KINDS: [&str; 3] = ["Namespace", "Node", "Pod"];

/// Reads an object of one of these kinds.
pub(super) fn object(kind: &str, bytes: &[u8]) -> Result<Tree, Malformed> {
    let mut object = MapBuilder::default();
    object.put("apiVersion", string("v1"));
    object.put("kind", string(kind));
    Fields(bytes).each(|field, value| {
        match (field, kind) {
            (1, _) => object.put("metadata", metadata(message(value)?)?),
            (2, "Pod") => object.put("spec", pod_spec(message(value)?)?),
            (3, "Pod") => object.put("status", pod_status(message(value)?)?),
            (3, "Node") => object.put("status", node_status(message(value)?)?),
            _ => (),
        }
        Ok(())
    })?;
    Ok(object.finish())
}

fn metadata(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut metadata = MapBuilder::default();
    let (mut labels, mut annotations) = (MapBuilder::default(), MapBuilder::default());
    let (mut owners, mut managed) = (Vec::new(), Vec::new());
    fields.each(|field, value| {
        match field {
            1 => metadata.text("name", value)?,
            2 => metadata.text("generateName", value)?,
            3 => metadata.text("namespace", value)?,
            5 => metadata.text("uid", value)?,
            6 => metadata.text("resourceVersion", value)?,
            8 => metadata.time("creationTimestamp", value)?,
            9 => metadata.time("deletionTimestamp", value)?,
            10 => metadata.number("deletionGracePeriodSeconds", value)?,
            11 => labels.entry(message(value)?)?,
            12 => annotations.entry(message(value)?)?,
            13 => owners.push(owner(message(value)?)?),
            17 => managed.push(manager(message(value)?)?),
            _ => (),
        }
        Ok(())
    })?;
    metadata.put_map("labels", labels);
    metadata.put_map("annotations", annotations);
    metadata.put_list("ownerReferences", owners);
    metadata.put_list("managedFields", managed);
    Ok(metadata.finish())
}

fn owner(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut owner = MapBuilder::default();
    fields.each(|field, value| match field {
        1 => owner.text("kind", value),
        3 => owner.text("name", value),
        4 => owner.text("uid", value),
        5 => owner.text("apiVersion", value),
        6 => owner.boolean("controller", value),
        _ => Ok(()),
    })?;
    Ok(owner.finish())
}

/// Only the time of the last write.
fn manager(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut manager = MapBuilder::default();
    fields.each(|field, value| match field {
        4 => manager.time("time", value),
        _ => Ok(()),
    })?;
    Ok(manager.finish())
}

fn pod_spec(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut spec = MapBuilder::default();
    let (mut containers, mut init_containers) = (Vec::new(), Vec::new());
    fields.each(|field, value| {
        match field {
            2 => containers.push(container(message(value)?)?),
            6 => spec.text("dnsPolicy", value)?,
            10 => spec.text("nodeName", value)?,
            11 => spec.boolean("hostNetwork", value)?,
            20 => init_containers.push(container(message(value)?)?),
            26 => spec.put("dnsConfig", dns_config(message(value)?)?),
            _ => (),
        }
        Ok(())
    })?;
    spec.put_list("containers", containers);
    spec.put_list("initContainers", init_containers);
    Ok(spec.finish())
}

fn container(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut container = MapBuilder::default();
    let mut ports = Vec::new();
    fields.each(|field, value| {
        match field {
            1 => container.text("name", value)?,
            6 => ports.push(port(message(value)?)?),
            24 => container.text("restartPolicy", value)?,
            _ => (),
        }
        Ok(())
    })?;
    container.put_list("ports", ports);
    Ok(container.finish())
}

fn port(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut port = MapBuilder::default();
    fields.each(|field, value| match field {
        1 => port.text("name", value),
        2 => port.number("hostPort", value),
        3 => port.number("containerPort", value),
        4 => port.text("protocol", value),
        _ => Ok(()),
    })?;
    Ok(port.finish())
}

fn dns_config(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut servers = Vec::new();
    fields.each(|field, value| {
        if field == 1 {
            servers.push(string(&user_text(value)?));
        }
        Ok(())
    })?;
    let mut config = MapBuilder::default();
    config.put_list("nameservers", servers);
    Ok(config.finish())
}

fn pod_status(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut status = MapBuilder::default();
    let mut addresses = Vec::new();
    fields.each(|field, value| {
        match field {
            1 => status.text("phase", value)?,
            6 => status.text("podIP", value)?,
            12 => {
                let mut address = MapBuilder::default();
                message(value)?.each(|field, value| match field {
                    1 => address.text("ip", value),
                    _ => Ok(()),
                })?;
                addresses.push(address.finish());
            }
            _ => (),
        }
        Ok(())
    })?;
    status.put_list("podIPs", addresses);
    Ok(status.finish())
}

fn node_status(fields: Fields<'_>) -> Result<Tree, Malformed> {
    let mut addresses = Vec::new();
    fields.each(|field, value| {
        if field == 5 {
            let mut address = MapBuilder::default();
            message(value)?.each(|field, value| match field {
                1 => address.text("type", value),
                2 => address.text("address", value),
                _ => Ok(()),
            })?;
            addresses.push(address.finish());
        }
        Ok(())
    })?;
    let mut status = MapBuilder::default();
    status.put_list("addresses", addresses);
    Ok(status.finish())
}

/// Collects the entries of a map. Like JSON, it leaves out empty texts, `false` and empty lists,
/// which protocol buffers contain.
#[derive(Default)]
struct MapBuilder(Vec<MapEntry>);

impl MapBuilder {
    fn put(&mut self, key: &str, value: Tree) {
        self.0.push(MapEntry { key: key.into(), written: None, line: 1, value });
    }

    fn text(&mut self, key: &str, value: Field<'_>) -> Result<(), Malformed> {
        let value = user_text(value)?;
        if !value.is_empty() {
            self.put(key, string(&value));
        }
        Ok(())
    }

    fn number(&mut self, key: &str, value: Field<'_>) -> Result<(), Malformed> {
        let value = number(value)?;
        self.put(key, tree(TreeValue::Int(value, value.to_string().into())));
        Ok(())
    }

    fn boolean(&mut self, key: &str, value: Field<'_>) -> Result<(), Malformed> {
        if number(value)? != 0 {
            self.put(key, tree(TreeValue::Bool(true, "true".into())));
        }
        Ok(())
    }

    /// A time in seconds. The API server has no fractions of them in these fields. Users can write the
    /// times of managed fields: one that has no text form stays a number.
    fn time(&mut self, key: &str, value: Field<'_>) -> Result<(), Malformed> {
        let mut seconds = None;
        message(value)?.each(|field, value| {
            if field == 1 {
                seconds = Some(number(value)?);
            }
            Ok(())
        })?;
        // An empty message is the zero time, which JSON leaves out.
        if let Some(seconds) = seconds {
            let time = Timestamp::from_second(seconds).map(|time| time.to_string());
            self.put(key, string(&time.unwrap_or_else(|_| seconds.to_string())));
        }
        Ok(())
    }

    /// An entry of a map of texts.
    fn entry(&mut self, fields: Fields<'_>) -> Result<(), Malformed> {
        let (mut key, mut value) = Default::default();
        fields.each(|field, content| {
            match field {
                1 => key = user_text(content)?,
                2 => value = user_text(content)?,
                _ => (),
            }
            Ok(())
        })?;
        self.put(&key, string(&value));
        Ok(())
    }

    fn put_map(&mut self, key: &str, map: MapBuilder) {
        if !map.0.is_empty() {
            self.put(key, map.finish());
        }
    }

    fn put_list(&mut self, key: &str, list: Vec<Tree>) {
        if !list.is_empty() {
            self.put(key, tree(TreeValue::Seq(list)));
        }
    }

    fn finish(self) -> Tree {
        tree(TreeValue::Map(self.0))
    }
}

fn tree(value: TreeValue) -> Tree {
    Tree { line: 1, value }
}

fn string(text: &str) -> Tree {
    tree(TreeValue::Str(text.into()))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::{protobuf::tests::bytes, written};

    /// A pod as an API server encodes it, with empty and unknown fields.
    pub(in crate::wire) fn pod(name: &str, version: &str) -> Vec<u8> {
        let label = [bytes(1, b"app"), bytes(2, b"web")].concat();
        let metadata = [
            bytes(1, name.as_bytes()),
            bytes(2, b""),
            bytes(3, b"shop"),
            bytes(6, version.as_bytes()),
            // 2020-01-01T00:00:05Z
            bytes(8, &[0x08, 0x85, 0xc2, 0xaf, 0xf0, 0x05]),
            bytes(11, &label),
        ]
        .concat();
        let port = [bytes(1, b"http"), vec![0x10, 0, 0x18, 0x90, 0x3f], bytes(4, b"TCP")].concat();
        let container = [bytes(1, b"web"), bytes(2, b"image"), bytes(6, &port)].concat();
        let spec = [bytes(2, &container), bytes(10, b"n1"), vec![0x58, 0]].concat();
        let status =
            [bytes(1, b"Running"), bytes(6, b"10.0.0.1"), bytes(12, &bytes(1, b"10.0.0.1"))];
        [bytes(1, &metadata), bytes(2, &spec), bytes(3, &status.concat())].concat()
    }

    #[test]
    fn a_reduced_pod_has_the_fields_that_json_has() {
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "shop", "resourceVersion": "7",
                "creationTimestamp": "2020-01-01T00:00:05Z", "labels": {"app": "web"},
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "web", "ports": [
                    {"name": "http", "hostPort": 0, "containerPort": 8080, "protocol": "TCP"},
                ]}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        assert_eq!(object("Pod", &pod("a", "7")), Ok(Tree::from(&expected)));
    }

    #[test]
    fn a_time_of_any_year_leaves_the_object_readable() {
        for seconds in [253_402_300_799_i64, i64::MAX, i64::MIN] {
            let mut time = vec![0x08];
            let mut rest = seconds.cast_unsigned();
            while rest >= 0x80 {
                time.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            time.push(rest as u8);
            let manager = [vec![0x8a, 0x01, time.len() as u8 + 2], bytes(4, &time)].concat();
            let metadata = [bytes(1, b"a"), bytes(9, &time), manager].concat();
            let pod = object("Pod", &bytes(1, &metadata)).unwrap();
            let time = json!(seconds.to_string());
            let expected = json!({
                "name": "a", "deletionTimestamp": time, "managedFields": [{"time": time}],
            });
            assert_eq!(pod.get("metadata"), Some(&Tree::from(&expected)));
            assert_eq!(written(&pod), None);
        }
    }

    #[test]
    fn text_that_is_not_utf_8_is_replaced() {
        let annotation = [bytes(1, b"note"), bytes(2, b"a\xff")].concat();
        let owner = [bytes(1, b"Job"), bytes(3, b"\xfe")].concat();
        let metadata = [bytes(1, b"a"), bytes(12, &annotation), bytes(13, &owner)].concat();
        let pod = object("Pod", &bytes(1, &metadata)).unwrap();
        let metadata = pod.get("metadata").unwrap();
        let note = metadata.get("annotations").and_then(|all| all.get("note")?.text());
        assert_eq!(note, Some("a\u{fffd}"));
        let expected = json!([{"kind": "Job", "name": "\u{fffd}"}]);
        assert_eq!(metadata.get("ownerReferences"), Some(&Tree::from(&expected)));
    }

    #[test]
    fn a_truncated_pod_is_rejected_or_lacks_whole_fields() {
        let pod = pod("a", "7");
        for end in 0..pod.len() {
            if let Ok(tree) = object("Pod", &pod[..end]) {
                assert!(tree.get("status").is_none(), "{end}");
            }
        }
    }
}
