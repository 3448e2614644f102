//! A folder of manifests that changes while we look.
//!
//! ```text
//!  Watch: notifications, a slow poll ─► Folder ─► Listing: what lies there, by fingerprint
//!                                          ├─► weir_api::Reader, for files that changed
//!                                          └─► Shelf: what the files together say ─► SourceEvent
//! ```
//!
//! *Invariant*: a file that cannot be read completely counts as it was when it could. Only a file that is gone, in a folder
//! that can be listed, says nothing any more.

mod listing;
mod shelf;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_api::Reader;
use weir_model::{Change, Finding, Key, Location, Object, Severity};
use weir_runtime::SourceEvent;

use crate::files::{LoadError, read};
use listing::{Fingerprint, Listing};
use shelf::Shelf;
pub use watch::Watch;

/// How long until to look again at what is about to change.
const MOMENT: Duration = Duration::from_millis(200);
/// A file that is new and was written less long ago may not be finished, if nobody says so.
const FRESH: Duration = Duration::from_secs(1);
/// A file that is written to is read when it is closed; if nobody says so, after this long a silence,
const SILENCE: Duration = Duration::from_secs(10);
/// or after this long at the latest.
const PATIENCE: Duration = Duration::from_secs(60);
/// Files are gone when for this long no other one has gone: they may be about to be replaced, and go together;
const ABSENCE: Duration = Duration::from_millis(500);
/// or when they have been away for this long.
const LONG_ABSENCE: Duration = Duration::from_secs(5);

/// A folder and what its files say.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    files: BTreeMap<Arc<Path>, File>,
    shelf: Shelf,
    /// Why the folder, or a part of it, could not be listed.
    problems: Vec<Finding>,
    /// Whether every file that lies there has an entry in `files`.
    is_listed: bool,
    in_sync: bool,
    more_expected: bool,
    /// When a file was last found to be gone.
    vanished: SystemTime,
    /// What happened since the last update, what was said in it, and whether there may be more to say.
    changes: Vec<Change>,
    said: Option<SourceEvent>,
    is_stale: bool,
}

/// What is known about whoever writes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Nothing.
    Unknown,
    /// They have not finished.
    Busy,
    /// They have finished.
    Done,
}

/// A file of the folder.
#[derive(Debug, Default)]
struct File {
    /// What it was when it was last read, or tried to.
    print: Option<Fingerprint>,
    /// Whether it was ever read.
    is_known: bool,
    findings: Vec<Finding>,
    /// Why it does not count as it is.
    unread: Vec<Finding>,
    /// Since when it is seen to be written to, or to be gone.
    changing: Option<SystemTime>,
    gone: Option<SystemTime>,
}

impl File {
    /// Whether a file that is not what it was, and whose writer is not known, is as it will be.
    fn is_finished(&mut self, print: &Fingerprint, now: SystemTime) -> bool {
        // Whoever replaces a file has mostly written it before.
        let is_same = self.print.as_ref().is_some_and(|known| known.is_same_file(print));
        let since = *self.changing.get_or_insert(now);
        !print.is_fresh(now, if is_same { SILENCE } else { FRESH })
            || has_passed(PATIENCE, since, now)
    }
}

/// Whether so much time has passed; a clock that was put back is not waited for.
fn has_passed(time: Duration, since: SystemTime, now: SystemTime) -> bool {
    now.duration_since(since).map_or(true, |passed| passed >= time)
}

impl Folder {
    /// A folder of which nothing is known yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Folder {
            root: root.into(),
            files: BTreeMap::new(),
            shelf: Shelf::default(),
            problems: Vec::new(),
            is_listed: false,
            in_sync: false,
            more_expected: false,
            vanished: SystemTime::UNIX_EPOCH,
            changes: Vec::new(),
            said: None,
            is_stale: true,
        }
    }

    /// Looks at all files and reads those that changed, unless they are being written.
    pub fn scan(&mut self, now: SystemTime, writer: impl Fn(&Path) -> Writer) {
        let Listing { files, problems } = Listing::of(&self.root);
        self.problems = problems
            .iter()
            .map(|(path, error)| match error {
                LoadError::Missing { .. } if **path == *self.root => {
                    Finding { hint: AWAITED.into(), ..finding(path, error) }
                }
                error => finding(path, error),
            })
            .collect();
        (self.more_expected, self.is_stale) = (false, true);
        let mut gone: BTreeSet<Arc<Path>> = self.files.keys().cloned().collect();
        self.is_listed = problems.is_empty();
        for (path, print) in files {
            gone.remove(&*path);
            let mut file = self.files.get_mut(&*path);
            if let Some(file) = &mut file {
                file.gone = None;
            }
            if file.as_ref().and_then(|file| file.print.as_ref()) != Some(&print) {
                let is_finished = match writer(&path) {
                    Writer::Busy => false,
                    Writer::Done => true,
                    Writer::Unknown => match file {
                        Some(file) => file.is_finished(&print, now),
                        None => !print.is_fresh(now, FRESH),
                    },
                };
                match is_finished {
                    true => self.read(&path, print),
                    false => self.more_expected = true,
                }
            }
            self.is_listed &= self.files.contains_key(&*path);
        }
        gone.retain(|path| !problems.iter().any(|(problem, _)| path.starts_with(problem)));
        for path in &gone {
            if let Some(file) = self.files.get_mut(path)
                && file.gone.is_none()
            {
                (file.gone, self.vanished) = (Some(now), now);
            }
        }
        for path in gone {
            let since = self.files.get(&path).and_then(|file| file.gone).unwrap_or(now);
            let is_gone =
                has_passed(ABSENCE, self.vanished, now) || has_passed(LONG_ABSENCE, since, now);
            if !is_gone {
                self.more_expected = true;
                continue;
            }
            self.files.remove(&path);
            self.shelf.remove(&path, &mut self.changes);
        }
        self.check();
    }

    /// Looks at one file; `false` if it is not one of those that are known, and the folder must be looked at instead.
    pub fn look(&mut self, path: &Path) -> bool {
        let (Some(file), Ok(print)) = (self.files.get_mut(path), Fingerprint::of(path)) else {
            return false;
        };
        file.gone = None;
        if file.print.as_ref() != Some(&print) {
            self.read(path, print);
            self.check();
        }
        true
    }

    /// Lets count what was read. Once everything does, the folder is in sync for good.
    fn check(&mut self) {
        for path in self.shelf.settle(&mut self.changes) {
            self.files.entry(path).or_default().is_known = true;
        }
        let is_complete = || self.is_listed && self.files.values().all(|file| file.is_known);
        self.in_sync = self.in_sync || is_complete();
    }

    /// Forgets what the files looked like, so that all are read again.
    pub fn distrust(&mut self) {
        self.files.values_mut().for_each(|file| file.print = None);
        (self.said, self.is_stale) = (None, true);
    }

    /// What is new since the last update, if anything is.
    pub fn next_event(&mut self) -> Option<SourceEvent> {
        if !mem::take(&mut self.is_stale) {
            return None;
        }
        let files = self.files.values();
        let doubts = self.shelf.doubts();
        let unread = files.clone().flat_map(|file| &file.unread);
        let unread = unread.chain(&doubts).chain(self.shelf.disputed()).chain(&self.problems);
        let unread: Vec<Finding> = unread.cloned().collect();
        let said = files.flat_map(|file| &file.findings);
        let update = SourceEvent {
            changes: Vec::new(),
            written: Vec::new(),
            findings: said.chain(self.shelf.findings()).chain(&unread).cloned().collect(),
            unread,
            in_sync: self.in_sync,
            more_expected: self.more_expected,
        };
        if self.changes.is_empty() && self.said.as_ref() == Some(&update) {
            return None;
        }
        self.said = Some(update.clone());
        Some(SourceEvent { changes: mem::take(&mut self.changes), ..update })
    }

    /// Reads a file that is now as the fingerprint says.
    fn read(&mut self, path: &Path, print: Fingerprint) {
        self.is_stale = true;
        let name: Arc<Path> = path.into();
        let file = self.files.entry(name.clone()).or_default();
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                (file.print, file.changing) = (Some(print), None);
                file.unread = vec![finding(path, &error)];
                self.shelf.withdraw(path);
                return;
            }
        };
        if Fingerprint::of(path).ok().as_ref() != Some(&print) {
            // Somebody writes at this moment: look again soon.
            self.more_expected = true;
            return;
        }
        (file.print, file.changing) = (Some(print), None);
        let mut reader = Reader::new();
        reader.read(path.to_string_lossy().into(), &bytes);
        let is_silent = reader.documents() == 0;
        let mut manifests = reader.finish();
        if is_silent && manifests.findings.is_empty() {
            manifests.findings.push(silent(path));
        }
        // Here lie manifests: what is no object should have been one.
        let no_object =
            manifests.findings.iter().filter(|one| [SILENT, NOT_AN_OBJECT].contains(&one.code));
        let is_missing: Vec<Finding> = manifests.missing().chain(no_object).cloned().collect();
        let is_wrong =
            |finding: &Finding| finding.severity == Severity::Error || is_missing.contains(finding);
        let (wrong, rest) = manifests.findings.into_iter().partition(is_wrong);
        (file.unread, file.findings) = (wrong, rest);
        // A policy that is wrong and was never right counts: it allows nothing. What is missing cannot.
        if !is_missing.is_empty() || (file.is_known && !file.unread.is_empty()) {
            self.shelf.withdraw(path);
            return;
        }
        // Nothing is made up here. A pod that has a node will have an address soon; one that has neither is not there.
        let real = |mut object: Object| {
            if let Object::Pod(pod) = &mut object {
                pod.addresses.retain(|address| !manifests.made_up.contains(address));
                return (pod.node.is_some() || !pod.addresses.is_empty()).then_some(object);
            }
            Some(object)
        };
        let objects = manifests.objects.into_iter().filter_map(real);
        let objects: BTreeMap<Key, Object> = objects.map(|one| (one.key(), one)).collect();
        self.shelf.bring(&name, objects);
    }
}

/// What to do if the folder itself is missing.
const AWAITED: &str = "make the folder, mount it, or name another with `--source`; it is read as soon as it is there, and nothing changes before that";

/// The code of a finding about a file without a document.
const SILENT: &str = "says-nothing";

/// The code of a finding about a document that is no object.
const NOT_AN_OBJECT: &str = "not-an-object";

/// A finding for a file that is empty, or nothing but comments: more often an accident than meant.
fn silent(path: &Path) -> Finding {
    Finding {
        location: Some(Location { file: path.to_string_lossy().into(), line: 0 }),
        code: SILENT,
        severity: Severity::Error,
        object: None,
        field: String::new(),
        message: "the file says nothing: remove it, or write an empty List if that is meant".into(),
        hint: "an empty list is `{apiVersion: v1, kind: List, items: []}`".into(),
    }
}

/// A finding for a path that cannot be read.
fn finding(path: &Path, error: &LoadError) -> Finding {
    let cause = std::error::Error::source(error).map_or(String::new(), |why| format!(": {why}"));
    Finding {
        location: Some(Location { file: path.to_string_lossy().into(), line: 0 }),
        code: "unreadable",
        severity: Severity::Error,
        object: None,
        field: String::new(),
        message: format!("{error}{cause}"),
        hint: error.hint().into(),
    }
}
