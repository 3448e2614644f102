use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Instant, SystemTime},
};

use serde_json::Value;
use weir_aci::{Files, Folder, FolderError, HostprotId, HostprotKind, Netpol, Touched};
use weir_kube::{Item, ObjectEvent};
use weir_model::{Pod, PodId};

use crate::{identity::NodeIdentity, object::ParsedObject, report::OpflexReport, run::OpflexEvent};

/// Turns events into files.
pub(crate) struct FileWriter {
    identity: NodeIdentity,
    files: Files,
    folder: Folder,
    report: Arc<OpflexReport>,
    containers: KindState<HostprotId>,
    pols: KindState<HostprotId>,
    pods: KindState<PodId>,
    /// The objects that cannot be read, with the reason.
    unreadable: BTreeMap<HostprotId, String>,
    /// The parts of objects that files cannot express, by file.
    complaints: BTreeMap<String, Vec<String>>,
    failure: Option<String>,
    /// The stamps of the files after the last write.
    stamps: BTreeMap<String, Stamp>,
    /// The time of the first event that is not written yet.
    pending_since: Option<Instant>,
    is_pruned: bool,
    /// Whether the HostprotPol of this node was ever listed. From then on, the objects are known to
    /// be about this node, even if there are none.
    is_confirmed: bool,
}

/// A change of size or time shows that another program wrote to a file.
type Stamp = (u64, Option<SystemTime>);

/// The state of one followed kind.
struct KindState<Id> {
    name: &'static str,
    ids: BTreeSet<Id>,
    is_listed: bool,
    problem: Option<String>,
}

impl<Id> KindState<Id> {
    fn new(name: &'static str) -> Self {
        KindState { name, ids: BTreeSet::new(), is_listed: false, problem: None }
    }

    /// Why the kind is not ready.
    fn reason(&self) -> Option<String> {
        match &self.problem {
            Some(problem) => Some(problem.clone()),
            None if !self.is_listed => Some(format!("{} has not been listed yet", self.name)),
            None => None,
        }
    }
}

impl FileWriter {
    pub(crate) fn new(
        identity: NodeIdentity,
        files: Files,
        folder: Folder,
        report: Arc<OpflexReport>,
    ) -> Self {
        let writer = FileWriter {
            identity,
            files,
            folder,
            report,
            containers: KindState::new("hostprotremoteipcontainers.aci.hpp"),
            pols: KindState::new("hostprotpols.aci.hpp"),
            pods: KindState::new("pods"),
            unreadable: BTreeMap::new(),
            complaints: BTreeMap::new(),
            failure: None,
            stamps: BTreeMap::new(),
            pending_since: None,
            is_pruned: false,
            is_confirmed: false,
        };
        writer.update_report();
        writer
    }

    /// Whether all kinds were listed and all files are written.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.is_listed() && self.is_pruned
    }

    /// Whether all kinds were listed, and the HostprotPol of this node has never been among them.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.is_listed() && !self.is_confirmed
    }

    fn is_listed(&self) -> bool {
        self.containers.is_listed && self.pols.is_listed && self.pods.is_listed
    }

    /// Compares all files again on the next flush.
    pub(crate) fn distrust(&mut self) {
        self.files.distrust();
        self.is_pruned = false;
    }

    pub(crate) fn apply(&mut self, message: OpflexEvent) {
        if let OpflexEvent::Status(answer) = message {
            // The client may be gone.
            _ = answer.send(self.pols.is_listed.then(|| self.hpp_status()));
            return;
        }
        self.pending_since.get_or_insert_with(Instant::now);
        match message {
            OpflexEvent::Container(event) => {
                self.apply_object_event(HostprotKind::Container, event)
            }
            OpflexEvent::Pol(event) => self.apply_object_event(HostprotKind::Pol, event),
            OpflexEvent::Pod(event) => self.apply_pod_event(event),
            OpflexEvent::Status(_) => (),
        }
        self.is_confirmed |= self.has_own();
        self.update_report();
    }

    fn apply_object_event(&mut self, kind: HostprotKind, event: ObjectEvent<ParsedObject>) {
        match event {
            ObjectEvent::Put(item) => self.put_object(kind, item),
            ObjectEvent::Removed(revision) => {
                self.remove_object(&HostprotId { kind, name: revision.id.name });
            }
            ObjectEvent::Listed { items, .. } => {
                let listed = items.iter().map(|item| object_id(kind, item)).collect();
                let state = self.kind_state(kind);
                state.is_listed = true;
                let gone: Vec<HostprotId> = state.ids.difference(&listed).cloned().collect();
                gone.iter().for_each(|id| self.remove_object(id));
                items.into_iter().for_each(|item| self.put_object(kind, item));
            }
            ObjectEvent::Available => self.kind_state(kind).problem = None,
            ObjectEvent::Unavailable(problem) => self.kind_state(kind).problem = Some(problem),
        }
    }

    /// The content of `/hpp`.
    fn hpp_status(&self) -> Value {
        let namespace = &self.identity.namespace;
        let statuses = self.files.pols().filter_map(|pol| pol.status(namespace));
        Value::Object(statuses.collect())
    }

    fn kind_state(&mut self, kind: HostprotKind) -> &mut KindState<HostprotId> {
        match kind {
            HostprotKind::Container => &mut self.containers,
            HostprotKind::Pol => &mut self.pols,
        }
    }

    fn put_object(&mut self, kind: HostprotKind, item: Item<ParsedObject>) {
        let id = object_id(kind, &item);
        match item.value {
            Ok(object) => {
                self.forget_unreadable(&id);
                self.files.put(object);
            }
            Err(error) => {
                let text = error.to_string();
                match error.fallback {
                    Some(fallback) => {
                        tracing::warn!("{text}; it allows nothing");
                        self.files.put(*fallback);
                    }
                    None => tracing::warn!("{text}; the last known good version stays in effect"),
                }
                self.unreadable.insert(id.clone(), text);
            }
        }
        self.kind_state(kind).ids.insert(id);
    }

    fn remove_object(&mut self, id: &HostprotId) {
        self.kind_state(id.kind).ids.remove(id);
        self.forget_unreadable(id);
        self.files.remove(id);
    }

    /// Records that an object can be read, or is gone. The files that stayed because of it may be
    /// superfluous now.
    fn forget_unreadable(&mut self, id: &HostprotId) {
        if self.unreadable.remove(id).is_some() {
            self.is_pruned = false;
        }
    }

    fn apply_pod_event(&mut self, event: ObjectEvent<Pod>) {
        match event {
            ObjectEvent::Put(item) => {
                self.files.put_pod(&item.value);
                self.pods.ids.insert(item.value.id);
            }
            ObjectEvent::Removed(revision) => {
                let id = PodId::new(revision.id.namespace, revision.id.name);
                self.pods.ids.remove(&id);
                self.files.remove_pod(&id);
            }
            ObjectEvent::Listed { items, .. } => {
                items.iter().for_each(|item| self.files.put_pod(&item.value));
                let listed = items.into_iter().map(|item| item.value.id).collect();
                for id in self.pods.ids.difference(&listed) {
                    self.files.remove_pod(id);
                }
                (self.pods.ids, self.pods.is_listed) = (listed, true);
            }
            ObjectEvent::Available => self.pods.problem = None,
            ObjectEvent::Unavailable(problem) => self.pods.problem = Some(problem),
        }
    }

    /// Writes and removes files, if all kinds were listed and the objects are about this node.
    pub(crate) fn flush(&mut self) {
        if !self.is_listed() || self.is_unconfirmed() {
            return;
        }
        if self.is_pruned && self.is_disturbed() {
            tracing::warn!("another program changed the files; they are restored");
            self.report.metrics.repairs.inc();
            self.distrust();
        }
        self.failure = match self.write() {
            Ok(()) => None,
            Err(error) => {
                self.report.metrics.errors.inc();
                // It is unknown which files are written, so that all are compared again.
                self.distrust();
                let text = with_cause(&error);
                if self.failure.as_ref() != Some(&text) {
                    tracing::error!("{text}");
                }
                Some(text)
            }
        };
        self.update_report();
    }

    fn write(&mut self) -> Result<(), FolderError> {
        let mut touched = 0;
        while let Some((name, desired)) = self.files.next_dirty() {
            let done = match &desired {
                Some(Netpol { text, warnings, .. }) => {
                    self.complain(&name, warnings);
                    self.folder.write(&name, text)?
                }
                None => {
                    self.complaints.remove(&name);
                    self.folder.remove(&name)?
                }
            };
            if done == Touched::Yes {
                touched += 1;
                let (verb, counter) = match desired {
                    Some(_) => ("wrote", &self.report.metrics.writes),
                    None => ("removed", &self.report.metrics.removals),
                };
                counter.inc();
                tracing::info!("{verb} {name}");
            }
            match self.folder.stamp(&name) {
                Some(stamp) => self.stamps.insert(name, stamp),
                None => self.stamps.remove(&name),
            };
        }
        if !self.is_pruned {
            let removed = self.folder.prune(&self.kept_files()?)?;
            self.report.metrics.removals.inc_by(removed.len() as u64);
            removed.iter().for_each(|name| tracing::info!("removed {name}, which no object needs"));
            self.is_pruned = true;
        }
        if let Some(since) = self.pending_since.take()
            && touched > 0
        {
            self.report.metrics.seconds.observe(since.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Whether the HostprotPol of this node exists, readable or not.
    fn has_own(&self) -> bool {
        self.files.has_node_object() || self.is_of_unreadable(self.files.node_object())
    }

    /// The files that stay: the desired ones, and those of unreadable objects.
    fn kept_files(&self) -> Result<BTreeSet<String>, FolderError> {
        let found = self.folder.files()?.into_iter();
        let found = found.filter(|file| self.may_be_of_unreadable(file));
        Ok(self.files.needed().iter().cloned().chain(found).collect())
    }

    fn is_of_unreadable(&self, file: &str) -> bool {
        let name = file.trim_end_matches(".netpol").replace('_', "-");
        self.unreadable.contains_key(&HostprotId { kind: HostprotKind::Pol, name })
    }

    /// Whether an unreadable object may need a file. A file with the name of a policy can belong to
    /// every object that this agent has never read.
    fn may_be_of_unreadable(&self, file: &str) -> bool {
        let mut unreadable = self.unreadable.keys();
        let is_unknown = |id: &HostprotId| id.kind == HostprotKind::Pol && !self.files.has_pol(id);
        self.is_of_unreadable(file)
            || self.files.has_names_of_policies() && unreadable.any(is_unknown)
    }

    /// Whether another program changed the folder since the last write.
    fn is_disturbed(&self) -> bool {
        let Ok(found) = self.folder.files() else { return true };
        let is_foreign = |name: &&String| !self.stamps.contains_key(*name);
        let has_changed =
            |(name, stamp): (&String, &Stamp)| self.folder.stamp(name).as_ref() != Some(stamp);
        found.iter().filter(is_foreign).any(|name| !self.may_be_of_unreadable(name))
            || self.stamps.iter().any(has_changed)
    }

    fn complain(&mut self, file: &str, complaints: &[String]) {
        let before = self.complaints.get(file).map_or(&[][..], Vec::as_slice);
        for complaint in complaints.iter().filter(|one| !before.contains(one)) {
            tracing::warn!("{file}: {complaint}");
        }
        if complaints.is_empty() {
            self.complaints.remove(file);
        } else {
            self.complaints.insert(file.into(), complaints.to_vec());
        }
    }

    fn update_report(&self) {
        let mut reasons: Vec<String> =
            [self.containers.reason(), self.pols.reason(), self.pods.reason()]
                .into_iter()
                .flatten()
                .collect();
        if self.is_listed() && self.is_confirmed && !self.is_pruned && self.failure.is_none() {
            reasons.push("the folder has not been compared yet".into());
        }
        let own = self.files.node_object();
        if self.is_unconfirmed() {
            reasons.push(self.identity.mismatch(own, self.files.names()));
        } else if self.is_listed() && !self.has_own() && self.files.names().next().is_some() {
            reasons.push(format!(
                "the HostprotPol of this node, {own}, is gone; check that the node is still in the \
                 cluster, and that the controller is not being disabled"
            ));
        }
        reasons.extend(self.unreadable.values().cloned());
        reasons.extend(self.complaints.values().flatten().cloned());
        reasons.extend(self.failure.clone());
        let (files, objects) = (self.files.needed().clone(), self.files.len());
        self.report.update(self.is_in_sync(), files, objects, reasons);
    }
}

fn object_id(kind: HostprotKind, item: &Item<ParsedObject>) -> HostprotId {
    HostprotId { kind, name: item.id().name.clone() }
}

fn with_cause(error: &FolderError) -> String {
    use std::error::Error;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
