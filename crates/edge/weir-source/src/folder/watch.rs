use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant, SystemTime},
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use weir_runtime::SourceEvent;

use super::{Folder, MOMENT, PATIENCE, SILENCE, Writer, listing::Identity};
use crate::files::is_manifest;

/// How long to wait for more notifications after the first one.
const GATHER: Duration = Duration::from_millis(5);
/// How long to rest after looking at the whole folder, at most.
const REST: Duration = Duration::from_millis(500);
/// How often to make sure that the folder is still the one that is watched.
const GLANCE: Duration = Duration::from_secs(1);
/// How often to look at all files, because notifications can be lost or may not exist for a file system.
const POLL: Duration = Duration::from_secs(10);

/// A folder that is being watched by a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    pokes: Sender<Poke>,
}

impl Watch {
    /// Watches a folder and tells what is new, beginning with all there is, until `tell` returns `false`.
    pub fn start(
        root: impl Into<PathBuf>,
        tell: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<Watch> {
        let (pokes, poked) = mpsc::channel();
        let root = root.into();
        let watched = Watched {
            absolute: std::path::absolute(&root)?,
            folder: Folder::new(root.clone()),
            root,
            due: Due { all: Some(Instant::now()), ..Due::default() },
            watcher: None,
            pokes: pokes.clone(),
        };
        let thread = thread::Builder::new().name("weir-folder".into());
        thread.spawn(move || watched.run(&poked, tell))?;
        Ok(Watch { pokes })
    }

    /// Reads everything again, changed or not, and tells.
    pub fn reload(&self) {
        // If the thread is gone there is nobody to tell.
        _ = self.pokes.send(Poke::Reload);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        _ = self.pokes.send(Poke::Stop);
    }
}

/// What wakes the thread.
#[derive(Debug)]
enum Poke {
    Seen(notify::Result<notify::Event>),
    Reload,
    Stop,
}

struct Watched {
    root: PathBuf,
    /// The root as notifications name it.
    absolute: PathBuf,
    folder: Folder,
    due: Due,
    /// What notifies, and of which folder.
    watcher: Option<(RecommendedWatcher, Identity)>,
    pokes: Sender<Poke>,
}

/// What is to be looked at, and when.
#[derive(Debug, Default)]
struct Due {
    all: Option<Instant>,
    files: BTreeMap<PathBuf, Writing>,
    /// Files that are new and finished.
    done: BTreeSet<PathBuf>,
}

/// A file that changes.
#[derive(Debug)]
struct Writing {
    since: Instant,
    due: Instant,
}

impl Watched {
    fn run(mut self, poked: &Receiver<Poke>, mut tell: impl FnMut(SourceEvent) -> bool) {
        let mut poll = Instant::now();
        // A folder that takes long to look at is looked at less often, but not so rarely that anybody waits for it.
        let mut rest_until = Instant::now();
        loop {
            self.watch();
            let start = Instant::now();
            let all_due = self.due.all.is_some_and(|due| due <= start) && rest_until <= start;
            if all_due || poll <= start {
                self.due.all = None;
                self.scan(start);
                let took = start.elapsed();
                rest_until = start + took + (took * 3).min(REST);
                poll = start + if self.watcher.is_some() { POLL } else { GLANCE };
            }
            self.look(start);
            if self.folder.next_event().is_some_and(|update| !tell(update)) {
                return;
            }
            let all = self.due.all.map(|due| due.max(rest_until));
            let files = self.due.files.values().map(|file| file.due);
            let wake = files.chain(all).fold(poll.min(start + GLANCE), Instant::min);
            let mut until = wake;
            loop {
                let wait = until.saturating_duration_since(Instant::now());
                match poked.recv_timeout(wait) {
                    Ok(Poke::Seen(event)) => self.seen(event),
                    Ok(Poke::Reload) => {
                        self.folder.distrust();
                        (self.due.all, rest_until) = (Some(start), start);
                    }
                    Ok(Poke::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
                if until == wake {
                    until = wake.min(Instant::now() + GATHER);
                }
            }
        }
    }

    /// Makes sure that notifications are about the folder that is at the path now.
    fn watch(&mut self) {
        let now = Identity::of(&self.root).ok();
        let watched = self.watcher.as_ref().map(|(_, identity)| identity);
        if watched == now.as_ref() {
            return;
        }
        self.watcher = None;
        self.due.all.get_or_insert_with(Instant::now);
        let Some(identity) = now else { return };
        let pokes = self.pokes.clone();
        let watcher = notify::recommended_watcher(move |event| _ = pokes.send(Poke::Seen(event)));
        // Without notifications there is the poll.
        let Ok(mut watcher) = watcher else { return };
        if watcher.watch(&self.absolute, RecursiveMode::Recursive).is_ok() {
            self.watcher = Some((watcher, identity));
        }
    }

    fn scan(&mut self, now: Instant) {
        let Due { files, all, done } = &mut self.due;
        let finished = files.extract_if(.., |_, file| file.due <= now);
        done.extend(finished.map(|(path, _)| path));
        self.folder.scan(SystemTime::now(), |path| match files.contains_key(path) {
            true => Writer::Busy,
            false if done.contains(path) => Writer::Done,
            false => Writer::Unknown,
        });
        done.clear();
        if self.folder.more_expected {
            all.get_or_insert(now + MOMENT);
        }
    }

    /// Looks at the files that are due.
    fn look(&mut self, now: Instant) {
        let due: Vec<PathBuf> = self
            .due
            .files
            .extract_if(.., |_, file| file.due <= now)
            .map(|(path, _)| path)
            .collect();
        for path in due {
            if !self.folder.look(&path) {
                self.due.all.get_or_insert(now);
                self.due.done.insert(path);
            }
        }
        if self.folder.more_expected {
            self.due.all.get_or_insert(now + MOMENT);
        }
    }

    fn seen(&mut self, event: notify::Result<notify::Event>) {
        let now = Instant::now();
        let Ok(event) = event else {
            self.due.all.get_or_insert(now);
            return;
        };
        for path in event.paths.iter().filter_map(|path| path.strip_prefix(&self.absolute).ok()) {
            let path = self.root.join(path);
            match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) if is_visible(&path) => {
                    self.due.files.insert(path, Writing { since: now, due: now });
                }
                // Nobody writes into a link: what it leads to is finished, or somebody else's.
                EventKind::Create(CreateKind::File) if path.is_symlink() => {
                    self.due.all.get_or_insert(now);
                }
                EventKind::Modify(ModifyKind::Data(_)) | EventKind::Create(CreateKind::File)
                    if is_visible(&path) =>
                {
                    let file =
                        self.due.files.entry(path).or_insert(Writing { since: now, due: now });
                    file.due = (now + SILENCE).min(file.since + PATIENCE);
                }
                EventKind::Access(_)
                | EventKind::Modify(ModifyKind::Data(_))
                | EventKind::Create(CreateKind::File) => (),
                // Whoever gives a file its name has finished it.
                EventKind::Modify(ModifyKind::Name(_)) => {
                    self.due.files.remove(&path);
                    self.due.done.insert(path);
                    self.due.all.get_or_insert(now);
                }
                _ => drop(self.due.all.get_or_insert(now)),
            }
        }
        if event.need_rescan() || event.paths.is_empty() {
            self.due.all.get_or_insert(now);
        }
    }
}

/// Whether a file would be read, as far as its own name goes.
fn is_visible(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_manifest(path) && !name.starts_with('.')
}
