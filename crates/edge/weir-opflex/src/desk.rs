use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use weir_aci::{Files, Folder, FolderError, Kind, Netpol, Object, ObjectId, Touched};
use weir_controllers::Told;
use weir_model::{Labels, Pod, PodId};

use crate::{home::Home, pressed::unpressed, report::Report, run::News};

/// Where news becomes files.
pub(crate) struct Desk {
    home: Home,
    files: Files,
    folder: Folder,
    report: Arc<Report>,
    objects: BTreeSet<ObjectId>,
    pods: BTreeSet<PodId>,
    /// What was read completely: containers, policies, pods.
    listed: [bool; 3],
    trouble: [Option<String>; 3],
    /// Objects that cannot be read, and why.
    unreadable: BTreeMap<ObjectId, String>,
    /// What was left out of files.
    complaints: BTreeMap<String, Vec<String>>,
    failure: Option<String>,
    /// How the files were when they were last looked at.
    seen: BTreeMap<String, Stamp>,
    /// Since when something waits to be written.
    since: Option<Instant>,
    is_pruned: bool,
    /// Whether the object of this node was ever there. From then on what is told is about this node, also that there is nothing.
    is_at_home: bool,
}

/// What tells whether a file was changed by others.
type Stamp = (u64, Option<std::time::SystemTime>);

impl Desk {
    pub(crate) fn new(home: Home, files: Files, folder: Folder, report: Arc<Report>) -> Self {
        let desk = Desk {
            home,
            files,
            folder,
            report,
            objects: BTreeSet::new(),
            pods: BTreeSet::new(),
            listed: [false; 3],
            trouble: [None, None, None],
            unreadable: BTreeMap::new(),
            complaints: BTreeMap::new(),
            failure: None,
            seen: BTreeMap::new(),
            since: None,
            is_pruned: false,
            is_at_home: false,
        };
        desk.tell();
        desk
    }

    /// Whether everything was read, and everything could be written.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.is_read() && self.is_pruned
    }

    /// Whether everything was read, and the object of this node was not there.
    pub(crate) fn is_strange(&self) -> bool {
        self.is_read() && !self.is_at_home
    }

    fn is_read(&self) -> bool {
        self.listed.iter().all(|listed| *listed)
    }

    /// Looks at all files again.
    pub(crate) fn distrust(&mut self) {
        self.files.distrust();
        self.is_pruned = false;
    }

    /// Takes note of what is new.
    pub(crate) fn take(&mut self, news: News) {
        self.since.get_or_insert_with(Instant::now);
        match news {
            News::Container(told) => self.object(Kind::Container, 0, told),
            News::Pol(told) => self.object(Kind::Pol, 1, told),
            News::Pod(told) => self.pod(told),
        }
        self.is_at_home |= self.has_own();
        self.tell();
    }

    fn object(&mut self, kind: Kind, at: usize, told: Told) {
        match told {
            Told::Put(object) => drop(self.put(kind, &object)),
            Told::Gone(object) => {
                let name = object.metadata.name.unwrap_or_default();
                self.remove(&ObjectId { kind, name });
            }
            Told::Listed(_, objects) => {
                let there: BTreeSet<ObjectId> =
                    objects.iter().map(|object| self.put(kind, object)).collect();
                let gone: Vec<ObjectId> = self
                    .objects
                    .iter()
                    .filter(|id| id.kind == kind && !there.contains(id))
                    .cloned()
                    .collect();
                gone.iter().for_each(|id| self.remove(id));
                self.listed[at] = true;
            }
            Told::Trouble(trouble) => self.trouble[at] = trouble,
        }
    }

    fn put(&mut self, kind: Kind, object: &weir_controllers::Object) -> ObjectId {
        let id = ObjectId { kind, name: object.metadata.name.clone().unwrap_or_default() };
        match Object::read(kind, &unpressed(object)) {
            Ok(object) => {
                self.unreadable.remove(&id);
                self.files.put(object);
            }
            Err(error) => {
                let text = error.to_string();
                match error.emptied {
                    Some(emptied) => {
                        tracing::warn!("{text}; it allows nothing");
                        self.files.put(*emptied);
                    }
                    None => tracing::warn!("{text}; it counts as it was before"),
                }
                self.unreadable.insert(id.clone(), text);
            }
        }
        self.objects.insert(id.clone());
        id
    }

    fn remove(&mut self, id: &ObjectId) {
        self.objects.remove(id);
        self.unreadable.remove(id);
        self.files.remove(id);
    }

    fn pod(&mut self, told: Told) {
        match told {
            Told::Put(object) => drop(self.put_pod(&object)),
            Told::Gone(object) => {
                let id = pod(&object).id;
                self.pods.remove(&id);
                self.files.remove_pod(&id);
            }
            Told::Listed(_, objects) => {
                let there: BTreeSet<PodId> =
                    objects.iter().map(|object| self.put_pod(object)).collect();
                for id in self.pods.difference(&there) {
                    self.files.remove_pod(id);
                }
                self.pods = there;
                self.listed[2] = true;
            }
            Told::Trouble(trouble) => self.trouble[2] = trouble,
        }
    }

    fn put_pod(&mut self, object: &weir_controllers::Object) -> PodId {
        let pod = pod(object);
        self.files.put_pod(&pod);
        self.pods.insert(pod.id.clone());
        pod.id
    }

    /// Makes the folder what it should be, if everything was read and is about this node.
    pub(crate) fn settle(&mut self) {
        if !self.is_read() || self.is_strange() {
            return;
        }
        if self.is_pruned && self.is_disturbed() {
            tracing::warn!("somebody else has changed files; they are put back");
            self.report.metrics.repairs.inc();
            self.distrust();
        }
        let done = self.write();
        if let Err(error) = &done {
            self.report.metrics.errors.inc();
            // All of them, because which ones is not worth remembering.
            self.distrust();
            let text = with_cause(error);
            if self.failure.as_ref() != Some(&text) {
                tracing::error!("{text}");
            }
            self.failure = Some(text);
        } else {
            self.failure = None;
        }
        self.tell();
    }

    fn write(&mut self) -> Result<(), FolderError> {
        let taken = self.files.take();
        let mut touched = 0;
        for (name, wanted) in taken {
            let done = match &wanted {
                Some(Netpol { text, complaints, .. }) => {
                    self.complain(&name, complaints);
                    self.folder.write(&name, text)?
                }
                None => {
                    self.complaints.remove(&name);
                    self.folder.remove(&name)?
                }
            };
            if done == Touched::Yes {
                touched += 1;
                let (verb, counter) = match wanted {
                    Some(_) => ("wrote", &self.report.metrics.writes),
                    None => ("removed", &self.report.metrics.removals),
                };
                counter.inc();
                tracing::info!("{verb} {name}");
            }
            self.see(&name);
        }
        if !self.is_pruned {
            let removed = self.folder.prune(&self.kept()?)?;
            self.report.metrics.removals.inc_by(removed.len() as u64);
            removed
                .iter()
                .for_each(|name| tracing::info!("removed {name}, which nothing asks for"));
            self.is_pruned = true;
        }
        if let (Some(since), true) = (self.since.take(), touched > 0) {
            self.report.metrics.seconds.observe(since.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Whether the object of this node is there, readable or not.
    fn has_own(&self) -> bool {
        self.files.has_own() || self.is_of_unreadable(self.files.own())
    }

    /// The files that stay: those that are needed, and those of objects that cannot be read.
    fn kept(&self) -> Result<BTreeSet<String>, FolderError> {
        let there = self.folder.files()?.into_iter().filter(|file| self.is_of_unreadable(file));
        Ok(self.files.needed().iter().cloned().chain(there).collect())
    }

    fn is_of_unreadable(&self, file: &str) -> bool {
        let name = file.trim_end_matches(".netpol").replace('_', "-");
        self.unreadable.contains_key(&ObjectId { kind: Kind::Pol, name })
    }

    fn see(&mut self, name: &str) {
        match self.folder.stamp(name) {
            Some(stamp) => drop(self.seen.insert(name.into(), stamp)),
            None => drop(self.seen.remove(name)),
        }
    }

    /// Whether somebody else was at the files since we were.
    fn is_disturbed(&self) -> bool {
        let Ok(there) = self.folder.files() else { return true };
        let is_theirs = |name: &&String| !self.seen.contains_key(*name);
        let has_changed =
            |(name, stamp): (&String, &Stamp)| self.folder.stamp(name).as_ref() != Some(stamp);
        there.iter().filter(is_theirs).any(|name| !self.is_of_unreadable(name))
            || self.seen.iter().any(has_changed)
    }

    fn complain(&mut self, file: &str, complaints: &[String]) {
        let before = self.complaints.get(file).map_or(&[][..], Vec::as_slice);
        for complaint in complaints.iter().filter(|one| !before.contains(one)) {
            tracing::warn!("{file}: {complaint}");
        }
        match complaints.is_empty() {
            true => drop(self.complaints.remove(file)),
            false => drop(self.complaints.insert(file.into(), complaints.to_vec())),
        }
    }

    /// Says how it goes.
    fn tell(&self) {
        let names = ["hostprotremoteipcontainers.aci.hpp", "hostprotpols.aci.hpp", "pods"];
        let mut reasons: Vec<String> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            match &self.trouble[at] {
                Some(trouble) => reasons.push(trouble.clone()),
                None if !self.listed[at] => reasons.push(format!("{name} is not read yet")),
                None => (),
            }
        }
        if self.is_read() && self.is_at_home && !self.is_pruned && self.failure.is_none() {
            reasons.push("the folder is not compared yet".into());
        }
        let own = self.files.own();
        if self.is_strange() {
            reasons.push(self.home.stranger(own, self.files.names()));
        } else if self.is_read() && !self.has_own() && self.files.names().next().is_some() {
            reasons.push(format!(
                "the object of this node, {own}, is gone: is the node still in the cluster, or is the controller being disabled?"
            ));
        }
        reasons.extend(self.unreadable.values().cloned());
        reasons.extend(self.complaints.values().flatten().cloned());
        reasons.extend(self.failure.clone());
        let (files, objects) = (self.files.needed().clone(), self.files.len());
        self.report.say(self.is_in_sync(), files, objects, reasons);
    }
}

/// What counts about a pod here.
fn pod(object: &weir_controllers::Object) -> Pod {
    let metadata = &object.metadata;
    let labels: Labels = metadata.labels.iter().flatten().map(|(k, v)| (&**k, &**v)).collect();
    let phase = object.data["status"]["phase"].as_str().unwrap_or_default();
    Pod {
        id: PodId::new(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        ),
        labels,
        addresses: Vec::new(),
        node: None,
        ports: Vec::new(),
        host_network: object.data["spec"]["hostNetwork"].as_bool().unwrap_or(false),
        finished: matches!(phase, "Succeeded" | "Failed"),
        born: 0,
        uid: None,
        location: None,
    }
}

fn with_cause(error: &FolderError) -> String {
    use std::error::Error;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
