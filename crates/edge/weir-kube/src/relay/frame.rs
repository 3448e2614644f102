//! Frames: what a relay sends to an agent.
//!
//! ```text
//!  stream  Begin put … put Commit   put remove … Commit   Commit   …
//!          └ all objects ───────┘   └ one change ─────┘   └ heartbeat
//!  frame   length (varint), kind of frame and of object (1 byte), body
//! ```
//!
//! A packed frame stands for the frames in it.
//!
//! Pods, namespaces and nodes are protocol buffers with the field numbers of Kubernetes, and policies
//! are JSON, so an agent reads them with the code that reads responses of the API server.

use weir_model::{Key, Name, Object, Pod, Protocol};

use super::{SyncPoint, pack::unpack};
use crate::{kind::ModelKind, wire::varint};

/// The kinds that a relay serves. A frame names a kind by its position, which must not change.
pub(crate) const KINDS: [ModelKind; 7] = [
    ModelKind::Namespace,
    ModelKind::Node,
    ModelKind::NetworkPolicy,
    ModelKind::AdminNetworkPolicy,
    ModelKind::BaselineAdminNetworkPolicy,
    ModelKind::ClusterNetworkPolicy,
    ModelKind::Pod,
];

/// The largest frame.
const MAX_FRAME_BYTES: usize = 64 << 20;

const BEGIN: u8 = 0;
const PUT: u8 = 1;
const REMOVE: u8 = 2;
const COMMIT: u8 = 3;
const PACKED: u8 = 4;
const SEEN: u8 = 5;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// All objects follow, up to the next commit. They are not older than this.
    Begin(SyncPoint),
    /// An object, as the API server encodes it.
    Put(ModelKind, Vec<u8>),
    /// The namespace and the name of an object that is gone.
    Remove(ModelKind, Name, Name),
    /// The objects of the transaction are those of these versions, of which others can be missing.
    Seen(SyncPoint),
    /// The frames since the last commit belong together.
    Commit(SyncPoint),
}

/// The bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid frame")]
pub(crate) struct InvalidFrame;

/// Encodes the first frame of a stream.
pub fn begin_frame(point: &SyncPoint) -> Vec<u8> {
    frame(BEGIN, 0, &point.encode())
}

/// Encodes the end of a transaction.
pub fn commit_frame(point: &SyncPoint) -> Vec<u8> {
    frame(COMMIT, 0, &point.encode())
}

/// Encodes compressed frames.
pub(super) fn packed_frame(packed: &[u8]) -> Vec<u8> {
    frame(PACKED, 0, packed)
}

/// Encodes the versions of the objects in a transaction, if they are ahead of what it reaches: a list
/// is under way.
pub fn seen_frame(point: &SyncPoint) -> Vec<u8> {
    frame(SEEN, 0, &point.encode())
}

/// Encodes an object; `None` if a relay does not serve the kind. A policy needs its JSON. Only the
/// node of a pod needs its uid.
pub fn put_frame(object: &Object, json: &[u8], with_uid: bool) -> Option<Vec<u8>> {
    let position = position(&object.key())?;
    Some(match object {
        Object::Namespace(namespace) => {
            let labels = namespace.labels.iter().map(|(key, value)| (&**key, &**value));
            let metadata = Message::default().text(1, &namespace.name).labels(labels);
            frame(PUT, position, &Message::default().message(1, &metadata).0)
        }
        Object::Node(node) => {
            let labels = node.labels.iter().map(|(key, value)| (&**key, &**value));
            let metadata = Message::default().text(1, &node.name).labels(labels);
            let mut status = Message::default();
            for address in &node.addresses {
                let entry = Message::default().text(1, "InternalIP");
                status = status.message(5, &entry.text(2, &address.to_string()));
            }
            frame(PUT, position, &Message::default().message(1, &metadata).message(3, &status).0)
        }
        Object::Pod(pod) => frame(PUT, position, &pod_message(pod, with_uid).0),
        _ => frame(PUT, position, json),
    })
}

/// Encodes the removal of an object; `None` if a relay does not serve the kind.
pub fn remove_frame(key: &Key) -> Option<Vec<u8>> {
    let (namespace, name): (&str, &str) = match key {
        Key::Namespace(name) | Key::Node(name) => ("", name),
        Key::Pod(id) => (&id.namespace, &id.name),
        Key::Policy(id) => (&id.namespace, &id.name),
        Key::Service(_) | Key::EndpointSlice(_) | Key::Domain(_) => return None,
    };
    Some(frame(REMOVE, position(key)?, format!("{namespace}/{name}").as_bytes()))
}

fn position(key: &Key) -> Option<u8> {
    let is_kind = |kind: &ModelKind| match key {
        Key::Namespace(_) => *kind == ModelKind::Namespace,
        Key::Node(_) => *kind == ModelKind::Node,
        Key::Pod(_) => *kind == ModelKind::Pod,
        Key::Policy(id) => kind.policy_kind() == Some(id.kind),
        Key::Service(_) | Key::EndpointSlice(_) | Key::Domain(_) => false,
    };
    u8::try_from(KINDS.iter().position(is_kind)?).ok()
}

fn frame(operation: u8, position: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 6);
    push_varint(&mut bytes, body.len() as u64 + 1);
    bytes.push(operation << 4 | position);
    bytes.extend_from_slice(body);
    bytes
}

pub(super) fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn pod_message(pod: &Pod, with_uid: bool) -> Message {
    let mut metadata = Message::default().text(1, &pod.id.name).text(3, &pod.id.namespace);
    if let Some(uid) = pod.uid.as_ref().filter(|_| with_uid) {
        metadata = metadata.text(5, uid);
    }
    if pod.claim == weir_model::Claim::Terminating {
        // Any time means that the pod is being deleted.
        metadata = metadata.message(9, &Message::default().number(1, 1));
    }
    metadata = metadata.labels(pod.labels.iter().map(|(key, value)| (&**key, &**value)));
    if let Some(owner) = &pod.owner {
        let owner = Message::default().text(1, &owner.kind).text(3, &owner.name).number(6, 1);
        metadata = metadata.message(13, &owner);
    }
    let mut spec = Message::default();
    if !pod.ports.is_empty() {
        let mut container = Message::default();
        for port in &pod.ports {
            let number = Message::default().text(1, &port.name).number(3, u64::from(port.port));
            let protocol = match port.protocol {
                Protocol::Tcp => number,
                Protocol::Udp => number.text(4, "UDP"),
                Protocol::Sctp => number.text(4, "SCTP"),
            };
            container = container.message(6, &protocol);
        }
        spec = spec.message(2, &container);
    }
    if let Some(node) = &pod.node {
        spec = spec.text(10, node);
    }
    if pod.host_network {
        spec = spec.number(11, 1);
    }
    let mut status = Message::default();
    if pod.finished {
        status = status.text(1, "Succeeded");
    }
    for address in &pod.addresses {
        status = status.message(12, &Message::default().text(1, &address.to_string()));
    }
    Message::default().message(1, &metadata).message(2, &spec).message(3, &status)
}

/// A protocol buffer that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn text(self, field: u8, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u8, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        push_varint(&mut self.0, u64::from(field) << 3 | 2);
        push_varint(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(mut self, field: u8, number: u64) -> Self {
        push_varint(&mut self.0, u64::from(field) << 3);
        push_varint(&mut self.0, number);
        self
    }

    fn labels<'a>(mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        for (key, value) in labels {
            self = self.message(11, &Message::default().text(1, key).text(2, value));
        }
        self
    }
}

/// Splits a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    received: FrameBuffer,
    /// The content of the last packed frame.
    unpacked: FrameBuffer,
}

impl FrameReader {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.received.push(bytes);
    }

    /// The next frame; `None` if it has not arrived completely.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, InvalidFrame> {
        loop {
            if let Some(frame) = self.unpacked.next()? {
                return parse(frame).map(Some);
            }
            if !self.unpacked.rest().is_empty() {
                return Err(InvalidFrame);
            }
            let Some(frame) = self.received.next()? else { return Ok(None) };
            let Some(packed) = frame.strip_prefix(&[PACKED << 4]) else {
                return parse(frame).map(Some);
            };
            self.unpacked.push(&unpack(packed).ok_or(InvalidFrame)?);
        }
    }
}

/// Bytes of frames.
#[derive(Debug, Default)]
struct FrameBuffer {
    bytes: Vec<u8>,
    /// The bytes at the front that were read.
    read: usize,
}

impl FrameBuffer {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(bytes);
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.read..).unwrap_or_default()
    }

    /// The next frame without its length; `None` if it is not complete.
    fn next(&mut self) -> Result<Option<&[u8]>, InvalidFrame> {
        let Some((length, body)) = varint(self.rest()).map_err(|_| InvalidFrame)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| InvalidFrame)?;
        if length == 0 || length > MAX_FRAME_BYTES {
            return Err(InvalidFrame);
        }
        if body.len() < length {
            return Ok(None);
        }
        let start = self.bytes.len() - body.len();
        self.read = start + length;
        Ok(self.bytes.get(start..self.read))
    }
}

fn parse(frame: &[u8]) -> Result<Frame, InvalidFrame> {
    let (tag, body) = frame.split_first().ok_or(InvalidFrame)?;
    let kind = KINDS.get(usize::from(tag & 0xf)).copied().ok_or(InvalidFrame)?;
    match tag >> 4 {
        BEGIN => SyncPoint::decode(body).map(Frame::Begin).ok_or(InvalidFrame),
        COMMIT => SyncPoint::decode(body).map(Frame::Commit).ok_or(InvalidFrame),
        SEEN => SyncPoint::decode(body).map(Frame::Seen).ok_or(InvalidFrame),
        PUT => Ok(Frame::Put(kind, body.to_vec())),
        REMOVE => {
            let text = std::str::from_utf8(body).map_err(|_| InvalidFrame)?;
            let (namespace, name) = text.split_once('/').ok_or(InvalidFrame)?;
            Ok(Frame::Remove(kind, namespace.into(), name.into()))
        }
        _ => Err(InvalidFrame),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_api::Lowering;
    use weir_model::{Change, Claim};
    use weir_testkit::changes;

    use super::*;
    use crate::{WireObject as _, relay::pack, wire};

    /// The objects of frames, as an agent reads them.
    fn read(bytes: &[u8], chunk: usize) -> Vec<Object> {
        let mut reader = FrameReader::default();
        let mut objects = Vec::new();
        for chunk in bytes.chunks(chunk) {
            reader.push(chunk);
            while let Some(frame) = reader.next().unwrap() {
                let Frame::Put(kind, bytes) = frame else { panic!("{frame:?}") };
                let kind = kind.resource().kind;
                let tree = weir_api::Tree::from_protobuf(kind, &bytes).unwrap();
                let (object, findings) = Lowering::default().object(&tree);
                assert_eq!(findings, []);
                objects.push(object.unwrap());
            }
        }
        objects
    }

    proptest! {
        #[test]
        fn an_object_arrives_as_it_was_sent(history in changes(20), chunk in 1_usize..40) {
            let mut objects = Vec::new();
            for change in history {
                match change {
                    Change::Put(Object::Pod(mut pod)) => {
                        pod.location = None;
                        if matches!(pod.claim, Claim::Attached(_)) {
                            pod.claim = Claim::Running;
                        }
                        objects.push(Object::Pod(pod));
                    }
                    Change::Put(Object::Namespace(mut namespace)) => {
                        namespace.location = None;
                        let own = (weir_model::NAMESPACE_NAME_LABEL.into(), namespace.name.clone());
                        namespace.labels = namespace.labels.iter().cloned().chain([own]).collect();
                        objects.push(Object::Namespace(namespace));
                    }
                    Change::Put(Object::Node(mut node)) => {
                        node.location = None;
                        objects.push(Object::Node(node));
                    }
                    _ => (),
                }
            }
            let frames = objects.iter().map(|object| put_frame(object, &[], true).unwrap());
            let bytes: Vec<u8> = frames.flatten().collect();
            prop_assert_eq!(read(&bytes, chunk), objects);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            let mut frames = 0;
            while let Ok(Some(frame)) = reader.next() {
                if let Frame::Put(kind, bytes) = frame {
                    _ = wire::reduced_object(kind.resource().kind, &bytes);
                }
                frames += 1;
            }
            prop_assert!(frames <= bytes.len() * pack::MAX_BYTES);
        }
    }
}
