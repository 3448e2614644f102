use std::{collections::HashSet, sync::Arc};

use weir_model::Name;

/// Texts that many objects share.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    all: HashSet<Name>,
    /// The size at which unused texts are removed.
    limit: usize,
}

impl NameTable {
    /// The shared copy of a text.
    pub(crate) fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.all.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.all.insert(name.clone());
        name
    }

    /// Removes texts that no object uses any more, once there are many.
    pub(crate) fn tidy(&mut self) {
        const MIN_LIMIT: usize = 4096;
        if self.all.len() > self.limit.max(MIN_LIMIT) {
            self.all.retain(|name| Arc::strong_count(name) > 1);
            self.limit = 2 * self.all.len();
        }
    }
}
