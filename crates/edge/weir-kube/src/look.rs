use kube::Client;
use weir_api::{Manifests, Reader};
use weir_model::{Finding, Object, Policy, Severity, Who};

use crate::{
    Access, ReadError,
    kind::Kind,
    wire::{self, Page},
};

/// How many objects a page has.
const PAGE: u32 = 500;
/// The kind of object that asks for policies.
const MEMCACHEDS: &str = "memcacheds.memcached.c5c3.io";
/// How often to begin again if the API server forgets a list while we read it.
const ATTEMPTS: usize = 3;

/// How far reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many kinds were read,
    pub done: usize,
    /// of so many.
    pub all: usize,
}

/// Reads a cluster once, completely. Pods that have no address have none.
pub fn read(access: &Access, mut progress: impl FnMut(Step)) -> Result<Manifests, ReadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = access.client().await?;
        let mut attempt = 1;
        loop {
            match read_with(&client, &mut progress).await {
                Err(ReadError::Gone { .. }) if attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    })
}

async fn read_with(
    client: &Client,
    progress: &mut impl FnMut(Step),
) -> Result<Manifests, ReadError> {
    let mut reader = Reader::new();
    let mut nodes_unread = None;
    for (done, kind) in Kind::ALL.into_iter().enumerate() {
        let mut after = None;
        loop {
            progress(Step { done, all: Kind::ALL.len() });
            let page = match Page::get(client, kind, PAGE, after.as_deref()).await {
                Ok(page) => page,
                Err(ReadError::Missing { .. }) if kind.is_optional() => break,
                // Rights are checked before it is known whether there is such a kind.
                Err(ReadError::Forbidden { .. })
                    if kind.is_optional()
                        && !wire::is_served(client, kind.version(), kind.resource()).await? =>
                {
                    break;
                }
                Err(error @ ReadError::Forbidden { .. }) if kind == Kind::Node => {
                    nodes_unread = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            reader.read(format!("cluster {}", kind.plural()).into(), page.text.as_bytes());
            after = page.rest(kind.resource())?.more;
            if after.is_none() {
                break;
            }
        }
    }
    let memcacheds_unread = memcacheds(client, &mut reader).await?;
    let mut manifests = reader.finish().of_cluster();
    manifests.findings.extend(memcacheds_unread.as_ref().map(without_memcacheds));
    if let Some(error) = nodes_unread {
        let mut policies = manifests.objects.iter().filter_map(|object| match object {
            Object::Policy(policy) => Some(policy),
            _ => None,
        });
        // Only nodes can tell what such a policy means.
        if policies.any(names_nodes) {
            return Err(error);
        }
        manifests.findings.push(without_nodes(&error));
    }
    Ok(manifests)
}

/// Reads the Memcacheds, if there is such a kind: they ask for policies, which may not be those that were meant. What they ask for is
/// there as NetworkPolicies, so that who may not read them has lost nothing but advice, and is told.
async fn memcacheds(client: &Client, reader: &mut Reader) -> Result<Option<ReadError>, ReadError> {
    for version in ["memcached.c5c3.io/v1alpha1", "memcached.c5c3.io/v1beta1"] {
        let (path, mut after) = (format!("/apis/{version}/memcacheds"), None);
        loop {
            let page = match Page::at(client, &path, MEMCACHEDS, PAGE, after.as_deref()).await {
                Ok(page) => page,
                Err(ReadError::Missing { .. }) => break,
                Err(error @ ReadError::Gone { .. }) => return Err(error),
                // Rights are checked before it is known whether there is such a kind.
                Err(error @ ReadError::Forbidden { .. }) => {
                    match wire::is_served(client, version, MEMCACHEDS).await {
                        Ok(false) => break,
                        _ => return Ok(Some(error)),
                    }
                }
                Err(error) => return Ok(Some(error)),
            };
            reader.read("cluster memcacheds".into(), page.text.as_bytes());
            after = page.rest(MEMCACHEDS)?.more;
            if after.is_none() {
                return Ok(None);
            }
        }
    }
    Ok(None)
}

fn without_memcacheds(error: &ReadError) -> Finding {
    Finding {
        location: None,
        code: "memcacheds-unread",
        severity: Severity::Info,
        object: None,
        field: String::new(),
        message: format!(
            "{}: what Memcacheds ask for is not checked, their policies are",
            error.text()
        ),
        hint: error.hint(),
    }
}

fn names_nodes(policy: &Policy) -> bool {
    let rules = policy.spec.ingress.iter().chain(&policy.spec.egress);
    rules
        .flatten()
        .flat_map(|rule| rule.peers.iter().flatten())
        .any(|peer| matches!(peer.who, Who::Nodes(_)))
}

fn without_nodes(error: &ReadError) -> Finding {
    Finding {
        location: None,
        code: "nodes-unread",
        severity: Severity::Warning,
        object: None,
        field: String::new(),
        message: format!("{error}: which addresses are those of nodes is not known"),
        hint: error.hint(),
    }
}
