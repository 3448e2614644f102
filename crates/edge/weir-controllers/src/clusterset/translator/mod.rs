//! Translates the ClusterSetNetworkPolicies of this cluster to NetworkPolicies.

mod local;
mod reconcile;
mod remote;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use weir_clusterset::{ClusterSet, ClusterSetOptions, Interest, RemotePod, ShardKey};
use weir_kube::{ApiClient, KubeObject, NETWORK_POLICIES, ObjectEvent, ObjectId, WatchSpec};

use self::{local::LocalPolicies, remote::BrokerObjects};
use super::{
    BrokerContact, BrokerView, ClusterSetSettings, NAME,
    wire::{
        self, ClusterMember, MANAGED, MEMBERS, POLICIES, REMOTE_NAMESPACES, REMOTE_PODS,
        RemoteNamespace,
    },
};
use crate::{
    ControllerContext, crds,
    event_loop::{EventLoop, Handler},
    queue::WorkQueue,
    report::RemotePodsQuery,
    sync::unready,
    writer::Writer,
};

/// Changes within this window are written together.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

enum TranslatorEvent {
    Policy(ObjectEvent<KubeObject>),
    NetworkPolicy(ObjectEvent<KubeObject>),
    RemotePod(ObjectEvent<Result<RemotePod, String>>),
    RemoteNamespace(ObjectEvent<Result<RemoteNamespace, String>>),
    Member(ObjectEvent<Result<ClusterMember, String>>),
    Contact(BrokerContact),
    RemotePods(RemotePodsQuery),
}

/// A unit of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// A ClusterSetNetworkPolicy to reconcile.
    Policy(ObjectId),
    /// NetworkPolicies whose ClusterSetNetworkPolicy is gone, by its uid.
    Orphans(String),
}

/// Translates until the context is stopped.
pub(crate) async fn run(
    context: &ControllerContext,
    settings: &ClusterSetSettings,
    interests: watch::Sender<Option<BTreeSet<Interest>>>,
    mut contact: watch::Receiver<BrokerContact>,
) {
    let broker = ApiClient::new(settings.broker.clone());
    let mut inputs = EventLoop::new(context);
    let whole = |object: KubeObject| object;
    inputs.follow(&context.client, crds::watch(POLICIES), whole, TranslatorEvent::Policy);
    let labels = format!("{}={}", MANAGED.0, MANAGED.1);
    let owned = WatchSpec { labels, ..WatchSpec::all(NETWORK_POLICIES) };
    inputs.follow(&context.client, owned, whole, TranslatorEvent::NetworkPolicy);
    let on_broker =
        |resource| WatchSpec { namespace: settings.namespace.clone(), ..crds::watch(resource) };
    let read_pod = |object: KubeObject| wire::read_pod(&object);
    inputs.follow(&broker, on_broker(REMOTE_PODS), read_pod, TranslatorEvent::RemotePod);
    let read_namespace = |object: KubeObject| wire::read_namespace(&object);
    inputs.follow(
        &broker,
        on_broker(REMOTE_NAMESPACES),
        read_namespace,
        TranslatorEvent::RemoteNamespace,
    );
    let read_member = |object: KubeObject| wire::read_member(&object);
    inputs.follow(&broker, on_broker(MEMBERS), read_member, TranslatorEvent::Member);
    let sender = inputs.sender();
    tokio::spawn(async move {
        while contact.changed().await.is_ok() {
            let contact = contact.borrow_and_update().clone();
            if sender.send(TranslatorEvent::Contact(contact)).await.is_err() {
                return;
            }
        }
    });
    let (queries, mut asked) = mpsc::channel(1);
    context.report.answer_remote_pods(queries);
    let sender = inputs.sender();
    tokio::spawn(async move {
        while let Some(query) = asked.recv().await {
            if sender.send(TranslatorEvent::RemotePods(query)).await.is_err() {
                return;
            }
        }
    });
    let options = ClusterSetOptions {
        cluster: settings.cluster.clone(),
        networks: settings.networks.clone(),
        accepted: settings.accepted.clone(),
        max_pods: settings.pods,
        max_namespaces: settings.namespaces,
        shard_size: settings.shard,
        merging: settings.merging,
    };
    let mut translator = Translator {
        context,
        settings,
        writer: context.writer(NAME),
        interests,
        set: ClusterSet::new(options),
        local: LocalPolicies::default(),
        remote: BrokerObjects::new(settings.network_limits),
        pending: PendingPolicies::default(),
    };
    translator.report_readiness();
    inputs.run(&mut translator).await;
}

struct Translator<'a> {
    context: &'a ControllerContext,
    settings: &'a ClusterSetSettings,
    writer: Writer,
    interests: watch::Sender<Option<BTreeSet<Interest>>>,
    set: ClusterSet,
    local: LocalPolicies,
    remote: BrokerObjects,
    pending: PendingPolicies,
}

/// The work to do.
#[derive(Default)]
struct PendingPolicies {
    queue: WorkQueue<Work>,
    /// The shards of policies that may differ from the desired ones.
    shards: BTreeMap<ObjectId, BTreeSet<ShardKey>>,
    /// The policies of which all shards are to be compared.
    all_shards: BTreeSet<ObjectId>,
    /// When the status of a policy was last written.
    status_written: BTreeMap<ObjectId, Instant>,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Policy(id) => write!(f, "ClusterSetNetworkPolicy {id}"),
            Work::Orphans(uid) => write!(f, "NetworkPolicies of the deleted policy {uid}"),
        }
    }
}

impl PendingPolicies {
    fn push(&mut self, work: Work) {
        self.queue.push(work, Instant::now());
    }

    /// Forgets a policy that is gone.
    fn forget(&mut self, id: &ObjectId) {
        self.shards.remove(id);
        self.all_shards.remove(id);
        self.status_written.remove(id);
    }
}

impl Handler for Translator<'_> {
    type Event = TranslatorEvent;

    fn apply(&mut self, input: TranslatorEvent) {
        let was_synced = self.remote.is_synced();
        match input {
            TranslatorEvent::Policy(event) => self.apply_policies(event),
            TranslatorEvent::NetworkPolicy(event) => self.apply_network_policies(event),
            TranslatorEvent::RemotePod(event) => self.remote.apply_pods(&mut self.set, event),
            TranslatorEvent::RemoteNamespace(event) => {
                self.remote.apply_namespaces(&mut self.set, event)
            }
            TranslatorEvent::Member(event) => self.remote.apply_members(&mut self.set, event),
            TranslatorEvent::RemotePods(query) => _ = query.send(self.remote_pods()),
            TranslatorEvent::Contact(contact) => {
                if self.remote.apply_contact(&mut self.set, contact) {
                    self.queue_all();
                }
            }
        }
        if self.remote.is_synced() && !was_synced {
            self.pending
                .all_shards
                .extend(self.local.policies.iter().map(|policy| policy.id().clone()));
            self.queue_all();
        }
        let due = Instant::now() + BATCH_WINDOW;
        for (id, shards) in self.set.take_changed() {
            let id = ObjectId::new(&*id.namespace, &*id.name);
            self.pending.shards.entry(id.clone()).or_default().extend(shards);
            self.pending.queue.push(Work::Policy(id), due);
        }
        self.report_readiness();
    }

    fn next_due(&self) -> Option<Instant> {
        self.pending.queue.next_due().filter(|_| self.local.is_synced())
    }

    async fn work(&mut self) {
        self.reconcile_next().await;
    }
}

impl Translator<'_> {
    fn queue_all(&mut self) {
        for policy in self.local.policies.iter() {
            self.pending.push(Work::Policy(policy.id().clone()));
        }
    }

    /// The accepted pods of other clusters, as on the broker.
    fn remote_pods(&self) -> Value {
        let namespace = &self.settings.namespace;
        let others = self.set.accepted_pods().filter(|pod| pod.id.cluster != self.settings.cluster);
        let pods = others.map(|pod| wire::remote_pod(pod, namespace));
        let version = REMOTE_PODS.api_version(REMOTE_PODS.versions[0]);
        json!({"apiVersion": version, "kind": "RemotePodList", "items": pods.collect::<Vec<_>>()})
    }

    fn report_readiness(&self) {
        let mut reasons = unready([
            (&self.local.policies, &POLICIES),
            (&self.local.network_policies, &NETWORK_POLICIES),
        ]);
        let on_broker = unready([
            (&self.remote.pods_sync, &REMOTE_PODS),
            (&self.remote.namespaces_sync, &REMOTE_NAMESPACES),
            (&self.remote.members_sync, &MEMBERS),
        ]);
        reasons.extend(on_broker.into_iter().map(|reason| format!("broker: {reason}")));
        // The publisher reports a disowned id.
        if reasons.is_empty() && self.remote.view == BrokerView::Unknown {
            reasons.push("the lease of this cluster on the broker is not acquired yet".into());
        }
        if self.remote.is_synced() && !self.remote.has_member(&self.settings.cluster) {
            reasons.push("this cluster is not registered on the broker yet".into());
        }
        self.context.report.set_unready_reasons(NAME, reasons);
        self.context.report.set_warnings(NAME, self.remote.warnings(&self.set, self.settings));
    }
}
