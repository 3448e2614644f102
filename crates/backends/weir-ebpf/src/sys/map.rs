//! Maps: elements by key, and many at a time.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use super::{
    name, object_info, open_pinned,
    raw::{Attributes, MapFd, PlainCommand},
};
use crate::layout::{Declaration, MapType};

const BPF_F_NO_PREALLOC: u32 = 1;

/// The elements that one call reads.
const BATCH_SIZE: usize = 4096;

/// An open map. It checks the lengths of keys and values.
#[derive(Debug)]
pub(crate) struct Map {
    fd: MapFd,
    declaration: Declaration,
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
        Map::with(attributes.create(PlainCommand::MapCreate)?, declaration)
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
        Ok(Map { fd: MapFd::new(fd)?, declaration })
    }

    pub(crate) fn declaration(&self) -> Declaration {
        self.declaration
    }

    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.fd.update(key, value)
    }

    /// Writes elements in order: their keys and their values, one after the other.
    pub(crate) fn update_all(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        self.fd.update_all(keys, values)
    }

    pub(crate) fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self.fd.lookup(key) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes an element, which need not exist.
    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<()> {
        match self.fd.delete(key) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
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
        let (key_bytes, value_bytes) = (self.fd.key_bytes(), self.fd.value_bytes());
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
        let (keys, values) = (&mut some.keys, &mut some.values);
        let (result, count) = self.fd.lookup_all(before.as_deref(), &mut after, keys, values);
        *position = match result {
            Ok(()) => Position::After(after),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Position::End,
            Err(error) => return Err(error),
        };
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
