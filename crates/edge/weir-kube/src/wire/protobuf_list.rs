//! Parses a list of protocol buffers while it arrives.

use super::{
    list_stream::ListHead,
    protobuf::{Fields, MAGIC, Malformed, number, text, varint},
};
use crate::WireObject;

/// Parses a list from bytes that arrive in any pieces.
pub(super) struct ProtobufList {
    /// The kind of the objects.
    kind: String,
    /// The bytes that are not parsed yet.
    pub(super) buffer: Vec<u8>,
    state: ParserState,
    pub(super) head: Option<ListHead>,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Magic,
    /// Fields of the envelope, before or after the list.
    Envelope {
        has_list: bool,
    },
    /// Fields of the list, of which this many bytes are left.
    List {
        left: usize,
    },
}

impl ProtobufList {
    pub(super) fn new(kind: &str) -> Self {
        ProtobufList {
            kind: kind.into(),
            buffer: Vec::new(),
            state: ParserState::Magic,
            head: None,
        }
    }

    /// Parses the objects that arrived completely, at most `max` of them.
    pub(super) fn objects<R: WireObject>(&mut self, max: usize) -> Result<Vec<R>, String> {
        let (mut objects, mut at) = (Vec::new(), 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        while objects.len() < max {
            match self.step(&buffer[at..], &mut objects)? {
                Some(length) => at += length,
                None => break,
            }
        }
        buffer.drain(..at);
        self.buffer = buffer;
        Ok(objects)
    }

    /// Parses one field. Returns its length; `None` if it has not arrived completely.
    fn step<R: WireObject>(
        &mut self,
        bytes: &[u8],
        objects: &mut Vec<R>,
    ) -> Result<Option<usize>, String> {
        match self.state {
            ParserState::Magic => {
                let Some(magic) = bytes.first_chunk() else { return Ok(None) };
                if magic != MAGIC {
                    return Err("the response is not an object of Kubernetes".into());
                }
                self.state = ParserState::Envelope { has_list: false };
                Ok(Some(magic.len()))
            }
            ParserState::Envelope { has_list } => {
                let Some(head) = FieldHead::parse(bytes)? else { return Ok(None) };
                if head.number == 2 && !has_list {
                    self.state = ParserState::List { left: head.content_length };
                    return Ok(Some(head.length));
                }
                let Some(content) = head.content(bytes) else { return Ok(None) };
                match head.number {
                    1 => self.check_types(content).map_err(|error| error.to_string())??,
                    2 => return Err("the response has two lists".into()),
                    _ => (),
                }
                Ok(Some(head.length + head.content_length))
            }
            ParserState::List { left: 0 } => {
                self.state = ParserState::Envelope { has_list: true };
                Ok(Some(0))
            }
            ParserState::List { left } => {
                let Some(head) = FieldHead::parse(bytes)? else { return Ok(None) };
                let length = head.length.checked_add(head.content_length);
                let Some(rest) = length.and_then(|length| left.checked_sub(length)) else {
                    return Err("an object is longer than its list".into());
                };
                let Some(content) = head.content(bytes) else { return Ok(None) };
                match head.number {
                    1 if self.head.is_some() => {
                        return Err("the list has two versions".into());
                    }
                    1 => self.read_metadata(content).map_err(|error| error.to_string())??,
                    2 if self.head.is_none() => {
                        return Err("the list has no resourceVersion".into());
                    }
                    2 => objects.push(R::from_protobuf(&self.kind, content)?),
                    _ => (),
                }
                self.state = ParserState::List { left: rest };
                Ok(Some(left - rest))
            }
        }
    }

    /// Checks that nothing is missing at the end of the response.
    pub(super) fn finish(&self) -> Result<(), String> {
        let is_complete = self.state == ParserState::Envelope { has_list: true }
            && self.buffer.is_empty()
            && self.head.is_some();
        if is_complete { Ok(()) } else { Err("the list ends before its last object".into()) }
    }

    fn check_types(&self, types: &[u8]) -> Result<Result<(), String>, Malformed> {
        let mut kind = "";
        Fields(types).each(|field, value| {
            if field == 2 {
                kind = text(value)?;
            }
            Ok(())
        })?;
        Ok(if kind.strip_suffix("List") == Some(&self.kind) {
            Ok(())
        } else {
            Err(format!("expected a {}List, found {kind:?}", self.kind))
        })
    }

    fn read_metadata(&mut self, metadata: &[u8]) -> Result<Result<(), String>, Malformed> {
        let (mut version, mut next, mut remaining) = ("", "", 0);
        Fields(metadata).each(|field, value| {
            match field {
                2 => version = text(value)?,
                3 => next = text(value)?,
                4 => remaining = number(value)?,
                _ => (),
            }
            Ok(())
        })?;
        if version.is_empty() {
            return Ok(Err("the list has no resourceVersion".into()));
        }
        if next.is_empty() && remaining > 0 {
            return Ok(Err("the list ends before its last object".into()));
        }
        let next = (!next.is_empty()).then(|| next.to_owned());
        let remaining = u64::try_from(remaining).unwrap_or_default();
        self.head = Some(ListHead { resource_version: version.into(), next, remaining });
        Ok(Ok(()))
    }
}

/// The beginning of a field with bytes.
struct FieldHead {
    number: u64,
    /// The length of the head.
    length: usize,
    content_length: usize,
}

impl FieldHead {
    /// The head at the beginning of these bytes; `None` if it has not arrived completely.
    fn parse(bytes: &[u8]) -> Result<Option<FieldHead>, String> {
        let malformed = |error: Malformed| error.to_string();
        let Some((tag, rest)) = varint(bytes).map_err(malformed)? else { return Ok(None) };
        if tag & 7 != 2 {
            return Err(Malformed.to_string());
        }
        let Some((length, rest)) = varint(rest).map_err(malformed)? else { return Ok(None) };
        let content_length = usize::try_from(length).map_err(|_| Malformed.to_string())?;
        Ok(Some(FieldHead { number: tag >> 3, length: bytes.len() - rest.len(), content_length }))
    }

    /// The content of the field; `None` if it has not arrived completely.
    fn content<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.length..self.length.checked_add(self.content_length)?)
    }
}

#[cfg(test)]
mod tests {
    use weir_api::Tree;

    use super::*;
    use crate::wire::{protobuf::tests::bytes, reduced::tests::pod};

    /// A list as an API server encodes it.
    fn list(kind: &str, version: &str, pods: &[Vec<u8>]) -> Vec<u8> {
        let metadata = [bytes(1, b""), bytes(2, version.as_bytes()), bytes(3, b"")].concat();
        let items: Vec<u8> = pods.iter().flat_map(|pod| bytes(2, pod)).collect();
        let types = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
        let content = [bytes(1, &metadata), items].concat();
        [MAGIC.to_vec(), bytes(1, &types), bytes(2, &content), bytes(3, b""), bytes(4, b"")]
            .concat()
    }

    /// The names of the pods, if these pieces are a complete list.
    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, String> {
        let mut parser = ProtobufList::new("Pod");
        let mut names = Vec::new();
        for piece in pieces {
            parser.buffer.extend_from_slice(piece);
            loop {
                let objects: Vec<Tree> = parser.objects(1)?;
                let [object] = &objects[..] else { break };
                names.push(object.revision().id.to_string());
            }
        }
        parser.finish()?;
        Ok(names)
    }

    #[test]
    fn a_list_can_arrive_in_any_pieces() {
        let list = list("PodList", "9", &[pod("a", "7"), pod("b", "8")]);
        let expected = Ok(vec!["shop/a".to_owned(), "shop/b".to_owned()]);
        for size in [1, 2, 3, 7, 64, list.len()] {
            assert_eq!(parse(list.chunks(size)), expected, "{size}");
        }
        for end in 0..list.len() - 4 {
            assert!(parse([&list[..end]]).is_err(), "{end}");
        }
    }

    #[test]
    fn other_responses_are_rejected() {
        let metadata = bytes(1, &bytes(2, b"9"));
        let types = [bytes(1, b"v1"), bytes(2, b"PodList")].concat();
        let content = [metadata.clone(), bytes(2, &pod("a", "7")), metadata].concat();
        let twice = [MAGIC.to_vec(), bytes(1, &types), bytes(2, &content)].concat();
        for (response, why) in [
            (b"{\"kind\": \"PodList\"}".to_vec(), "not an object of Kubernetes"),
            (list("NodeList", "9", &[]), "expected a PodList"),
            (list("PodList", "", &[pod("a", "7")]), "no resourceVersion"),
            (list("PodList", "", &[]), "no resourceVersion"),
            (list("PodList", "9", &[vec![0x0b]]), "invalid protocol buffer"),
            (twice, "two versions"),
        ] {
            let error = parse([&response[..]]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(parse([&list("PodList", "9", &[])[..]]), Ok(Vec::new()));
    }
}
