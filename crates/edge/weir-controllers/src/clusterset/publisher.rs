//! What this cluster tells the others, and that it is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::sync::watch;
use weir_clusterset::{Interest, Life, Limits, Publication, RemoteId, Roster};
use weir_kube::Backoff;
use weir_model::{Name, PodId};

use super::{
    Lives, Settings, broker,
    wire::{self, CLUSTER, MEMBERS, NAMESPACES, PODS, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{
    Context, Hand, Id, Inbox, Next, Object, Resource, Server, Shelf, Step, Told, Watched, adjusted,
};

/// The name under which it tells how it goes.
const NAME: &str = "clusterset-broker";
/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// How many pods are written before there is time for anything else.
const AT_A_TIME: usize = 256;
/// How many writes are under way at once.
const AT_ONCE: usize = 16;

enum News {
    Pod(Told),
    Namespace(Told),
    OwnPod(Told),
    OwnNamespace(Told),
    Member(Told),
    Interests(BTreeSet<Interest>),
}

/// Publishes until it is time to finish.
pub(crate) async fn keep(
    context: &Context,
    settings: &Settings,
    mut asked: watch::Receiver<Option<BTreeSet<Interest>>>,
    lives: watch::Sender<Option<Lives>>,
) {
    let server = Server::new(settings.broker.clone());
    let mut inbox = Inbox::new(context);
    let pods = Watched { keep: slim_pod, ..Watched::all(PODS) };
    inbox.follow(&context.server, pods, News::Pod);
    inbox.follow(&context.server, Watched::all(NAMESPACES), News::Namespace);
    let at_broker = |resource, labels| Watched {
        namespace: settings.namespace.clone(),
        labels,
        ..Watched::all(resource)
    };
    let own = format!("{CLUSTER}={}", settings.cluster);
    inbox.follow(&server, at_broker(REMOTE_PODS, own.clone()), News::OwnPod);
    inbox.follow(&server, at_broker(REMOTE_NAMESPACES, own), News::OwnNamespace);
    inbox.follow(&server, at_broker(MEMBERS, String::new()), News::Member);
    let out = inbox.sender();
    tokio::spawn(async move {
        while asked.changed().await.is_ok() {
            let interests = asked.borrow_and_update().clone();
            if let Some(interests) = interests
                && out.send(News::Interests(interests)).await.is_err()
            {
                return;
            }
        }
    });
    let mut publisher = Publisher {
        context,
        settings,
        hand: context.hand_at(server.clone(), NAME),
        server,
        lives,
        publication: Publication::new(settings.cluster.clone()),
        pods: BTreeSet::new(),
        namespaces: BTreeSet::new(),
        uid: None,
        listed: BTreeSet::new(),
        troubles: BTreeMap::new(),
        own_pods: Shelf::default(),
        own_namespaces: Shelf::default(),
        members: Shelf::default(),
        names: BTreeMap::new(),
        due_pods: BTreeSet::new(),
        due_namespaces: BTreeSet::new(),
        interests: None,
        roster: Roster::new(Limits { renewal: settings.renewal, expiry: settings.expiry }),
        start: Instant::now(),
        holds: false,
        next_pulse: Instant::now(),
        next_flush: None,
        backoff: Backoff::new(context.pace.retry, context.pace.longest_retry),
    };
    publisher.tell();
    loop {
        let due = publisher.next_flush.filter(|_| publisher.is_ready());
        let due = due.map_or(publisher.next_pulse, |due| due.min(publisher.next_pulse));
        match inbox.next(Some(due)).await {
            Next::News(news) => publisher.take(news),
            Next::Due if Instant::now() >= publisher.next_pulse => publisher.pulse().await,
            Next::Due => publisher.flush().await,
            Next::Stop => return,
        }
    }
}

/// Of pods, what others may need to know.
fn slim_pod(mut object: Object) -> Object {
    let (spec, status) = (object.data["spec"].take(), object.data["status"].take());
    let containers = |field: &str| -> serde_json::Value {
        let all = spec[field].as_array().into_iter().flatten();
        let slim = all.map(|one| {
            serde_json::json!({
                "name": one["name"], "image": "-", "ports": one["ports"], "restartPolicy": one["restartPolicy"],
            })
        });
        slim.collect()
    };
    object.data = serde_json::json!({
        "spec": {
            "hostNetwork": spec["hostNetwork"],
            "nodeName": spec["nodeName"],
            "containers": containers("containers"),
            "initContainers": containers("initContainers"),
        },
        "status": {"phase": status["phase"], "podIP": status["podIP"], "podIPs": status["podIPs"]},
    });
    (object.metadata.annotations, object.metadata.owner_references) = (None, None);
    object
}

struct Publisher<'a> {
    context: &'a Context,
    settings: &'a Settings,
    hand: Hand,
    server: Server,
    lives: watch::Sender<Option<Lives>>,
    publication: Publication,
    /// What there is in this cluster, so that a list tells what is gone.
    pods: BTreeSet<PodId>,
    namespaces: BTreeSet<Name>,
    /// What tells this cluster from others of its id.
    uid: Option<String>,
    listed: BTreeSet<&'static str>,
    troubles: BTreeMap<&'static str, String>,
    own_pods: Shelf,
    own_namespaces: Shelf,
    members: Shelf,
    /// The pods by the names of their objects on the broker.
    names: BTreeMap<String, PodId>,
    due_pods: BTreeSet<String>,
    due_namespaces: BTreeSet<Name>,
    interests: Option<BTreeSet<Interest>>,
    roster: Roster,
    start: Instant,
    /// Whether the id of this cluster is ours.
    holds: bool,
    next_pulse: Instant,
    next_flush: Option<Instant>,
    backoff: Backoff,
}

impl Publisher<'_> {
    /// Nothing is written before everything was read, nor under an id that is another's.
    fn is_ready(&self) -> bool {
        self.holds
            && self.listed.len() == 2
            && self.own_pods.is_in_sync()
            && self.own_namespaces.is_in_sync()
            && self.members.is_in_sync()
    }

    fn take(&mut self, news: News) {
        match news {
            News::Pod(told) => self.take_pods(told),
            News::Namespace(told) => self.take_namespaces(told),
            News::OwnPod(told) => {
                self.trouble(REMOTE_PODS.kind, &told);
                let touched = self.own_pods.take(told);
                self.due_pods.extend(touched.into_iter().map(|id| id.name));
            }
            News::OwnNamespace(told) => {
                self.trouble(REMOTE_NAMESPACES.kind, &told);
                for id in self.own_namespaces.take(told) {
                    let name = id.name.split_once('.').map_or("", |(_, name)| name);
                    self.due_namespaces.insert(name.into());
                }
            }
            News::Member(told) => {
                self.trouble(MEMBERS.kind, &told);
                for id in self.members.take(told) {
                    self.ask(&id);
                }
            }
            News::Interests(interests) => self.interests = Some(interests),
        }
        self.gather();
        if self.next_flush.is_none() {
            self.next_flush = Some(Instant::now() + GATHER);
        }
        self.tell();
    }

    /// Takes note of what is to be told anew.
    fn gather(&mut self) {
        let (pods, namespaces) = self.publication.touched();
        for id in pods {
            let name = wire::remote_name(&self.remote(&id));
            self.names.insert(name.clone(), id);
            self.due_pods.insert(name);
        }
        self.due_namespaces.extend(namespaces);
    }

    fn take_pods(&mut self, told: Told) {
        self.trouble(PODS.kind, &told);
        let id = |object: &Object| {
            let Id { namespace, name } = Id::of(object);
            PodId::new(namespace, name)
        };
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(PODS.kind);
                let there: BTreeSet<PodId> = objects.iter().map(id).collect();
                for gone in self.pods.difference(&there) {
                    self.publication.remove_pod(gone);
                }
                self.pods = there;
                objects.iter().for_each(|object| self.put_pod(object));
            }
            Told::Put(object) => {
                self.pods.insert(id(&object));
                self.put_pod(&object);
            }
            Told::Gone(object) => {
                self.pods.remove(&id(&object));
                self.publication.remove_pod(&id(&object));
            }
            Told::Trouble(_) => (),
        }
    }

    fn put_pod(&mut self, object: &Object) {
        match wire::lower(object).0 {
            Some(weir_model::Object::Pod(pod)) => self.publication.put_pod(&pod),
            // What cannot be read is not told.
            _ => {
                let Id { namespace, name } = Id::of(object);
                self.publication.remove_pod(&PodId::new(namespace, name));
            }
        }
    }

    fn take_namespaces(&mut self, told: Told) {
        self.trouble(NAMESPACES.kind, &told);
        let name =
            |object: &Object| Name::from(object.metadata.name.as_deref().unwrap_or_default());
        let mut put = Vec::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(NAMESPACES.kind);
                let there: BTreeSet<Name> = objects.iter().map(name).collect();
                for gone in self.namespaces.difference(&there) {
                    self.publication.remove_namespace(gone);
                }
                self.namespaces = there;
                put = objects;
            }
            Told::Put(object) => {
                self.namespaces.insert(name(&object));
                put.push(object);
            }
            Told::Gone(object) => {
                self.namespaces.remove(&name(&object));
                self.publication.remove_namespace(&name(&object));
            }
            Told::Trouble(_) => (),
        }
        for object in put {
            if object.metadata.name.as_deref() == Some("kube-system") {
                self.uid = object.metadata.uid.clone();
            }
            if let Some(weir_model::Object::Namespace(namespace)) = wire::lower(&object).0 {
                self.publication.put_namespace(&namespace);
            }
        }
    }

    /// Takes in what another cluster asks for, if it is alive and what it says it is.
    fn ask(&mut self, id: &Id) {
        if *id.name == *self.settings.cluster {
            return;
        }
        let told = self.members.get(id).and_then(|object| wire::read_member(object).ok());
        let told = told.filter(|told| {
            self.roster.holder(&told.cluster) == Some(&told.uid)
                && self.roster.life(&told.cluster) != Some(Life::Gone)
        });
        let interests = told.map(|told| told.interests.into_iter().collect()).unwrap_or_default();
        self.publication.interests(&id.name.as_str().into(), interests);
    }

    /// Looks who is alive, and says that we are.
    async fn pulse(&mut self) {
        self.next_pulse = Instant::now() + self.settings.renewal;
        let Some(uid) = self.uid.clone() else {
            // It is among the namespaces.
            self.next_pulse = Instant::now() + GATHER;
            return;
        };
        let Settings { namespace, cluster, expiry, .. } = self.settings;
        let (pulses, lease) = match broker::pulses(&self.server, namespace, cluster).await {
            Ok(seen) => seen,
            Err(error) => {
                let text =
                    format!("the broker cannot be asked: {}; {}", error.text(), error.hint());
                return self.in_trouble("Lease", Some(text));
            }
        };
        self.roster.look(self.start.elapsed(), pulses.clone());
        let all: Vec<Id> = self.members.iter().map(Id::of).collect();
        all.iter().for_each(|id| self.ask(id));
        self.gather();
        if let Some(rival) = self.roster.rival(cluster, &uid) {
            let text = format!(
                "another cluster, whose kube-system has the uid {rival}, goes by the id {cluster}: nothing is published; give one of the two another --cluster-id"
            );
            self.holds = false;
            self.in_trouble("Lease", Some(text));
        } else {
            match broker::renew(&self.server, namespace, cluster, &uid, *expiry, lease).await {
                Ok(()) => {
                    self.holds = true;
                    self.in_trouble("Lease", None);
                }
                Err(error) => {
                    let text =
                        format!("cannot give a sign of life: {}; {}", error.text(), error.hint());
                    self.in_trouble("Lease", Some(text));
                }
            }
        }
        let lives = pulses.keys().filter(|other| *other != cluster).filter_map(|other| {
            let holder = self.roster.holder(other)?.clone();
            Some((other.clone(), (holder, self.roster.life(other)?)))
        });
        let lives: Lives = lives.collect();
        self.lives.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&lives);
            *known = Some(lives);
            is_new
        });
        if self.next_flush.is_none() {
            self.next_flush = Some(Instant::now());
        }
    }

    /// Writes what is not as it should be on the broker.
    async fn flush(&mut self) {
        self.next_flush = None;
        let (mut puts, mut gone) = (Vec::new(), Vec::new());
        let (mut pod_puts, mut pod_gone) = (Vec::new(), Vec::new());
        let mut later = BTreeSet::new();
        for name in std::mem::take(&mut self.due_pods) {
            let known = self.names.get(&name).and_then(|id| self.publication.pod(id));
            let there = self.own_pods.get(&self.at(&name));
            match known {
                None => {
                    pod_gone.extend(step(there, None).map(|step| (REMOTE_PODS, step)));
                    self.names.remove(&name);
                }
                // In between there are signs of life to give, and news to hear.
                Some(_) if pod_puts.len() == AT_A_TIME => drop(later.insert(name)),
                Some(pod) => {
                    let wanted = wire::remote_pod(pod, &self.settings.namespace);
                    pod_puts.extend(step(there, Some(wanted)).map(|step| (REMOTE_PODS, step)));
                }
            }
        }
        self.due_pods = later;
        for name in std::mem::take(&mut self.due_namespaces) {
            let (cluster, labels) = (&self.settings.cluster, self.publication.namespace(&name));
            let wanted = labels.map(|labels| {
                wire::remote_namespace(cluster, &name, labels, &self.settings.namespace)
            });
            let there = self.own_namespaces.get(&self.at(&format!("{cluster}.{name}")));
            let step = step(there, wanted);
            let list = if matches!(step, Some(Step::Delete(_))) { &mut gone } else { &mut puts };
            list.extend(step.map(|step| (REMOTE_NAMESPACES, step)));
        }
        if let (Some(interests), Some(uid)) = (&self.interests, &self.uid) {
            let Settings { cluster, networks, namespace, .. } = self.settings;
            let wanted = wire::member(cluster, uid, networks, interests, namespace);
            puts.extend(
                step(self.members.get(&self.at(cluster)), Some(wanted)).map(|step| (MEMBERS, step)),
            );
        }
        // What must no longer be believed goes first; pods come after the namespaces they are in.
        let mut failed = false;
        for phase in [pod_gone, puts, pod_puts, gone] {
            failed |= !self.write(phase).await;
        }
        match failed {
            true => self.next_flush = Some(Instant::now() + self.backoff.wait()),
            false => {
                self.backoff.reset();
                self.next_flush = (!self.due_pods.is_empty()).then(Instant::now);
            }
        }
    }

    /// Takes steps, several at once. Whether all succeeded; those that did not are due again.
    async fn write(&mut self, steps: Vec<(Resource, Step)>) -> bool {
        let mut is_well = true;
        for some in steps.chunks(AT_ONCE) {
            let writes = some.iter().map(|(resource, step)| {
                let hand = &self.hand;
                async move { hand.perform(resource, resource.versions[0], step).await }
            });
            for ((resource, step), done) in some.iter().zip(join_all(writes).await) {
                let id = Id::of(step.object());
                let shelf = match resource.kind {
                    kind if kind == REMOTE_PODS.kind => &mut self.own_pods,
                    kind if kind == REMOTE_NAMESPACES.kind => &mut self.own_namespaces,
                    _ => &mut self.members,
                };
                match done {
                    Ok(Some(object)) => drop(shelf.put(object)),
                    Ok(None) => shelf.remove(&id),
                    Err(error) => {
                        is_well = false;
                        tracing::warn!(controller = NAME, "{} {id}: {error}", resource.kind);
                        match resource.kind {
                            kind if kind == REMOTE_PODS.kind => drop(self.due_pods.insert(id.name)),
                            kind if kind == REMOTE_NAMESPACES.kind => {
                                let name = id.name.split_once('.').map_or("", |(_, name)| name);
                                self.due_namespaces.insert(name.into());
                            }
                            // The member is looked at each time.
                            _ => (),
                        }
                    }
                }
            }
        }
        is_well
    }

    fn trouble(&mut self, kind: &'static str, told: &Told) {
        if let Told::Trouble(trouble) = told {
            self.in_trouble(kind, trouble.clone());
        }
    }

    fn in_trouble(&mut self, about: &'static str, trouble: Option<String>) {
        match trouble {
            Some(trouble) => drop(self.troubles.insert(about, trouble)),
            None => drop(self.troubles.remove(about)),
        }
        self.tell();
    }

    /// Says why not everything is as it should be.
    fn tell(&self) {
        let waiting = (self.troubles.is_empty() && !self.is_ready())
            .then(|| "not everything is read yet".to_owned());
        let reasons = self.troubles.values().cloned().chain(waiting);
        self.context.report.ready(NAME, reasons.collect());
    }

    fn at(&self, name: &str) -> Id {
        Id::new(self.settings.namespace.clone(), name)
    }

    fn remote(&self, id: &PodId) -> RemoteId {
        RemoteId {
            namespace: id.namespace.clone(),
            cluster: self.settings.cluster.clone(),
            name: id.name.clone(),
        }
    }
}

/// What to do about an object that is there, or not, and should be so, or not.
fn step(there: Option<&Object>, wanted: Option<Object>) -> Option<Step> {
    match (there, wanted) {
        (None, wanted) => wanted.map(Step::Create),
        (Some(there), None) => Some(Step::Delete(there.clone())),
        (Some(there), Some(wanted)) => adjusted(there, &wanted).map(Step::Update),
    }
}
