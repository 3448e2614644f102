use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
};

use weir_api::{Lowering, document::Tree};
use weir_model::{Change, Finding, Key, Object, ObjectRef, Severity};

use crate::kind::Kind;

/// What is known about the objects of a kind, without the objects: which there are, and in which version.
#[derive(Debug)]
pub(crate) struct Known {
    kind: Kind,
    lowering: Lowering,
    objects: BTreeMap<Key, Version>,
    findings: BTreeMap<Key, Vec<Finding>>,
    /// Whether the findings are others than when somebody last asked.
    is_news: bool,
    /// Of lists.
    round: u32,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    digest: u64,
    /// The last list it was in, or came after.
    round: u32,
}

impl Known {
    pub(crate) fn new(kind: Kind) -> Self {
        Known {
            kind,
            lowering: Lowering::default(),
            objects: BTreeMap::new(),
            findings: BTreeMap::new(),
            is_news: false,
            round: 0,
            hasher: RandomState::new(),
        }
    }

    /// A list begins. Until it is complete nothing is gone.
    pub(crate) fn begin(&mut self) {
        self.round += 1;
    }

    /// An object is there. Tells what follows, if it is not as it was.
    pub(crate) fn put(&mut self, mut tree: Tree) -> Option<Change> {
        self.kind.name_it(&mut tree);
        let key = self.kind.key(&tree)?;
        let version = tree.path(&["metadata", "resourceVersion"]).and_then(Tree::text);
        let version = Version {
            digest: self.hasher.hash_one(version.unwrap_or_default()),
            round: self.round,
        };
        if let Some(known) = self.objects.get_mut(&key) {
            known.round = self.round;
            if known.digest == version.digest {
                return None;
            }
        }
        let (object, mut findings) = self.lowering.object(&tree);
        if object.is_none() && findings.is_empty() {
            findings.push(unreadable(&key));
        }
        let before = match findings.is_empty() {
            true => self.findings.remove(&key),
            false => self.findings.insert(key.clone(), findings.clone()),
        };
        self.is_news |= before.unwrap_or_default() != findings;
        // The object's own key shares its texts. What cannot be read at all stays as it was.
        self.objects.insert(object.as_ref().map_or(key, Object::key), version);
        object.map(Change::Put)
    }

    /// An object is gone.
    pub(crate) fn remove(&mut self, tree: &Tree) -> Option<Change> {
        let key = self.kind.key(tree)?;
        self.is_news |= self.findings.remove(&key).is_some();
        self.objects.remove(&key).map(|_| Change::Remove(key))
    }

    /// The list is complete: what was not in it is gone.
    pub(crate) fn complete(&mut self) -> Vec<Change> {
        let round = self.round;
        let gone = self.objects.extract_if(.., |_, version| version.round != round);
        let gone: Vec<Change> = gone.map(|(key, _)| Change::Remove(key)).collect();
        let before = self.findings.len();
        self.findings.retain(|key, _| self.objects.contains_key(key));
        self.is_news |= self.findings.len() != before;
        gone
    }

    /// Forgets the versions, so that everything is told again.
    pub(crate) fn distrust(&mut self) {
        self.hasher = RandomState::new();
    }

    /// Whether what is wrong with the objects has changed since this was last asked.
    pub(crate) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// What is wrong with the objects.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.findings.values().flatten().cloned().collect()
    }
}

fn unreadable(key: &Key) -> Finding {
    Finding {
        location: None,
        code: "unreadable",
        severity: Severity::Error,
        object: Some(ObjectRef::from(key)),
        field: String::new(),
        message: "the object cannot be read; it counts as it was before".into(),
        hint: "look at it with `kubectl get -o yaml`".into(),
    }
}

#[cfg(test)]
mod tests {
    use weir_api::document;

    use super::*;

    fn pod(name: &str, version: u32) -> Tree {
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"{name}","resourceVersion":"{version}"}},"status":{{"podIP":"10.0.0.{version}"}}}}"#
        );
        document::documents(text.as_bytes()).0.remove(0)
    }

    fn told(change: &Change) -> String {
        match change {
            Change::Put(object) => format!("put {:?}", object.key()),
            Change::Remove(key) => format!("remove {key:?}"),
        }
    }

    #[test]
    fn what_is_as_it_was_is_not_told_again() {
        let mut known = Known::new(Kind::Pod);
        known.begin();
        assert!(known.put(pod("a", 1)).is_some());
        assert!(known.put(pod("a", 1)).is_none());
        assert!(known.put(pod("a", 2)).is_some());
        known.distrust();
        assert!(known.put(pod("a", 2)).is_some());
    }

    #[test]
    fn only_a_complete_list_says_what_is_gone() {
        let mut known = Known::new(Kind::Pod);
        known.begin();
        known.put(pod("a", 1));
        known.put(pod("b", 2));
        assert_eq!(known.complete(), []);
        // A list that breaks off, and one that does not.
        known.begin();
        known.put(pod("b", 2));
        known.begin();
        known.put(pod("a", 1));
        let gone: Vec<String> = known.complete().iter().map(told).collect();
        assert_eq!(gone.len(), 1);
        assert!(gone[0].starts_with("remove") && gone[0].contains("\"b\""), "{gone:?}");
        assert!(known.remove(&pod("b", 3)).is_none());
        assert!(known.remove(&pod("a", 3)).is_some());
    }

    #[test]
    fn a_policy_that_is_refused_counts_and_is_reported_until_it_is_right_or_gone() {
        let mut known = Known::new(Kind::NetworkPolicy);
        let policy = |version: u32, cidr: &str| {
            let text = format!(
                r#"{{"metadata":{{"namespace":"shop","name":"lock","resourceVersion":"{version}"}},
                    "spec":{{"podSelector":{{}},"ingress":[{{"from":[{{"ipBlock":{{"cidr":"{cidr}"}}}}]}}]}}}}"#
            );
            document::documents(text.as_bytes()).0.remove(0)
        };
        known.begin();
        assert!(known.put(policy(1, "10.0.0.0/8/8")).is_some());
        assert_eq!(known.findings().len(), 1, "{:?}", known.findings());
        assert!(known.put(policy(2, "10.0.0.0/8")).is_some());
        assert_eq!(known.findings(), []);
        known.put(policy(3, "nonsense"));
        assert!(known.has_news() && !known.has_news());
        known.begin();
        assert_eq!(known.complete().len(), 1);
        assert!(known.has_news());
        assert_eq!(known.findings(), []);
    }
}
