use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use weir_clusterset::Pulse;
use weir_kube::ReadError;
use weir_model::Name;

use super::wire::CLUSTER;
use crate::Server;

const RESOURCE: &str = "leases.coordination.k8s.io";
/// The annotation of which of a cluster's controllers renews its lease.
const SEAT: &str = "clusterset.weir.dev/controller";

/// Who gives the signs of life of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    /// The id of the cluster.
    pub(crate) cluster: &'a str,
    /// What tells it from others of that id.
    pub(crate) uid: &'a str,
    /// What tells this controller from others of that cluster.
    pub(crate) seat: &'a str,
}

/// The signs of life of all clusters, and the lease of our own if there is one.
pub(crate) async fn pulses(
    server: &Server,
    namespace: &str,
    cluster: &str,
) -> Result<(BTreeMap<Name, Pulse>, Option<Lease>), ReadError> {
    let params = ListParams::default().labels(CLUSTER);
    let leases = server.ask("list", RESOURCE, async |client| {
        Api::<Lease>::namespaced(client, namespace).list(&params).await
    });
    let (mut pulses, mut own) = (BTreeMap::new(), None);
    for lease in leases.await?.items {
        let label = lease.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER));
        let Some(of) = label.filter(|of| lease.metadata.name == Some(name(of))).cloned() else {
            continue;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let renewed = spec.renew_time.as_ref().map(|time| time.0);
        let age = renewed.map_or(Duration::ZERO, |time| {
            Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or_default()
        });
        let annotations = lease.metadata.annotations.as_ref();
        let seat = annotations.and_then(|all| all.get(SEAT)).map(String::as_str);
        let pulse = Pulse {
            seat: seat.unwrap_or_default().into(),
            holder: spec.holder_identity.unwrap_or_default().into(),
            renewal: renewed.map(|time| time.to_string()).unwrap_or_default().into(),
            age,
        };
        if of == cluster {
            own = Some(lease);
        }
        pulses.insert(of.into(), pulse);
    }
    Ok((pulses, own))
}

/// Gives a sign of life.
pub(crate) async fn renew(
    server: &Server,
    namespace: &str,
    holder: Holder<'_>,
    expiry: Duration,
    known: Option<Lease>,
) -> Result<(), ReadError> {
    let Holder { cluster, uid, seat } = holder;
    let (is_new, before) = (known.is_none(), known.unwrap_or_default());
    let now = MicroTime(Timestamp::now());
    let mine = before.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(uid);
    let acquired = before.spec.and_then(|spec| spec.acquire_time).filter(|_| mine);
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name(cluster)),
            namespace: Some(namespace.into()),
            labels: Some([(CLUSTER.to_owned(), cluster.to_owned())].into()),
            annotations: Some([(SEAT.to_owned(), seat.to_owned())].into()),
            // In this very version: of two who take a name at the same time, one is refused.
            resource_version: before.metadata.resource_version,
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(uid.into()),
            acquire_time: acquired.or(Some(now.clone())),
            renew_time: Some(now),
            lease_duration_seconds: i32::try_from(expiry.as_secs()).ok(),
            ..LeaseSpec::default()
        }),
    };
    let verb = if is_new { "create" } else { "update" };
    let written = server.ask(verb, RESOURCE, async |client| {
        let api = Api::<Lease>::namespaced(client, namespace);
        match is_new {
            true => api.create(&PostParams::default(), &lease).await,
            false => api.replace(&name(cluster), &PostParams::default(), &lease).await,
        }
    });
    written.await.map(drop)
}

fn name(cluster: &str) -> String {
    format!("weir-clusterset-{cluster}")
}
