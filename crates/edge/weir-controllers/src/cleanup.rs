//! What the cleanups of controllers have in common.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use tokio::time::sleep;
use weir_kube::{ApiClient, ApiError, ObjectId};

use crate::lease;

/// The interval between reads of a lease.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Why the cleanup failed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The namespace does not exist.
    #[error("there is no namespace {0}; nothing was removed")]
    NoNamespace(String),
    /// The objects can belong to aci-containers.
    #[error(
        "the objects in {namespace} can be those of aci-containers: {why}; nothing was removed"
    )]
    NotOwned {
        /// The namespace.
        namespace: String,
        /// The setting with which aci-containers writes them.
        why: String,
    },
    /// A controller runs, and would write the objects again.
    #[error(
        "{holder} holds the lease {lease} and runs the controller {controller}, which would write \
         all objects again; nothing was removed"
    )]
    Held {
        /// The name of the controller.
        controller: &'static str,
        /// The lease.
        lease: ObjectId,
        /// The holder of the lease.
        holder: String,
    },
    /// The objects on the broker belong to another cluster.
    #[error(
        "the id {cluster} belongs to another cluster, whose kube-system has the uid {uid}; nothing \
         was removed"
    )]
    IdTaken {
        /// The id.
        cluster: String,
        /// The uid of the other cluster.
        uid: String,
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
            CleanupError::NotOwned { .. } => "if the objects of weir are in another namespace, \
                name it with `--hpp-namespace`"
                .into(),
            CleanupError::Held { controller, .. } => format!(
                "stop all its processes first: scale its Deployment to 0, or remove `{controller}` \
                 from its `--enable`"
            ),
            CleanupError::IdTaken { .. } => "give the id of this cluster with `--cluster-id`, and \
                its own kubeconfig with `--kubeconfig`"
                .into(),
            CleanupError::Read(error) => error.hint(),
        }
    }
}

/// Waits until no process runs a controller, which it finds out from all leases, or from the lease
/// `own` if it may not list leases. Fails if a process renews its lease.
pub(crate) async fn wait_until_stopped(
    client: &ApiClient,
    own: &ObjectId,
    controller: &'static str,
) -> Result<(), CleanupError> {
    for lease in leases(client, own).await?.iter().filter(|lease| is_for(lease, controller)) {
        wait_until_free(client, lease, controller).await?;
    }
    Ok(())
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
fn is_for(lease: &Lease, controller: &str) -> bool {
    let names = lease
        .metadata
        .annotations
        .iter()
        .flatten()
        .find(|(key, _)| *key == lease::CONTROLLERS_ANNOTATION);
    names.is_some_and(|(_, names)| names.split(',').any(|name| name == controller))
}

/// Waits until a lease has expired. Fails if its holder renews it.
async fn wait_until_free(
    client: &ApiClient,
    first: &Lease,
    controller: &'static str,
) -> Result<(), CleanupError> {
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
        match lease_state(first, now.as_ref(), start.elapsed(), controller) {
            LeaderState::Free => return Ok(()),
            LeaderState::Held(holder) => {
                return Err(CleanupError::Held { controller, lease: id, holder });
            }
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
fn lease_state(
    first: &Lease,
    now: Option<&Lease>,
    waited: Duration,
    controller: &str,
) -> LeaderState {
    let is_held = |now: &&Lease| !lease::holder(now).is_empty() && is_for(now, controller);
    let Some(now) = now.filter(is_held) else { return LeaderState::Free };
    let holder = lease::holder(now).to_owned();
    if now.metadata.resource_version != first.metadata.resource_version {
        return LeaderState::Held(holder);
    }
    if waited > lease::duration(now) { LeaderState::Free } else { LeaderState::Unknown }
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
        let state = |now: Option<&Lease>, waited| lease_state(&first, now, waited, "hpp");
        assert_eq!(state(Some(&first), soon), LeaderState::Unknown);
        assert_eq!(state(Some(&first), late), LeaderState::Free);
        assert_eq!(state(Some(&lease("a", "2", "hpp")), soon), LeaderState::Held("a".into()));
        assert_eq!(state(Some(&lease("b", "2", "hpp")), soon), LeaderState::Held("b".into()));
        assert_eq!(state(Some(&lease("", "2", "hpp")), soon), LeaderState::Free);
        assert_eq!(state(Some(&lease("a", "2", "memcached")), soon), LeaderState::Free);
        assert_eq!(state(None, soon), LeaderState::Free);
    }

    #[test]
    fn a_lease_counts_only_if_its_holder_runs_this_controller() {
        assert!(is_for(&lease("a", "1", "clusterset,hpp"), "hpp"));
        assert!(!is_for(&lease("a", "1", "clusterset,memcached"), "hpp"));
        assert!(!is_for(&Lease::default(), "hpp"));
    }
}
