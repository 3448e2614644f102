use std::time::{Duration, Instant};

use futures::future::join_all;
use weir_kube::{
    EventType, Item, KubeObject, NETWORK_POLICIES, ObjectEvent, ObjectId, Store, WatchSpec,
};

use super::{
    DISABLED, MANAGED_BY, Workload,
    failures::{Failures, Transition},
    not_ready, plan,
};
use crate::{
    ControllerContext,
    condition::Condition,
    crds,
    event_loop::{EventLoop, Handler},
    object::controller_of,
    queue::WorkQueue,
    report::ReconcileOutcome,
    sync::unready,
    writer::{MAX_CONCURRENT_WRITES, WriteError, Writer},
    writes::Write,
};

enum WorkloadEvent {
    Owner(ObjectEvent<KubeObject>),
    Policy(ObjectEvent<KubeObject>),
}

/// Reconciles the NetworkPolicies of a kind of workload until the context is stopped.
pub(crate) async fn run(context: &ControllerContext, workload: &Workload) {
    let mut inputs = EventLoop::new(context);
    let whole = |object: KubeObject| object;
    inputs.follow(&context.client, crds::watch(workload.owner), whole, WorkloadEvent::Owner);
    inputs.follow(&context.client, WatchSpec::all(NETWORK_POLICIES), slim, WorkloadEvent::Policy);
    let mut controller = WorkloadController {
        context,
        workload,
        writer: context.writer(workload.name),
        inputs: WorkloadStores::default(),
        queue: WorkQueue::default(),
        failures: Failures::default(),
    };
    controller.report_readiness();
    inputs.run(&mut controller).await;
}

/// Drops the content of a policy that can neither be owned nor adopted: only its existence matters.
fn slim(mut object: KubeObject) -> KubeObject {
    let is_managed =
        object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED_BY));
    if controller_of(&object).is_none() && !is_managed {
        object.data = serde_json::Value::Null;
        (object.metadata.labels, object.metadata.annotations) = (None, None);
    }
    object
}

struct WorkloadController<'a> {
    context: &'a ControllerContext,
    workload: &'a Workload,
    writer: Writer,
    inputs: WorkloadStores,
    queue: WorkQueue<ObjectId>,
    failures: Failures,
}

/// The observed objects.
#[derive(Default)]
struct WorkloadStores {
    owners: Store<KubeObject>,
    policies: Store<KubeObject>,
}

impl WorkloadStores {
    fn is_synced(&self) -> bool {
        self.owners.is_in_sync() && self.policies.is_in_sync()
    }

    /// Records the stored form of an object that we wrote, ahead of its event.
    fn record(&mut self, id: &ObjectId, written: WrittenObjects) {
        match written.policy {
            Some(Some(policy)) => {
                self.policies.put(Item::from_object(policy, slim));
            }
            Some(None) => self.policies.remove(id),
            None => (),
        }
        if let Some(owner) = written.owner {
            self.owners.put(Item::from_object(owner, |object| object));
        }
    }
}

/// The objects that a reconcile wrote.
#[derive(Default)]
struct WrittenObjects {
    /// The policy as stored; the inner `None` means that it was deleted.
    policy: Option<Option<KubeObject>>,
    /// The owner with its new status.
    owner: Option<KubeObject>,
}

impl Handler for WorkloadController<'_> {
    type Event = WorkloadEvent;

    fn apply(&mut self, input: WorkloadEvent) {
        let touched = match input {
            WorkloadEvent::Owner(event) => self.inputs.owners.apply(event),
            // A policy has the name of its owner.
            WorkloadEvent::Policy(event) => {
                let mut touched = self.inputs.policies.apply(event);
                touched.retain(|id| self.inputs.owners.get(id).is_some());
                touched
            }
        };
        let now = Instant::now();
        touched.into_iter().for_each(|id| self.queue.push(id, now));
        self.report_readiness();
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().filter(|_| self.inputs.is_synced())
    }

    /// Reconciles some of the due keys concurrently.
    async fn work(&mut self) {
        let now = Instant::now();
        let due = std::iter::from_fn(|| self.queue.pop(now)).take(MAX_CONCURRENT_WRITES);
        let ids: Vec<ObjectId> = due.collect();
        let controller = &*self;
        let reconciles = ids.into_iter().map(|id| async move {
            let (start, mut written) = (Instant::now(), WrittenObjects::default());
            let result = controller.reconcile(&id, &mut written).await;
            (id, result, written, start.elapsed())
        });
        for (id, result, written, took) in join_all(reconciles).await {
            self.inputs.record(&id, written);
            self.finish(id, result, took);
        }
    }
}

impl WorkloadController<'_> {
    fn report_readiness(&self) {
        let reasons = unready([
            (&self.inputs.owners, &self.workload.owner),
            (&self.inputs.policies, &NETWORK_POLICIES),
        ]);
        self.context.report.set_unready_reasons(self.workload.name, reasons);
    }

    /// Makes the policy of one owner as desired. Returns what is wrong with the owner's spec, if
    /// anything.
    async fn reconcile(
        &self,
        id: &ObjectId,
        written: &mut WrittenObjects,
    ) -> Result<Option<String>, WriteError> {
        let Some(owner) = self.inputs.owners.get(id) else { return Ok(None) };
        let policy = self.inputs.policies.get(id).map(|item| &item.value);
        let mut plan = plan(self.workload, owner, policy);
        let mut rejection = None;
        for write in &plan.writes {
            match self.writer.send(&NETWORK_POLICIES, "v1", write).await {
                Ok(policy) => {
                    written.policy = Some(policy);
                    let (reason, detail) = match (write, plan.adoption) {
                        (Write::Update(_), Some(adoption)) => {
                            ("Adopted", format!(", {}", adoption.reason()))
                        }
                        (Write::Create(_), _) => ("Created", String::new()),
                        (Write::Update(_), _) => ("Updated", String::new()),
                        (Write::Delete(_), _) => ("Deleted", String::new()),
                    };
                    let message = format!("{reason} NetworkPolicy {}{detail}", id.name);
                    self.writer.publish(owner, EventType::Normal, reason, message);
                }
                Err(WriteError::Rejected(why)) => {
                    plan.condition = Some(not_ready("Refused", why.clone()));
                    rejection = Some(WriteError::Rejected(why));
                }
                Err(error) => return Err(error),
            }
        }
        let mut failure = None;
        if let Some(condition) = &plan.condition {
            let version = self.inputs.owners.version().unwrap_or_default();
            let resource = &self.workload.owner;
            written.owner = self.writer.set_condition(resource, version, owner, condition).await?;
            if !condition.holds && condition.reason != DISABLED {
                let Condition { reason, message, .. } = condition;
                failure = Some(format!("{reason}: {message}"));
                if written.owner.is_some() {
                    self.writer.publish(owner, EventType::Warning, reason, message);
                }
            }
        }
        rejection.map_or(Ok(failure), Err)
    }

    /// Records the result of a reconcile, and queues the key again if it failed.
    fn finish(&mut self, id: ObjectId, result: Result<Option<String>, WriteError>, took: Duration) {
        let (controller, kind) = (self.workload.name, self.workload.owner.kind);
        let outcome = match result {
            Ok(failure) => {
                self.queue.succeeded(&id);
                self.record_failure(id, failure);
                ReconcileOutcome::Done
            }
            Err(error) => {
                match error {
                    // Conflicts are expected. The next attempt uses the current version.
                    WriteError::Conflict => tracing::debug!(controller, "{kind} {id}: {error}"),
                    error => self.record_failure(id.clone(), Some(error.to_string())),
                }
                self.queue.failed(id, Instant::now());
                ReconcileOutcome::Failed
            }
        };
        self.context.report.record_reconcile(controller, outcome, took, self.failures.count());
    }

    /// Records whether an object fails, and logs the transition.
    fn record_failure(&mut self, id: ObjectId, failure: Option<String>) {
        let (controller, kind, name) =
            (self.workload.name, self.workload.owner.kind, id.to_string());
        match self.failures.record(id, failure) {
            Some(Transition::Failed(why)) => tracing::warn!(controller, "{kind} {name}: {why}"),
            Some(Transition::Recovered) => tracing::info!(controller, "{kind} {name}: recovered"),
            None => (),
        }
    }
}
