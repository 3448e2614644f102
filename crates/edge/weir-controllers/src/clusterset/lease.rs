//! The leases of the clusters on the broker.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use weir_clusterset::Heartbeat;
use weir_kube::{ApiClient, ApiError};
use weir_model::Name;

use super::wire::CLUSTER;

const RESOURCE: &str = "leases.coordination.k8s.io";
/// The annotation with the controller that renews the lease of its cluster.
const CONTROLLER_ANNOTATION: &str = "clusterset.weir.dev/controller";

/// The holder of a cluster's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    /// The id of the cluster.
    pub(crate) cluster: &'a str,
    /// Distinguishes the cluster from others with the same id.
    pub(crate) uid: &'a str,
    /// Distinguishes the controller from others of the same cluster.
    pub(crate) controller: &'a str,
}

/// Lists the heartbeats of all clusters, and the lease of this cluster if it exists.
pub(crate) async fn list(
    client: &ApiClient,
    namespace: &str,
    cluster: &str,
) -> Result<(BTreeMap<Name, Heartbeat>, Option<Lease>), ApiError> {
    let params = ListParams::default().labels(CLUSTER);
    let leases = client.request("list", RESOURCE, async |client| {
        Api::<Lease>::namespaced(client, namespace).list(&params).await
    });
    let leases = leases.await?;
    // Anything else is no list, and does not show that clusters are gone.
    let is_list = leases.types.kind == "LeaseList";
    if !is_list || leases.metadata.resource_version.unwrap_or_default().is_empty() {
        let message = "expected a LeaseList with a resourceVersion".into();
        return Err(ApiError::Garbled { resource: RESOURCE.into(), message });
    }
    let (mut heartbeats, mut own) = (BTreeMap::new(), None);
    for lease in leases.items {
        let label = lease.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER));
        let is_name = |cluster: &&String| lease.metadata.name == Some(name(cluster));
        let Some(id) = label.filter(is_name).cloned() else { continue };
        let spec = lease.spec.clone().unwrap_or_default();
        let renewed = spec.renew_time.as_ref().map(|time| time.0);
        let age = renewed.map_or(Duration::ZERO, |time| {
            Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or_default()
        });
        let annotations = lease.metadata.annotations.as_ref();
        let controller = annotations.and_then(|all| all.get(CONTROLLER_ANNOTATION));
        let heartbeat = Heartbeat {
            controller: controller.map(String::as_str).unwrap_or_default().into(),
            holder: spec.holder_identity.unwrap_or_default().into(),
            renewal: renewed.map(|time| time.to_string()).unwrap_or_default().into(),
            age,
        };
        if id == cluster {
            own = Some(lease);
        }
        heartbeats.insert(id.into(), heartbeat);
    }
    Ok((heartbeats, own))
}

/// Renews the lease of this cluster.
pub(crate) async fn renew(
    client: &ApiClient,
    namespace: &str,
    holder: Holder<'_>,
    expiry: Duration,
    observed: Option<Lease>,
) -> Result<(), ApiError> {
    let Holder { cluster, uid, controller } = holder;
    let (is_new, before) = (observed.is_none(), observed.unwrap_or_default());
    let now = MicroTime(Timestamp::now());
    let mine = before.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(uid);
    let acquired = before.spec.and_then(|spec| spec.acquire_time).filter(|_| mine);
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name(cluster)),
            namespace: Some(namespace.into()),
            labels: Some([(CLUSTER.to_owned(), cluster.to_owned())].into()),
            annotations: Some([(CONTROLLER_ANNOTATION.to_owned(), controller.to_owned())].into()),
            // Only this version: of two controllers that renew concurrently, one fails.
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
    let written = client.request(verb, RESOURCE, async |client| {
        let api = Api::<Lease>::namespaced(client, namespace);
        if is_new {
            api.create(&PostParams::default(), &lease).await
        } else {
            api.replace(&name(cluster), &PostParams::default(), &lease).await
        }
    });
    written.await.map(drop)
}

/// Deletes the lease, unless another process has changed it.
pub(crate) async fn delete(
    client: &ApiClient,
    namespace: &str,
    lease: &Lease,
) -> Result<(), ApiError> {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    let uid = lease.metadata.uid.clone();
    let resource_version = lease.metadata.resource_version.clone();
    let how = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
    let deleted = client.request("delete", RESOURCE, async |client| {
        Api::<Lease>::namespaced(client, namespace).delete(name, &how).await
    });
    match deleted.await {
        Ok(_) | Err(ApiError::Absent { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn name(cluster: &str) -> String {
    format!("weir-clusterset-{cluster}")
}
