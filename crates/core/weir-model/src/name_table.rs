use std::{collections::HashSet, sync::Arc};

use crate::Name;

/// The table is not searched for unused names below this size.
const MIN_LIMIT: usize = 4096;

/// Interned strings, which many objects share. The table removes strings that no object uses.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    known: HashSet<Name>,
    /// The size at which unused strings are removed.
    limit: usize,
}

impl NameTable {
    /// The shared copy of a string.
    pub fn intern(&mut self, text: &str) -> Name {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            // Remove unused strings before they outnumber the used ones.
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.limit = self.known.len().saturating_mul(2).max(MIN_LIMIT);
        }
        let name = Name::from(text);
        self.known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stored_once_and_only_while_they_are_used() {
        let mut names = NameTable::default();
        let [one, other] = ["web", "web"].map(|text| names.intern(text));
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..10 * MIN_LIMIT {
            names.intern(&number.to_string());
        }
        assert!(names.known.len() <= MIN_LIMIT, "{}", names.known.len());
        assert!(Arc::ptr_eq(&one, &names.intern("web")), "this name is still in use");
    }
}
