//! The addresses of a container, in little room: a node has all of its cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::{EpLabel, Filter, RemoteIp};

/// Addresses with their labels, in order. Labels that several have in common are kept once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<RemoteIp>", into = "Vec<RemoteIp>")]
pub struct Remotes {
    addresses: Texts,
    /// Keys and values by turns.
    looks: Vec<Texts>,
    /// Which look each address has.
    worn: Vec<usize>,
}

impl Remotes {
    /// How many addresses there are.
    pub fn len(&self) -> usize {
        self.worn.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.worn.is_empty()
    }

    /// The addresses with labels that all filters hold for.
    pub(crate) fn passing(&self, filters: &[Filter]) -> impl Iterator<Item = &str> {
        let passes = |look: &Texts| {
            let under = |key| look.pairs().filter(move |label| label.0 == key).map(|label| label.1);
            filters.iter().all(|filter| filter.holds(under(filter.key.as_str())))
        };
        let passes: Vec<bool> = self.looks.iter().map(passes).collect();
        let all = self.addresses.iter().zip(&self.worn);
        all.filter(move |(_, look)| passes[**look]).map(|(address, _)| address)
    }
}

impl FromIterator<RemoteIp> for Remotes {
    fn from_iter<T: IntoIterator<Item = RemoteIp>>(all: T) -> Self {
        let (mut addresses, mut looks, mut worn) = (Vec::new(), Vec::new(), Vec::new());
        let mut known: BTreeMap<Vec<EpLabel>, usize> = BTreeMap::new();
        for RemoteIp { addr, hpp_ep_label } in all {
            addresses.push(addr);
            let look = *known.entry(hpp_ep_label).or_insert_with_key(|labels| {
                looks
                    .push(Texts::new(labels.iter().flat_map(|label| [&*label.key, &*label.value])));
                looks.len() - 1
            });
            worn.push(look);
        }
        looks.shrink_to_fit();
        worn.shrink_to_fit();
        Remotes { addresses: Texts::new(addresses.iter().map(String::as_str)), looks, worn }
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
        let remote = |(address, look): (&str, &usize)| RemoteIp {
            addr: address.into(),
            hpp_ep_label: remotes.looks[*look].pairs().map(label).collect(),
        };
        remotes.addresses.iter().zip(&remotes.worn).map(remote).collect()
    }
}

/// Texts one after the other, and where each ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Texts {
    text: Box<str>,
    ends: Box<[usize]>,
}

impl Texts {
    fn new<'a>(all: impl Iterator<Item = &'a str>) -> Self {
        let mut text = String::new();
        let ends = all.map(|one| {
            text.push_str(one);
            text.len()
        });
        Texts { ends: ends.collect(), text: text.into() }
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// The texts two by two.
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

    fn some() -> Vec<RemoteIp> {
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
    fn they_are_told_as_they_were_and_in_their_order() {
        let remotes: Remotes = some().into();
        assert_eq!(remotes.len(), 6);
        assert_eq!(Vec::from(remotes.clone()), some());
        let text = serde_json::to_string(&some()).unwrap();
        assert_eq!(serde_json::to_string(&remotes).unwrap(), text);
        assert_eq!(serde_json::from_str::<Remotes>(&text).unwrap(), remotes);
        assert!(Remotes::default().is_empty() && Remotes::from(Vec::new()) == Remotes::default());
    }

    #[test]
    fn labels_in_common_are_kept_once() {
        let replicas =
            (0..1000).map(|number| remote(&format!("10.0.0.{number}"), &[("app", "web")]));
        let remotes: Remotes = replicas.chain(some()).collect();
        assert_eq!((remotes.len(), remotes.looks.len()), (1006, 6));
    }

    #[test]
    fn filters_see_every_value_under_a_key() {
        let remotes: Remotes = some().into();
        let filter = |key: &str, operator: &str, values: &[&str]| Filter {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        let passing = |filters: &[Filter]| remotes.passing(filters).collect::<Vec<_>>().join(" ");
        assert_eq!(passing(&[filter("app", "Equals", &["web"])]), "10.0.0.3  fd00::1");
        assert_eq!(passing(&[filter("äpp", "In", &["other"])]), "10.0.0.1");
        assert_eq!(
            passing(&[filter("äpp", "NotIn", &["other"]), filter("app", "DoesNotExist", &[])]),
            "10.0.0.1 10.0.0.1"
        );
        assert_eq!(passing(&[filter("web", "Exists", &[])]), "");
        assert_eq!(passing(&[]), "10.0.0.3 10.0.0.1  fd00::1 10.0.0.1 10.0.0.1");
    }
}
