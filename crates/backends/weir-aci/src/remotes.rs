//! A compact store for the addresses of a container. A node keeps the addresses of its whole
//! cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::{EpLabel, Filter, RemoteIp};

/// Addresses with their labels, in order. Addresses with equal labels share one label set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<RemoteIp>", into = "Vec<RemoteIp>")]
pub struct Remotes {
    addresses: Strings,
    /// The distinct label sets, as alternating keys and values.
    label_sets: Vec<Strings>,
    /// The index of the label set of each address.
    label_set_of: Vec<usize>,
}

impl Remotes {
    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.label_set_of.len()
    }

    /// Whether there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.label_set_of.is_empty()
    }

    /// The addresses whose labels satisfy all filters.
    pub(crate) fn matching(&self, filters: &[Filter]) -> impl Iterator<Item = &str> {
        let accepts = |label_set: &Strings| {
            let under =
                |key| label_set.pairs().filter(move |label| label.0 == key).map(|label| label.1);
            filters.iter().all(|filter| filter.holds(under(filter.key.as_str())))
        };
        let accepted: Vec<bool> = self.label_sets.iter().map(accepts).collect();
        let all = self.addresses.iter().zip(&self.label_set_of);
        all.filter(move |(_, label_set)| accepted[**label_set]).map(|(address, _)| address)
    }
}

impl FromIterator<RemoteIp> for Remotes {
    fn from_iter<T: IntoIterator<Item = RemoteIp>>(all: T) -> Self {
        let (mut addresses, mut label_sets, mut label_set_of) =
            (Vec::new(), Vec::new(), Vec::new());
        let mut known: BTreeMap<Vec<EpLabel>, usize> = BTreeMap::new();
        for RemoteIp { addr, hpp_ep_label } in all {
            addresses.push(addr);
            let label_set = *known.entry(hpp_ep_label).or_insert_with_key(|labels| {
                label_sets.push(Strings::new(
                    labels.iter().flat_map(|label| [&*label.key, &*label.value]),
                ));
                label_sets.len() - 1
            });
            label_set_of.push(label_set);
        }
        label_sets.shrink_to_fit();
        label_set_of.shrink_to_fit();
        Remotes {
            addresses: Strings::new(addresses.iter().map(String::as_str)),
            label_sets,
            label_set_of,
        }
    }
}

impl From<Vec<RemoteIp>> for Remotes {
    fn from(all: Vec<RemoteIp>) -> Self {
        all.into_iter().collect()
    }
}

impl From<Remotes> for Vec<RemoteIp> {
    fn from(remotes: Remotes) -> Self {
        let label = |(key, value): (&str, &str)| EpLabel { key: key.into(), value: value.into() };
        let remote = |(address, label_set): (&str, &usize)| RemoteIp {
            addr: address.into(),
            hpp_ep_label: remotes.label_sets[*label_set].pairs().map(label).collect(),
        };
        remotes.addresses.iter().zip(&remotes.label_set_of).map(remote).collect()
    }
}

/// Concatenated strings and the end of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Strings {
    text: Box<str>,
    ends: Box<[usize]>,
}

impl Strings {
    fn new<'a>(all: impl Iterator<Item = &'a str>) -> Self {
        let mut text = String::new();
        let ends = all.map(|one| {
            text.push_str(one);
            text.len()
        });
        Strings { ends: ends.collect(), text: text.into() }
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// The strings as pairs.
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().step_by(2).zip(self.iter().skip(1).step_by(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(address: &str, labels: &[(&str, &str)]) -> RemoteIp {
        let label =
            |(key, value): &(&str, &str)| EpLabel { key: (*key).into(), value: (*value).into() };
        RemoteIp { addr: address.into(), hpp_ep_label: labels.iter().map(label).collect() }
    }

    fn samples() -> Vec<RemoteIp> {
        vec![
            remote("10.0.0.3", &[("app", "web"), ("tier", "")]),
            remote("10.0.0.1", &[]),
            remote("", &[("tier", ""), ("app", "web")]),
            remote("fd00::1", &[("app", "web"), ("tier", "")]),
            remote("10.0.0.1", &[("äpp", "wëb"), ("äpp", "other")]),
            remote("10.0.0.1", &[("", "")]),
        ]
    }

    #[test]
    fn addresses_keep_their_labels_and_order() {
        let remotes: Remotes = samples().into();
        assert_eq!(remotes.len(), 6);
        assert_eq!(Vec::from(remotes.clone()), samples());
        let text = serde_json::to_string(&samples()).unwrap();
        assert_eq!(serde_json::to_string(&remotes).unwrap(), text);
        assert_eq!(serde_json::from_str::<Remotes>(&text).unwrap(), remotes);
        assert!(Remotes::default().is_empty() && Remotes::from(Vec::new()) == Remotes::default());
    }

    #[test]
    fn equal_label_sets_are_stored_once() {
        let replicas =
            (0..1000).map(|number| remote(&format!("10.0.0.{number}"), &[("app", "web")]));
        let remotes: Remotes = replicas.chain(samples()).collect();
        assert_eq!((remotes.len(), remotes.label_sets.len()), (1006, 6));
    }

    #[test]
    fn filters_see_every_value_under_a_key() {
        let remotes: Remotes = samples().into();
        let filter = |key: &str, operator: &str, values: &[&str]| Filter {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        let matching = |filters: &[Filter]| remotes.matching(filters).collect::<Vec<_>>().join(" ");
        assert_eq!(matching(&[filter("app", "Equals", &["web"])]), "10.0.0.3  fd00::1");
        assert_eq!(matching(&[filter("äpp", "In", &["other"])]), "10.0.0.1");
        assert_eq!(
            matching(&[filter("äpp", "NotIn", &["other"]), filter("app", "DoesNotExist", &[])]),
            "10.0.0.1 10.0.0.1"
        );
        assert_eq!(matching(&[filter("web", "Exists", &[])]), "");
        assert_eq!(matching(&[]), "10.0.0.3 10.0.0.1  fd00::1 10.0.0.1 10.0.0.1");
    }
}
