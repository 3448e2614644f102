use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Delta, Name, PodId, Program, SetId};

use crate::grants::may_change_grants;

/// The pods and kernel sets that depend on the members of each program set.
#[derive(Clone, Debug, Default)]
pub struct Dependents {
    by_set: BTreeMap<SetId, SetDependents>,
}

#[derive(Clone, Debug, Default)]
struct SetDependents {
    /// The pods whose grants are listed in a shared set.
    pods: BTreeSet<PodId>,
    kernel_sets: BTreeSet<Name>,
}

impl Dependents {
    /// The pods whose rules a delta can change: those that it names, and those whose grants depend
    /// on a changed set.
    pub fn touched_pods(&self, program: &Program, delta: &Delta) -> BTreeSet<PodId> {
        let changed =
            delta.sets.iter().filter(|(id, change)| may_change_grants(program, id, change));
        let following = changed.filter_map(|(id, _)| self.by_set.get(id)).flat_map(|all| &all.pods);
        delta.endpoints.keys().chain(following).cloned().collect()
    }

    /// The kernel sets that depend on a program set.
    pub fn kernel_sets(&self, set: &SetId) -> impl Iterator<Item = &Name> {
        self.by_set.get(set).into_iter().flat_map(|all| &all.kernel_sets)
    }

    /// Makes a pod depend on program sets.
    pub fn add_pod<'s>(&mut self, pod: &PodId, sets: impl IntoIterator<Item = &'s SetId>) {
        for set in sets {
            self.by_set.entry(set.clone()).or_default().pods.insert(pod.clone());
        }
    }

    /// Makes a kernel set depend on program sets.
    pub fn add_kernel_set<'s>(&mut self, name: &Name, sets: impl IntoIterator<Item = &'s SetId>) {
        for set in sets {
            self.by_set.entry(set.clone()).or_default().kernel_sets.insert(name.clone());
        }
    }

    /// Removes a pod from the dependents of program sets.
    pub fn remove_pod<'s>(&mut self, pod: &PodId, sets: impl IntoIterator<Item = &'s SetId>) {
        self.remove(sets, |all| _ = all.pods.remove(pod));
    }

    /// Removes a kernel set from the dependents of program sets.
    pub fn remove_kernel_set<'s>(
        &mut self,
        name: &Name,
        sets: impl IntoIterator<Item = &'s SetId>,
    ) {
        self.remove(sets, |all| _ = all.kernel_sets.remove(name));
    }

    fn remove<'s>(
        &mut self,
        sets: impl IntoIterator<Item = &'s SetId>,
        remove_from: impl Fn(&mut SetDependents),
    ) {
        for set in sets {
            if let Some(all) = self.by_set.get_mut(set) {
                remove_from(all);
                if all.pods.is_empty() && all.kernel_sets.is_empty() {
                    self.by_set.remove(set);
                }
            }
        }
    }
}
