//! Removes all objects of the controller after it is disabled.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use tokio::time::sleep;
use weir_aci::HostprotKind;
use weir_kube::{Access, ApiClient, ApiError, ObjectId, Resource};

use super::{NAME, resource_of};
use crate::lease;

/// One request deletes this many objects, so that it does not time out.
const DELETE_PAGE_SIZE: u32 = 200;
/// The interval between reads of a lease.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The numbers of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of HostprotPols.
    pub pols: usize,
    /// The number of HostprotRemoteIpContainers.
    pub containers: usize,
}

/// Why the cleanup failed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The namespace does not exist.
    #[error("there is no namespace {0}; nothing was removed")]
    NoNamespace(String),
    /// A controller runs, and would write the objects again.
    #[error(
        "{holder} holds the lease {lease} and runs the controller {NAME}, which would write all \
         objects again; nothing was removed"
    )]
    Held {
        /// The lease.
        lease: ObjectId,
        /// The holder of the lease.
        holder: String,
    },
    /// A request failed.
    #[error(transparent)]
    Read(#[from] ApiError),
}

impl CleanupError {
    /// How to fix it.
    pub fn hint(&self) -> String {
        match self {
            CleanupError::NoNamespace(_) => "name the namespace of the objects with \
                `--hpp-namespace`"
                .into(),
            CleanupError::Held { .. } => "stop all its processes first: scale its Deployment to \
                0, or remove `hpp` from its `--enable`"
                .into(),
            CleanupError::Read(error) => error.hint(),
        }
    }
}

/// Removes all objects of both kinds, those that refer to others first. Fails while a controller
/// runs, which it finds out from all leases, or from the lease `own` if it may not list leases.
pub fn cleanup(access: Access, namespace: &str, own: &ObjectId) -> Result<Removed, CleanupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ApiError::from)?;
    let client = ApiClient::new(access);
    runtime.block_on(async {
        if !has_namespace(&client, namespace).await? {
            return Err(CleanupError::NoNamespace(namespace.into()));
        }
        for lease in leases(&client, own).await?.iter().filter(|lease| is_for_hpp(lease)) {
            wait_until_free(&client, lease).await?;
        }
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

/// All leases, or only `own` if listing them is forbidden.
async fn leases(client: &ApiClient, own: &ObjectId) -> Result<Vec<Lease>, ApiError> {
    let all = client.request("list", lease::RESOURCE, async |client| {
        Api::<Lease>::all(client).list(&ListParams::default()).await
    });
    match all.await {
        Err(ApiError::Forbidden { .. }) => Ok(get(client, own).await?.into_iter().collect()),
        Err(error) => Err(error),
        Ok(list) => Ok(list.items),
    }
}

async fn get(client: &ApiClient, id: &ObjectId) -> Result<Option<Lease>, ApiError> {
    let found = client.request("get", lease::RESOURCE, async |client| {
        Api::<Lease>::namespaced(client, &id.namespace).get_opt(&id.name).await
    });
    found.await
}

/// Whether the holder of a lease runs this controller.
fn is_for_hpp(lease: &Lease) -> bool {
    let names = lease
        .metadata
        .annotations
        .iter()
        .flatten()
        .find(|(key, _)| *key == lease::CONTROLLERS_ANNOTATION);
    names.is_some_and(|(_, names)| names.split(',').any(|name| name == NAME))
}

/// Waits until a lease has expired. Fails if its holder renews it.
async fn wait_until_free(client: &ApiClient, first: &Lease) -> Result<(), CleanupError> {
    let id = ObjectId::new(
        first.metadata.namespace.clone().unwrap_or_default(),
        first.metadata.name.clone().unwrap_or_default(),
    );
    let holder = lease::holder(first);
    if !holder.is_empty() {
        let seconds = lease::duration(first).as_secs();
        tracing::info!("{holder} holds the lease {id}; waiting up to {seconds} s for a renewal");
    }
    let start = Instant::now();
    let mut now = Some(first.clone());
    loop {
        match lease_state(first, now.as_ref(), start.elapsed()) {
            LeaderState::Free => return Ok(()),
            LeaderState::Held(holder) => return Err(CleanupError::Held { lease: id, holder }),
            LeaderState::Unknown => (),
        }
        sleep(POLL_INTERVAL).await;
        now = get(client, &id).await?;
    }
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LeaderState {
    /// It has no holder, or has expired.
    Free,
    /// Its holder has renewed it.
    Held(String),
    /// It has a holder that may have stopped.
    Unknown,
}

/// The state of a lease that was first read `waited` ago. Clocks of other machines do not matter.
fn lease_state(first: &Lease, now: Option<&Lease>, waited: Duration) -> LeaderState {
    let Some(now) = now.filter(|now| !lease::holder(now).is_empty() && is_for_hpp(now)) else {
        return LeaderState::Free;
    };
    let holder = lease::holder(now).to_owned();
    if now.metadata.resource_version != first.metadata.resource_version {
        return LeaderState::Held(holder);
    }
    if waited > lease::duration(now) { LeaderState::Free } else { LeaderState::Unknown }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, version: &str, controllers: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"resourceVersion": version, "annotations": {"weir/controllers": controllers}},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
        }))
        .unwrap()
    }

    #[test]
    fn a_renewed_lease_is_held_and_an_expired_one_is_free() {
        let (first, soon, late) =
            (lease("a", "1", "hpp"), Duration::from_secs(1), Duration::from_secs(16));
        assert_eq!(lease_state(&first, Some(&first), soon), LeaderState::Unknown);
        assert_eq!(lease_state(&first, Some(&first), late), LeaderState::Free);
        assert_eq!(
            lease_state(&first, Some(&lease("a", "2", "hpp")), soon),
            LeaderState::Held("a".into())
        );
        assert_eq!(
            lease_state(&first, Some(&lease("b", "2", "hpp")), soon),
            LeaderState::Held("b".into())
        );
        assert_eq!(lease_state(&first, Some(&lease("", "2", "hpp")), soon), LeaderState::Free);
        assert_eq!(
            lease_state(&first, Some(&lease("a", "2", "memcached")), soon),
            LeaderState::Free
        );
        assert_eq!(lease_state(&first, None, soon), LeaderState::Free);
    }

    #[test]
    fn a_lease_counts_only_if_its_holder_runs_this_controller() {
        assert!(is_for_hpp(&lease("a", "1", "clusterset,hpp")));
        assert!(!is_for_hpp(&lease("a", "1", "clusterset,memcached")));
        assert!(!is_for_hpp(&Lease::default()));
    }
}
