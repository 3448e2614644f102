use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::Name;

/// The label that the API server sets on every namespace; its value is the name of the namespace.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Labels that differ between replicas or rollouts. A policy that selects by them would soon match
/// nothing.
const PASSING_LABELS: [&str; 13] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "service.istio.io/canonical-revision",
    "statefulset.kubernetes.io/pod-name",
    "workflows.argoproj.io/workflow",
];

/// Whether all pods of a workload have the label with one value, also after a rollout, as far as the
/// key shows.
pub fn is_lasting_label(key: &str) -> bool {
    !PASSING_LABELS.contains(&key)
}

/// The labels of one object, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Box<[(Name, Name)]>);

impl Labels {
    /// The value under `key`.
    pub fn value(&self, key: &str) -> Option<&Name> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|at| &self.0[at].1)
    }

    /// The pairs, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Name, Name)> {
        self.0.iter()
    }

    /// How many labels there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<Name>, V: Into<Name>> FromIterator<(K, V)> for Labels {
    /// The last value given for a key wins.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut all: Vec<(Name, Name)> =
            pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        all.reverse();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|later, first| later.0 == first.0);
        Labels(all.into())
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            write!(f, "{}{key}={value}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A label selector in canonical form: requirements sorted and without duplicates, all of which
/// must hold.
///
/// The empty selector matches every object. A `matchLabels` entry is an `In` with one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Arc<[Requirement]>);

impl Selector {
    /// The selector that matches everything.
    pub fn everything() -> Self {
        Selector::default()
    }

    /// The requirements, sorted.
    pub fn requirements(&self) -> &[Requirement] {
        &self.0
    }

    /// Whether the selector has no requirements.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all requirements hold for these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => {
                labels.value(key).is_none_or(|v| !values.contains(v))
            }
            Requirement::Exists(key) => labels.value(key).is_some(),
            Requirement::Absent(key) => labels.value(key).is_none(),
        })
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        let sorted: BTreeSet<Requirement> = requirements.into_iter().collect();
        Selector(sorted.into_iter().collect())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_everything() {
            return f.write_str("*");
        }
        for (at, requirement) in self.0.iter().enumerate() {
            write!(f, "{}{requirement}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The label exists and has one of the values.
    In(Name, BTreeSet<Name>),
    /// The label does not exist or has none of the values.
    NotIn(Name, BTreeSet<Name>),
    /// The label exists.
    Exists(Name),
    /// The label does not exist.
    Absent(Name),
}

impl Requirement {
    /// The requirement of a `matchLabels` entry.
    pub fn equals(key: impl Into<Name>, value: impl Into<Name>) -> Self {
        Requirement::In(key.into(), BTreeSet::from([value.into()]))
    }

    /// The key of the label.
    pub fn key(&self) -> &Name {
        match self {
            Requirement::In(key, _)
            | Requirement::NotIn(key, _)
            | Requirement::Exists(key)
            | Requirement::Absent(key) => key,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |values: &BTreeSet<Name>| values.iter().map(|v| &**v).collect::<Vec<_>>().join("|");
        match self {
            Requirement::In(key, values) => write!(f, "{key}={}", list(values)),
            Requirement::NotIn(key, values) => write!(f, "{key}!={}", list(values)),
            Requirement::Exists(key) => write!(f, "{key}"),
            Requirement::Absent(key) => write!(f, "!{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_repeated_key_wins() {
        let labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(labels.to_string(), "a=2,b=3");
        assert_eq!(labels.value("b").map(|v| &**v), Some("3"));
        assert_eq!(labels.value("c"), None);
    }

    #[test]
    fn selectors_with_the_same_meaning_are_equal() {
        let one: Selector =
            [Requirement::equals("a", "1"), Requirement::Exists("b".into())].into_iter().collect();
        let two: Selector = [
            Requirement::Exists("b".into()),
            Requirement::equals("a", "1"),
            Requirement::equals("a", "1"),
        ]
        .into_iter()
        .collect();
        assert_eq!(one, two);
        assert_eq!(one.to_string(), "a=1,b");
    }
}
