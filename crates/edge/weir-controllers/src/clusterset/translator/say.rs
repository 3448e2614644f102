//! What is said to who made a policy.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weir_clusterset::Life;
use weir_kube::NoteKind;
use weir_model::PolicyId;

use super::{Translator, Work};
use crate::{
    Id, Object, WriteError,
    clusterset::{Sight, status::Standing, wire::POLICIES},
};

/// How often numbers are written into a status, at most.
const NUMBERS: Duration = Duration::from_secs(2);

impl Translator<'_> {
    /// Why it is not known who is where.
    fn blind(&self) -> Option<(&'static str, String)> {
        match &self.sight {
            Sight::Disowned(why) => {
                Some(("IdTaken", format!("remote pods stay as they are: {why}")))
            }
            _ if !self.is_synced() => Some((
                "BrokerUnread",
                "remote pods stay as they are: the broker was not read yet".into(),
            )),
            _ => None,
        }
    }

    /// Says how it goes, numbers not too often.
    pub(super) async fn say(
        &mut self,
        id: &Id,
        owner: &Object,
        key: &PolicyId,
        unwritten: Option<(&'static str, String)>,
    ) -> Result<(), WriteError> {
        let summary = self.set.summary(key).unwrap_or_default();
        let late = self.lives().into_iter().flatten().filter(|(cluster, (_, life))| {
            *life != Life::Alive && summary.addresses.contains_key(*cluster)
        });
        let uid = owner.metadata.uid.clone().unwrap_or_default();
        let home = (id.namespace.clone(), uid);
        let standing = Standing {
            wrong: self.wrong.get(id).cloned(),
            unwritten,
            blind: self.blind(),
            written: self.installed.get(&home).map_or(0, BTreeMap::len),
            late: late.map(|(cluster, _)| cluster.to_string()).collect(),
            summary,
        };
        let Some(status) = standing.status(owner) else { return Ok(()) };
        let now = Instant::now();
        let is_news = status["conditions"] != owner.data["status"]["conditions"];
        if let Some(next) = self.told.get(id).map(|last| *last + NUMBERS)
            && next > now
            && !is_news
        {
            self.queue.push(Work::Policy(id.clone()), next);
            return Ok(());
        }
        let version = self.policies.version().unwrap_or_default();
        let owner = self.hand.put_status(&POLICIES, version, owner, status).await?;
        self.told.insert(id.clone(), now);
        if is_news {
            let bad =
                standing.conditions().into_iter().find(|one| one.holds == (one.kind == "Degraded"));
            if let Some(bad) = bad {
                self.hand.note(&owner, NoteKind::Warning, bad.reason, bad.message);
            }
        }
        self.policies.put(owner);
        Ok(())
    }
}

/// Why a policy is not written as it should be: in a word, and in a sentence.
pub(super) fn unwritten(error: &WriteError) -> (&'static str, String) {
    match error {
        WriteError::Refused(why) => ("Refused", why.clone()),
        WriteError::Conflict => (
            "NameConflict",
            "a NetworkPolicy of that name is there and not ours, or was changed by others; it is left alone".into(),
        ),
        WriteError::Failed(_) | WriteError::Over => ("WriteFailed", format!("{error}; it is tried again")),
    }
}
