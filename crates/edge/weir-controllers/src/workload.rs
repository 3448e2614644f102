//! Objects that ask for a NetworkPolicy of their own name, and the loop that keeps these as asked for.

use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use weir_api::{Lowering, document};
use weir_kube::NoteKind;
use weir_model::{Finding, Severity};

use crate::{
    Condition, Context, Hand, Id, Inbox, NETWORK_POLICIES, Next, Object, Outcome, Queue, Resource,
    Shelf, Step, Told, Watched, WriteError, condition, controller_of, controller_reference,
    is_controlled_by, is_terminating, steps,
};

/// The condition that tells how it goes with the policy.
pub const CONDITION: &str = "NetworkPolicyReady";

/// The reason of that condition if no policy is asked for.
const DISABLED: &str = "Disabled";

/// How many objects are looked at at once.
const AT_ONCE: usize = 16;

/// A kind of object that asks for a NetworkPolicy of its own name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name of the controller.
    pub name: &'static str,
    /// The kind of object.
    pub owner: Resource,
    /// The policy that an object asks for, if it asks for one; or what is wrong with what it asks for. Pure.
    pub desired: fn(&Object) -> Result<Option<NetworkPolicy>, String>,
    /// What happens to a policy that is no longer asked for.
    pub on_disable: OnDisable,
}

/// What happens to a policy that is no longer asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisable {
    /// It stays as it is until its owner goes.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
}

/// Whether an object is as those who read manifests expect it; if not, what is wrong, with fields. A field that nobody knows where peers
/// are listed is wrong: a selector that is misspelt would select everything.
pub fn check(object: &Object) -> Result<(), String> {
    let text = serde_json::to_vec(object).map_err(|error| error.to_string())?;
    let (nodes, _, error) = document::documents(&text);
    if let Some(error) = error {
        return Err(error.message);
    }
    let mut lowering = Lowering::default();
    let findings = nodes.iter().flat_map(|node| lowering.object(node).1);
    let wrong = findings.filter(|finding| finding.severity == Severity::Error);
    let wrong: Vec<String> = wrong
        .map(|Finding { field, message, hint, .. }| format!("{field}: {message} ({hint})"))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// What is to be done about an object, and what is to be said about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What is to be done.
    pub steps: Vec<Step>,
    /// What is to be said; nothing if it never was anybody's business.
    pub condition: Option<Condition>,
}

/// Decides what to do about an object, given the policy of its name.
pub fn plan(workload: &Workload, owner: &Object, there: Option<&Object>) -> Plan {
    // What it owns goes with it.
    if is_terminating(owner) {
        return Plan::default();
    }
    let uid = owner.metadata.uid.as_deref().unwrap_or_default();
    let owns = |object: &Object| is_controlled_by(object, uid);
    let is_there = there.is_some_and(owns);
    match (workload.desired)(owner) {
        Err(why) => {
            let kept = if is_there { "; the last good NetworkPolicy stays in force" } else { "" };
            Plan {
                steps: Vec::new(),
                condition: Some(not_ready("Invalid", format!("{why}{kept}"))),
            }
        }
        Ok(None) => {
            let is_news = is_there || condition::is_said(owner, CONDITION);
            let (keeps, word) = match workload.on_disable {
                OnDisable::Keep if is_there => (true, "stays until this object is deleted"),
                OnDisable::Keep => (true, "is not asked for"),
                OnDisable::Delete => (false, "is not asked for"),
            };
            let surplus = there.filter(|there| !keeps && owns(there) && !is_terminating(there));
            Plan {
                steps: surplus.cloned().map(Step::Delete).into_iter().collect(),
                condition: is_news
                    .then(|| not_ready(DISABLED, format!("the NetworkPolicy {word}"))),
            }
        }
        Ok(Some(policy)) => match object(policy, owner) {
            Err(why) => Plan { steps: Vec::new(), condition: Some(not_ready("Invalid", why)) },
            Ok(wanted) => {
                let todo = steps(&[wanted], there, owns);
                let condition = match todo.taken.first() {
                    Some(id) => not_ready("NotOwned", taken(id, there)),
                    None => Condition {
                        kind: CONDITION,
                        holds: true,
                        reason: "Applied",
                        message: "the NetworkPolicy is as asked for".into(),
                    },
                };
                Plan { steps: todo.steps, condition: Some(condition) }
            }
        },
    }
}

fn taken(id: &Id, there: Option<&Object>) -> String {
    let whose = there
        .and_then(controller_of)
        .map_or_else(|| "nobody".to_owned(), |owner| format!("{} {}", owner.kind, owner.name));
    format!(
        "there is a NetworkPolicy {id} that belongs to {whose}; it is left alone, so that what is asked for here is not in force: rename or delete one of the two"
    )
}

fn not_ready(reason: &'static str, message: String) -> Condition {
    Condition { kind: CONDITION, holds: false, reason, message }
}

/// The policy as it is written: the owner's.
fn object(policy: NetworkPolicy, owner: &Object) -> Result<Object, String> {
    let value = serde_json::to_value(policy).and_then(serde_json::from_value);
    let mut object: Object = value.map_err(|error| error.to_string())?;
    object.metadata.owner_references = Some(vec![controller_reference(owner)]);
    Ok(object)
}

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
}

impl Keeper<'_> {
    fn is_in_sync(&self) -> bool {
        self.owners.is_in_sync() && self.policies.is_in_sync()
    }

    fn take(&mut self, news: News) {
        let touched = match news {
            News::Owner(told) => self.owners.take(told),
            // A policy has the name of its owner.
            News::Policy(told) => self.policies.take(told),
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

    /// Takes note of what came of it.
    fn settle(&mut self, id: Id, done: Result<(), WriteError>, took: Duration) {
        let (controller, kind) = (self.workload.name, self.workload.owner.kind);
        let outcome = match done {
            Ok(()) => {
                self.queue.done(&id);
                Outcome::Done
            }
            Err(error) => {
                match error {
                    // That happens, and it is looked at again at once.
                    WriteError::Conflict => tracing::debug!(controller, "{kind} {id}: {error}"),
                    error => tracing::warn!(controller, "{kind} {id}: {error}"),
                }
                self.queue.failed(id, Instant::now());
                Outcome::Failed
            }
        };
        self.context.report.reconciled(controller, outcome, took, self.queue.failing());
    }

    async fn reconcile(&self, id: &Id, written: &mut Written) -> Result<(), WriteError> {
        let Some(owner) = self.owners.get(id) else { return Ok(()) };
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
        if let Some(condition) = &plan.condition {
            let version = self.owners.version().unwrap_or_default();
            written.owner = self.hand.say(&self.workload.owner, version, owner, condition).await?;
            if written.owner.is_some() && !condition.holds && condition.reason != DISABLED {
                let Condition { reason, message, .. } = condition;
                self.hand.note(owner, NoteKind::Warning, reason, message);
            }
        }
        refusal.map_or(Ok(()), Err)
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::memcached;

    fn owner(spec: Value) -> Object {
        serde_json::from_value(json!({
            "apiVersion": "memcached.c5c3.io/v1alpha1", "kind": "Memcached",
            "metadata": {"name": "cache", "namespace": "shop", "uid": "o"}, "spec": spec,
        }))
        .unwrap()
    }

    fn on() -> Object {
        owner(json!({"security": {"networkPolicy": {"enabled": true}}}))
    }

    /// What there would be after the first plan.
    fn made() -> Object {
        let plan = plan(&memcached::workload(OnDisable::Keep), &on(), None);
        let [Step::Create(policy)] = &plan.steps[..] else { panic!("{plan:?}") };
        let mut policy = policy.clone();
        policy.metadata.uid = Some("p".into());
        policy.metadata.resource_version = Some("1".into());
        policy
    }

    /// What is done, and the reason that is said.
    fn decide(on_disable: OnDisable, owner: &Object, there: Option<&Object>) -> String {
        let Plan { steps, condition } = plan(&memcached::workload(on_disable), owner, there);
        let steps: Vec<&str> = steps
            .iter()
            .map(|step| match step {
                Step::Create(_) => "create",
                Step::Update(_) => "update",
                Step::Delete(_) => "delete",
            })
            .collect();
        let reason = condition.map_or("-", |condition| condition.reason);
        format!("{} {reason}", if steps.is_empty() { "-".into() } else { steps.join(",") })
    }

    #[test]
    fn decisions_are_made_by_what_is_asked_for_and_what_is_there() {
        use OnDisable::{Delete, Keep};
        let (off, bad) = (owner(json!({})), owner(json!({"security": {"networkPolicy": 1}})));
        let ours = made();
        let mut drifted = ours.clone();
        drifted.data["spec"]["policyTypes"] = json!(["Egress"]);
        let mut theirs = ours.clone();
        theirs.metadata.owner_references = None;
        let mut of_predecessor = ours.clone();
        of_predecessor.metadata.owner_references.as_mut().unwrap()[0].uid = "before".into();
        let mut leaving = on();
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut told = off.clone();
        told.data["status"] = json!({"conditions": [{"type": CONDITION}]});
        for (on_disable, owner, there, expected) in [
            (Keep, &on(), None, "create Applied"),
            (Keep, &on(), Some(&ours), "- Applied"),
            (Keep, &on(), Some(&drifted), "update Applied"),
            (Keep, &on(), Some(&theirs), "- NotOwned"),
            (Keep, &on(), Some(&of_predecessor), "- NotOwned"),
            (Keep, &off, None, "- -"),
            (Keep, &off, Some(&theirs), "- -"),
            (Keep, &off, Some(&ours), "- Disabled"),
            (Keep, &told, None, "- Disabled"),
            (Delete, &off, Some(&ours), "delete Disabled"),
            (Delete, &off, Some(&theirs), "- -"),
            (Delete, &off, Some(&of_predecessor), "- -"),
            (Delete, &off, None, "- -"),
            (Keep, &bad, Some(&ours), "- Invalid"),
            (Delete, &bad, Some(&ours), "- Invalid"),
            (Delete, &leaving, Some(&drifted), "- -"),
            (Keep, &leaving, None, "- -"),
        ] {
            let decided = decide(on_disable, owner, there);
            assert_eq!(decided, expected, "{on_disable:?} {owner:?} {there:?}");
        }
    }
}
