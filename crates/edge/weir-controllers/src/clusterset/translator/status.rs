//! Writes the status of policies.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weir_clusterset::Liveness;
use weir_kube::{EventType, Item, KubeObject, ObjectId};
use weir_model::PolicyId;

use super::{Translator, Work};
use crate::{
    clusterset::{BrokerView, policy_status::PolicyStatus, wire::POLICIES},
    writer::WriteError,
};

/// The minimum interval between status writes that only change numbers.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

impl Translator<'_> {
    /// Why the remote pods are not known, or not any more: a reason and a message.
    fn unsynced(&self) -> Option<(&'static str, String)> {
        match &self.remote.view {
            BrokerView::Disowned(why) => {
                Some(("IdTaken", format!("the allowed remote pods stay unchanged: {why}")))
            }
            _ if !self.remote.is_synced() => Some((
                "BrokerUnread",
                "the allowed remote pods stay unchanged: the broker is not listed yet".into(),
            )),
            _ => self.remote.lost_since.as_ref().map(|time| {
                let message = format!(
                    "the allowed remote pods stay unchanged: the broker is unreachable, the last \
                     contact was at {time}"
                );
                ("BrokerUnreachable", message)
            }),
        }
    }

    /// Writes the status of a policy. Changes of numbers only are rate-limited.
    pub(super) async fn write_status(
        &mut self,
        id: &ObjectId,
        owner: &KubeObject,
        key: &PolicyId,
        unwritten: Option<(&'static str, String)>,
    ) -> Result<(), WriteError> {
        let summary = self.set.summary(key).unwrap_or_default();
        let stale = self.remote.clusters().into_iter().flatten().filter(|(cluster, (_, life))| {
            *life != Liveness::Alive && summary.addresses.contains_key(*cluster)
        });
        let expired =
            self.remote.clusters().into_iter().flatten().filter(|(cluster, (_, life))| {
                *life == Liveness::Expired && summary.absent.contains(*cluster)
            });
        let uid = owner.metadata.uid.clone().unwrap_or_default();
        let installed = self.local.installed.get(&(id.namespace.clone(), uid));
        let desired = PolicyStatus {
            invalid: self.local.invalid.get(id).cloned(),
            unwritten,
            unsynced: self.unsynced(),
            network_policies: installed.map_or(0, BTreeMap::len),
            stale: stale.map(|(cluster, _)| cluster.to_string()).collect(),
            expired: expired.map(|(cluster, _)| cluster.to_string()).collect(),
            summary,
        };
        let Some(status) = desired.status(owner) else { return Ok(()) };
        let now = Instant::now();
        let conditions_changed = status["conditions"] != owner.data["status"]["conditions"];
        let last = self.pending.status_written.get(id);
        if let Some(next) = last.map(|last| *last + COUNT_INTERVAL)
            && next > now
            && !conditions_changed
        {
            self.pending.queue.push(Work::Policy(id.clone()), next);
            return Ok(());
        }
        let version = self.local.policies.version().unwrap_or_default();
        let owner = self.writer.patch_status(&POLICIES, version, owner, status).await?;
        self.pending.status_written.insert(id.clone(), now);
        if conditions_changed {
            let bad =
                desired.conditions().into_iter().find(|one| one.holds == (one.kind == "Degraded"));
            if let Some(bad) = bad {
                self.writer.publish(&owner, EventType::Warning, bad.reason, bad.message);
            }
        }
        self.local.policies.put(Item::from_object(owner, |object| object));
        Ok(())
    }
}

/// Why a policy is not translated: a reason and a message.
pub(super) fn unwritten(error: &WriteError) -> (&'static str, String) {
    match error {
        WriteError::Rejected(why) => ("Refused", why.clone()),
        WriteError::Conflict => (
            "NameConflict",
            "a NetworkPolicy of that name is not ours, or another client changed it; it stays \
             unchanged"
                .into(),
        ),
        WriteError::Failed(_) | WriteError::NotLeader => {
            ("WriteFailed", format!("{error}; the controller retries"))
        }
    }
}
