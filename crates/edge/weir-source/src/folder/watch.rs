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

use super::{
    Folder, MAX_WRITE_TIME, QUIET_PERIOD, RESCAN_DELAY, WriteState, listing::FileIdentity,
};
use crate::files::is_manifest;

/// How long to wait for further notifications after the first one.
const BATCH_WINDOW: Duration = Duration::from_millis(5);
/// The longest pause after a scan of the whole folder.
const MAX_SCAN_PAUSE: Duration = Duration::from_millis(500);
/// The interval of checks that the path still leads to the watched folder.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of full scans: notifications can be lost, and some file systems have none.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// A thread that watches a folder until this is dropped.
#[derive(Debug)]
pub struct FolderWatch {
    commands: Sender<WatchCommand>,
}

impl FolderWatch {
    /// Watches a folder and sends its events, the first with everything there is, until `send`
    /// returns `false`.
    pub fn start(
        root: impl Into<PathBuf>,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<FolderWatch> {
        let (commands, queue) = mpsc::channel();
        let root = root.into();
        let watched = Watched {
            absolute: std::path::absolute(&root)?,
            folder: Folder::new(root.clone()),
            root,
            due: DueScans { all: Some(Instant::now()), ..DueScans::default() },
            watcher: None,
            commands: commands.clone(),
        };
        let thread = thread::Builder::new().name("weir-folder".into());
        thread.spawn(move || watched.run(&queue, send))?;
        Ok(FolderWatch { commands })
    }

    /// Reads every file again, changed or not, and sends an event.
    pub fn reload(&self) {
        // The thread may have ended.
        _ = self.commands.send(WatchCommand::Reload);
    }
}

impl Drop for FolderWatch {
    fn drop(&mut self) {
        _ = self.commands.send(WatchCommand::Stop);
    }
}

/// The reasons for the thread to wake up.
#[derive(Debug)]
enum WatchCommand {
    Notified(notify::Result<notify::Event>),
    Reload,
    Stop,
}

struct Watched {
    root: PathBuf,
    /// The root as notifications name it.
    absolute: PathBuf,
    folder: Folder,
    due: DueScans,
    /// The notifier, and the folder that it watches.
    watcher: Option<(RecommendedWatcher, FileIdentity)>,
    commands: Sender<WatchCommand>,
}

/// The scans and files that are due.
#[derive(Debug, Default)]
struct DueScans {
    /// When to scan the whole folder.
    all: Option<Instant>,
    /// The files that are being written.
    files: BTreeMap<PathBuf, Writing>,
    /// Files that are new and complete.
    done: BTreeSet<PathBuf>,
}

/// When a file began to change, and when to read it.
#[derive(Debug)]
struct Writing {
    since: Instant,
    due: Instant,
}

impl Watched {
    fn run(mut self, queue: &Receiver<WatchCommand>, mut send: impl FnMut(SourceEvent) -> bool) {
        let mut poll = Instant::now();
        // Scan a large folder less often, but never so rarely that users notice.
        let mut paused_until = Instant::now();
        loop {
            self.watch();
            let start = Instant::now();
            let all_due = self.due.all.is_some_and(|due| due <= start) && paused_until <= start;
            if all_due || poll <= start {
                self.due.all = None;
                self.scan(start);
                let took = start.elapsed();
                paused_until = start + took + (took * 3).min(MAX_SCAN_PAUSE);
                poll =
                    start + if self.watcher.is_some() { POLL_INTERVAL } else { IDENTITY_INTERVAL };
            }
            self.read_due(start);
            if self.folder.next_event().is_some_and(|event| !send(event)) {
                return;
            }
            let all = self.due.all.map(|due| due.max(paused_until));
            let files = self.due.files.values().map(|file| file.due);
            let wake = files.chain(all).fold(poll.min(start + IDENTITY_INTERVAL), Instant::min);
            let mut until = wake;
            loop {
                let wait = until.saturating_duration_since(Instant::now());
                match queue.recv_timeout(wait) {
                    Ok(WatchCommand::Notified(event)) => self.handle(event),
                    Ok(WatchCommand::Reload) => {
                        self.folder.forget_fingerprints();
                        (self.due.all, paused_until) = (Some(start), start);
                    }
                    Ok(WatchCommand::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
                if until == wake {
                    until = wake.min(Instant::now() + BATCH_WINDOW);
                }
            }
        }
    }

    /// Starts a new notifier if the path leads to another folder than before.
    fn watch(&mut self) {
        let now = FileIdentity::from_path(&self.root).ok();
        let watched = self.watcher.as_ref().map(|(_, identity)| identity);
        if watched == now.as_ref() {
            return;
        }
        self.watcher = None;
        self.due.all.get_or_insert_with(Instant::now);
        let Some(identity) = now else { return };
        let commands = self.commands.clone();
        let watcher = notify::recommended_watcher(move |event| {
            _ = commands.send(WatchCommand::Notified(event))
        });
        // Without notifications, the full scans remain.
        let Ok(mut watcher) = watcher else { return };
        if watcher.watch(&self.absolute, RecursiveMode::Recursive).is_ok() {
            self.watcher = Some((watcher, identity));
        }
    }

    fn scan(&mut self, now: Instant) {
        let DueScans { files, all, done } = &mut self.due;
        let finished = files.extract_if(.., |_, file| file.due <= now);
        done.extend(finished.map(|(path, _)| path));
        self.folder.scan(SystemTime::now(), |path| {
            if files.contains_key(path) {
                WriteState::Busy
            } else if done.contains(path) {
                WriteState::Done
            } else {
                WriteState::Unknown
            }
        });
        done.clear();
        if self.folder.more_expected {
            all.get_or_insert(now + RESCAN_DELAY);
        }
    }

    /// Reads the files that are due.
    fn read_due(&mut self, now: Instant) {
        let due: Vec<PathBuf> = self
            .due
            .files
            .extract_if(.., |_, file| file.due <= now)
            .map(|(path, _)| path)
            .collect();
        for path in due {
            if !self.folder.read_if_changed(&path) {
                self.due.all.get_or_insert(now);
                self.due.done.insert(path);
            }
        }
        if self.folder.more_expected {
            self.due.all.get_or_insert(now + RESCAN_DELAY);
        }
    }

    fn handle(&mut self, event: notify::Result<notify::Event>) {
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
                // A new link is complete: programs write its target, not the link.
                EventKind::Create(CreateKind::File) if path.is_symlink() => {
                    self.due.all.get_or_insert(now);
                }
                EventKind::Modify(ModifyKind::Data(_)) | EventKind::Create(CreateKind::File)
                    if is_visible(&path) =>
                {
                    let file =
                        self.due.files.entry(path).or_insert(Writing { since: now, due: now });
                    file.due = (now + QUIET_PERIOD).min(file.since + MAX_WRITE_TIME);
                }
                EventKind::Access(_)
                | EventKind::Modify(ModifyKind::Data(_))
                | EventKind::Create(CreateKind::File) => (),
                // A renamed file is complete.
                EventKind::Modify(ModifyKind::Name(_)) => {
                    self.due.files.remove(&path);
                    self.due.done.insert(path);
                    self.due.all.get_or_insert(now);
                }
                _ => {
                    self.due.all.get_or_insert(now);
                }
            }
        }
        if event.need_rescan() || event.paths.is_empty() {
            self.due.all.get_or_insert(now);
        }
    }
}

/// Whether a file has the name of a manifest and is not hidden.
fn is_visible(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_manifest(path) && !name.starts_with('.')
}
