use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

/// A list that many values share: a copy costs as much as a pointer, and so do hashing and the
/// comparison with a copy.
#[derive(Clone)]
pub struct SharedList<T> {
    items: Arc<[T]>,
    hash: u64,
}

impl<T: Hash> SharedList<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&items);
        SharedList { items: items.into(), hash }
    }
}

impl<T> SharedList<T> {
    /// Whether one list is a copy of the other.
    pub fn is_copy(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.items, &other.items)
    }
}

impl<T> Deref for SharedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<'a, T> IntoIterator for &'a SharedList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// As a list, like the items alone: names of kernel objects contain a digest of this text.
impl<T: fmt::Debug> fmt::Debug for SharedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is_copy(other) || (self.hash == other.hash && self.items == other.items)
    }
}

impl<T: Eq> Eq for SharedList<T> {}

impl<T: Ord> PartialOrd for SharedList<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for SharedList<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_copy(other) { Ordering::Equal } else { self.items.cmp(&other.items) }
    }
}

impl<T> Hash for SharedList<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}
