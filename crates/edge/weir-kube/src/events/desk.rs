//! Decides what is written: a new Event, a higher count, or nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use sha2::{Digest, Sha256};

use super::{
    Note,
    limit::{Limit, Used},
};

/// The Events of one object.
const OBJECT: Limit = Limit { burst: 10, every: Duration::from_secs(60) };
/// The Events of all.
const ALL: Limit = Limit { burst: 100, every: Duration::from_secs(1) };
/// A count is written no more often than this.
const COUNT: Duration = Duration::from_secs(10);
/// What was not said again for so long is forgotten. The API server keeps an Event for an hour.
const FORGET: Duration = Duration::from_secs(2 * 60 * 60);
/// So many are remembered.
const REMEMBERED: usize = 4096;

/// What was said.
#[derive(Debug)]
pub(super) struct Desk {
    said: BTreeMap<String, Said>,
    objects: BTreeMap<String, Used>,
    all: Used,
}

#[derive(Debug)]
struct Said {
    note: Note,
    whose: Whose,
    /// How often it was said,
    count: i32,
    /// and how often of that is written.
    written: i32,
    /// When it was last written.
    at: Instant,
}

/// Who wrote an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// It is not known yet.
    Unknown,
    /// We did, and we count.
    Ours,
    /// Another process, which counts.
    Others,
}

/// Something to write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// The name of the Event.
    pub(super) name: String,
    pub(super) verb: Verb,
    pub(super) note: Note,
    pub(super) count: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Patch,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is written.
    Written,
    /// There is such an Event.
    Exists,
    /// There is no such Event any more.
    Gone,
    /// The API server does not want it.
    Refused,
}

impl Desk {
    pub(super) fn new(now: Instant) -> Self {
        Desk { said: BTreeMap::new(), objects: BTreeMap::new(), all: Used::nothing(ALL, now) }
    }

    /// Takes a note. `false` if it is one too many.
    pub(super) fn take(&mut self, note: Note, component: &str, now: Instant) -> bool {
        let name = name(&note, component);
        if let Some(said) = self.said.get_mut(&name) {
            said.count = said.count.saturating_add(1);
            return true;
        }
        if !self.pay(&note.regarding, now) {
            return false;
        }
        self.make_room(now);
        let said = Said { note, whose: Whose::Unknown, count: 1, written: 0, at: now };
        self.said.insert(name, said);
        true
    }

    /// What is to be written now.
    pub(super) fn step(&mut self, now: Instant) -> Option<Step> {
        let due = self.said.iter().filter(|(_, said)| said.is_due(now));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let name = due.into_iter().find(|name| self.may_write(name, now))?;
        let said = self.said.get_mut(&name)?;
        said.at = now;
        let verb = match said.whose {
            Whose::Ours => Verb::Patch,
            Whose::Unknown | Whose::Others => Verb::Create,
        };
        Some(Step { name, verb, note: said.note.clone(), count: said.count })
    }

    /// The first time was paid for when the note was taken.
    fn may_write(&mut self, name: &str, now: Instant) -> bool {
        let Some(said) = self.said.get(name) else { return false };
        let regarding = said.note.regarding.clone();
        said.written == 0 || self.pay(&regarding, now)
    }

    /// Uses some of what an object, and all together, may have. `false` if nothing is left.
    fn pay(&mut self, regarding: &ObjectReference, now: Instant) -> bool {
        let nothing = || Used::nothing(OBJECT, now);
        let its = self.objects.entry(object(regarding)).or_insert_with(nothing);
        let has_room = self.all.has_room(now) && its.has_room(now);
        if has_room {
            self.all.add(now);
            its.add(now);
        }
        has_room
    }

    /// What came of a step.
    pub(super) fn settle(&mut self, step: &Step, outcome: Outcome) {
        let Some(said) = self.said.get_mut(&step.name) else { return };
        said.written = step.count;
        match outcome {
            Outcome::Written => said.whose = Whose::Ours,
            Outcome::Exists => said.whose = Whose::Others,
            // Said again, from the beginning.
            Outcome::Gone => (said.whose, said.count, said.written) = (Whose::Unknown, 1, 0),
            Outcome::Refused => drop(self.said.remove(&step.name)),
        }
    }

    /// Whether something waits for its time to be written.
    pub(super) fn is_waiting(&self) -> bool {
        self.said.values().any(|said| said.written < said.count)
    }

    /// Forgets what is old, and the oldest if that is not enough.
    fn make_room(&mut self, now: Instant) {
        self.objects.retain(|_, used| !used.is_nothing(now));
        self.said.retain(|_, said| now.saturating_duration_since(said.at) < FORGET);
        if self.said.len() >= REMEMBERED
            && let Some((name, _)) = self.said.iter().min_by_key(|(_, said)| said.at)
        {
            let name = name.clone();
            self.said.remove(&name);
        }
    }
}

impl Said {
    fn is_due(&self, now: Instant) -> bool {
        let is_first = self.written == 0;
        let is_time = now.saturating_duration_since(self.at) >= COUNT;
        self.written < self.count && (is_first || is_time)
    }
}

fn object(regarding: &ObjectReference) -> String {
    let ObjectReference { kind, namespace, name, .. } = regarding;
    let [kind, namespace, name] =
        [kind, namespace, name].map(|text| text.as_deref().unwrap_or_default());
    format!("{kind}/{namespace}/{name}")
}

/// The name of an Event, the same for all processes of a component that say the same.
fn name(note: &Note, component: &str) -> String {
    let uid = note.regarding.uid.as_deref().unwrap_or_default();
    let object_name = object(&note.regarding);
    let mut digest = Sha256::new();
    for text in [component, uid, &object_name, note.kind.word(), &note.reason, &note.message] {
        digest.update(text.len().to_le_bytes());
        digest.update(text);
    }
    let digest: String =
        digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // Names of objects are names of Events, as far as anyone should have to care.
    let may = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
    let name: String =
        note.regarding.name.iter().flat_map(|name| name.chars()).filter(may).take(63).collect();
    match name.trim_matches('-') {
        "" => digest,
        name => format!("{name}.{digest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoteKind;

    const SECOND: Duration = Duration::from_secs(1);

    fn note(object: &str, message: &str) -> Note {
        Note {
            regarding: ObjectReference {
                kind: Some("NetworkPolicy".into()),
                namespace: Some("shop".into()),
                name: Some(object.into()),
                ..Default::default()
            },
            kind: NoteKind::Warning,
            reason: "Invalid".into(),
            message: message.into(),
        }
    }

    /// Takes a note, and says what is written then.
    fn say(desk: &mut Desk, note: Note, now: Instant) -> Vec<(Verb, i32)> {
        desk.take(note, "test", now);
        steps(desk, now, Outcome::Written)
    }

    fn steps(desk: &mut Desk, now: Instant, outcome: Outcome) -> Vec<(Verb, i32)> {
        let mut steps = Vec::new();
        while let Some(step) = desk.step(now) {
            desk.settle(&step, outcome);
            steps.push((step.verb, step.count));
        }
        steps
    }

    #[test]
    fn the_same_is_counted_and_not_said_again() {
        let start = Instant::now();
        let mut desk = Desk::new(start);
        assert_eq!(say(&mut desk, note("a", "x"), start), [(Verb::Create, 1)]);
        assert_eq!(say(&mut desk, note("a", "x"), start + SECOND), []);
        assert_eq!(say(&mut desk, note("a", "x"), start + 2 * SECOND), []);
        assert!(desk.is_waiting());
        let later = start + 11 * SECOND;
        assert_eq!(steps(&mut desk, later, Outcome::Written), [(Verb::Patch, 3)]);
        assert!(!desk.is_waiting());
        assert_eq!(say(&mut desk, note("a", "y"), later), [(Verb::Create, 1)]);
    }

    #[test]
    fn what_another_process_said_is_left_to_it_until_it_is_gone() {
        let start = Instant::now();
        let mut desk = Desk::new(start);
        desk.take(note("a", "x"), "test", start);
        assert_eq!(steps(&mut desk, start, Outcome::Exists), [(Verb::Create, 1)]);
        desk.take(note("a", "x"), "test", start + 60 * SECOND);
        assert_eq!(steps(&mut desk, start + 60 * SECOND, Outcome::Written), [(Verb::Create, 2)]);
        desk.take(note("a", "x"), "test", start + 120 * SECOND);
        let step = desk.step(start + 120 * SECOND).unwrap();
        assert_eq!(step.verb, Verb::Patch);
        desk.settle(&step, Outcome::Gone);
        let again = steps(&mut desk, start + 120 * SECOND, Outcome::Written);
        assert_eq!(again, [(Verb::Create, 1)]);
    }

    #[test]
    fn one_object_cannot_say_too_much_and_others_still_can() {
        let start = Instant::now();
        let mut desk = Desk::new(start);
        for i in 0..50 {
            say(&mut desk, note("loud", &i.to_string()), start);
        }
        assert_eq!(desk.said.len(), 10);
        assert_eq!(say(&mut desk, note("quiet", "x"), start), [(Verb::Create, 1)]);
        assert_eq!(say(&mut desk, note("loud", "again"), start + 60 * SECOND).len(), 1);
    }

    #[test]
    fn all_together_cannot_say_too_much() {
        let start = Instant::now();
        let mut desk = Desk::new(start);
        let said = (0..500).flat_map(|i| say(&mut desk, note(&i.to_string(), "x"), start)).count();
        assert_eq!(said, 100);
        assert_eq!(say(&mut desk, note("late", "x"), start + SECOND).len(), 1);
    }

    #[test]
    fn what_is_refused_or_old_is_forgotten() {
        let start = Instant::now();
        let mut desk = Desk::new(start);
        desk.take(note("a", "x"), "test", start);
        steps(&mut desk, start, Outcome::Refused);
        assert!(desk.said.is_empty());
        say(&mut desk, note("a", "x"), start);
        say(&mut desk, note("b", "x"), start + FORGET);
        assert_eq!((desk.said.len(), desk.objects.len()), (1, 1));
    }

    #[test]
    fn names_can_be_names_of_events() {
        let name_of = |object: &str, message: &str| name(&note(object, message), "test");
        assert_eq!(name_of("lock", "x"), name_of("lock", "x"));
        assert_ne!(name_of("lock", "x"), name_of("lock", "y"));
        assert!(name_of("lock", "x").starts_with("lock."));
        for odd in ["", "---", "Ä:ß", &"x".repeat(300), "a.-b"] {
            let name = name_of(odd, "x");
            assert!(name.len() <= 80 && !name.starts_with(['-', '.']), "{name}");
        }
    }
}
