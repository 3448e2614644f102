//! Removes all objects of the controller after it is disabled.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use weir_aci::HostprotKind;
use weir_kube::{Access, ApiClient, ApiError, ObjectId, Resource};

use super::{NAME, cisco, resource_of};
use crate::cleanup::{CleanupError, wait_until_stopped};

/// One request deletes this many objects, so that it does not time out.
const DELETE_PAGE_SIZE: u32 = 200;

/// The numbers of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of HostprotPols.
    pub pols: usize,
    /// The number of HostprotRemoteIpContainers.
    pub containers: usize,
}

/// Removes all objects of both kinds, those that refer to others first. Fails if they can be those
/// of aci-containers. Fails while a controller
/// runs, which it finds out from all leases, or from the lease `own` if it may not list leases.
pub fn cleanup(access: Access, namespace: &str, own: &ObjectId) -> Result<Removed, CleanupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ApiError::from)?;
    let client = ApiClient::new(access);
    runtime.block_on(async {
        if !has_namespace(&client, namespace).await? {
            return Err(CleanupError::NoNamespace(namespace.into()));
        }
        if namespace == cisco::NAMESPACE
            && let Some(why) = cisco::fetch_conflict(&client).await?
        {
            return Err(CleanupError::NotOwned { namespace: namespace.into(), why });
        }
        wait_until_stopped(&client, own, NAME).await?;
        let pols = remove(&client, resource_of(HostprotKind::Pol), namespace).await?;
        let containers = remove(&client, resource_of(HostprotKind::Container), namespace).await?;
        Ok(Removed { pols, containers })
    })
}

async fn has_namespace(client: &ApiClient, name: &str) -> Result<bool, ApiError> {
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = client.request("list", "namespaces", async |client| {
        Api::<Namespace>::all(client).list_metadata(&params).await
    });
    Ok(!list.await?.items.is_empty())
}

/// Removes all objects of a kind. Returns their number.
async fn remove(
    client: &ApiClient,
    resource: &Resource,
    namespace: &str,
) -> Result<usize, ApiError> {
    let name = resource.name();
    let mut removed = BTreeSet::new();
    loop {
        let (how, page) =
            (DeleteParams::background(), ListParams::default().limit(DELETE_PAGE_SIZE));
        let deleted = client.request("deletecollection", &name, async |client| {
            resource.api(client, "v1", namespace).delete_collection(&how, &page).await
        });
        let page = match deleted.await {
            Ok(page) => page.left().map(|page| page.items).unwrap_or_default(),
            // The kind is not installed.
            Err(ApiError::Missing { .. }) => return Ok(0),
            Err(error) => return Err(error),
        };
        let before = removed.len();
        removed.extend(page.into_iter().filter_map(|object| object.metadata.name));
        // Objects with finalizers are listed again.
        if removed.len() == before {
            return Ok(before);
        }
    }
}
