//! Kubernetes Events about objects, as `kubectl get events` shows them.

mod limit;
mod log;
mod write;

use std::{io, thread};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{runtime, sync::mpsc};

use crate::{Access, ApiClient};
use write::EventWriter;

/// The capacity of the queue of Events.
const QUEUE_CAPACITY: usize = 1024;
/// The API server's limit for the message of an Event, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// The API server's limit for the reason of an Event, in bytes.
const MAX_REASON_BYTES: usize = 128;

/// An Event to publish.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The object: at least `apiVersion`, `kind` and `name`, and the `namespace` if it has one.
    pub regarding: ObjectReference,
    /// The type.
    pub kind: EventType,
    /// The reason in one UpperCamelCase word, as in `Invalid`.
    pub reason: String,
    /// The message for people. A message that is too long is cut.
    pub message: String,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Information.
    Normal,
    /// A problem that needs attention.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

/// Publishes Events from a thread, until all clones are dropped.
///
/// An Event that was published before is counted, and not created again, even if another process of
/// the same component published it. Each object has a rate limit, and all objects together have one;
/// Events beyond it are dropped. While the API server is unreachable, Events wait in a bounded
/// queue. This needs the verbs `create` and `patch` on events of the core group.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<NewEvent>,
}

impl Recorder {
    /// Starts the thread. The component names the program, as in `weir-agent`. The instance names
    /// the process, as the name of a node or a pod.
    pub fn start(access: Access, component: &str, instance: &str) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (queue, events) = mpsc::channel(QUEUE_CAPACITY);
        let writer = EventWriter::new(events, ApiClient::new(access), component, instance);
        let thread = thread::Builder::new().name("weir-events".into());
        thread.spawn(move || {
            runtime.block_on(writer.run());
            runtime.shutdown_background();
        })?;
        Ok(Recorder { queue })
    }

    /// Publishes an Event. This returns immediately; if the queue is full, the Event is dropped.
    pub fn publish(&self, event: NewEvent) {
        let NewEvent { regarding, kind, reason, message } = event;
        let (reason, message) = (cut(reason, MAX_REASON_BYTES), cut(message, MAX_MESSAGE_BYTES));
        // A full queue is not an error: Events are best effort.
        _ = self.queue.try_send(NewEvent { regarding, kind, reason, message });
    }
}

/// Shortens a text to a number of bytes and marks the cut.
fn cut(mut text: String, max_bytes: usize) -> String {
    const MORE: char = '…';
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes - MORE.len_utf8()));
        text.push(MORE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("short".into(), 5), "short");
        assert_eq!(cut("12345678".into(), 6), "123…");
        assert_eq!(cut("1ééééééé".into(), 7), "1é…");
    }
}
