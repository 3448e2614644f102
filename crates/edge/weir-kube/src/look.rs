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
                    if kind.is_optional() && !wire::is_served(client, kind).await? =>
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
            after = page.rest(kind)?.more;
            if after.is_none() {
                break;
            }
        }
    }
    let mut manifests = reader.finish().of_cluster();
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

fn names_nodes(policy: &Policy) -> bool {
    let rules = policy.spec.ingress.iter().chain(&policy.spec.egress);
    rules
        .flatten()
        .flat_map(|rule| rule.peers.iter().flatten())
        .any(|peer| matches!(peer.who, Who::Nodes(_)))
}

fn without_nodes(error: &ReadError) -> Finding {
    Finding {
        place: None,
        code: "nodes-unread",
        severity: Severity::Warning,
        object: String::new(),
        field: String::new(),
        message: format!("{error}: which addresses are those of nodes is not known"),
        hint: error.hint(),
    }
}
