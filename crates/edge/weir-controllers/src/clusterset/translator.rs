//! What the policies of this cluster are written as.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_clusterset::{
    ClusterSet, Interest, Life, Options, RemoteId, ShardKey, Step as Write, kept, shard_name, steps,
};
use weir_kube::NoteKind;
use weir_model::{Name, Policy, PolicyId};

use super::{
    Lives, NAME, Settings, owned,
    status::Standing,
    wire::{self, MANAGED, MEMBERS, POLICIES, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{
    Context, Hand, Id, Inbox, NETWORK_POLICIES, Next, Object, Outcome, Queue, Server, Shelf, Step,
    Told, Watched, WriteError, adjusted, is_terminating,
};

/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// How often numbers are written into a status, at most.
const NUMBERS: Duration = Duration::from_secs(2);
/// What members are called where something is wrong with them.
const MEMBER: &str = "ClusterSetMember ";
/// How many writes of a policy may fail before the rest waits for another time.
const PATIENCE: usize = 3;

enum News {
    Policy(Told),
    Network(Told),
    Pod(Told),
    Namespace(Told),
    Member(Told),
    Lives(Lives),
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
    mut alive: watch::Receiver<Option<Lives>>,
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
    inbox.follow(&server, at_broker(REMOTE_PODS), News::Pod);
    inbox.follow(&server, at_broker(REMOTE_NAMESPACES), News::Namespace);
    inbox.follow(&server, at_broker(MEMBERS), News::Member);
    let out = inbox.sender();
    tokio::spawn(async move {
        while alive.changed().await.is_ok() {
            let lives = alive.borrow_and_update().clone();
            if let Some(lives) = lives
                && out.send(News::Lives(lives)).await.is_err()
            {
                return;
            }
        }
    });
    let options = Options {
        cluster: settings.cluster.clone(),
        networks: settings.networks.clone(),
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
        pods: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        members: BTreeMap::new(),
        lives: None,
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
    /// What the objects of the broker are, by their names.
    pods: BTreeMap<String, RemoteId>,
    namespaces: BTreeMap<String, (Name, Name)>,
    members: BTreeMap<String, wire::Told>,
    lives: Option<Lives>,
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

    /// Whether everything on the broker was read once.
    fn is_synced(&self) -> bool {
        self.listed.len() == 3 && self.lives.is_some()
    }

    fn take(&mut self, news: News) {
        let was_synced = self.is_synced();
        match news {
            News::Policy(told) => self.take_policies(told),
            News::Network(told) => self.take_network(told),
            News::Pod(told) => self.take_pods(told),
            News::Namespace(told) => self.take_namespaces(told),
            News::Member(told) => self.take_members(told),
            News::Lives(lives) => {
                let before = self.lives.replace(lives).unwrap_or_default();
                let now = self.lives.clone().unwrap_or_default();
                let all: BTreeSet<Name> = before.keys().chain(now.keys()).cloned().collect();
                all.iter().for_each(|cluster| self.admit(cluster));
                if before != now {
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

    fn take_policies(&mut self, told: Told) {
        self.trouble(POLICIES.kind, &told);
        for id in self.policies.take(told) {
            let key = wire::policy_id(&id.namespace, &id.name);
            let before = self.set.policy(&key).map(|(_, uid)| uid.to_string());
            self.wrong.remove(&id);
            let uid = self.policies.get(&id).and_then(|object| object.metadata.uid.clone());
            match self.policies.get(&id).and_then(wire::policy) {
                Some((policy, wrong)) => {
                    self.wrong.extend(wrong.map(|wrong| (id.clone(), wrong)));
                    // What an object cannot say for itself: where it is.
                    let policy = Policy { id: key, ..policy };
                    self.set.put_policy(policy, uid.as_deref().unwrap_or_default());
                }
                None => self.set.remove_policy(&key),
            }
            if let Some(before) = before.filter(|before| uid.as_ref() != Some(before)) {
                self.queue.push(Work::Orphans(before), Instant::now());
            }
            self.queue.push(Work::Policy(id.clone()), Instant::now());
            // Seen for the first time: what is there from before may be more than it should be.
            if !self.told.contains_key(&id) {
                self.whole.insert(id);
            }
        }
        if self.policies.is_in_sync() {
            let asked: BTreeSet<Interest> = self.set.interests().cloned().collect();
            self.interests.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(&asked);
                *known = Some(asked);
                is_new
            });
            self.find_orphans();
        }
    }

    fn take_network(&mut self, told: Told) {
        self.trouble(NETWORK_POLICIES.kind, &told);
        let is_list = matches!(told, Told::Listed(..));
        for id in self.network.take(told) {
            let uid = self.note(&id);
            let key = uid.and_then(|uid| {
                // Only where the policy is: elsewhere it stands for nothing.
                let mut all = self.set.policies();
                let is_it = |(policy, known): &(&Policy, &Name)| {
                    ***known == *uid && *policy.id.namespace == *id.namespace
                };
                all.find(is_it).map(|(policy, _)| policy.id.clone())
            });
            if let Some(key) = key {
                let owner = Id::new(&*key.namespace, &*key.name);
                if self.network.get(&id).is_none() {
                    self.lost.insert(id.clone());
                }
                match owned::shard_of(&id.name) {
                    Some(shard) => drop(self.dirty.entry(owner.clone()).or_default().insert(shard)),
                    None => drop(self.whole.insert(owner.clone())),
                }
                self.queue.push(Work::Policy(owner), Instant::now());
            }
        }
        if is_list {
            self.find_orphans();
        }
    }

    /// Takes note of what a NetworkPolicy of ours says now; returns the uid of its policy, if it is or was ours.
    fn note(&mut self, id: &Id) -> Option<String> {
        let uid = owned::uid_in(&id.name)?.to_owned();
        let ours = self.network.get(id).filter(|object| owned::is_ours(object));
        let key = (id.namespace.clone(), uid.clone());
        match ours.and_then(wire::policy) {
            Some((policy, _)) => {
                let all = self.installed.entry(key).or_default();
                all.insert(id.name.as_str().into(), policy);
                Some(uid)
            }
            None => {
                let all = self.installed.get_mut(&key)?;
                all.remove(id.name.as_str())?;
                if all.is_empty() {
                    self.installed.remove(&key);
                }
                Some(uid)
            }
        }
    }

    /// NetworkPolicies whose policy is gone. Usually they went with it.
    fn find_orphans(&mut self) {
        if !self.is_local_read() {
            return;
        }
        let known: BTreeSet<&str> = self.set.policies().map(|(_, uid)| &**uid).collect();
        let all = self.installed.keys().map(|(_, uid)| uid);
        let orphans: BTreeSet<String> =
            all.filter(|uid| !known.contains(uid.as_str())).cloned().collect();
        for uid in orphans {
            self.queue.push(Work::Orphans(uid), Instant::now());
        }
    }

    fn take_pods(&mut self, told: Told) {
        self.trouble(REMOTE_PODS.kind, &told);
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(REMOTE_PODS.kind);
                let there: BTreeSet<String> = objects.iter().map(name_of).collect();
                let gone: Vec<String> =
                    self.pods.keys().filter(|name| !there.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_pod(name));
                objects.iter().for_each(|object| self.put_pod(object));
            }
            Told::Put(object) => self.put_pod(&object),
            Told::Gone(object) => self.remove_pod(&name_of(&object)),
            Told::Trouble(_) => (),
        }
    }

    fn put_pod(&mut self, object: &Object) {
        let name = name_of(object);
        match wire::read_pod(object) {
            Ok(pod) => {
                self.odd.remove(&name);
                // What an object was about before is gone if it is about another pod now.
                if self.pods.get(&name).is_some_and(|known| *known != pod.id) {
                    self.remove_pod(&name);
                }
                self.pods.insert(name, pod.id.clone());
                self.set.put_pod(pod);
            }
            Err(wrong) => {
                self.remove_pod(&name);
                self.odd.insert(name.clone(), format!("RemotePod {name} is not believed: {wrong}"));
            }
        }
    }

    fn remove_pod(&mut self, name: &str) {
        self.odd.remove(name);
        if let Some(id) = self.pods.remove(name) {
            self.set.remove_pod(&id);
        }
    }

    fn take_namespaces(&mut self, told: Told) {
        self.trouble(REMOTE_NAMESPACES.kind, &told);
        let mut put = Vec::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(REMOTE_NAMESPACES.kind);
                let there: BTreeSet<String> = objects.iter().map(name_of).collect();
                let gone: Vec<String> =
                    self.namespaces.keys().filter(|name| !there.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_namespace(name));
                put = objects;
            }
            Told::Put(object) => put.push(object),
            Told::Gone(object) => self.remove_namespace(&name_of(&object)),
            Told::Trouble(_) => (),
        }
        for object in put {
            let name = name_of(&object);
            match wire::read_namespace(&object) {
                Ok((cluster, namespace, labels)) => {
                    // What an object was about before is gone if it is about another namespace now.
                    let now = (cluster.clone(), namespace.clone());
                    if self.namespaces.get(&name).is_some_and(|known| *known != now) {
                        self.remove_namespace(&name);
                    }
                    self.set.namespace(&cluster, &namespace, Some(labels));
                    self.namespaces.insert(name, (cluster, namespace));
                }
                Err(_) => self.remove_namespace(&name),
            }
        }
    }

    fn remove_namespace(&mut self, name: &str) {
        if let Some((cluster, namespace)) = self.namespaces.remove(name) {
            self.set.namespace(&cluster, &namespace, None);
        }
    }

    fn take_members(&mut self, told: Told) {
        self.trouble(MEMBERS.kind, &told);
        let mut touched: BTreeSet<String> = BTreeSet::new();
        match told {
            Told::Listed(_, objects) => {
                self.listed.insert(MEMBERS.kind);
                touched.extend(std::mem::take(&mut self.members).into_keys());
                self.odd.retain(|name, _| !name.starts_with(MEMBER));
                touched.extend(objects.iter().map(name_of));
                objects.iter().for_each(|object| self.put_member(object));
            }
            Told::Put(object) => {
                self.put_member(&object);
                touched.insert(name_of(&object));
            }
            Told::Gone(object) => {
                let name = name_of(&object);
                self.members.remove(&name);
                self.odd.remove(&format!("{MEMBER}{name}"));
                touched.insert(name);
            }
            Told::Trouble(_) => (),
        }
        for cluster in touched {
            self.admit(&cluster.as_str().into());
        }
    }

    fn put_member(&mut self, object: &Object) {
        let name = name_of(object);
        let odd = format!("{MEMBER}{name}");
        match wire::read_member(object) {
            Ok(told) => {
                self.odd.remove(&odd);
                self.members.insert(name, told);
            }
            Err(wrong) => {
                self.members.remove(&name);
                self.odd.insert(odd.clone(), format!("{odd} is not believed: {wrong}"));
            }
        }
    }

    /// Decides whether a cluster counts: it says where its pods are, it gives signs of life, and the two are of one cluster.
    fn admit(&mut self, cluster: &Name) {
        let Some(lives) = &self.lives else { return };
        let told = self.members.get(&**cluster);
        let counts = told.filter(|told| {
            lives.get(cluster).is_some_and(|(uid, life)| *uid == told.uid && *life != Life::Gone)
        });
        let member = counts.map(|told| told.member.clone());
        self.set.member(cluster, member);
    }

    /// Looks at what has its turn.
    async fn turn(&mut self) {
        let start = Instant::now();
        let Some(work) = self.queue.pop(start) else { return };
        let done = match &work {
            Work::Policy(id) => self.reconcile(id).await,
            Work::Orphans(uid) => self.remove_orphans(uid).await,
        };
        let outcome = match done {
            Ok(()) => {
                self.queue.done(&work);
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(controller = NAME, "{work:?}: {error}");
                if let Work::Policy(id) = &work {
                    self.whole.insert(id.clone());
                }
                self.queue.failed(work, Instant::now());
                Outcome::Failed
            }
        };
        self.context.report.reconciled(NAME, outcome, start.elapsed(), self.queue.failing());
    }

    async fn reconcile(&mut self, id: &Id) -> Result<(), WriteError> {
        let Some(owner) = self.policies.get(id).cloned() else {
            self.dirty.remove(id);
            self.whole.remove(id);
            self.told.remove(id);
            return Ok(());
        };
        // What it owns goes with it.
        if is_terminating(&owner) {
            return Ok(());
        }
        let key = wire::policy_id(&id.namespace, &id.name);
        let uid = owner.metadata.uid.clone().unwrap_or_default();
        let mut failure = self.find_lost(&uid, &id.namespace).await.err();
        let (wanted, base) = (self.wanted(id, &key, &uid), self.set.base(&key));
        let none = BTreeMap::new();
        let installed = self.installed.get(&(id.namespace.clone(), uid.clone())).unwrap_or(&none);
        // Whose labels or controller others changed is written as it is, so that it does not slip away.
        let damaged = installed.iter().filter(|(name, _)| {
            let object = self.network.get(&Id::new(id.namespace.clone(), &***name));
            object.is_some_and(|object| !owned::is_whole(object, &uid))
        });
        let repairs = damaged.map(|(_, policy)| Write::Put(policy.clone()));
        let todo: Vec<Write> = repairs.chain(steps(installed, &wanted, base.as_ref())).collect();
        let mut failed = 0;
        for step in todo {
            // One that is refused holds up no other, least of all what takes away.
            match self.perform(&owner, &uid, step).await {
                Ok(()) => continue,
                Err(WriteError::Over) => return Err(WriteError::Over),
                Err(error) => {
                    failed += usize::from(matches!(error, WriteError::Failed(_)));
                    failure.get_or_insert(error);
                }
            }
            if failed == PATIENCE {
                break;
            }
        }
        let said = self.say(id, &owner, &key, failure.as_ref().map(unwritten)).await;
        failure.map_or(said, Err)
    }

    /// Looks whether NetworkPolicies that we lost sight of are still there: who takes our label away hides them from us.
    async fn find_lost(&mut self, uid: &str, namespace: &str) -> Result<(), WriteError> {
        let is_of = |id: &&Id| id.namespace == namespace && owned::uid_in(&id.name) == Some(uid);
        let lost: Vec<Id> = self.lost.iter().filter(is_of).cloned().collect();
        for id in lost {
            self.find(&id).await?;
            self.lost.remove(&id);
        }
        Ok(())
    }

    /// Takes in the NetworkPolicy of a name if it is ours, whatever its labels are.
    async fn find(&mut self, id: &Id) -> Result<(), WriteError> {
        let found = owned::find(&self.context.server, id).await?;
        if let Some(object) = found.filter(owned::is_ours) {
            self.network.put(object);
            self.note(id);
        }
        Ok(())
    }

    /// The parts of a policy that may not be as they should be, as they should be.
    fn wanted(&mut self, id: &Id, key: &PolicyId, uid: &str) -> BTreeMap<Name, Option<Policy>> {
        let home = (id.namespace.clone(), uid.to_owned());
        let installed = self.installed.get(&home).into_iter().flatten();
        let base = shard_name(uid, None);
        let installed = installed.filter(|(name, _)| **name != base);
        // Until everything was read, who is allowed stays as it is, as far as the policy still says such a thing.
        if !self.is_synced() {
            let Some((policy, _)) = self.set.policy(key) else { return BTreeMap::new() };
            let kept = installed.map(|(name, there)| (name.clone(), kept(policy, there)));
            return kept.collect();
        }
        let installed: Vec<Name> = installed.map(|(name, _)| name.clone()).collect();
        let mut shards = self.dirty.remove(id).unwrap_or_default();
        let mut wanted = BTreeMap::new();
        if self.whole.remove(id) {
            shards.extend(self.set.shards(key));
            wanted.extend(installed.into_iter().map(|name| (name, None)));
        }
        for shard in shards {
            wanted.insert(shard_name(uid, Some(&shard)), self.set.shard(key, &shard));
        }
        wanted
    }

    async fn perform(&mut self, owner: &Object, uid: &str, step: Write) -> Result<(), WriteError> {
        match step {
            Write::Put(policy) => {
                let Some(wanted) = wire::network_policy(&policy, owner) else { return Ok(()) };
                let id = Id::of(&wanted);
                if self.network.get(&id).is_none() {
                    match self.write(&Step::Create(wanted.clone())).await {
                        // Something of that name is there, and we do not see it: it has not our label.
                        Err(WriteError::Conflict) => {
                            self.find(&id).await?;
                        }
                        done => return done,
                    }
                }
                let there = self.network.get(&id).filter(|there| owned::is_ours(there));
                let Some(there) = there else { return Err(WriteError::Conflict) };
                match adjusted(there, &wanted) {
                    Some(new) => self.write(&Step::Update(new)).await,
                    None => Ok(()),
                }
            }
            Write::Delete(name) => {
                let id = Id::new(owner.metadata.namespace.clone().unwrap_or_default(), &*name);
                let is_it = owned::uid_in(&id.name) == Some(uid);
                match self.network.get(&id).filter(|there| is_it && owned::is_ours(there)) {
                    Some(there) => self.write(&Step::Delete(there.clone())).await,
                    None => Ok(()),
                }
            }
        }
    }

    async fn write(&mut self, step: &Step) -> Result<(), WriteError> {
        let id = Id::of(step.object());
        let done = self.hand.perform(&NETWORK_POLICIES, "v1", step).await;
        match &done {
            Ok(Some(object)) => drop(self.network.put(object.clone())),
            Ok(None) => self.network.remove(&id),
            // It is not as we know it, and if it has not our label we do not hear how it is.
            Err(WriteError::Conflict) if !matches!(step, Step::Create(_)) => {
                self.network.remove(&id);
                self.lost.insert(id.clone());
            }
            Err(_) => (),
        }
        self.note(&id);
        done.map(drop)
    }

    /// Says how it goes, numbers not too often.
    async fn say(
        &mut self,
        id: &Id,
        owner: &Object,
        key: &PolicyId,
        unwritten: Option<(&'static str, String)>,
    ) -> Result<(), WriteError> {
        let summary = self.set.summary(key).unwrap_or_default();
        let late = self.lives.iter().flatten().filter(|(cluster, (_, life))| {
            *life != Life::Alive && summary.addresses.contains_key(*cluster)
        });
        let standing = Standing {
            wrong: self.wrong.get(id).cloned(),
            unwritten,
            is_synced: self.is_synced(),
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

    async fn remove_orphans(&mut self, uid: &str) -> Result<(), WriteError> {
        if self.set.policies().any(|(_, known)| **known == *uid) {
            return Ok(());
        }
        let ours = |object: &&Object| {
            owned::is_ours(object) && owned::uid_in(&name_of(object)) == Some(uid)
        };
        let orphans: Vec<Object> = self.network.iter().filter(ours).cloned().collect();
        // What allows goes before what isolates.
        let (base, shards): (Vec<Object>, Vec<Object>) =
            orphans.into_iter().partition(|object| owned::shard_of(&name_of(object)).is_none());
        for object in shards.into_iter().chain(base).filter(|object| !is_terminating(object)) {
            let id = Id::of(&object);
            match self.hand.perform(&NETWORK_POLICIES, "v1", &Step::Delete(object)).await {
                // It is gone already, or comes again as it is.
                Ok(_) | Err(WriteError::Conflict) => self.network.remove(&id),
                Err(error) => return Err(error),
            }
        }
        self.installed.retain(|(_, known), _| known != uid);
        self.lost.retain(|id| owned::uid_in(&id.name) != Some(uid));
        Ok(())
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
        if reasons.is_empty() && !(self.is_local_read() && self.is_synced()) {
            reasons.push("not everything is read yet".into());
        }
        reasons.extend(self.odd.values().next().cloned());
        for (cluster, pods) in self.set.refused() {
            let Some((id, addresses)) = pods.first_key_value() else { continue };
            let address = addresses.first().map(ToString::to_string).unwrap_or_default();
            reasons.push(format!(
                "cluster {cluster} tells {} pods at addresses that are outside of its networks or inside of ours, as {}/{} at {address}; they are refused",
                pods.len(), id.namespace, id.name
            ));
        }
        if self.members.contains_key(&*self.settings.cluster) || !self.is_synced() {
            return self.context.report.ready(NAME, reasons);
        }
        reasons.push("this cluster is not on the broker yet".into());
        self.context.report.ready(NAME, reasons);
    }
}

fn name_of(object: &Object) -> String {
    object.metadata.name.clone().unwrap_or_default()
}

/// Why a policy is not written as it should be: in a word, and in a sentence.
fn unwritten(error: &WriteError) -> (&'static str, String) {
    match error {
        WriteError::Refused(why) => ("Refused", why.clone()),
        WriteError::Conflict => (
            "NameConflict",
            "a NetworkPolicy of that name is there and not ours, or was changed by others; it is left alone".into(),
        ),
        WriteError::Failed(_) | WriteError::Over => ("WriteFailed", format!("{error}; it is tried again")),
    }
}
