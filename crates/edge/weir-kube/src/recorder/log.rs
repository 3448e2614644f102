//! Decides what is written: a new Event, a higher count, or nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use sha2::{Digest, Sha256};

use super::{
    NewEvent,
    limit::{Limit, Usage},
};

/// The rate limit of one object.
const OBJECT_LIMIT: Limit = Limit { burst: 10, interval: Duration::from_secs(60) };
/// The rate limit of all objects together.
const TOTAL_LIMIT: Limit = Limit { burst: 100, interval: Duration::from_secs(1) };
/// The shortest time between two writes of a count.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// An Event that did not repeat for this long is forgotten. The API server keeps an Event for an
/// hour.
const RETENTION: Duration = Duration::from_secs(2 * 60 * 60);
/// The number of Events that are remembered.
const CAPACITY: usize = 4096;

/// The Events that were published.
#[derive(Debug)]
pub(super) struct EventLog {
    entries: BTreeMap<String, EventEntry>,
    objects: BTreeMap<String, Usage>,
    total: Usage,
}

#[derive(Debug)]
struct EventEntry {
    event: NewEvent,
    author: Author,
    /// How often the Event was published.
    count: i32,
    /// The count that the API server has.
    written: i32,
    /// The time of the last write.
    at: Instant,
}

/// The process that created an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Author {
    Unknown,
    /// This process, which also updates the count.
    This,
    /// Another process, which updates the count.
    Other,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventWrite {
    /// The name of the Event.
    pub(super) name: String,
    pub(super) verb: Verb,
    pub(super) event: NewEvent,
    pub(super) count: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Patch,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Written,
    /// The Event exists already.
    Exists,
    /// The Event does not exist any more.
    Gone,
    /// The API server rejects the Event.
    Rejected,
}

impl EventLog {
    pub(super) fn new(now: Instant) -> Self {
        EventLog {
            entries: BTreeMap::new(),
            objects: BTreeMap::new(),
            total: Usage::new(TOTAL_LIMIT, now),
        }
    }

    /// Adds an Event. Returns `false` if a rate limit drops it.
    pub(super) fn add(&mut self, event: NewEvent, component: &str, now: Instant) -> bool {
        let name = event_name(&event, component);
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.count = entry.count.saturating_add(1);
            return true;
        }
        if !self.use_limits(&event.regarding, now) {
            return false;
        }
        self.evict(now);
        let author = Author::Unknown;
        self.entries.insert(name, EventEntry { event, author, count: 1, written: 0, at: now });
        true
    }

    /// The next request that is due.
    pub(super) fn next_write(&mut self, now: Instant) -> Option<EventWrite> {
        let due = self.entries.iter().filter(|(_, entry)| entry.is_due(now));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let name = due.into_iter().find(|name| self.is_allowed(name, now))?;
        let entry = self.entries.get_mut(&name)?;
        entry.at = now;
        let verb = match entry.author {
            Author::This => Verb::Patch,
            Author::Unknown | Author::Other => Verb::Create,
        };
        Some(EventWrite { name, verb, event: entry.event.clone(), count: entry.count })
    }

    /// The first write used the limits when the Event was added.
    fn is_allowed(&mut self, name: &str, now: Instant) -> bool {
        let Some(entry) = self.entries.get(name) else { return false };
        let regarding = entry.event.regarding.clone();
        entry.written == 0 || self.use_limits(&regarding, now)
    }

    /// Counts one Event against both limits. Returns `false` if one of them is exhausted.
    fn use_limits(&mut self, regarding: &ObjectReference, now: Instant) -> bool {
        let unused = || Usage::new(OBJECT_LIMIT, now);
        let object = self.objects.entry(object_key(regarding)).or_insert_with(unused);
        let has_capacity = self.total.has_capacity(now) && object.has_capacity(now);
        if has_capacity {
            self.total.add(now);
            object.add(now);
        }
        has_capacity
    }

    /// Records the result of a request.
    pub(super) fn complete(&mut self, write: &EventWrite, outcome: EventOutcome) {
        let Some(entry) = self.entries.get_mut(&write.name) else { return };
        entry.written = write.count;
        match outcome {
            EventOutcome::Written => entry.author = Author::This,
            EventOutcome::Exists => entry.author = Author::Other,
            EventOutcome::Gone => {
                (entry.author, entry.count, entry.written) = (Author::Unknown, 1, 0);
            }
            EventOutcome::Rejected => {
                self.entries.remove(&write.name);
            }
        }
    }

    /// Whether a count or an Event waits to be written.
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.values().any(|entry| entry.written < entry.count)
    }

    /// Removes old entries and, if the log is full, the oldest one.
    fn evict(&mut self, now: Instant) {
        self.objects.retain(|_, usage| !usage.is_unused(now));
        self.entries.retain(|_, entry| now.saturating_duration_since(entry.at) < RETENTION);
        if self.entries.len() >= CAPACITY
            && let Some((name, _)) = self.entries.iter().min_by_key(|(_, entry)| entry.at)
        {
            let name = name.clone();
            self.entries.remove(&name);
        }
    }
}

impl EventEntry {
    fn is_due(&self, now: Instant) -> bool {
        let is_first = self.written == 0;
        let is_time = now.saturating_duration_since(self.at) >= COUNT_INTERVAL;
        self.written < self.count && (is_first || is_time)
    }
}

fn object_key(regarding: &ObjectReference) -> String {
    let ObjectReference { kind, namespace, name, .. } = regarding;
    let [kind, namespace, name] =
        [kind, namespace, name].map(|text| text.as_deref().unwrap_or_default());
    format!("{kind}/{namespace}/{name}")
}

/// The name of an Event. All processes of a component give the same Event the same name.
fn event_name(event: &NewEvent, component: &str) -> String {
    let uid = event.regarding.uid.as_deref().unwrap_or_default();
    let object = object_key(&event.regarding);
    let mut digest = Sha256::new();
    for text in [component, uid, &object, event.kind.as_str(), &event.reason, &event.message] {
        digest.update(text.len().to_le_bytes());
        digest.update(text);
    }
    let digest: String =
        digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // The name starts with the object's name, as far as it is valid in an Event's name.
    let is_valid = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
    let name = event.regarding.name.iter().flat_map(|name| name.chars());
    let name: String = name.filter(is_valid).take(63).collect();
    match name.trim_matches('-') {
        "" => digest,
        name => format!("{name}.{digest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventType;

    const SECOND: Duration = Duration::from_secs(1);

    fn event(object: &str, message: &str) -> NewEvent {
        NewEvent {
            regarding: ObjectReference {
                kind: Some("NetworkPolicy".into()),
                namespace: Some("shop".into()),
                name: Some(object.into()),
                ..Default::default()
            },
            kind: EventType::Warning,
            reason: "Invalid".into(),
            message: message.into(),
        }
    }

    /// Adds an Event and returns the requests that follow.
    fn publish(log: &mut EventLog, event: NewEvent, now: Instant) -> Vec<(Verb, i32)> {
        log.add(event, "test", now);
        writes(log, now, EventOutcome::Written)
    }

    fn writes(log: &mut EventLog, now: Instant, outcome: EventOutcome) -> Vec<(Verb, i32)> {
        let mut writes = Vec::new();
        while let Some(write) = log.next_write(now) {
            log.complete(&write, outcome);
            writes.push((write.verb, write.count));
        }
        writes
    }

    #[test]
    fn a_repeated_event_is_counted() {
        let start = Instant::now();
        let mut log = EventLog::new(start);
        assert_eq!(publish(&mut log, event("a", "x"), start), [(Verb::Create, 1)]);
        assert_eq!(publish(&mut log, event("a", "x"), start + SECOND), []);
        assert_eq!(publish(&mut log, event("a", "x"), start + 2 * SECOND), []);
        assert!(log.is_waiting());
        let later = start + 11 * SECOND;
        assert_eq!(writes(&mut log, later, EventOutcome::Written), [(Verb::Patch, 3)]);
        assert!(!log.is_waiting());
        assert_eq!(publish(&mut log, event("a", "y"), later), [(Verb::Create, 1)]);
    }

    #[test]
    fn the_event_of_another_process_is_left_to_it_until_it_is_gone() {
        let start = Instant::now();
        let mut log = EventLog::new(start);
        log.add(event("a", "x"), "test", start);
        assert_eq!(writes(&mut log, start, EventOutcome::Exists), [(Verb::Create, 1)]);
        log.add(event("a", "x"), "test", start + 60 * SECOND);
        assert_eq!(
            writes(&mut log, start + 60 * SECOND, EventOutcome::Written),
            [(Verb::Create, 2)]
        );
        log.add(event("a", "x"), "test", start + 120 * SECOND);
        let write = log.next_write(start + 120 * SECOND).unwrap();
        assert_eq!(write.verb, Verb::Patch);
        log.complete(&write, EventOutcome::Gone);
        let again = writes(&mut log, start + 120 * SECOND, EventOutcome::Written);
        assert_eq!(again, [(Verb::Create, 1)]);
    }

    #[test]
    fn the_limit_of_one_object_leaves_capacity_for_others() {
        let start = Instant::now();
        let mut log = EventLog::new(start);
        for i in 0..50 {
            publish(&mut log, event("loud", &i.to_string()), start);
        }
        assert_eq!(log.entries.len(), 10);
        assert_eq!(publish(&mut log, event("quiet", "x"), start), [(Verb::Create, 1)]);
        assert_eq!(publish(&mut log, event("loud", "again"), start + 60 * SECOND).len(), 1);
    }

    #[test]
    fn all_objects_together_have_a_limit() {
        let start = Instant::now();
        let mut log = EventLog::new(start);
        let event_of = |i: i32| event(&i.to_string(), "x");
        let written = (0..500).flat_map(|i| publish(&mut log, event_of(i), start)).count();
        assert_eq!(written, 100);
        assert_eq!(publish(&mut log, event("late", "x"), start + SECOND).len(), 1);
    }

    #[test]
    fn rejected_and_old_events_are_forgotten() {
        let start = Instant::now();
        let mut log = EventLog::new(start);
        log.add(event("a", "x"), "test", start);
        writes(&mut log, start, EventOutcome::Rejected);
        assert!(log.entries.is_empty());
        publish(&mut log, event("a", "x"), start);
        publish(&mut log, event("b", "x"), start + RETENTION);
        assert_eq!((log.entries.len(), log.objects.len()), (1, 1));
    }

    #[test]
    fn names_are_valid_and_depend_on_object_and_message() {
        let name_of = |object: &str, message: &str| event_name(&event(object, message), "test");
        assert_eq!(name_of("lock", "x"), name_of("lock", "x"));
        assert_ne!(name_of("lock", "x"), name_of("lock", "y"));
        assert!(name_of("lock", "x").starts_with("lock."));
        for invalid in ["", "---", "Ä:ß", &"x".repeat(300), "a.-b"] {
            let name = name_of(invalid, "x");
            assert!(name.len() <= 80 && !name.starts_with(['-', '.']), "{name}");
        }
    }
}
