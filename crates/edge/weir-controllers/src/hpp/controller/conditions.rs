use std::{collections::BTreeSet, time::Instant};

use weir_aci::HostprotId;

use super::HppController;
use crate::hpp::status;

impl HppController<'_> {
    /// Updates the objects that lack rules. Returns those for which this changed.
    pub(super) fn update_incomplete(&mut self) -> BTreeSet<HostprotId> {
        let before = std::mem::replace(&mut self.incomplete, self.hpp.incomplete());
        let all = self.incomplete.keys().chain(before.keys());
        let changed = all.filter(|id| self.incomplete.get(*id) != before.get(*id));
        changed.cloned().collect()
    }

    /// Whether the condition of an object is not as desired.
    pub(super) fn needs_condition(&self, id: &HostprotId) -> bool {
        let observed = self.inputs.store(id.kind).get(&self.object_id(id));
        let missing = observed.map(|observed| observed.value.missing.as_ref());
        self.keeps_conditions && missing.is_some_and(|missing| missing != self.incomplete.get(id))
    }

    /// Writes the condition of an object.
    pub(super) async fn send_condition(&mut self, id: HostprotId) {
        let object_id = self.object_id(&id);
        let Some(observed) = self.inputs.store(id.kind).get(&object_id) else { return };
        let (revision, missing) = (observed.revision.clone(), self.incomplete.get(&id).cloned());
        let start = Instant::now();
        let result = status::write(&self.writer, object_id, &revision, missing).await;
        if let Ok(stored) = &result {
            // The definition of another installation can drop conditions.
            let stored = serde_json::to_value(stored).unwrap_or_default();
            let missing = status::read_missing(&stored);
            self.keeps_conditions = missing.as_ref() == self.incomplete.get(&id);
        }
        self.finish(id, result.map(Some), start.elapsed());
    }
}
