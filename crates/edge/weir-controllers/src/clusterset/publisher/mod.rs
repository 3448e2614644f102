//! What this cluster tells the others, and that it is there.

mod flush;
mod home;
mod pulse;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_clusterset::{Interest, Limits, Publication, RemoteId, Roster};
use weir_model::{Name, PodId};
use weir_runtime::Backoff;

use super::{
    Settings, Sight,
    wire::{self, CLUSTER, MEMBERS, NAMESPACES, PODS, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{Context, Hand, Id, Inbox, Next, Server, Shelf, Told, Watched};

/// The name under which it tells how it goes.
const NAME: &str = "clusterset-broker";
/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(100);

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
    sight: watch::Sender<Sight>,
) {
    let server = Server::new(settings.broker.clone());
    let mut inbox = Inbox::new(context);
    let pods = Watched { keep: home::slim_pod, ..Watched::all(PODS) };
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
        seat: format!("{}/{}", context.namespace, context.lease),
        sight,
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
        backoff: Backoff::new(context.pace.first_retry, context.pace.longest_retry),
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

struct Publisher<'a> {
    context: &'a Context,
    settings: &'a Settings,
    hand: Hand,
    server: Server,
    /// What tells this controller from others of this cluster.
    seat: String,
    sight: watch::Sender<Sight>,
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
