//! Watches the folder of a node.

use std::{
    collections::BTreeMap,
    fs,
    mem::MaybeUninit,
    net::Ipv4Addr,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

/// The time at which each address first appeared in a file, and the number of written files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    pub(crate) addresses: BTreeMap<Ipv4Addr, Instant>,
    pub(crate) files: usize,
}

/// Reads each file as soon as it is written.
pub(crate) struct FolderWatch {
    results: Arc<Mutex<Results>>,
}

impl FolderWatch {
    pub(crate) fn start(folder: &Path) -> Self {
        let notices = inotify::init(CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&notices, folder, WatchFlags::MOVED_TO).unwrap();
        let (results, folder) = (Arc::<Mutex<Results>>::default(), folder.to_owned());
        let shared = results.clone();
        thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 65_536];
            let mut reader = Reader::new(notices, &mut buffer);
            while let Ok(event) = reader.next() {
                let now = Instant::now();
                let Some(name) = event.file_name() else { continue };
                // The file may have been replaced or removed.
                let text = fs::read_to_string(folder.join(name.to_str().unwrap()));
                let mut results = shared.lock().unwrap();
                results.files += 1;
                for address in addresses(&text.unwrap_or_default()) {
                    results.addresses.entry(address).or_insert(now);
                }
            }
        });
        FolderWatch { results }
    }

    pub(crate) fn results(&self) -> Results {
        self.results.lock().unwrap().clone()
    }
}

/// The addresses in the networks of a file.
fn addresses(text: &str) -> impl Iterator<Item = Ipv4Addr> {
    let after = text.split("/GbpLocalSubnet/").skip(1);
    after.filter_map(|rest| rest.split_once('/')?.0.parse().ok())
}
