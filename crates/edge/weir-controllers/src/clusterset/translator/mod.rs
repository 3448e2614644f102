//! What the policies of this cluster are written as.

mod home;
mod reconcile;
mod remote;
mod say;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_clusterset::{ClusterSet, Interest, Options, RemoteId, ShardKey};
use weir_model::{Name, Policy};

use super::{
    Lives, NAME, Settings, Sight,
    wire::{self, MANAGED, MEMBERS, POLICIES, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{
    Context, Hand, Id, Inbox, NETWORK_POLICIES, Next, Object, Queue, Server, Shelf, Told, Watched,
};

/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);

enum News {
    Policy(Told),
    Network(Told),
    Pod(Told),
    Namespace(Told),
    Member(Told),
    Sight(Sight),
}

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Policy(Id),
    /// NetworkPolicies whose policy is gone, by its uid.
    Orphans(String),
}

/// Translates until it is time to finish.
pub(crate) async fn keep(
    context: &Context,
    settings: &Settings,
    interests: watch::Sender<Option<BTreeSet<Interest>>>,
    mut seen: watch::Receiver<Sight>,
) {
    let server = Server::new(settings.broker.clone());
    let mut inbox = Inbox::new(context);
    inbox.follow(&context.server, Watched::all(POLICIES), News::Policy);
    let labels = format!("{}={}", MANAGED.0, MANAGED.1);
    inbox.follow(
        &context.server,
        Watched { labels, ..Watched::all(NETWORK_POLICIES) },
        News::Network,
    );
    let at_broker =
        |resource| Watched { namespace: settings.namespace.clone(), ..Watched::all(resource) };
    let pods = Watched { keep: wire::pressed, ..at_broker(REMOTE_PODS) };
    inbox.follow(&server, pods, News::Pod);
    inbox.follow(&server, at_broker(REMOTE_NAMESPACES), News::Namespace);
    inbox.follow(&server, at_broker(MEMBERS), News::Member);
    let out = inbox.sender();
    tokio::spawn(async move {
        while seen.changed().await.is_ok() {
            let sight = seen.borrow_and_update().clone();
            if out.send(News::Sight(sight)).await.is_err() {
                return;
            }
        }
    });
    let options = Options {
        cluster: settings.cluster.clone(),
        networks: settings.networks.clone(),
        accepted: settings.accepted.clone(),
        pods: settings.pods,
        namespaces: settings.namespaces,
        shard: settings.shard,
        merging: settings.merging,
    };
    let mut translator = Translator {
        context,
        settings,
        hand: context.hand(NAME),
        interests,
        set: ClusterSet::new(options),
        policies: Shelf::default(),
        network: Shelf::default(),
        installed: BTreeMap::new(),
        lost: BTreeSet::new(),
        strays: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        members: BTreeMap::new(),
        sight: Sight::default(),
        listed: BTreeSet::new(),
        troubles: BTreeMap::new(),
        wrong: BTreeMap::new(),
        odd: BTreeMap::new(),
        dirty: BTreeMap::new(),
        whole: BTreeSet::new(),
        queue: Queue::default(),
        told: BTreeMap::new(),
    };
    translator.tell();
    loop {
        let due = translator.is_local_read().then(|| translator.queue.next()).flatten();
        match inbox.next(due).await {
            Next::News(news) => translator.take(news),
            Next::Due => translator.turn().await,
            Next::Stop => return,
        }
    }
}

struct Translator<'a> {
    context: &'a Context,
    settings: &'a Settings,
    hand: Hand,
    interests: watch::Sender<Option<BTreeSet<Interest>>>,
    set: ClusterSet,
    policies: Shelf,
    /// The NetworkPolicies with our label.
    network: Shelf,
    /// What they say, by the namespace they are in and the uid of their policy.
    installed: BTreeMap<(String, String), BTreeMap<Name, Policy>>,
    /// NetworkPolicies of ours that others removed, or took our label from.
    lost: BTreeSet<Id>,
    /// What those RemotePods are about whose names do not say it.
    strays: BTreeMap<String, RemoteId>,
    /// What the other objects of the broker are, by their names.
    namespaces: BTreeMap<String, (Name, Name)>,
    members: BTreeMap<String, wire::Told>,
    sight: Sight,
    listed: BTreeSet<&'static str>,
    troubles: BTreeMap<&'static str, String>,
    /// What is wrong with policies.
    wrong: BTreeMap<Id, String>,
    /// What is wrong with objects of the broker.
    odd: BTreeMap<String, String>,
    /// The parts of policies that may not be as they should be.
    dirty: BTreeMap<Id, BTreeSet<ShardKey>>,
    /// Policies of which all parts are to be compared.
    whole: BTreeSet<Id>,
    queue: Queue<Work>,
    /// When something was last written into a status.
    told: BTreeMap<Id, Instant>,
}

impl Translator<'_> {
    fn is_local_read(&self) -> bool {
        self.policies.is_in_sync() && self.network.is_in_sync()
    }

    /// Whether everything on the broker was read once, and we are who we say.
    fn is_synced(&self) -> bool {
        self.listed.len() == 3 && matches!(self.sight, Sight::Lives(_))
    }

    /// Who of the others is alive, as far as that is known.
    fn lives(&self) -> Option<&Lives> {
        match &self.sight {
            Sight::Lives(lives) => Some(lives),
            Sight::Nothing | Sight::Disowned(_) => None,
        }
    }

    fn take(&mut self, news: News) {
        let was_synced = self.is_synced();
        match news {
            News::Policy(told) => self.take_policies(told),
            News::Network(told) => self.take_network(told),
            News::Pod(told) => self.take_pods(told),
            News::Namespace(told) => self.take_namespaces(told),
            News::Member(told) => self.take_members(told),
            News::Sight(sight) => {
                let is_new = self.sight != sight;
                self.sight = sight;
                let known = self
                    .set
                    .members()
                    .keys()
                    .chain(self.lives().into_iter().flatten().map(|(cluster, _)| cluster));
                let all: BTreeSet<Name> = known.cloned().collect();
                all.iter().for_each(|cluster| self.admit(cluster));
                if is_new {
                    self.look_at_all();
                }
            }
        }
        if self.is_synced() && !was_synced {
            let all: Vec<Id> = self.policies.iter().map(Id::of).collect();
            self.whole.extend(all);
            self.look_at_all();
        }
        let due = Instant::now() + GATHER;
        for (id, shards) in self.set.touched() {
            let id = Id::new(&*id.namespace, &*id.name);
            self.dirty.entry(id.clone()).or_default().extend(shards);
            self.queue.push(Work::Policy(id), due);
        }
        self.tell();
    }

    fn look_at_all(&mut self) {
        let now = Instant::now();
        let all: Vec<Id> = self.policies.iter().map(Id::of).collect();
        all.into_iter().for_each(|id| self.queue.push(Work::Policy(id), now));
    }
    fn trouble(&mut self, kind: &'static str, told: &Told) {
        if let Told::Trouble(trouble) = told {
            match trouble {
                Some(trouble) => drop(self.troubles.insert(kind, trouble.clone())),
                None => drop(self.troubles.remove(kind)),
            }
        }
    }

    /// Says why not everything is as it should be.
    fn tell(&self) {
        let mut reasons: Vec<String> = self.troubles.values().cloned().collect();
        // Who is disowned hears it from the publisher.
        let is_read = self.is_synced() || matches!(self.sight, Sight::Disowned(_));
        if reasons.is_empty() && !(self.is_local_read() && is_read) {
            reasons.push("not everything is read yet".into());
        }
        if self.is_synced() && !self.members.contains_key(&*self.settings.cluster) {
            reasons.push("this cluster is not on the broker yet".into());
        }
        self.context.report.ready(NAME, reasons);
        self.context.report.note(NAME, self.notes());
    }
}

fn name_of(object: &Object) -> String {
    object.metadata.name.clone().unwrap_or_default()
}
