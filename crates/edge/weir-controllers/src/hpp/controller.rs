mod conditions;
mod stores;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use serde_json::json;
use weir_aci::{HostprotId, HostprotKind, HostprotObject, Hpp};
use weir_kube::{
    ClusterKinds, ClusterWatch, EventType, Item, KubeObject, ObjectEvent, ObjectId, Revision,
    WatchSpec,
};
use weir_model::{Finding, ObjectRef};
use weir_runtime::SourceEvent;

use stores::{HppStores, PendingHpp};

use super::{
    CONTAINERS, HppSettings, NAME, ObservedObject, POLS,
    cisco::{self, CiscoSettings},
    digest, read_container, read_pol, resource_of, schema, source,
    status_server::StatusServer,
};
use crate::{
    ControllerContext, crds,
    event_loop::{EventLoop, Handler},
    report::ReconcileOutcome,
    sync::unready,
    writer::{MAX_CONCURRENT_WRITES, WriteError, Writer},
    writes::Write,
};

/// An object that was just written waits this long before it is written again, so that many changes
/// become few writes.
const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// The controller handles events again after this many writes.
const MAX_WRITES_PER_TURN: usize = 4 * MAX_CONCURRENT_WRITES;
/// The interval between checks of incompatible definitions.
const SCHEMA_RETRY_INTERVAL: Duration = Duration::from_secs(2);

enum HppEvent {
    Cluster(SourceEvent),
    Container(ObjectEvent<ObservedObject>),
    Pol(ObjectEvent<ObservedObject>),
    Cisco(ObjectEvent<Option<String>>),
}

/// Reconciles both kinds until the context is stopped.
pub(crate) async fn run(context: &ControllerContext, settings: &HppSettings) {
    let mut inputs = EventLoop::new(context);
    let in_namespace =
        |resource| WatchSpec { namespace: settings.namespace.clone(), ..crds::watch(resource) };
    let containers = in_namespace(CONTAINERS);
    inputs.follow(&context.client, containers, read_container, HppEvent::Container);
    inputs.follow(&context.client, in_namespace(POLS), read_pol, HppEvent::Pol);
    inputs.follow(&context.client, cisco::watch(), cisco::read_conflict, HppEvent::Cisco);
    let watch = source::forwarder(inputs.sender(), HppEvent::Cluster).and_then(|forward| {
        let (access, kinds) = (context.client.access().clone(), ClusterKinds::PoliciesAndServices);
        ClusterWatch::start(access, context.retry_policy, kinds, forward)
    });
    let _watch = match watch {
        Ok(watch) => watch,
        Err(error) => {
            let reason = format!("cannot follow the cluster: {error}");
            context.report.set_unready_reasons(NAME, vec![reason]);
            return context.stopped().await;
        }
    };
    let mut controller = HppController {
        context,
        settings,
        writer: context.writer(NAME),
        status_server: StatusServer::start(settings.http),
        inputs: HppStores::default(),
        hpp: Hpp::new(weir_aci::AciSettings { prefix: settings.prefix.clone() }),
        reported: BTreeSet::new(),
        schema: Schema::Unknown,
        pending: PendingHpp::default(),
        incomplete: BTreeMap::new(),
        keeps_conditions: true,
    };
    inputs.run(&mut controller).await;
}

struct HppController<'a> {
    context: &'a ControllerContext,
    settings: &'a HppSettings,
    writer: Writer,
    status_server: StatusServer,
    inputs: HppStores,
    hpp: Hpp,
    /// The reported findings: object and message.
    reported: BTreeSet<(Option<ObjectRef>, String)>,
    schema: Schema,
    pending: PendingHpp,
    /// The HostprotPols that lack rules, and why.
    incomplete: BTreeMap<HostprotId, String>,
    /// Whether the installed definition keeps conditions.
    keeps_conditions: bool,
}

/// Whether the installed definitions keep all fields. A definition that drops a list of addresses
/// would turn a rule for some peers into a rule for all.
enum Schema {
    Unknown,
    Compatible,
    /// Why not, and when to check again.
    Incompatible(String, Instant),
}

/// The order of writes: an object exists before others refer to it, and goes after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WritePhase {
    PutContainers,
    Pols,
    DeleteContainers,
}

impl Handler for HppController<'_> {
    type Event = HppEvent;

    fn apply(&mut self, input: HppEvent) {
        let touched: BTreeSet<HostprotId> = match input {
            HppEvent::Cluster(update) => self.apply_update(update),
            HppEvent::Container(event) => {
                touched(HostprotKind::Container, self.inputs.containers.apply(event))
            }
            HppEvent::Cisco(event) => {
                self.inputs.cisco.apply(event);
                BTreeSet::new()
            }
            HppEvent::Pol(event) => touched(HostprotKind::Pol, self.inputs.pols.apply(event)),
        };
        if self.pending.started {
            self.pending.push(touched);
        } else if self.inputs.is_synced() {
            let desired = self.hpp.objects();
            let others = desired.iter().filter(|(_, object)| !object.is_of_node());
            let others = others.map(|(id, _)| id.clone()).collect();
            let all = desired.keys().cloned().chain(self.inputs.ids(HostprotKind::Container));
            let all = all.chain(self.inputs.ids(HostprotKind::Pol)).collect();
            self.pending.start(all, others);
        }
        self.report_readiness();
    }

    fn next_due(&self) -> Option<Instant> {
        let due = self.pending.queue.next_due().filter(|_| self.inputs.is_synced())?;
        if matches!(self.inputs.cisco, CiscoSettings::Conflicting(_)) {
            return None;
        }
        match &self.schema {
            Schema::Unknown | Schema::Compatible => Some(due),
            Schema::Incompatible(_, retry) => Some(due.max(*retry)),
        }
    }

    /// Checks the definitions if necessary, then writes some of the due objects.
    async fn work(&mut self) {
        if !matches!(self.schema, Schema::Compatible) {
            let checked = schema::check(&self.context.client, &self.settings.namespace).await;
            self.schema = match checked {
                Ok(()) => Schema::Compatible,
                Err(why) => Schema::Incompatible(why, Instant::now() + SCHEMA_RETRY_INTERVAL),
            };
            self.report_readiness();
        }
        if matches!(self.schema, Schema::Incompatible(..)) {
            return;
        }
        let mut conditions = Vec::new();
        for writes in self.plan_due(&mut conditions).into_values() {
            self.send_all(writes).await;
        }
        for id in conditions {
            self.send_condition(id).await;
        }
    }
}

impl HppController<'_> {
    /// Applies an update of the cluster. Returns the objects that it changes.
    fn apply_update(&mut self, update: SourceEvent) -> BTreeSet<HostprotId> {
        self.inputs.cluster_synced |= update.in_sync;
        self.inputs.unread = update.unread;
        let changed = self.hpp.apply(&update.changes);
        for (id, object) in &changed {
            self.status_server.put(id, object.as_ref(), &self.settings.namespace);
        }
        if !update.changes.is_empty() {
            self.report_findings();
        }
        let mut touched: BTreeSet<HostprotId> = changed.into_keys().collect();
        touched.extend(self.update_incomplete());
        touched
    }

    /// Reports new findings in the log and, if they are about a policy, as an Event.
    fn report_findings(&mut self) {
        let mut reported = BTreeSet::new();
        for Finding { object, message, hint, .. } in self.hpp.findings() {
            if !self.reported.contains(&(object.clone(), message.clone())) {
                let about = object.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(controller = NAME, "{about}: {message}; {hint}");
                if let Some(policy) = object.as_ref().and_then(policy_for_event) {
                    self.writer.publish(&policy, EventType::Warning, "NotEnforced", &*message);
                }
            }
            reported.insert((object, message));
        }
        self.reported = reported;
    }

    fn report_readiness(&self) {
        let mut reasons =
            unready([(&self.inputs.containers, &CONTAINERS), (&self.inputs.pols, &POLS)]);
        let namespace = &self.settings.namespace;
        if !self.inputs.cluster_synced {
            reasons.push("the cluster has not been listed yet".into());
        } else if !self.hpp.has_namespace(namespace) {
            reasons.push(format!(
                "there is no namespace {namespace}; create it with `kubectl create namespace \
                 {namespace}`"
            ));
        }
        reasons.extend(self.inputs.unread.iter().map(|finding| finding.message.clone()));
        if let CiscoSettings::Conflicting(why) = &self.inputs.cisco {
            reasons.push(why.clone());
        }
        if let Schema::Incompatible(why, _) = &self.schema {
            reasons.push(why.clone());
        }
        reasons.extend(self.status_server.problem());
        self.context.report.set_unready_reasons(NAME, reasons);
    }

    /// Plans the writes of due objects, by phase. Adds those that only lack a condition.
    fn plan_due(
        &mut self,
        conditions: &mut Vec<HostprotId>,
    ) -> BTreeMap<WritePhase, Vec<(HostprotId, Write)>> {
        let now = Instant::now();
        self.pending.written.retain(|_, at| *at + BATCH_WINDOW > now);
        let mut phases: BTreeMap<WritePhase, Vec<(HostprotId, Write)>> = BTreeMap::new();
        let mut count = 0;
        while count < MAX_WRITES_PER_TURN
            && let Some(id) = self.pending.queue.pop(now)
        {
            let Some(write) = self.plan(&id) else {
                self.pending.record_first(&id);
                if self.needs_condition(&id) {
                    count += 1;
                    conditions.push(id);
                } else {
                    self.pending.queue.succeeded(&id);
                }
                continue;
            };
            if matches!(write, Write::Create(_))
                && self.hpp.objects().get(&id).is_some_and(HostprotObject::is_of_node)
                && self.pending.hold_node(&id)
            {
                continue;
            }
            let phase = match (id.kind, &write) {
                (HostprotKind::Container, Write::Delete(_)) => WritePhase::DeleteContainers,
                (HostprotKind::Container, _) => WritePhase::PutContainers,
                (HostprotKind::Pol, _) => WritePhase::Pols,
            };
            count += 1;
            phases.entry(phase).or_default().push((id, write));
        }
        phases
    }

    /// The write that an object needs, if any.
    fn plan(&self, id: &HostprotId) -> Option<Write> {
        let observed = self.inputs.store(id.kind).get(&self.object_id(id));
        match (self.hpp.objects().get(id), observed) {
            (None, None) => None,
            (None, Some(observed)) => Some(Write::Delete(observed.revision.clone())),
            (Some(desired), observed) => {
                let observed_digest = observed.and_then(|observed| observed.value.digest);
                if observed_digest == Some(digest(desired)) {
                    return None;
                }
                let manifest = desired.manifest(&self.settings.namespace);
                let mut object: KubeObject = serde_json::from_value(manifest).ok()?;
                match observed {
                    None => Some(Write::Create(object)),
                    Some(observed) => {
                        let Revision { uid, resource_version, .. } = &observed.revision;
                        object.metadata.resource_version = Some(resource_version.clone());
                        object.metadata.uid = Some(uid.clone());
                        Some(Write::Update(object))
                    }
                }
            }
        }
    }

    async fn send_all(&mut self, writes: Vec<(HostprotId, Write)>) {
        let writer = &self.writer;
        let requests = stream::iter(writes).map(|(id, write)| async move {
            let start = Instant::now();
            let result = writer.clone().send(resource_of(id.kind), "v1", &write).await;
            (id, result, start.elapsed())
        });
        let results: Vec<_> = requests.buffer_unordered(MAX_CONCURRENT_WRITES).collect().await;
        for (id, result, took) in results {
            self.finish(id, result, took);
        }
    }

    /// Records the result of a write.
    fn finish(
        &mut self,
        id: HostprotId,
        result: Result<Option<KubeObject>, WriteError>,
        took: Duration,
    ) {
        let object_id = self.object_id(&id);
        self.pending.written.insert(id.clone(), Instant::now());
        let outcome = match result {
            Ok(object) => {
                self.pending.record_first(&id);
                let store = self.inputs.store_mut(id.kind);
                match object {
                    Some(object) => {
                        let object = serde_json::to_value(object).unwrap_or_default();
                        store.put(match id.kind {
                            HostprotKind::Container => Item::from_object(object, read_container),
                            HostprotKind::Pol => Item::from_object(object, read_pol),
                        });
                    }
                    None => store.remove(&object_id),
                }
                if self.needs_condition(&id) {
                    self.pending.queue.push(id.clone(), Instant::now());
                }
                if self.plan(&id).is_some() {
                    // The API server dropped fields: check the definitions before the next attempt.
                    self.schema = Schema::Unknown;
                    self.pending.queue.failed(id, Instant::now());
                } else if !self.needs_condition(&id) {
                    self.pending.queue.succeeded(&id);
                }
                ReconcileOutcome::Done
            }
            Err(error) => {
                tracing::warn!(controller = NAME, "{} {}: {error}", id.kind.name(), id.name);
                // A retry would not help, and the other policies must take effect.
                if matches!(error, WriteError::Rejected(_)) {
                    self.pending.record_first(&id);
                }
                self.pending.queue.failed(id, Instant::now());
                ReconcileOutcome::Failed
            }
        };
        self.context.report.record_reconcile(NAME, outcome, took, self.pending.queue.failing());
    }

    fn object_id(&self, id: &HostprotId) -> ObjectId {
        ObjectId::new(self.settings.namespace.clone(), id.name.clone())
    }
}

fn touched(kind: HostprotKind, ids: BTreeSet<ObjectId>) -> BTreeSet<HostprotId> {
    ids.iter().map(|id| hpp_id(kind, id)).collect()
}

fn hpp_id(kind: HostprotKind, id: &ObjectId) -> HostprotId {
    HostprotId { kind, name: id.name.clone() }
}

/// The NetworkPolicy that a finding is about, with the fields that an Event needs.
fn policy_for_event(object: &ObjectRef) -> Option<KubeObject> {
    let ObjectRef { kind, namespace, name } = object;
    (&**kind == "NetworkPolicy").then_some(())?;
    let metadata = json!({"namespace": **namespace, "name": **name});
    let object =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": **kind, "metadata": metadata});
    serde_json::from_value(object).ok()
}
