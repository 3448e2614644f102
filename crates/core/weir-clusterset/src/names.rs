use std::{collections::BTreeSet, sync::Arc};

use weir_model::Name;

use crate::{RemoteId, RemotePod};

/// The table is not searched for unused names below this size.
const MIN_LIMIT: usize = 1_024;

/// Interned strings that many pods share: clusters, namespaces and labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    known: BTreeSet<Name>,
    limit: usize,
}

impl NameTable {
    /// Replaces the strings of a pod by interned ones.
    pub(crate) fn intern_pod(&mut self, pod: RemotePod) -> RemotePod {
        let RemotePod { id, labels, addresses, mut ports } = pod;
        let id = RemoteId {
            namespace: self.intern(id.namespace),
            cluster: self.intern(id.cluster),
            name: id.name,
        };
        let labels = labels.iter().map(|(k, v)| (self.intern(k.clone()), self.intern(v.clone())));
        let labels = labels.collect();
        ports.iter_mut().for_each(|port| port.name = self.intern(port.name.clone()));
        RemotePod { id, labels, addresses, ports }
    }

    fn intern(&mut self, name: Name) -> Name {
        if let Some(known) = self.known.get(&name) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            // Remove unused names before they outnumber the used ones.
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.limit = self.known.len().saturating_mul(2).max(MIN_LIMIT);
        }
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
        let [one, other] = ["web", "web"].map(|text| names.intern(text.into()));
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..10 * MIN_LIMIT {
            names.intern(number.to_string().into());
        }
        assert!(names.known.len() <= MIN_LIMIT, "{}", names.known.len());
        assert!(Arc::ptr_eq(&one, &names.intern("web".into())), "this name is still in use");
    }
}
