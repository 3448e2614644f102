use std::{collections::HashSet, sync::Arc};

use crate::Name;

/// The table is not searched for strings to remove below this size.
const MIN_LIMIT: usize = 1024;

/// Interned strings, which many objects share. The table removes strings that at most one object
/// uses: an entry for each of them would cost more than a second copy of a few.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    known: HashSet<Name>,
    /// The size at which strings are removed.
    limit: usize,
}

impl NameTable {
    /// The shared copy of a string.
    pub fn intern(&mut self, text: &str) -> Name {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            // Remove these strings before they outnumber the shared ones. One reference is that of
            // the table.
            self.known.retain(|name| Arc::strong_count(name) > 2);
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
    fn strings_are_stored_once_while_several_objects_use_them() {
        let mut names = NameTable::default();
        let [one, other] = ["web", "web"].map(|text| names.intern(text));
        assert!(Arc::ptr_eq(&one, &other));
        let single = names.intern("db");
        let unique: Vec<Name> =
            (0..10 * MIN_LIMIT).map(|number| names.intern(&number.to_string())).collect();
        assert!(names.known.len() <= MIN_LIMIT, "{}", names.known.len());
        assert!(Arc::ptr_eq(&one, &names.intern("web")), "several objects use this string");
        assert!(!Arc::ptr_eq(&single, &names.intern("db")), "one object uses this string");
        drop(unique);
    }
}
