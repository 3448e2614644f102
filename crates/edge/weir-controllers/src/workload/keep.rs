use std::time::{Duration, Instant};

use futures::future::join_all;
use weir_kube::NoteKind;

use super::{
    DISABLED, Workload, not_ready, plan,
    unserved::{Turn, Unserved},
};
use crate::{
    Condition, Context, Hand, Id, Inbox, NETWORK_POLICIES, Next, Object, Outcome, Queue, Shelf,
    Step, Told, Watched, WriteError, controller_of,
};

/// How many objects are looked at at once.
const AT_ONCE: usize = 16;

/// What is heard of.
enum News {
    Owner(Told),
    Policy(Told),
}

/// Keeps the policies of a kind of workload as asked for, until it is time to finish.
pub async fn keep(context: &Context, workload: &Workload) {
    let mut inbox = Inbox::new(context);
    inbox.follow(&context.server, Watched::all(workload.owner), News::Owner);
    let policies = Watched { keep: slim, ..Watched::all(NETWORK_POLICIES) };
    inbox.follow(&context.server, policies, News::Policy);
    let mut keeper = Keeper {
        context,
        workload,
        hand: context.hand(workload.name),
        owners: Shelf::default(),
        policies: Shelf::default(),
        queue: Queue::default(),
        unserved: Unserved::default(),
    };
    keeper.tell();
    loop {
        let due = keeper.is_in_sync().then(|| keeper.queue.next()).flatten();
        match inbox.next(due).await {
            Next::News(news) => keeper.take(news),
            Next::Due => keeper.turn().await,
            Next::Stop => return,
        }
    }
}

/// Of policies that no controller made, it only matters that they are there.
fn slim(mut object: Object) -> Object {
    if controller_of(&object).is_none() {
        object.data = serde_json::Value::Null;
        (object.metadata.labels, object.metadata.annotations) = (None, None);
    }
    object
}

struct Keeper<'a> {
    context: &'a Context,
    workload: &'a Workload,
    hand: Hand,
    owners: Shelf,
    policies: Shelf,
    queue: Queue<Id>,
    unserved: Unserved,
}

impl Keeper<'_> {
    fn is_in_sync(&self) -> bool {
        self.owners.is_in_sync() && self.policies.is_in_sync()
    }

    fn take(&mut self, news: News) {
        let touched = match news {
            News::Owner(told) => self.owners.take(told),
            // A policy has the name of its owner.
            News::Policy(told) => {
                let mut touched = self.policies.take(told);
                touched.retain(|id| self.owners.get(id).is_some());
                touched
            }
        };
        let now = Instant::now();
        touched.into_iter().for_each(|id| self.queue.push(id, now));
        self.tell();
    }

    /// Says why not everything can be read.
    fn tell(&self) {
        let shelves = [(&self.owners, self.workload.owner), (&self.policies, NETWORK_POLICIES)];
        let reasons = shelves.into_iter().filter_map(|(shelf, resource)| match shelf.trouble() {
            Some(trouble) => Some(trouble.to_owned()),
            None if !shelf.is_in_sync() => Some(format!("{} is not read yet", resource.name())),
            None => None,
        });
        self.context.report.ready(self.workload.name, reasons.collect());
    }

    /// Looks at the keys whose turn it is, some at once.
    async fn turn(&mut self) {
        let now = Instant::now();
        let due = std::iter::from_fn(|| self.queue.pop(now)).take(AT_ONCE);
        let ids: Vec<Id> = due.collect();
        let keeper = &*self;
        let looks = ids.into_iter().map(|id| async move {
            let (start, mut written) = (Instant::now(), Written::default());
            let done = keeper.reconcile(&id, &mut written).await;
            (id, done, written, start.elapsed())
        });
        for (id, done, written, took) in join_all(looks).await {
            self.remember(&id, written);
            self.settle(id, done, took);
        }
    }

    /// Takes note of what was written, before it is told.
    fn remember(&mut self, id: &Id, written: Written) {
        match written.policy {
            Some(Some(policy)) => drop(self.policies.put(slim(policy))),
            Some(None) => self.policies.remove(id),
            None => (),
        }
        if let Some(owner) = written.owner {
            self.owners.put(owner);
        }
    }

    /// Takes note of what came of it: nothing, or why an object does not have what it asks for.
    fn settle(&mut self, id: Id, done: Result<Option<String>, WriteError>, took: Duration) {
        let (controller, kind) = (self.workload.name, self.workload.owner.kind);
        let outcome = match done {
            Ok(wrong) => {
                self.queue.done(&id);
                self.judge(id, wrong);
                Outcome::Done
            }
            Err(error) => {
                match error {
                    // That happens, and it is looked at again at once.
                    WriteError::Conflict => tracing::debug!(controller, "{kind} {id}: {error}"),
                    error => self.judge(id.clone(), Some(error.to_string())),
                }
                self.queue.failed(id, Instant::now());
                Outcome::Failed
            }
        };
        self.context.report.reconciled(controller, outcome, took, self.unserved.count());
    }

    /// Says what is new about an object that does not have what it asks for, or has it again.
    fn judge(&mut self, id: Id, wrong: Option<String>) {
        let (controller, kind, name) =
            (self.workload.name, self.workload.owner.kind, id.to_string());
        match self.unserved.judge(id, wrong) {
            Some(Turn::Worse(why)) => tracing::warn!(controller, "{kind} {name}: {why}"),
            Some(Turn::Better) => {
                tracing::info!(controller, "{kind} {name}: nothing is wrong any more");
            }
            None => (),
        }
    }

    /// Looks at an object and does what is to be done; tells what is wrong with what it asks for.
    async fn reconcile(
        &self,
        id: &Id,
        written: &mut Written,
    ) -> Result<Option<String>, WriteError> {
        let Some(owner) = self.owners.get(id) else { return Ok(None) };
        let mut plan = plan(self.workload, owner, self.policies.get(id));
        let mut refusal = None;
        for step in &plan.steps {
            match self.hand.perform(&NETWORK_POLICIES, "v1", step).await {
                Ok(policy) => {
                    written.policy = Some(policy);
                    let word = match step {
                        Step::Create(_) => "Created",
                        Step::Update(_) => "Updated",
                        Step::Delete(_) => "Deleted",
                    };
                    let message = format!("{word} NetworkPolicy {}", id.name);
                    self.hand.note(owner, NoteKind::Normal, word, message);
                }
                Err(WriteError::Refused(why)) => {
                    plan.condition = Some(not_ready("Refused", why.clone()));
                    refusal = Some(WriteError::Refused(why));
                }
                Err(error) => return Err(error),
            }
        }
        let mut wrong = None;
        if let Some(condition) = &plan.condition {
            let version = self.owners.version().unwrap_or_default();
            written.owner = self.hand.say(&self.workload.owner, version, owner, condition).await?;
            if !condition.holds && condition.reason != DISABLED {
                let Condition { reason, message, .. } = condition;
                wrong = Some(format!("{reason}: {message}"));
                if written.owner.is_some() {
                    self.hand.note(owner, NoteKind::Warning, reason, message);
                }
            }
        }
        refusal.map_or(Ok(wrong), Err)
    }
}

/// What was written for an object.
#[derive(Default)]
struct Written {
    /// The policy as it is now; `None` in it if it is gone.
    policy: Option<Option<Object>>,
    /// The object itself, with its new status.
    owner: Option<Object>,
}
