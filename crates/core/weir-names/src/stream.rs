//! DNS over TCP: messages with a length before each, in two streams of bytes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use crate::observer::Segment;

/// The most connections of a pod. A new one takes the place of the one that was idle longest.
const MAX_CONNECTIONS_PER_POD: usize = 8;
/// The most bytes of a question. A connection with a longer one is not observed any more.
const MAX_QUESTION_BYTES: usize = 4096;
/// The most bytes of an answer: all that its length can express.
const MAX_ANSWER_BYTES: usize = u16::MAX as usize;

/// The direction of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    Resolver,
    Pod,
}

/// The result of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The segment is the next one, or it repeats earlier bytes.
    InOrder {
        /// The messages that the segment completes.
        messages: Vec<Vec<u8>>,
        /// Whether the segment contains bytes of earlier ones.
        is_repeated: bool,
    },
    /// An earlier segment is missing. TCP sends this one again after that.
    Early,
}

impl Progress {
    /// No message is complete.
    const NOTHING: Progress = Progress::InOrder { messages: Vec::new(), is_repeated: false };
}

/// The observed connections, by pod and resolver.
#[derive(Debug, Default)]
pub(crate) struct Streams(BTreeMap<(SocketAddr, SocketAddr), Stream>);

#[derive(Debug)]
struct Stream {
    to_resolver: Half,
    to_pod: Half,
    last: Instant,
}

/// One direction.
#[derive(Debug, Default)]
struct Half {
    /// The number of the next byte; none before the connection is set up.
    next: Option<u32>,
    /// The bytes of an incomplete message.
    buffer: Vec<u8>,
}

impl Streams {
    /// Observes a segment. Segments of unknown connections complete nothing.
    pub(crate) fn observe(
        &mut self,
        pod: SocketAddr,
        resolver: SocketAddr,
        toward: Toward,
        segment: Segment,
        payload: &[u8],
        now: Instant,
    ) -> Progress {
        let key = (pod, resolver);
        if segment.reset {
            self.0.remove(&key);
        }
        if segment.syn && toward == Toward::Resolver && !segment.ack {
            self.0.remove(&key);
            self.make_room(pod.ip());
            let [to_resolver, to_pod] = [Half::default(), Half::default()];
            self.0.insert(key, Stream { to_resolver, to_pod, last: now });
        }
        let Some(stream) = self.0.get_mut(&key) else { return Progress::NOTHING };
        stream.last = now;
        let (half, max_bytes) = match toward {
            Toward::Resolver => (&mut stream.to_resolver, MAX_QUESTION_BYTES),
            Toward::Pod => (&mut stream.to_pod, MAX_ANSWER_BYTES),
        };
        let mut number = segment.number;
        if segment.syn {
            number = number.wrapping_add(1);
            *half = Half { next: Some(number), buffer: Vec::new() };
        }
        half.append(number, payload, max_bytes)
    }

    fn of_pod(&self, pod: IpAddr) -> impl Iterator<Item = (&(SocketAddr, SocketAddr), &Stream)> {
        let [first, last] = [0, u16::MAX].map(|port| SocketAddr::new(pod, port));
        let range = (first, SocketAddr::new([0; 4].into(), 0))
            ..=(last, SocketAddr::new([255; 16].into(), u16::MAX));
        self.0.range(range)
    }

    /// Forgets the connection of a pod that was idle longest, if it has the most.
    fn make_room(&mut self, pod: IpAddr) {
        if self.of_pod(pod).count() < MAX_CONNECTIONS_PER_POD {
            return;
        }
        let oldest = self.of_pod(pod).min_by_key(|(_, stream)| stream.last).map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.0.remove(&key);
        }
    }
}

impl Half {
    fn append(&mut self, number: u32, payload: &[u8], max_bytes: usize) -> Progress {
        let Some(next) = self.next.filter(|_| !payload.is_empty()) else {
            return Progress::NOTHING;
        };
        // The distance is signed, because numbers wrap around.
        let distance = number.wrapping_sub(next).cast_signed();
        if distance > 0 {
            return Progress::Early;
        }
        let known = usize::try_from(distance.unsigned_abs()).unwrap_or(usize::MAX);
        let is_repeated = known > 0;
        let Some(new) = payload.get(known..) else {
            return Progress::InOrder { messages: Vec::new(), is_repeated };
        };
        self.next = Some(next.wrapping_add(u32::try_from(new.len()).unwrap_or(u32::MAX)));
        self.buffer.extend_from_slice(new);
        let (mut messages, mut rest) = (Vec::new(), &self.buffer[..]);
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if length > max_bytes {
                *self = Half::default();
                return Progress::InOrder { messages, is_repeated };
            }
            let Some(message) = tail.get(..length) else { break };
            messages.push(message.to_vec());
            rest = &tail[length..];
        }
        let rest = rest.len();
        self.buffer.drain(..self.buffer.len() - rest);
        self.buffer.shrink_to(0);
        Progress::InOrder { messages, is_repeated }
    }
}
