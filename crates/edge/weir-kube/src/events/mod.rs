//! What is said about objects of a cluster, where `kubectl get events` shows it.

mod desk;
mod limit;
mod write;

use std::{io, thread};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::{runtime, sync::mpsc};

use crate::Access;
use write::{Reach, Writer};

/// How many notes may wait to be written.
const WAITING: usize = 1024;
/// No message of an Event is longer, in bytes: the API server's own limit.
const LONGEST_MESSAGE: usize = 1024;
/// No reason of an Event is longer, in bytes: the API server's own limit.
const LONGEST_REASON: usize = 128;

/// Something to say about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// The object: its `apiVersion`, `kind` and `name` at least, and its `namespace` if it has one.
    pub regarding: ObjectReference,
    /// How bad it is.
    pub kind: NoteKind,
    /// Why this is said, in one word for programs, as in `Invalid`.
    pub reason: String,
    /// What there is to say, for people. What is too long is cut.
    pub message: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

impl NoteKind {
    fn word(self) -> &'static str {
        match self {
            NoteKind::Normal => "Normal",
            NoteKind::Warning => "Warning",
        }
    }
}

/// Writes notes as Events, as long as one of its clones is there.
///
/// What was said before is counted and not said again, also if another process of the same component said it. An object has few
/// Events at a time, and so have all together; what is too much is left out. While the API server is away, notes wait, as many as
/// there is room for. This needs the verbs `create` and `patch` on events of the core group.
#[derive(Clone, Debug)]
pub struct Events {
    notes: mpsc::Sender<Note>,
}

impl Events {
    /// Writes with a client, as a task of the runtime that this is called in. The component says who speaks, as in `weir-agent`;
    /// the instance says which one of them, as the name of a node or a pod.
    pub fn new(client: Client, component: &str, instance: &str) -> Self {
        let (events, writer) = Events::parts(Reach::Client(client), component, instance);
        tokio::spawn(writer.run());
        events
    }

    /// Writes in a thread of its own, with clients of its own.
    pub fn start(access: Access, component: &str, instance: &str) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (events, writer) = Events::parts(Reach::Access(access, None), component, instance);
        let thread = thread::Builder::new().name("weir-events".into());
        thread.spawn(move || {
            runtime.block_on(writer.run());
            runtime.shutdown_background();
        })?;
        Ok(events)
    }

    fn parts(reach: Reach, component: &str, instance: &str) -> (Self, Writer) {
        let (notes, waiting) = mpsc::channel(WAITING);
        (Events { notes }, Writer::new(waiting, reach, component, instance))
    }

    /// Says something. This returns at once and cannot fail: a note that there is no room for is lost.
    pub fn publish(&self, note: Note) {
        let Note { regarding, kind, reason, message } = note;
        let (reason, message) = (cut(reason, LONGEST_REASON), cut(message, LONGEST_MESSAGE));
        _ = self.notes.try_send(Note { regarding, kind, reason, message });
    }
}

/// A text of so many bytes at most, and a sign that there was more.
fn cut(mut text: String, longest: usize) -> String {
    const MORE: char = '…';
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest - MORE.len_utf8()));
        text.push(MORE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_letters() {
        assert_eq!(cut("short".into(), 5), "short");
        assert_eq!(cut("12345678".into(), 6), "123…");
        assert_eq!(cut("1ééééééé".into(), 7), "1é…");
    }
}
