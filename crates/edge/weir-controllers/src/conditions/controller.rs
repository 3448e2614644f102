use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weir_api::Tree;
use weir_kube::{
    EventType, Item, LEASES, NAMESPACES, NodeReport, ObjectEvent, ObjectId, PODS, REPORTS,
    Resource, Store, WatchSpec, policy_kinds,
};
use weir_model::{Labels, Pod, PolicyId, Scope};

use super::{
    ConditionsSettings, NAME, Progress,
    progress::STAGED,
    selected_nodes,
    view::{self, PolicyView},
};
use crate::{
    ControllerContext,
    condition::{self, Condition},
    event_loop::{EventLoop, Handler},
    report::ReconcileOutcome,
    sync::unready,
    writer::{WriteError, Writer},
};

/// Reports that arrive together are evaluated together.
const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// The shortest time between two writes about the progress of one policy. The write that a policy is
/// in force does not wait.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// The wait after a write that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The number of kinds with a status, which come first in `policy_kinds`.
const WITH_STATUS: usize = 3;

enum ConditionsEvent {
    Policy(usize, ObjectEvent<PolicyView>),
    Pod(ObjectEvent<Option<Pod>>),
    Namespace(ObjectEvent<Labels>),
    Report(ObjectEvent<Option<NodeReport>>),
}

/// Writes conditions until the context is stopped.
pub(crate) async fn run(context: &ControllerContext, settings: &ConditionsSettings) {
    let mut inputs = EventLoop::new(context);
    let kinds = policy_kinds();
    // A function pointer cannot carry the number of the kind.
    let wraps: [fn(ObjectEvent<PolicyView>) -> ConditionsEvent; 4] = [
        |event| ConditionsEvent::Policy(0, event),
        |event| ConditionsEvent::Policy(1, event),
        |event| ConditionsEvent::Policy(2, event),
        |event| ConditionsEvent::Policy(3, event),
    ];
    for (spec, wrap) in kinds.iter().zip(wraps) {
        inputs.follow::<Tree, _>(&context.client, spec.clone(), view::policy, wrap);
    }
    let all = WatchSpec::all;
    inputs.follow::<Tree, _>(&context.client, all(PODS), view::pod, ConditionsEvent::Pod);
    let namespaces = all(NAMESPACES);
    inputs.follow::<Tree, _>(
        &context.client,
        namespaces,
        view::namespace,
        ConditionsEvent::Namespace,
    );
    let reports =
        WatchSpec { namespace: settings.namespace.clone(), labels: REPORTS.into(), ..all(LEASES) };
    inputs.follow(&context.client, reports, view::report, ConditionsEvent::Report);
    let mut controller = ConditionsController {
        context,
        resources: kinds.map(|spec| spec.resource),
        writer: context.writer(NAME),
        policies: Default::default(),
        pods: Store::default(),
        namespaces: Store::default(),
        reports: Store::default(),
        degraded: BTreeMap::new(),
        pending: BTreeMap::new(),
    };
    controller.report_readiness();
    inputs.run(&mut controller).await;
}

struct ConditionsController<'a> {
    context: &'a ControllerContext,
    resources: [Resource; 4],
    writer: Writer,
    policies: [Store<PolicyView>; 4],
    pods: Store<Option<Pod>>,
    namespaces: Store<Labels>,
    reports: Store<Option<NodeReport>>,
    /// The policies that a node does not enforce as written, each with the reason, by Lease.
    degraded: BTreeMap<ObjectId, BTreeMap<String, String>>,
    /// The policies whose current generation is not known to be in force.
    pending: BTreeMap<(usize, ObjectId), Pending>,
}

/// A generation of a policy that is not known to be in force.
struct Pending {
    uid: String,
    generation: i64,
    staged: bool,
    /// The resourceVersion at which the controller first observed the generation; 0 if it was in
    /// force before.
    version: u64,
    due: Instant,
    /// When the progress may be written next.
    write_at: Instant,
}

impl Handler for ConditionsController<'_> {
    type Event = ConditionsEvent;

    fn apply(&mut self, event: ConditionsEvent) {
        let now = Instant::now();
        match event {
            ConditionsEvent::Policy(kind, event) => {
                // The Events of NetworkPolicies are about changes, not about a start of this process.
                let is_change = kind < WITH_STATUS || self.policies[kind].is_in_sync();
                for id in self.policies[kind].apply(event) {
                    self.observe(kind, id, is_change, now);
                }
            }
            ConditionsEvent::Pod(event) => _ = self.pods.apply(event),
            ConditionsEvent::Namespace(event) => _ = self.namespaces.apply(event),
            ConditionsEvent::Report(event) => {
                let changed = self.reports.apply(event);
                if !changed.is_empty() {
                    let due = now + BATCH_WINDOW;
                    self.pending.values_mut().for_each(|one| one.due = one.due.min(due));
                }
                for lease in changed {
                    self.observe_report(&lease, now);
                }
            }
        }
        self.report_readiness();
    }

    fn next_due(&self) -> Option<Instant> {
        let due = self.pending.values().map(|pending| pending.due).min();
        due.filter(|_| self.unready_reasons().is_empty())
    }

    async fn work(&mut self) {
        let now = Instant::now();
        let due = self.pending.iter().filter(|(_, pending)| pending.due <= now);
        let due: Vec<(usize, ObjectId)> = due.map(|(key, _)| key.clone()).collect();
        let reports: BTreeMap<String, NodeReport> = self
            .reports
            .iter()
            .filter_map(|item| item.value.clone())
            .map(|report| (report.node.clone(), report))
            .collect();
        for (kind, id) in due {
            let start = Instant::now();
            let outcome = match self.evaluate(kind, &id, &reports).await {
                Ok(()) => ReconcileOutcome::Done,
                Err(error) => {
                    if !matches!(error, WriteError::Conflict) {
                        tracing::warn!(controller = NAME, "{id}: {error}");
                    }
                    if let Some(pending) = self.pending.get_mut(&(kind, id)) {
                        pending.due = Instant::now() + RETRY;
                    }
                    ReconcileOutcome::Failed
                }
            };
            self.context.report.record_reconcile(NAME, outcome, start.elapsed(), 0);
        }
    }
}

impl ConditionsController<'_> {
    fn unready_reasons(&self) -> Vec<String> {
        let mut reasons = unready(self.policies.iter().zip(&self.resources));
        reasons.extend(unready([(&self.pods, &PODS)]));
        reasons.extend(unready([(&self.namespaces, &NAMESPACES)]));
        reasons.extend(unready([(&self.reports, &LEASES)]));
        reasons.sort();
        reasons.dedup();
        reasons
    }

    fn report_readiness(&self) {
        self.context.report.set_unready_reasons(NAME, self.unready_reasons());
    }

    /// Decides whether a changed policy must be evaluated.
    fn observe(&mut self, kind: usize, id: ObjectId, is_change: bool, now: Instant) {
        let key = (kind, id);
        let Some(item) = self.policies[kind].get(&key.1) else {
            self.pending.remove(&key);
            return;
        };
        let (uid, generation) = (&item.revision.uid, item.generation());
        // An annotation stages a policy without a new generation.
        let staged = item.is_staged();
        let is_same = |pending: &Pending| {
            (&pending.uid, pending.generation, pending.staged) == (uid, generation, staged)
        };
        if self.pending.get(&key).is_some_and(is_same) {
            return;
        }
        let is_settled = item.is_settled();
        if !is_change || is_settled && !self.is_degraded(item) {
            self.pending.remove(&key);
            return;
        }
        let version = item.revision.resource_version.parse().unwrap_or(u64::MAX);
        let version = if is_settled { 0 } else { version };
        let uid = uid.clone();
        let pending = Pending { uid, generation, staged, version, due: now, write_at: now };
        self.pending.insert(key, pending);
    }

    /// Whether a node reports that it does not enforce a policy as written.
    fn is_degraded(&self, item: &Item<PolicyView>) -> bool {
        let is_named = |id: &PolicyId| {
            self.degraded.values().any(|named| NodeReport::reason(named, id).is_some())
        };
        item.policy.as_ref().is_some_and(|policy| is_named(&policy.id))
    }

    /// Finds the policies with a status that a node no longer, or again, enforces as written.
    fn observe_report(&mut self, lease: &ObjectId, now: Instant) {
        let report = self.reports.get(lease).and_then(|item| item.value.as_ref());
        let after = report.map(|report| report.degraded.clone()).unwrap_or_default();
        let before = self.degraded.remove(lease).unwrap_or_default();
        for kind in (0..WITH_STATUS).filter(|_| before != after) {
            for item in self.policies[kind].iter() {
                let Some(policy) = &item.policy else { continue };
                let [was, is] =
                    [&before, &after].map(|named| NodeReport::reason(named, &policy.id));
                if was == is {
                    continue;
                }
                let key = (kind, item.id().clone());
                self.pending.entry(key).or_insert_with(|| Pending {
                    uid: item.revision.uid.clone(),
                    generation: item.generation(),
                    staged: item.is_staged(),
                    version: 0,
                    due: now + BATCH_WINDOW,
                    write_at: now,
                });
            }
        }
        self.degraded.extend((!after.is_empty()).then(|| (lease.clone(), after)));
    }

    /// Evaluates a pending policy, and writes what changed.
    async fn evaluate(
        &mut self,
        kind: usize,
        id: &ObjectId,
        reports: &BTreeMap<String, NodeReport>,
    ) -> Result<(), WriteError> {
        let key = (kind, id.clone());
        let (Some(item), Some(pending)) = (self.policies[kind].get(id), self.pending.get(&key))
        else {
            self.pending.remove(&key);
            return Ok(());
        };
        let now = Instant::now();
        let progress = item.policy.as_ref().map(|policy| {
            let labels =
                |name: &str| self.namespaces.get(&ObjectId::new("", name)).map(|item| &item.value);
            let nodes = match &policy.spec.subject.scope {
                Scope::Own => {
                    let pods = self.pods.in_namespace(&policy.id.namespace);
                    selected_nodes(policy, labels, pods.filter_map(|item| item.value.as_ref()))
                }
                Scope::Matching(_) => {
                    let pods = self.pods.iter().filter_map(|item| item.value.as_ref());
                    selected_nodes(policy, labels, pods)
                }
            };
            let progress = Progress::new(&policy.id, pending.version, &nodes, reports);
            Progress { staged: policy.staged, ..progress }
        });
        let progress = progress.unwrap_or_default();
        let is_done = progress.is_settled();
        if kind >= WITH_STATUS {
            if is_done {
                let message = format!("generation {}: {}", pending.generation, progress.text());
                let reason = if progress.staged { STAGED } else { "InForce" };
                self.writer.publish(&item.object, EventType::Normal, reason, message);
            }
        } else if is_done || pending.write_at <= now {
            let conditions = progress.conditions(item.invalid.as_deref());
            let written = self.write(kind, item, &conditions).await?;
            if let Some(written) = written {
                self.policies[kind].put(written);
            }
        }
        if is_done {
            self.pending.remove(&key);
        } else if let Some(pending) = self.pending.get_mut(&key) {
            if pending.write_at <= now {
                pending.write_at = now + PROGRESS_INTERVAL;
            }
            pending.due = pending.write_at;
        }
        Ok(())
    }

    /// Writes all conditions with one request, unless the object has them.
    async fn write(
        &self,
        kind: usize,
        item: &Item<PolicyView>,
        conditions: &[Condition],
    ) -> Result<Option<Item<PolicyView>>, WriteError> {
        let version = self.policies[kind].version().unwrap_or_default();
        let mut object = item.object.clone();
        let mut is_changed = false;
        for condition in conditions {
            if let Some(merged) = condition::merge(&object, condition) {
                object.data["status"]["conditions"] = merged.into();
                is_changed = true;
            }
        }
        if !is_changed {
            return Ok(None);
        }
        let status = object.data["status"].clone();
        let resource = &self.resources[kind];
        let stored = self.writer.patch_status(resource, version, &item.object, status).await?;
        let stored = serde_json::to_value(&stored).unwrap_or_default();
        Ok(Some(Item::from_object(Tree::from(&stored), view::policy)))
    }
}
