//! Maps: elements by key, and many at a time.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use super::{Attributes, name, object_info, open_pinned, owned};
use crate::layout::{Declaration, MapType};

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const MAP_LOOKUP_BATCH: u32 = 24;
const MAP_UPDATE_BATCH: u32 = 26;

const BPF_F_NO_PREALLOC: u32 = 1;

/// Where `union bpf_attr` has the number of elements of a batch.
const BATCH_COUNT: usize = 32;
/// The elements that one call reads.
const BATCH_SIZE: usize = 4096;

/// An open map. It checks the lengths of keys and values.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    declaration: Declaration,
    /// The length of a value in a call: for each CPU if the map has one for each.
    value_bytes: usize,
}

/// Elements of a map, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Elements {
    keys: Vec<u8>,
    values: Vec<u8>,
    key_bytes: usize,
    value_bytes: usize,
}

impl Elements {
    /// The keys and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let keys = self.keys.chunks_exact(self.key_bytes.max(1));
        keys.zip(self.values.chunks_exact(self.value_bytes.max(1)))
    }

    fn len(&self) -> usize {
        self.keys.len() / self.key_bytes.max(1)
    }
}

/// How far a map has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
    /// Nothing has been read.
    #[default]
    Start,
    /// The kernel continues from here.
    After(Vec<u8>),
    /// Everything has been read.
    End,
}

impl Map {
    pub(crate) fn create(text: &str, declaration: Declaration) -> io::Result<Map> {
        let flags = match declaration.map_type {
            MapType::Hash | MapType::LpmTrie => BPF_F_NO_PREALLOC,
            MapType::Array | MapType::PercpuArray | MapType::LruHash | MapType::RingBuffer => 0,
        };
        let attributes = Attributes::new()
            .word(0, declaration.map_type as u32)
            .word(4, declaration.key_size)
            .word(8, declaration.value_size)
            .word(12, declaration.max_entries)
            .word(16, flags)
            .bytes(28, &name(text));
        // SAFETY: there are no pointers.
        let fd = unsafe { attributes.call(MAP_CREATE) }?;
        Map::with(owned(fd), declaration)
    }

    /// Opens a pinned map that must have the declaration, except for its capacity.
    pub(crate) fn open(path: &Path, declaration: Declaration) -> io::Result<Map> {
        let fd = open_pinned(path)?;
        let [map_type, _, key_size, value_size, max_entries, ..] = object_info(fd.as_fd())?;
        let expected = (declaration.map_type as u32, declaration.key_size, declaration.value_size);
        if (map_type, key_size, value_size) != expected {
            return Err(io::Error::other("a pinned map has another layout"));
        }
        Map::with(fd, Declaration { max_entries, ..declaration })
    }

    fn with(fd: OwnedFd, declaration: Declaration) -> io::Result<Map> {
        let value_bytes = match declaration.map_type {
            MapType::PercpuArray => {
                possible_cpus()? * declaration.value_size.next_multiple_of(8) as usize
            }
            _ => declaration.value_size as usize,
        };
        Ok(Map { fd, declaration, value_bytes })
    }

    pub(crate) fn declaration(&self) -> Declaration {
        self.declaration
    }

    fn key_bytes(&self) -> usize {
        self.declaration.key_size as usize
    }

    fn check(&self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let is_fit = key.len() == self.key_bytes()
            && value.is_none_or(|value| value.len() == self.value_bytes);
        if is_fit { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn element(&self, key: &[u8]) -> Attributes {
        Attributes::new().fd(0, self.fd.as_fd()).pointer(8, key.as_ptr())
    }

    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, Some(value))?;
        // SAFETY: the key and the value have the lengths of the map.
        unsafe { self.element(key).pointer(16, value.as_ptr()).call(MAP_UPDATE_ELEM) }.map(drop)
    }

    /// Writes elements in order: their keys and their values, one after the other.
    pub(crate) fn update_all(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let count = keys.len() / self.key_bytes().max(1);
        if keys.len() != count * self.key_bytes() || values.len() != count * self.value_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let attributes = Attributes::new()
            .pointer(16, keys.as_ptr())
            .pointer(24, values.as_ptr())
            .word(BATCH_COUNT, length)
            .fd(36, self.fd.as_fd());
        // SAFETY: there are as many keys and values as stated, with the lengths of the map.
        unsafe { attributes.call(MAP_UPDATE_BATCH) }.map(drop)
    }

    pub(crate) fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key, None)?;
        let mut value = vec![0; self.value_bytes];
        let attributes = self.element(key).pointer(16, value.as_mut_ptr());
        // SAFETY: the key and the value have the lengths of the map.
        match unsafe { attributes.call(MAP_LOOKUP_ELEM) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes an element, which need not exist.
    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check(key, None)?;
        // SAFETY: the key has the length of the map.
        match unsafe { self.element(key).call(MAP_DELETE_ELEM) } {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All elements. If another process changes the map meanwhile, some can be missing or twice there.
    pub(crate) fn elements(&self) -> io::Result<Elements> {
        let mut all = self.no_elements();
        let mut position = Position::Start;
        while position != Position::End {
            let some = self.next_elements(&mut position)?;
            all.keys.extend(some.keys);
            all.values.extend(some.values);
            // A map that changes meanwhile can start again from its first key.
            if all.len() > 2 * self.declaration.max_entries as usize {
                return Err(io::Error::other("the map changes while it is read"));
            }
        }
        Ok(all)
    }

    fn no_elements(&self) -> Elements {
        let (key_bytes, value_bytes) = (self.key_bytes(), self.value_bytes);
        Elements { keys: Vec::new(), values: Vec::new(), key_bytes, value_bytes }
    }

    /// The elements after a position, which moves on: some thousands, or those that are left.
    pub(crate) fn next_elements(&self, position: &mut Position) -> io::Result<Elements> {
        let mut some = self.no_elements();
        let before = match position {
            Position::Start => None,
            Position::After(before) => Some(before.clone()),
            Position::End => return Ok(some),
        };
        some.keys.resize(BATCH_SIZE * some.key_bytes, 0);
        some.values.resize(BATCH_SIZE * some.value_bytes, 0);
        // The kernel writes a number or a key.
        let mut after = vec![0; some.key_bytes.max(8)];
        let mut attributes = Attributes::new()
            .pointer(0, before.as_ref().map_or(std::ptr::null(), |before| before.as_ptr()))
            .pointer(8, after.as_mut_ptr())
            .pointer(16, some.keys.as_mut_ptr())
            .pointer(24, some.values.as_mut_ptr())
            .word(BATCH_COUNT, BATCH_SIZE as u32)
            .fd(36, self.fd.as_fd());
        // SAFETY: keys and values have room for as many as stated. Both positions have the length of
        // a key, and of a number; the first may be null.
        let result = unsafe { attributes.call_in_place(MAP_LOOKUP_BATCH) };
        *position = match result {
            Ok(_) => Position::After(after),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Position::End,
            Err(error) => return Err(error),
        };
        let count = attributes.read_word(BATCH_COUNT) as usize;
        some.keys.truncate(count * some.key_bytes);
        some.values.truncate(count * some.value_bytes);
        Ok(some)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The number of CPUs that the machine can have.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("cannot read the number of CPUs"))
}
