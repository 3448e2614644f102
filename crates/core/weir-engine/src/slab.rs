use std::ops::{Index, IndexMut};

/// Values under small dense ids. A freed id is reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.items[id as usize] = Some(item);
                id
            }
            None => {
                self.items.push(Some(item));
                u32::try_from(self.items.len() - 1).expect("fewer than 2^32 objects fit in memory")
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        self.free.push(id);
        self.items[id as usize].take().expect("ids are removed once")
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().zip(0..).filter_map(|(item, id)| Some((id, item.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.items[id as usize].as_ref().expect("ids in use name an item")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.items[id as usize].as_mut().expect("ids in use name an item")
    }
}
