//! Removes a cluster from its set.

use futures::future::try_join_all;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Preconditions},
};
use weir_kube::{Access, ApiClient, ApiError, KubeObject, NETWORK_POLICIES, ObjectId, Resource};

use super::{
    NAME, lease, owned,
    wire::{CLUSTER, MANAGED, MEMBERS, REMOTE_NAMESPACES, REMOTE_PODS},
};
use crate::{
    cleanup::{CleanupError, wait_until_stopped},
    writer::MAX_CONCURRENT_WRITES,
};

/// The number of objects on a page of a list.
const PAGE_SIZE: u32 = 500;

/// A cluster that leaves its set.
#[derive(Clone, Debug)]
pub struct Departure {
    /// The id of the cluster.
    pub cluster: String,
    /// The API server of the cluster.
    pub access: Access,
    /// The API server of the broker.
    pub broker: Access,
    /// The namespace on the broker.
    pub namespace: String,
}

/// The numbers of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of RemotePods on the broker.
    pub pods: usize,
    /// The number of other objects on the broker.
    pub others: usize,
    /// The number of NetworkPolicies of the cluster that allowed pods of other clusters.
    pub network_policies: usize,
}

/// Removes the objects of a cluster from the broker, the pods first, and the allowed addresses of
/// other clusters from the cluster. The NetworkPolicies that isolate pods stay.
///
/// Fails while a controller runs, and if the id belongs to another cluster.
pub fn leave(departure: &Departure, own: &ObjectId) -> Result<Removed, CleanupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ApiError::from)?;
    let Departure { cluster, access, broker, namespace } = departure;
    let [client, broker] = [access, broker].map(|access| ApiClient::new(access.clone()));
    runtime.block_on(async {
        wait_until_stopped(&client, own, NAME).await?;
        let lease = lease::list(&broker, namespace, cluster).await?.1;
        check_holder(&client, cluster, lease.as_ref()).await?;
        let of_cluster = format!("{CLUSTER}={cluster}");
        let on_broker = |resource| delete_all(&broker, resource, namespace, &of_cluster, |_| true);
        let pods = on_broker(&REMOTE_PODS).await?;
        let mut others = on_broker(&REMOTE_NAMESPACES).await? + on_broker(&MEMBERS).await?;
        let managed = format!("{}={}", MANAGED.0, MANAGED.1);
        let is_shard = |object: &KubeObject| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            owned::is_ours(object) && owned::shard_of(name).is_some()
        };
        let network_policies =
            delete_all(&client, &NETWORK_POLICIES, "", &managed, is_shard).await?;
        // The lease comes last: it shows whose objects these are if this has to start again.
        if let Some(lease) = lease {
            lease::delete(&broker, namespace, &lease).await?;
            others += 1;
        }
        Ok(Removed { pods, others, network_policies })
    })
}

/// Fails if the lease of the id on the broker belongs to another cluster.
async fn check_holder(
    client: &ApiClient,
    cluster: &str,
    lease: Option<&Lease>,
) -> Result<(), CleanupError> {
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    let Some(holder) = holder.filter(|holder| !holder.is_empty()) else { return Ok(()) };
    // A list with a field selector needs no permission to get.
    let params = ListParams::default().fields("metadata.name=kube-system");
    let found = client.request("list", "namespaces", async |client| {
        Api::<Namespace>::all(client).list_metadata(&params).await
    });
    let uid = found.await?.items.into_iter().next().and_then(|one| one.metadata.uid);
    if uid.as_deref() == Some(holder) {
        return Ok(());
    }
    Err(CleanupError::IdTaken { cluster: cluster.into(), uid: holder.into() })
}

/// Deletes the objects with a label that `matches` accepts. Returns their number.
async fn delete_all(
    client: &ApiClient,
    resource: &Resource,
    namespace: &str,
    labels: &str,
    matches: impl Fn(&KubeObject) -> bool,
) -> Result<usize, ApiError> {
    let (name, version) = (resource.name(), resource.versions[0]);
    let (mut deleted, mut after) = (0, None::<String>);
    loop {
        let mut params = ListParams::default().labels(labels).limit(PAGE_SIZE);
        params.continue_token = after.take();
        let page = client.request("list", &name, async |client| {
            resource.api(client, version, namespace).list(&params).await
        });
        let page = match page.await {
            Ok(page) => page,
            // The kind is not installed.
            Err(ApiError::Missing { .. }) => return Ok(deleted),
            Err(error) => return Err(error),
        };
        let objects: Vec<&KubeObject> = page.items.iter().filter(|one| matches(one)).collect();
        for chunk in objects.chunks(MAX_CONCURRENT_WRITES) {
            try_join_all(chunk.iter().map(|one| delete(client, resource, &name, one))).await?;
        }
        deleted += objects.len();
        after = page.metadata.continue_.filter(|token| !token.is_empty());
        if after.is_none() {
            return Ok(deleted);
        }
    }
}

/// Deletes this very object, unless it is gone already.
async fn delete(
    client: &ApiClient,
    resource: &Resource,
    name: &str,
    object: &KubeObject,
) -> Result<(), ApiError> {
    let ObjectId { namespace, name: object_name } = ObjectId::from_object(object);
    let uid = object.metadata.uid.clone();
    let how = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
    let deleted = client.request("delete", name, async |client| {
        resource.api(client, resource.versions[0], &namespace).delete(&object_name, &how).await
    });
    match deleted.await {
        Ok(_) | Err(ApiError::Absent { .. } | ApiError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
