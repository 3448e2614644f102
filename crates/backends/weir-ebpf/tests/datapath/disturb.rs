//! Changes the installed rules of this network namespace, as another program would. The test binary
//! runs as such a program: `datapath disturb delete addresses4`.

#![allow(unsafe_code, reason = "another program changes maps and links with bpf(2)")]

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::PathBuf,
};

const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const MAP_GET_NEXT_KEY: u32 = 4;
const OBJ_GET: u32 = 7;
const LINK_DETACH: u32 = 34;

/// The first word of the arguments of such a program.
pub(crate) const COMMAND: &str = "disturb";

/// The command line for a verb and a name.
pub(crate) fn command(what: &str) -> String {
    format!("/proc/self/exe {COMMAND} {what}")
}

/// Runs the command in the arguments: a verb and the name of an object.
pub(crate) fn run(arguments: &[String]) {
    let [verb, name] = arguments else { panic!("expected a verb and a name") };
    if verb == "remove" {
        let all = fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().path());
        let is_named = |path: &PathBuf| name == "all" || path.ends_with(name);
        return all.filter(is_named).for_each(|path| fs::remove_file(path).unwrap());
    }
    let object = open(name);
    match &**verb {
        // A decision that allows all peers of a kind, for numbers that no rule uses.
        "decide" => {
            let key = 4000_u64 << 24 | 4000;
            let value = key << 24 | 1;
            let (key, value) = (key.to_ne_bytes(), value.to_ne_bytes());
            call(MAP_UPDATE_ELEM, element(&object, key.as_ptr(), value.as_ptr())).unwrap();
        }
        // The key of an IPv4 address, and the value of one of the first kind.
        "add" => {
            let (key, value) = ([10_u8, 99, 0, 9], [[10, 99, 0, 9], 1_u32.to_ne_bytes()]);
            let value = [value[1], value[0]].concat();
            call(MAP_UPDATE_ELEM, element(&object, key.as_ptr(), value.as_ptr())).unwrap();
        }
        "delete" => {
            let mut key = [0_u8; 32];
            call(MAP_GET_NEXT_KEY, element(&object, std::ptr::null(), key.as_mut_ptr())).unwrap();
            call(MAP_DELETE_ELEM, element(&object, key.as_ptr(), std::ptr::null())).unwrap();
        }
        "detach" => _ = call(LINK_DETACH, [object.as_raw_fd() as u64, 0, 0, 0]).unwrap(),
        _ => panic!("{verb} is not a verb"),
    }
}

/// The path of an object of the newest rules.
fn path(name: &str) -> PathBuf {
    let inode = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let of_this = |start: String| {
        move |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&start)
    };
    let list = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let root = list("/sys/fs/bpf".into()).find(of_this(format!("weir-{inode}-"))).unwrap();
    list(root).filter(of_this("rules-".to_owned())).max().unwrap().join(name)
}

fn open(name: &str) -> OwnedFd {
    let path = CString::new(path(name).as_os_str().as_bytes()).unwrap();
    let fd = call(OBJ_GET, [path.as_ptr() as u64, 0, 0, 0]).unwrap();
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn element(map: &OwnedFd, key: *const u8, value: *const u8) -> [u64; 4] {
    [map.as_raw_fd() as u64, key as u64, value as u64, 0]
}

/// Calls bpf(2). The pointers are valid for what the callers above pass.
fn call(command: u32, attributes: [u64; 4]) -> io::Result<i32> {
    // SAFETY: the attributes are as long as stated, and the pointers are valid.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), 32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
