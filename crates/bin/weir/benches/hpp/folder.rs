//! What happens in the folder of a node.

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

/// When each address was first seen in a file, and how many files were put in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) addresses: BTreeMap<Ipv4Addr, Instant>,
    pub(crate) files: usize,
}

/// Somebody who looks at each file that is put in place.
pub(crate) struct Onlooker {
    seen: Arc<Mutex<Seen>>,
}

impl Onlooker {
    pub(crate) fn start(folder: &Path) -> Self {
        let notices = inotify::init(CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&notices, folder, WatchFlags::MOVED_TO).unwrap();
        let (seen, folder) = (Arc::<Mutex<Seen>>::default(), folder.to_owned());
        let tells = seen.clone();
        thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 65_536];
            let mut reader = Reader::new(notices, &mut buffer);
            while let Ok(event) = reader.next() {
                let now = Instant::now();
                let Some(name) = event.file_name() else { continue };
                // It may have been replaced by the next one, or removed.
                let text = fs::read_to_string(folder.join(name.to_str().unwrap()));
                let mut seen = tells.lock().unwrap();
                seen.files += 1;
                for address in addresses(&text.unwrap_or_default()) {
                    seen.addresses.entry(address).or_insert(now);
                }
            }
        });
        Onlooker { seen }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }
}

/// The addresses of the networks of a file.
fn addresses(text: &str) -> impl Iterator<Item = Ipv4Addr> {
    let after = text.split("/GbpLocalSubnet/").skip(1);
    after.filter_map(|rest| rest.split_once('/')?.0.parse().ok())
}
