//! Publishes the pods and namespaces of this cluster on the broker, and renews this cluster's
//! lease.

mod flush;
mod heartbeat;
mod local;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_clusterset::{Interest, LeaseLimits, RemoteId, Roster};
use weir_kube::{ApiClient, KubeObject, NAMESPACES, ObjectEvent, ObjectId, PODS, Store, WatchSpec};
use weir_model::{Name, Namespace, Pod, PodId};
use weir_runtime::Backoff;

use self::local::LocalPods;
use super::{
    BrokerContact, ClusterSetSettings,
    wire::{self, CLUSTER, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{
    ControllerContext, crds,
    event_loop::{EventLoop, Handler},
    sync::unready,
    writer::Writer,
};

/// The name of this loop in the report.
const NAME: &str = "clusterset-broker";
/// Changes within this window are written together.
const BATCH_WINDOW: Duration = Duration::from_millis(100);

enum PublisherEvent {
    Pod(ObjectEvent<Option<Pod>>),
    Namespace(ObjectEvent<Option<Namespace>>),
    OwnPod(ObjectEvent<KubeObject>),
    OwnNamespace(ObjectEvent<KubeObject>),
    Member(ObjectEvent<KubeObject>),
    Interests(BTreeSet<Interest>),
}

/// Publishes until the context is stopped.
pub(crate) async fn run(
    context: &ControllerContext,
    settings: &ClusterSetSettings,
    mut interests: watch::Receiver<Option<BTreeSet<Interest>>>,
    contact: watch::Sender<BrokerContact>,
) {
    let client = ApiClient::new(settings.broker.clone());
    let mut inputs = EventLoop::new(context);
    inputs.follow(&context.client, WatchSpec::all(PODS), local::read_pod, PublisherEvent::Pod);
    let namespaces = WatchSpec::all(NAMESPACES);
    inputs.follow(&context.client, namespaces, local::read_namespace, PublisherEvent::Namespace);
    let on_broker = |resource, labels| WatchSpec {
        namespace: settings.namespace.clone(),
        labels,
        ..crds::watch(resource)
    };
    let whole = |object: KubeObject| object;
    let own = format!("{CLUSTER}={}", settings.cluster);
    inputs.follow(&client, on_broker(REMOTE_PODS, own.clone()), whole, PublisherEvent::OwnPod);
    inputs.follow(&client, on_broker(REMOTE_NAMESPACES, own), whole, PublisherEvent::OwnNamespace);
    inputs.follow(&client, on_broker(MEMBERS, String::new()), whole, PublisherEvent::Member);
    let sender = inputs.sender();
    tokio::spawn(async move {
        while interests.changed().await.is_ok() {
            let interests = interests.borrow_and_update().clone();
            if let Some(interests) = interests
                && sender.send(PublisherEvent::Interests(interests)).await.is_err()
            {
                return;
            }
        }
    });
    let mut publisher = Publisher {
        context,
        settings,
        local: LocalPods::new(settings.cluster.clone(), settings.publishable.clone()),
        broker: Broker {
            writer: context.writer_for(client.clone(), NAME),
            client,
            own_pods: Store::default(),
            own_namespaces: Store::default(),
            members: Store::default(),
        },
        membership: BrokerMembership {
            controller: format!("{}/{}", context.namespace, context.lease),
            roster: Roster::new(LeaseLimits { renewal: settings.renewal, expiry: settings.expiry }),
            started: Instant::now(),
            holds_lease: false,
            problem: None,
            next_renewal: Instant::now(),
            last_contact: None,
            contact,
        },
        pending: PendingPublication {
            names: BTreeMap::new(),
            pods: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            next_flush: None,
            backoff: Backoff::new(
                context.retry_policy.first_retry,
                context.retry_policy.longest_retry,
            ),
        },
        interests: None,
    };
    publisher.report_readiness();
    inputs.run(&mut publisher).await;
}

struct Publisher<'a> {
    context: &'a ControllerContext,
    settings: &'a ClusterSetSettings,
    local: LocalPods,
    broker: Broker,
    membership: BrokerMembership,
    pending: PendingPublication,
    /// The interests of this cluster's policies, once the translator has read them.
    interests: Option<BTreeSet<Interest>>,
}

/// The broker's objects that this loop reads and writes.
struct Broker {
    client: ApiClient,
    writer: Writer,
    own_pods: Store<KubeObject>,
    own_namespaces: Store<KubeObject>,
    members: Store<KubeObject>,
}

impl Broker {
    fn is_synced(&self) -> bool {
        self.own_pods.is_in_sync() && self.own_namespaces.is_in_sync() && self.members.is_in_sync()
    }
}

/// The lease of this cluster on the broker, and the liveness of the other clusters.
struct BrokerMembership {
    /// Distinguishes this controller from others of this cluster.
    controller: String,
    roster: Roster,
    started: Instant,
    /// Whether this controller has renewed the lease of this cluster's id.
    holds_lease: bool,
    /// Why the lease cannot be renewed.
    problem: Option<String>,
    next_renewal: Instant,
    /// When the broker last answered, also as a timestamp.
    last_contact: Option<(Instant, String)>,
    contact: watch::Sender<BrokerContact>,
}

/// The objects of this cluster to write to the broker.
struct PendingPublication {
    /// The pods by the names of their objects on the broker.
    names: BTreeMap<String, PodId>,
    /// The names of RemotePods to compare.
    pods: BTreeSet<String>,
    /// The namespaces to compare.
    namespaces: BTreeSet<Name>,
    next_flush: Option<Instant>,
    backoff: Backoff,
}

impl Handler for Publisher<'_> {
    type Event = PublisherEvent;

    fn apply(&mut self, input: PublisherEvent) {
        match input {
            PublisherEvent::Pod(event) => self.local.apply_pods(event),
            PublisherEvent::Namespace(event) => self.local.apply_namespaces(event),
            PublisherEvent::OwnPod(event) => {
                let touched = self.broker.own_pods.apply(event);
                self.pending.pods.extend(touched.into_iter().map(|id| id.name));
            }
            PublisherEvent::OwnNamespace(event) => {
                for id in self.broker.own_namespaces.apply(event) {
                    let name = id.name.split_once('.').map_or("", |(_, name)| name);
                    self.pending.namespaces.insert(name.into());
                }
            }
            PublisherEvent::Member(event) => {
                for id in self.broker.members.apply(event) {
                    self.apply_member(&id);
                }
            }
            PublisherEvent::Interests(interests) => self.interests = Some(interests),
        }
        self.collect_changes();
        if self.pending.next_flush.is_none() {
            self.pending.next_flush = Some(Instant::now() + BATCH_WINDOW);
        }
        self.report_readiness();
    }

    fn next_due(&self) -> Option<Instant> {
        let flush = self.pending.next_flush.filter(|_| self.is_ready());
        let renewal = self.membership.next_renewal;
        Some(flush.map_or(renewal, |flush| flush.min(renewal)))
    }

    async fn work(&mut self) {
        if Instant::now() >= self.membership.next_renewal {
            self.heartbeat().await;
        } else {
            self.flush().await;
        }
    }
}

impl Publisher<'_> {
    /// Whether everything is listed and this cluster's id is its own. Nothing is written before
    /// that.
    fn is_ready(&self) -> bool {
        self.membership.holds_lease && self.local.is_synced() && self.broker.is_synced()
    }

    /// Moves the changes of the publication to the pending writes.
    fn collect_changes(&mut self) {
        let (pods, namespaces) = self.local.publication.take_changed();
        for id in pods {
            let name = wire::remote_name(&self.remote_id(&id));
            self.pending.names.insert(name.clone(), id);
            self.pending.pods.insert(name);
        }
        self.pending.namespaces.extend(namespaces);
    }

    fn set_problem(&mut self, problem: Option<String>) {
        self.membership.problem = problem;
        self.report_readiness();
    }

    fn report_readiness(&self) {
        let Broker { own_pods, own_namespaces, members, .. } = &self.broker;
        let mut reasons =
            unready([(&self.local.pods_sync, &PODS), (&self.local.namespaces_sync, &NAMESPACES)]);
        let on_broker = unready([
            (own_pods, &REMOTE_PODS),
            (own_namespaces, &REMOTE_NAMESPACES),
            (members, &MEMBERS),
        ]);
        reasons.extend(on_broker.into_iter().map(|reason| format!("broker: {reason}")));
        reasons.extend(self.membership.problem.clone());
        if reasons.is_empty() && !self.membership.holds_lease {
            reasons.push("the lease of this cluster on the broker is not acquired yet".into());
        }
        self.context.report.set_unready_reasons(NAME, reasons);
    }

    /// The id of an object in the broker's namespace.
    fn broker_id(&self, name: &str) -> ObjectId {
        ObjectId::new(self.settings.namespace.clone(), name)
    }

    fn remote_id(&self, id: &PodId) -> RemoteId {
        RemoteId {
            namespace: id.namespace.clone(),
            cluster: self.settings.cluster.clone(),
            name: id.name.clone(),
        }
    }
}
