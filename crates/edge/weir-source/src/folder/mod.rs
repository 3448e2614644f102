//! A folder of manifests that other programs edit.
//!
//! ```text
//!  FolderWatch: notifications, a slow poll ─► Folder ─┬─► Listing: the files, by fingerprint
//!                                                     ├─► ManifestReader, for changed files
//!                                                     └─► FolderObjects: merged ─► SourceEvent
//! ```
//!
//! *Invariant*: the last valid version of a file stays in effect until the file is valid again or
//! gone. A file is gone only if its folder can be listed without it. Of a file that was never
//! valid, the documents that can be read are in effect.

mod listing;
mod objects;
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

use weir_api::ManifestReader;
use weir_model::{Change, Finding, Key, Location, Object, Severity};
use weir_runtime::SourceEvent;

use crate::files::{LoadError, read_file};
use listing::{Fingerprint, Listing};
use objects::FolderObjects;
pub use watch::FolderWatch;

/// The delay before the next scan while files are being written.
const RESCAN_DELAY: Duration = Duration::from_millis(200);
/// A new file counts as complete at this age, unless a notification says so earlier.
const NEW_FILE_AGE: Duration = Duration::from_secs(1);
/// An edited file counts as complete after this long without a write, unless a notification says so
/// earlier.
const QUIET_PERIOD: Duration = Duration::from_secs(10);
/// A file that is written all the time is read after this long anyway.
const MAX_WRITE_TIME: Duration = Duration::from_secs(60);
/// Missing files count as removed after this long without another disappearance: programs that
/// replace files often remove all of them first.
const REMOVAL_DELAY: Duration = Duration::from_millis(500);
/// A file that has been missing for this long counts as removed in any case.
const MAX_REMOVAL_DELAY: Duration = Duration::from_secs(5);

/// A folder and the objects of its files.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    files: BTreeMap<Arc<Path>, KnownFile>,
    objects: FolderObjects,
    /// Findings about parts of the folder that could not be listed.
    problems: Vec<Finding>,
    /// Whether every listed file has an entry in `files`.
    is_listed: bool,
    in_sync: bool,
    more_expected: bool,
    /// When a file was last found to be missing.
    last_disappearance: SystemTime,
    /// The changes since the last event.
    changes: Vec<Change>,
    /// The last event, without its changes.
    last: Option<SourceEvent>,
    /// Whether the next event may differ from the last one.
    is_stale: bool,
}

/// Whether a file is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// There was no notification.
    Unknown,
    /// A program is writing the file.
    Busy,
    /// The program has finished.
    Done,
}

/// A file of the folder.
#[derive(Debug, Default)]
struct KnownFile {
    /// The fingerprint at the last attempt to read it.
    print: Option<Fingerprint>,
    /// Whether a complete version of it is in effect.
    is_known: bool,
    /// Whether the version that was read last is incomplete.
    is_partial: bool,
    findings: Vec<Finding>,
    /// Why the current version is not in effect.
    unread: Vec<Finding>,
    /// Since when the file is being written.
    changing: Option<SystemTime>,
    /// Since when the file is missing.
    gone: Option<SystemTime>,
}

impl KnownFile {
    /// Whether a changed file is complete, judged by its age alone.
    fn is_finished(&mut self, print: &Fingerprint, now: SystemTime) -> bool {
        // A program that replaces a file by another has usually written it completely before.
        let is_same = self.print.as_ref().is_some_and(|known| known.is_same_file(print));
        let since = *self.changing.get_or_insert(now);
        !print.is_fresh(now, if is_same { QUIET_PERIOD } else { NEW_FILE_AGE })
            || has_passed(MAX_WRITE_TIME, since, now)
    }
}

/// Whether this much time has passed. Also true if the clock was set back.
fn has_passed(time: Duration, since: SystemTime, now: SystemTime) -> bool {
    now.duration_since(since).map_or(true, |passed| passed >= time)
}

impl Folder {
    /// A folder that was not scanned yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Folder {
            root: root.into(),
            files: BTreeMap::new(),
            objects: FolderObjects::default(),
            problems: Vec::new(),
            is_listed: false,
            in_sync: false,
            more_expected: false,
            last_disappearance: SystemTime::UNIX_EPOCH,
            changes: Vec::new(),
            last: None,
            is_stale: true,
        }
    }

    /// Lists all files and reads those that changed, unless they are being written.
    pub fn scan(&mut self, now: SystemTime, writer: impl Fn(&Path) -> WriteState) {
        let Listing { files, problems } = Listing::scan(&self.root);
        self.problems = problems
            .iter()
            .map(|(path, error)| match error {
                LoadError::Missing { .. } if **path == *self.root => {
                    Finding { hint: MISSING_FOLDER_HINT.into(), ..finding(path, error) }
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
                    WriteState::Busy => false,
                    WriteState::Done => true,
                    WriteState::Unknown => match file {
                        Some(file) => file.is_finished(&print, now),
                        None => !print.is_fresh(now, NEW_FILE_AGE),
                    },
                };
                if is_finished {
                    self.read_file(&path, print);
                } else {
                    self.more_expected = true;
                }
            }
            self.is_listed &= self.files.contains_key(&*path);
        }
        gone.retain(|path| !problems.iter().any(|(problem, _)| path.starts_with(problem)));
        for path in &gone {
            if let Some(file) = self.files.get_mut(path)
                && file.gone.is_none()
            {
                (file.gone, self.last_disappearance) = (Some(now), now);
            }
        }
        for path in gone {
            let since = self.files.get(&path).and_then(|file| file.gone).unwrap_or(now);
            let is_gone = has_passed(REMOVAL_DELAY, self.last_disappearance, now)
                || has_passed(MAX_REMOVAL_DELAY, since, now);
            if !is_gone {
                self.more_expected = true;
                continue;
            }
            self.files.remove(&path);
            self.objects.remove(&path, &mut self.changes);
        }
        self.accept();
    }

    /// Reads one file if it changed. Returns `false` for an unknown file: the caller must scan the
    /// folder.
    pub fn read_if_changed(&mut self, path: &Path) -> bool {
        let (Some(file), Ok(print)) = (self.files.get_mut(path), Fingerprint::from_path(path))
        else {
            return false;
        };
        file.gone = None;
        if file.print.as_ref() != Some(&print) {
            self.read_file(path, print);
            self.accept();
        }
        true
    }

    /// Puts the files that were read into effect. Once all are, the folder stays in sync.
    fn accept(&mut self) {
        for path in self.objects.accept(&mut self.changes) {
            let file = self.files.entry(path).or_default();
            file.is_known |= !file.is_partial;
        }
        let is_complete = || self.is_listed && self.files.values().all(|file| file.is_known);
        self.in_sync = self.in_sync || is_complete();
    }

    /// Forgets all fingerprints, so that the next scan reads every file again.
    pub fn forget_fingerprints(&mut self) {
        self.files.values_mut().for_each(|file| file.print = None);
        (self.last, self.is_stale) = (None, true);
    }

    /// The next event, if anything changed since the last one.
    pub fn next_event(&mut self) -> Option<SourceEvent> {
        if !mem::take(&mut self.is_stale) {
            return None;
        }
        let files = self.files.values();
        let conflicts = self.objects.conflicts();
        let unread = files.clone().flat_map(|file| &file.unread);
        let unread = unread.chain(&conflicts).chain(self.objects.disputed()).chain(&self.problems);
        let unread: Vec<Finding> = unread.cloned().collect();
        let findings = files.flat_map(|file| &file.findings);
        let event = SourceEvent {
            changes: Vec::new(),
            written: Vec::new(),
            policy_versions: BTreeMap::new(),
            findings: findings.chain(self.objects.findings()).chain(&unread).cloned().collect(),
            unread,
            server: None,
            in_sync: self.in_sync,
            is_partial: !self.in_sync && !self.more_expected && !self.files.is_empty(),
            more_expected: self.more_expected,
        };
        if self.changes.is_empty() && self.last.as_ref() == Some(&event) {
            return None;
        }
        self.last = Some(event.clone());
        Some(SourceEvent { changes: mem::take(&mut self.changes), ..event })
    }

    /// Reads a file whose current fingerprint is this.
    fn read_file(&mut self, path: &Path, print: Fingerprint) {
        self.is_stale = true;
        let name: Arc<Path> = path.into();
        let file = self.files.entry(name.clone()).or_default();
        let bytes = match read_file(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                (file.print, file.changing) = (Some(print), None);
                file.unread = vec![finding(path, &error)];
                self.objects.discard(path);
                return;
            }
        };
        if Fingerprint::from_path(path).ok().as_ref() != Some(&print) {
            // The file changed while it was read: scan again soon.
            self.more_expected = true;
            return;
        }
        (file.print, file.changing) = (Some(print), None);
        let mut reader = ManifestReader::new();
        reader.read_file(path.to_string_lossy().into(), &bytes);
        let is_empty = reader.documents() == 0;
        // No controller runs for a folder.
        let mut manifests = reader.finish().without_requested();
        if is_empty && manifests.findings.is_empty() {
            manifests.findings.push(empty_file(path));
        }
        // In a manifest folder, every document should be an object.
        let no_object =
            manifests.findings.iter().filter(|one| [EMPTY_FILE, NOT_AN_OBJECT].contains(&one.code));
        let is_missing: Vec<Finding> = manifests.missing().chain(no_object).cloned().collect();
        let is_wrong =
            |finding: &Finding| finding.severity == Severity::Error || is_missing.contains(finding);
        let (wrong, rest) = manifests.findings.into_iter().partition(is_wrong);
        (file.unread, file.findings) = (wrong, rest);
        // Of a file that was never complete, everything that can be read takes effect. An invalid
        // policy allows nothing.
        file.is_partial = !is_missing.is_empty();
        if file.is_known && !file.unread.is_empty() {
            self.objects.discard(path);
            return;
        }
        // Drop synthetic addresses. A pod with a node gets an address soon; a pod with neither does
        // not exist yet.
        let real = |mut object: Object| {
            if let Object::Pod(pod) = &mut object {
                pod.addresses.retain(|address| !manifests.synthetic.contains(address));
                return (pod.node.is_some() || !pod.addresses.is_empty()).then_some(object);
            }
            Some(object)
        };
        let objects = manifests.objects.into_iter().filter_map(real);
        let objects: BTreeMap<Key, Object> = objects.map(|one| (one.key(), one)).collect();
        if is_missing.is_empty() {
            self.objects.offer(&name, objects);
        } else {
            self.objects.offer_part(&name, objects);
        }
    }
}

/// What to do if the folder itself is missing.
const MISSING_FOLDER_HINT: &str = "create or mount the folder, or name another with `--source`; the agent reads it as soon as it exists, and changes nothing before";

/// The code of a finding about a file without a document.
const EMPTY_FILE: &str = "says-nothing";

/// The code of a finding about a document that is not an object.
const NOT_AN_OBJECT: &str = "not-an-object";

/// The finding about a file without documents: more often an accident than intended.
fn empty_file(path: &Path) -> Finding {
    Finding {
        location: Some(Location { file: path.to_string_lossy().into(), line: 0 }),
        code: EMPTY_FILE,
        severity: Severity::Error,
        object: None,
        field: String::new(),
        message:
            "the file contains no object: remove it, or write an empty List if that is intended"
                .into(),
        hint: "an empty list is `{apiVersion: v1, kind: List, items: []}`".into(),
    }
}

/// The finding about a path that cannot be read.
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
