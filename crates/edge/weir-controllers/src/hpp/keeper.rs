use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use serde_json::json;
use weir_aci::{Hpp, Kind, ObjectId};
use weir_kube::{NoteKind, Watch};
use weir_model::{Finding, ObjectRef};
use weir_runtime::SourceEvent;

use super::{
    CONTAINERS, NAME, POLS, Settings, digest, digested, fit, http::Hearing, resource_of, world,
};
use crate::{
    Context, Hand, Id, Inbox, Next, Object, Outcome, Queue, Shelf, Step, Told, Watched, WriteError,
};

/// How long to wait for more about an object that was just written before it is written again.
const GATHER: Duration = Duration::from_millis(200);
/// How much news may keep what is due from being written.
const NEWS: usize = 256;
/// How many writes may be under way.
const AT_ONCE: usize = 16;
/// How many objects are written before news is heard again.
const PER_TURN: usize = 4 * AT_ONCE;

/// When to look again whether definitions fit.
const AGAIN: Duration = Duration::from_secs(2);

/// What is new.
enum News {
    World(SourceEvent),
    Container(Told),
    Pol(Told),
}

/// Keeps both kinds until it is time to finish.
pub(crate) async fn keep(context: &Context, settings: &Settings) {
    let mut inbox = Inbox::new(context);
    let here = |resource| Watched {
        namespace: settings.namespace.clone(),
        keep: digested,
        ..Watched::all(resource)
    };
    inbox.follow(&context.server, here(CONTAINERS), News::Container);
    inbox.follow(&context.server, here(POLS), News::Pol);
    let watch = world::teller(inbox.sender(), News::World)
        .and_then(|tell| Watch::start(context.server.access(), context.pace, tell));
    let _watch = match watch {
        Ok(watch) => watch,
        Err(error) => {
            context.report.ready(NAME, vec![format!("cannot follow the cluster: {error}")]);
            return context.stopped().await;
        }
    };
    let mut keeper = Keeper {
        context,
        settings,
        hand: context.hand(NAME),
        hearing: Hearing::start(settings.http),
        hpp: Hpp::new(weir_aci::Settings { prefix: settings.prefix.clone() }),
        said: BTreeSet::new(),
        unread: Vec::new(),
        world_in_sync: false,
        was_in_sync: false,
        fit: Fit::Unknown,
        containers: Shelf::default(),
        pols: Shelf::default(),
        queue: Queue::default(),
        written: BTreeMap::new(),
    };
    let mut heard = 0;
    loop {
        let due = keeper.due();
        // All news that waits is heard first, so that what comes together is written together; but not if it never ends.
        let is_due = due.is_some_and(|due| due <= Instant::now());
        let next = match is_due && heard >= NEWS && !context.is_stopped() {
            true => Next::Due,
            false => inbox.next(due).await,
        };
        match next {
            Next::News(news) => {
                heard += 1;
                keeper.take(news);
            }
            Next::Due => {
                heard = 0;
                keeper.turn().await;
            }
            Next::Stop => return,
        }
    }
}

struct Keeper<'a> {
    context: &'a Context,
    settings: &'a Settings,
    hand: Hand,
    hearing: Hearing,
    hpp: Hpp,
    /// What was said about what.
    said: BTreeSet<(Option<ObjectRef>, String)>,
    unread: Vec<Finding>,
    world_in_sync: bool,
    was_in_sync: bool,
    fit: Fit,
    containers: Shelf,
    pols: Shelf,
    queue: Queue<ObjectId>,
    /// When objects were written, as far as it is not long ago.
    written: BTreeMap<ObjectId, Instant>,
}

/// Whether the definitions in the cluster keep all that we write. One that drops a list of addresses would leave a rule for all.
enum Fit {
    Unknown,
    Good,
    /// Why not, and when to look again.
    Bad(String, Instant),
}

/// In which order things are written, so that what is referred to is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    PutContainer,
    Pol,
    RemoveContainer,
}

impl Keeper<'_> {
    fn is_in_sync(&self) -> bool {
        self.world_in_sync && self.containers.is_in_sync() && self.pols.is_in_sync()
    }

    /// When there is something to do.
    fn due(&self) -> Option<Instant> {
        let due = self.queue.next().filter(|_| self.is_in_sync())?;
        match &self.fit {
            Fit::Unknown | Fit::Good => Some(due),
            Fit::Bad(_, later) => Some(due.max(*later)),
        }
    }

    fn take(&mut self, news: News) {
        let touched: BTreeSet<ObjectId> = match news {
            News::World(update) => {
                self.world_in_sync |= update.in_sync;
                self.unread = update.unread;
                let changed = self.hpp.apply(&update.changes);
                for (id, object) in &changed {
                    self.hearing.put(id, object.as_ref(), &self.settings.namespace);
                }
                if !update.changes.is_empty() {
                    self.say();
                }
                changed.into_keys().collect()
            }
            News::Container(told) => touched(Kind::Container, self.containers.take(told)),
            News::Pol(told) => touched(Kind::Pol, self.pols.take(told)),
        };
        if self.is_in_sync() && !self.was_in_sync {
            self.was_in_sync = true;
            let all: BTreeSet<ObjectId> = self.everything().collect();
            self.push(all);
        } else if self.was_in_sync {
            self.push(touched);
        }
        self.tell();
    }

    /// Objects are to be looked at: at once, so that one change is quick, unless one of them was just written, so that many are few writes.
    /// Those that change together are written together, because they may refer to each other.
    fn push(&mut self, touched: BTreeSet<ObjectId>) {
        let now = Instant::now();
        let last = touched.iter().filter_map(|id| self.written.get(id)).max();
        let due = last.map_or(now, |last| (*last + GATHER).max(now));
        touched.into_iter().for_each(|id| self.queue.push(id, due));
    }

    /// All that is there or should be.
    fn everything(&self) -> impl Iterator<Item = ObjectId> + '_ {
        let there = |kind, shelf: &Shelf| {
            let ids: Vec<ObjectId> = shelf.iter().map(|object| id(kind, &Id::of(object))).collect();
            ids
        };
        let wanted = self.hpp.objects().keys().cloned();
        wanted.chain(there(Kind::Container, &self.containers)).chain(there(Kind::Pol, &self.pols))
    }

    /// Says what cannot be enforced, once, in the log and, if it is about one, on the policy.
    fn say(&mut self) {
        let mut said = BTreeSet::new();
        for Finding { object, message, hint, .. } in self.hpp.findings() {
            if !self.said.contains(&(object.clone(), message.clone())) {
                let about = object.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(controller = NAME, "{about}: {message}; {hint}");
                if let Some(policy) = object.as_ref().and_then(policy_for_event) {
                    self.hand.note(&policy, NoteKind::Warning, "NotEnforced", &*message);
                }
            }
            said.insert((object, message));
        }
        self.said = said;
    }

    /// Says why not everything can be read.
    fn tell(&self) {
        let shelves = [(&self.containers, CONTAINERS), (&self.pols, POLS)];
        let mut reasons: Vec<String> = shelves
            .into_iter()
            .filter_map(|(shelf, resource)| match shelf.trouble() {
                Some(trouble) => Some(trouble.to_owned()),
                None if !shelf.is_in_sync() => Some(format!("{} is not read yet", resource.name())),
                None => None,
            })
            .collect();
        if !self.world_in_sync {
            reasons.push("the cluster is not read yet".into());
        } else if !self.hpp.has_namespace(&self.settings.namespace) {
            let namespace = &self.settings.namespace;
            reasons.push(format!(
                "there is no namespace {namespace}; make it with `kubectl create namespace {namespace}`"
            ));
        }
        reasons.extend(self.unread.iter().map(|finding| finding.message.clone()));
        if let Fit::Bad(why, _) = &self.fit {
            reasons.push(why.clone());
        }
        reasons.extend(self.hearing.trouble());
        self.context.report.ready(NAME, reasons);
    }

    /// Writes what is due.
    async fn turn(&mut self) {
        if !matches!(self.fit, Fit::Good) {
            self.fit = match fit::check(&self.context.server, &self.settings.namespace).await {
                Ok(()) => Fit::Good,
                Err(why) => Fit::Bad(why, Instant::now() + AGAIN),
            };
            self.tell();
        }
        if matches!(self.fit, Fit::Bad(..)) {
            return;
        }
        let start = Instant::now();
        self.written.retain(|_, at| *at + GATHER > start);
        let mut turns: BTreeMap<Turn, Vec<(ObjectId, Step)>> = BTreeMap::new();
        let mut count = 0;
        while count < PER_TURN
            && let Some(id) = self.queue.pop(start)
        {
            match self.step(&id) {
                None => self.queue.done(&id),
                Some(step) => {
                    let turn = match (id.kind, &step) {
                        (Kind::Container, Step::Delete(_)) => Turn::RemoveContainer,
                        (Kind::Container, _) => Turn::PutContainer,
                        (Kind::Pol, _) => Turn::Pol,
                    };
                    count += 1;
                    turns.entry(turn).or_default().push((id, step));
                }
            }
        }
        for steps in turns.into_values() {
            let hand = &self.hand;
            let writes = stream::iter(steps).map(|(id, step)| async move {
                let began = Instant::now();
                let done = hand.clone().perform(resource_of(id.kind), "v1", &step).await;
                (id, done, began.elapsed())
            });
            let mut writes = writes.buffer_unordered(AT_ONCE);
            let mut results = Vec::new();
            while let Some(result) = writes.next().await {
                results.push(result);
            }
            drop(writes);
            for (id, done, took) in results {
                self.wrote(id, done, took);
            }
        }
    }

    /// What is to be done about an object, if anything is.
    fn step(&self, id: &ObjectId) -> Option<Step> {
        let shelf = self.shelf(id.kind);
        let there = shelf.get(&Id::new(self.settings.namespace.clone(), id.name.clone()));
        match (self.hpp.objects().get(id), there) {
            (None, None) => None,
            (None, Some(there)) => Some(Step::Delete(there.clone())),
            (Some(wanted), there) => {
                let known = there.and_then(|there| there.data["digest"].as_u64());
                if known == Some(digest(wanted)) {
                    return None;
                }
                let manifest = wanted.manifest(&self.settings.namespace);
                let mut object: Object = serde_json::from_value(manifest).ok()?;
                match there {
                    None => Some(Step::Create(object)),
                    Some(there) => {
                        object.metadata.resource_version = there.metadata.resource_version.clone();
                        object.metadata.uid = there.metadata.uid.clone();
                        Some(Step::Update(object))
                    }
                }
            }
        }
    }

    fn wrote(&mut self, id: ObjectId, done: Result<Option<Object>, WriteError>, took: Duration) {
        let place = Id::new(self.settings.namespace.clone(), id.name.clone());
        self.written.insert(id.clone(), Instant::now());
        let outcome = match done {
            Ok(object) => {
                let shelf = self.shelf_mut(id.kind);
                match object {
                    Some(object) => drop(shelf.put(digested(object))),
                    None => shelf.remove(&place),
                }
                // If the API server kept less than it was given, it has another turn, and the definitions are looked at before.
                match self.step(&id) {
                    None => self.queue.done(&id),
                    Some(_) => {
                        self.fit = Fit::Unknown;
                        self.queue.failed(id, Instant::now());
                    }
                }
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(controller = NAME, "{} {}: {error}", id.kind.name(), id.name);
                self.queue.failed(id, Instant::now());
                Outcome::Failed
            }
        };
        self.context.report.reconciled(NAME, outcome, took, self.queue.failing());
    }

    fn shelf(&self, kind: Kind) -> &Shelf {
        match kind {
            Kind::Container => &self.containers,
            Kind::Pol => &self.pols,
        }
    }

    fn shelf_mut(&mut self, kind: Kind) -> &mut Shelf {
        match kind {
            Kind::Container => &mut self.containers,
            Kind::Pol => &mut self.pols,
        }
    }
}

fn touched(kind: Kind, ids: BTreeSet<Id>) -> BTreeSet<ObjectId> {
    ids.iter().map(|one| id(kind, one)).collect()
}

fn id(kind: Kind, id: &Id) -> ObjectId {
    ObjectId { kind, name: id.name.clone() }
}

/// The NetworkPolicy that a finding is about, with the fields that an Event needs.
fn policy_for_event(object: &ObjectRef) -> Option<Object> {
    let ObjectRef { kind, namespace, name } = object;
    (&**kind == "NetworkPolicy").then_some(())?;
    let metadata = json!({"namespace": **namespace, "name": **name});
    let object =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": **kind, "metadata": metadata});
    serde_json::from_value(object).ok()
}
