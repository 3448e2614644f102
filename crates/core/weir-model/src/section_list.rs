use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::Section;

/// The length of a run, unless sections were merged into it.
const RUN: usize = 128;

/// The sections of policies, sorted by policy. Lists share runs of sections: a list of thousands of
/// sections that has a few more than another one needs little memory and time.
#[derive(Clone, Default)]
pub struct SectionList {
    /// None of them is empty.
    runs: Vec<Arc<[Arc<Section>]>>,
    len: usize,
}

impl SectionList {
    /// The sections.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Section>> + Clone {
        self.runs.iter().flat_map(|run| run.iter())
    }

    /// How many sections there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy as a vector.
    pub fn to_vec(&self) -> Vec<Arc<Section>> {
        self.iter().cloned().collect()
    }

    /// This list with more sections, which are sorted by policy too. Takes time for the runs of the
    /// list, not for its sections.
    #[must_use]
    pub fn merged(&self, more: &[Arc<Section>]) -> Self {
        let mut rest = more;
        let mut runs = Vec::with_capacity(self.runs.len() + more.len().div_ceil(RUN));
        for run in &self.runs {
            let Some(last) = run.last() else { continue };
            let count = rest.partition_point(|section| section.policy < last.policy);
            let (inside, after) = rest.split_at(count);
            rest = after;
            if inside.is_empty() {
                runs.push(run.clone());
            } else {
                let mut both: Vec<Arc<Section>> = run.iter().chain(inside).cloned().collect();
                both.sort_by(|one, other| one.policy.cmp(&other.policy));
                runs.extend(both.chunks(2 * RUN).map(Arc::from));
            }
        }
        runs.extend(rest.chunks(RUN).map(Arc::from));
        SectionList { runs, len: self.len + more.len() }
    }
}

impl From<Vec<Arc<Section>>> for SectionList {
    /// The sections are sorted by policy.
    fn from(sections: Vec<Arc<Section>>) -> Self {
        SectionList { runs: sections.chunks(RUN).map(Arc::from).collect(), len: sections.len() }
    }
}

impl FromIterator<Arc<Section>> for SectionList {
    fn from_iter<I: IntoIterator<Item = Arc<Section>>>(sections: I) -> Self {
        Vec::from_iter(sections).into()
    }
}

impl<'a> IntoIterator for &'a SectionList {
    type Item = &'a Arc<Section>;
    type IntoIter = std::iter::FlatMap<
        std::slice::Iter<'a, Arc<[Arc<Section>]>>,
        std::slice::Iter<'a, Arc<Section>>,
        fn(&'a Arc<[Arc<Section>]>) -> std::slice::Iter<'a, Arc<Section>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.runs.iter().flat_map(|run| run.iter())
    }
}

/// As a list, like the sections alone.
impl fmt::Debug for SectionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for SectionList {
    fn eq(&self, other: &Self) -> bool {
        let is_copy = || {
            let mut runs = self.runs.iter().zip(&other.runs);
            self.runs.len() == other.runs.len() && runs.all(|(one, two)| Arc::ptr_eq(one, two))
        };
        self.len == other.len && (is_copy() || self.iter().eq(other.iter()))
    }
}

impl Eq for SectionList {}

impl Hash for SectionList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len);
        self.iter().for_each(|section| section.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicyId, PolicyKind};

    fn section(number: usize) -> Arc<Section> {
        let name = format!("policy-{number:05}").into();
        let policy = PolicyId { kind: PolicyKind::NetworkPolicy, namespace: "a".into(), name };
        Arc::new(Section { policy, location: None, rules: Vec::new(), idle: Vec::new() })
    }

    #[test]
    fn merged_lists_equal_sorted_ones() {
        let all: Vec<_> = (0..1000).map(section).collect();
        let splits: [fn(usize) -> bool; 6] = [
            |_| true,
            |_| false,
            |at| at == 500,
            |at| at % 3 == 0,
            |at| at < 200,
            |at| (300..700).contains(&at) || at > 990,
        ];
        let whole = SectionList::from(all.clone());
        for is_more in splits {
            let (more, list): (Vec<_>, Vec<_>) = (0..all.len()).partition(|at| is_more(*at));
            let [more, list] = [more, list]
                .map(|some| some.into_iter().map(|at| all[at].clone()).collect::<Vec<_>>());
            let merged = SectionList::from(list).merged(&more);
            assert!(merged.iter().eq(&all));
            assert_eq!((merged.len(), &merged), (all.len(), &whole));
            assert_eq!(format!("{merged:?}"), format!("{all:?}"));
        }
        assert_eq!(SectionList::default().merged(&[]), SectionList::default());
        assert_ne!(whole.merged(&[section(1000)]), whole);
    }

    #[test]
    fn merging_one_section_shares_all_other_runs() {
        let list: SectionList = (0..10_000).filter(|at| *at != 5000).map(section).collect();
        let merged = list.merged(&[section(5000)]);
        let shared =
            merged.runs.iter().filter(|run| list.runs.iter().any(|it| Arc::ptr_eq(it, run)));
        assert_eq!(shared.count(), list.runs.len() - 1);
    }
}
