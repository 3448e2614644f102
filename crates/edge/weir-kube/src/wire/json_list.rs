//! Parses a list of JSON while it arrives.

use kube::core::TypeMeta;

use super::{
    check_kind,
    list::{ListPage, Unread},
    list_stream::ListHead,
    request::MAX_OBJECT_BYTES,
    without_managed_fields,
};
use crate::WireObject;

/// A list that arrives.
///
/// The objects are parsed one by one. The rest of the document, with `null` instead of each object,
/// is parsed as a list of its own, so that a document with any defect is rejected.
#[derive(Debug, Default)]
pub(super) struct JsonList {
    /// The bytes that are not parsed yet.
    pub(super) buffer: Vec<u8>,
    /// The bytes of an object, at the front of the buffer, that were looked at.
    scanned: usize,
    skeleton: Vec<u8>,
    /// The depth of lists and maps.
    depth: usize,
    string: StringState,
    /// Where the last text begins in the skeleton.
    text_start: usize,
    place: Place,
    objects: usize,
    pub(super) head: Option<ListHead>,
}

/// Whether the next byte is in a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// Where the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Document,
    /// After the key `items`.
    BeforeItems,
    /// In the list of objects.
    Items,
    /// In an object.
    Object,
}

/// The depths of the list of objects, and of the fields of an object.
const ITEMS_DEPTH: usize = 2;

impl JsonList {
    /// Parses the objects that arrived completely, at most `max` of them.
    pub(super) fn objects<R: WireObject>(
        &mut self,
        types: &TypeMeta,
        max: usize,
    ) -> Result<Vec<R>, String> {
        let (mut objects, mut start, mut at) = (Vec::new(), 0, self.scanned);
        let buffer = std::mem::take(&mut self.buffer);
        while objects.len() < max
            && let Some(byte) = buffer.get(at)
        {
            if self.place == Place::Items && *byte == b'{' {
                (self.place, start) = (Place::Object, at);
            }
            let in_object = self.place == Place::Object;
            self.step(*byte, types)?;
            at += 1;
            if !in_object {
                start = at;
            } else if self.place == Place::Items {
                objects.push(parse(&buffer[start..at], types)?);
                self.objects += 1;
                self.skeleton.extend_from_slice(b"null");
                start = at;
            }
        }
        if self.skeleton.len() > MAX_OBJECT_BYTES {
            return Err("the list is too large without its objects".into());
        }
        self.scanned = at - start;
        self.buffer = buffer;
        self.buffer.drain(..start);
        Ok(objects)
    }

    /// Follows the structure by one byte.
    fn step(&mut self, byte: u8, types: &TypeMeta) -> Result<(), String> {
        let in_object = self.place == Place::Object;
        if !in_object {
            self.skeleton.push(byte);
        }
        match (self.string, byte) {
            (StringState::Escaped, _) => self.string = StringState::Inside,
            (StringState::Inside, b'\\') => self.string = StringState::Escaped,
            (StringState::Inside, b'"') => {
                self.string = StringState::Outside;
                let text = self.skeleton.get(self.text_start..);
                if !in_object && self.depth == 1 && text == Some(b"\"items\"") {
                    self.place = Place::BeforeItems;
                }
            }
            (StringState::Inside, _) => (),
            (StringState::Outside, _) => self.step_outside(byte, types)?,
        }
        Ok(())
    }

    fn step_outside(&mut self, byte: u8, types: &TypeMeta) -> Result<(), String> {
        match (byte, self.place) {
            (b'[', Place::BeforeItems) => {
                self.place = Place::Items;
                self.depth += 1;
                // Not known yet if the metadata comes later.
                self.head = self.parse_skeleton(b"]}", types).ok();
            }
            (b']', Place::Items) => {
                self.place = Place::Document;
                self.depth -= 1;
            }
            (b'"', Place::Document | Place::BeforeItems | Place::Object) => {
                self.string = StringState::Inside;
                self.text_start = self.skeleton.len().saturating_sub(1);
            }
            (b'{' | b'[', Place::Document | Place::BeforeItems | Place::Object) => self.depth += 1,
            (b'}' | b']', Place::Document | Place::BeforeItems | Place::Object) => {
                self.depth = self.depth.checked_sub(1).ok_or("the list is not JSON")?;
                if self.place == Place::Object && self.depth == ITEMS_DEPTH {
                    self.place = Place::Items;
                }
            }
            (b',' | b' ' | b'\n' | b'\r' | b'\t', Place::Items) => (),
            (_, Place::Items) => return Err("an item of the list is not an object".into()),
            _ => (),
        }
        // The key `items` without a list behind it.
        if self.place == Place::BeforeItems && !matches!(byte, b':' | b' ' | b'\n' | b'\r' | b'\t')
        {
            self.place = Place::Document;
        }
        Ok(())
    }

    /// Checks that the document is complete.
    pub(super) fn finish(&mut self, types: &TypeMeta) -> Result<(), String> {
        let head = self.parse_skeleton(b"", types)?;
        if self.head.as_ref().is_some_and(|known| *known != head) {
            return Err("the list has two versions".into());
        }
        self.head = Some(head);
        Ok(())
    }

    fn parse_skeleton(&self, end: &[u8], types: &TypeMeta) -> Result<ListHead, String> {
        let text = [&self.skeleton, end].concat();
        let page = ListPage::from_json(&text, types, |_: Unread| ())?;
        // Two lists of objects, or a list under an escaped key.
        if page.items.len() != self.objects {
            return Err("the list has objects outside of its items".into());
        }
        let ListPage { resource_version, next, remaining, .. } = page;
        Ok(ListHead { resource_version, next, remaining })
    }
}

fn parse<R: WireObject>(bytes: &[u8], types: &TypeMeta) -> Result<R, String> {
    let mut object: R = serde_json::from_slice(bytes).or_else(|error: serde_json::Error| {
        let tree = serde_json::from_slice(bytes).ok();
        tree.and_then(|tree| without_managed_fields(&tree)).ok_or_else(|| error.to_string())
    })?;
    check_kind(&object, types)?;
    object.complete(types);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use weir_api::Tree;

    use super::*;
    use crate::{KubeObject, kind};

    /// The version, and the names of the pods, if these pieces are a complete list.
    fn parse<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(String, Vec<String>), String> {
        let (mut list, types) = (JsonList::default(), kind::PODS.type_meta("v1"));
        let mut names = Vec::new();
        for piece in pieces {
            list.buffer.extend_from_slice(piece);
            loop {
                let objects: Vec<Tree> = list.objects(&types, 1)?;
                let [object] = &objects[..] else { break };
                assert_eq!(object.kind(), Some("Pod"));
                names.push(object.revision().id.to_string());
            }
        }
        list.finish(&types)?;
        Ok((list.head.unwrap().resource_version, names))
    }

    const ITEMS: &str = r#"[{"metadata": {"name": "a"}, "x": ["]}\"", "items"]},
        {"metadata": {"name": "b\\"}}]"#;

    #[test]
    fn a_list_can_arrive_in_any_pieces_and_in_any_order() {
        for text in [
            format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":{ITEMS}}}"#),
            // As lists of custom resources.
            format!(
                r#"{{"items" : {ITEMS},"kind":"PodList","metadata":{{"resourceVersion":"9"}}}}"#
            ),
        ] {
            for size in [1, 2, 3, 7, 64, text.len()] {
                let (version, names) = parse(text.as_bytes().chunks(size)).unwrap();
                assert_eq!((&*version, names.len()), ("9", 2), "{size}");
                assert_eq!(names[1], "b\\");
            }
            for end in 0..text.len() {
                assert!(parse([&text.as_bytes()[..end]]).is_err(), "{end}");
            }
        }
    }

    #[test]
    fn managed_fields_of_one_object_do_not_make_the_list_unreadable() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        let fields = format!(r#"[{{"time":"9999-12-31T23:59:59Z","fieldsV1":{deep}}}]"#);
        let object = format!(r#"{{"metadata":{{"name":"b","managedFields":{fields}}}}}"#);
        let text = format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{object}]}}"#
        );
        assert_eq!(parse([text.as_bytes()]).unwrap().1, ["b"]);
        let (mut list, types) = (JsonList::default(), kind::PODS.type_meta("v1"));
        list.buffer.extend_from_slice(text.as_bytes());
        assert_eq!(list.objects::<KubeObject>(&types, 1).unwrap().len(), 1);
    }

    #[test]
    fn other_responses_are_rejected() {
        let start = r#"{"kind":"PodList","metadata":{"resourceVersion":"9"}"#;
        let pod = r#"{"metadata":{"name":"a"}}"#;
        for (text, why) in [
            ("<html></html>".into(), "expected value"),
            ("}".into(), "not JSON"),
            (format!(r#"{start},"items":[{pod}{pod}]}}"#), "expected"),
            (format!(r#"{start},"items":[null]}}"#), "not an object"),
            (format!(r#"{start},"items":{{}}}}"#), "invalid type"),
            (format!("{start}}}"), "no items"),
            (format!(r#"{start},"items":[{{"kind":"Node"}}]}}"#), "expected a Pod"),
            (format!(r#"{start},"items":[{pod}],"items":[]}}"#), "outside of its items"),
            (format!(r#"{start},"\u0069tems":[{pod}]}}"#), "outside of its items"),
            (
                format!(r#"{start},"items":[],"metadata":{{"resourceVersion":"8"}}}}"#),
                "two versions",
            ),
            (format!(r#"{start},"items":[{pod}]}} {{}}"#), "trailing"),
        ] {
            let error = parse([text.as_bytes()]).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(parse([format!(r#"{start},"items":null}}"#).as_bytes()]).unwrap().1, [""; 0]);
    }
}
