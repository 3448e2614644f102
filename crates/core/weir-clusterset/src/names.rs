use std::{collections::BTreeSet, sync::Arc};

use weir_model::Name;

use crate::{RemoteId, RemotePod};

/// Fewer names than this are not worth looking through.
const FEW: usize = 1_024;

/// Names that many pods have in common, each kept once: their cluster, their namespace, their labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    known: BTreeSet<Name>,
    limit: usize,
}

impl Names {
    /// A pod whose names are those that others have, too.
    pub(crate) fn share(&mut self, pod: RemotePod) -> RemotePod {
        let RemotePod { id, labels, addresses, mut ports } = pod;
        let id = RemoteId {
            namespace: self.one(id.namespace),
            cluster: self.one(id.cluster),
            name: id.name,
        };
        let labels = labels.iter().map(|(k, v)| (self.one(k.clone()), self.one(v.clone())));
        let labels = labels.collect();
        ports.iter_mut().for_each(|port| port.name = self.one(port.name.clone()));
        RemotePod { id, labels, addresses, ports }
    }

    fn one(&mut self, name: Name) -> Name {
        if let Some(known) = self.known.get(&name) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            // What nobody else has any more goes, before it is more than what somebody does.
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.limit = self.known.len().saturating_mul(2).max(FEW);
        }
        self.known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_and_no_longer_than_somebody_has_them() {
        let mut names = Names::default();
        let [one, other] = ["web", "web"].map(|text| names.one(text.into()));
        assert!(Arc::ptr_eq(&one, &other));
        for number in 0..10 * FEW {
            names.one(number.to_string().into());
        }
        assert!(names.known.len() <= FEW, "{}", names.known.len());
        assert!(Arc::ptr_eq(&one, &names.one("web".into())), "this one is still somebody's");
    }
}
