//! Disabled: nothing of both kinds is left.

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
use weir_aci::Kind;
use weir_kube::{Access, ReadError};

use super::{NAME, resource_of};
use crate::{Id, Resource, Server, lease, server::api};

/// How many objects one request removes, so that there is an answer in time.
const PAGE: u32 = 200;
/// How often to look at a lease.
const LOOK: Duration = Duration::from_millis(500);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// So many HostprotPols.
    pub pols: usize,
    /// So many HostprotRemoteIpContainers.
    pub containers: usize,
}

/// Why not everything was removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// There is nowhere to remove anything from.
    #[error("there is no namespace {0}; nothing was removed")]
    NoNamespace(String),
    /// Somebody would write it all again.
    #[error(
        "{holder} runs the controller {NAME}, by the lease {lease}, and would write everything again; nothing was removed"
    )]
    Held {
        /// The lease.
        lease: Id,
        /// Who holds it.
        holder: String,
    },
    /// The API server does not do it.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl CleanupError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            CleanupError::NoNamespace(_) => "name that of the objects with `--hpp-namespace`".into(),
            CleanupError::Held { .. } => "stop all of its processes first: scale its Deployment to 0, or leave `hpp` out of its `--enable`".into(),
            CleanupError::Read(error) => error.hint(),
        }
    }
}

/// Removes all objects of both kinds: first those that refer to others. Not while somebody is in charge of them: that is asked of all
/// leases that can be listed, or else of this one.
pub fn cleanup(access: Access, namespace: &str, own: &Id) -> Result<Removed, CleanupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ReadError::from)?;
    let server = Server::new(access);
    runtime.block_on(async {
        if !has_namespace(&server, namespace).await? {
            return Err(CleanupError::NoNamespace(namespace.into()));
        }
        for lease in leases(&server, own).await?.iter().filter(|lease| is_about_us(lease)) {
            ask(&server, lease).await?;
        }
        let pols = remove(&server, resource_of(Kind::Pol), namespace).await?;
        let containers = remove(&server, resource_of(Kind::Container), namespace).await?;
        Ok(Removed { pols, containers })
    })
}

async fn has_namespace(server: &Server, name: &str) -> Result<bool, ReadError> {
    let which = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = server.ask("list", "namespaces", async |client| {
        Api::<Namespace>::all(client).list_metadata(&which).await
    });
    Ok(!list.await?.items.is_empty())
}

/// All leases, or this one if there is no right to more.
async fn leases(server: &Server, own: &Id) -> Result<Vec<Lease>, ReadError> {
    let all = server.ask("list", lease::RESOURCE, async |client| {
        Api::<Lease>::all(client).list(&ListParams::default()).await
    });
    match all.await {
        Err(ReadError::Forbidden { .. }) => Ok(get(server, own).await?.into_iter().collect()),
        Err(error) => Err(error),
        Ok(list) => Ok(list.items),
    }
}

async fn get(server: &Server, id: &Id) -> Result<Option<Lease>, ReadError> {
    let found = server.ask("get", lease::RESOURCE, async |client| {
        Api::<Lease>::namespaced(client, &id.namespace).get_opt(&id.name).await
    });
    found.await
}

/// Whether the holder of a lease runs this controller.
fn is_about_us(lease: &Lease) -> bool {
    let names =
        lease.metadata.annotations.iter().flatten().find(|(key, _)| *key == lease::CONTROLLERS);
    names.is_some_and(|(_, names)| names.split(',').any(|name| name == NAME))
}

/// Waits until it is clear that nobody renews a lease.
async fn ask(server: &Server, first: &Lease) -> Result<(), CleanupError> {
    let id = Id::new(
        first.metadata.namespace.clone().unwrap_or_default(),
        first.metadata.name.clone().unwrap_or_default(),
    );
    let holder = lease::holder(first);
    if !holder.is_empty() {
        let seconds = lease::duration(first).as_secs();
        tracing::info!(
            "{holder} holds the lease {id}; looking whether it is alive, for {seconds} s"
        );
    }
    let begun = Instant::now();
    let mut now = Some(first.clone());
    loop {
        match standing(first, now.as_ref(), begun.elapsed()) {
            Standing::Free => return Ok(()),
            Standing::Held(holder) => return Err(CleanupError::Held { lease: id, holder }),
            Standing::Unknown => (),
        }
        sleep(LOOK).await;
        now = get(server, &id).await?;
    }
}

/// What a lease tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Nobody holds it, or nobody alive.
    Free,
    /// Its holder has just renewed it.
    Held(String),
    /// Somebody holds it who may be dead.
    Unknown,
}

/// What a lease tells after it was looked at for some time. Clocks of others are not relied on.
fn standing(first: &Lease, now: Option<&Lease>, waited: Duration) -> Standing {
    let Some(now) = now.filter(|now| !lease::holder(now).is_empty() && is_about_us(now)) else {
        return Standing::Free;
    };
    let holder = lease::holder(now).to_owned();
    if now.metadata.resource_version != first.metadata.resource_version {
        return Standing::Held(holder);
    }
    match waited > lease::duration(now) {
        true => Standing::Free,
        false => Standing::Unknown,
    }
}

/// Removes all objects of a kind; how many.
async fn remove(server: &Server, resource: &Resource, namespace: &str) -> Result<usize, ReadError> {
    let (name, place) = (resource.name(), Id::new(namespace, ""));
    let mut removed = BTreeSet::new();
    loop {
        let (how, which) = (DeleteParams::background(), ListParams::default().limit(PAGE));
        let done = server.ask("deletecollection", &name, async |client| {
            api(client, resource, "v1", &place).delete_collection(&how, &which).await
        });
        let page = match done.await {
            Ok(page) => page.left().map(|page| page.items).unwrap_or_default(),
            // Without the kind there are none.
            Err(ReadError::Missing { .. }) => return Ok(0),
            Err(error) => return Err(error),
        };
        let before = removed.len();
        removed.extend(page.into_iter().filter_map(|object| object.metadata.name));
        // What only waits for somebody else's finalizer comes again.
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
    fn a_lease_is_held_if_it_is_renewed_and_free_if_it_is_not_for_long_enough() {
        let (first, soon, late) =
            (lease("a", "1", "hpp"), Duration::from_secs(1), Duration::from_secs(16));
        assert_eq!(standing(&first, Some(&first), soon), Standing::Unknown);
        assert_eq!(standing(&first, Some(&first), late), Standing::Free);
        assert_eq!(
            standing(&first, Some(&lease("a", "2", "hpp")), soon),
            Standing::Held("a".into())
        );
        assert_eq!(
            standing(&first, Some(&lease("b", "2", "hpp")), soon),
            Standing::Held("b".into())
        );
        assert_eq!(standing(&first, Some(&lease("", "2", "hpp")), soon), Standing::Free);
        assert_eq!(standing(&first, Some(&lease("a", "2", "memcached")), soon), Standing::Free);
        assert_eq!(standing(&first, None, soon), Standing::Free);
    }

    #[test]
    fn a_lease_is_about_us_only_if_its_holder_runs_this_controller() {
        assert!(is_about_us(&lease("a", "1", "clusterset,hpp")));
        assert!(!is_about_us(&lease("a", "1", "clusterset,memcached")));
        assert!(!is_about_us(&Lease::default()));
    }
}
