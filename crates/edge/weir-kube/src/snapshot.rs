use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tokio::time::sleep;
use weir_api::{ManifestReader, Manifests, ROUTES_UNREAD, SERVICES_UNREAD, Tree};
use weir_model::{Finding, Policy, Severity, Who};
use weir_runtime::Backoff;

use crate::{
    Access, ApiError, ClusterKinds, OnMissing, Resource, WatchSpec,
    kind::ModelKind,
    wire::{self, ListPage, PageStart, Unread},
};

/// The number of objects on a page of a list.
const PAGE_SIZE: u32 = 500;
/// How often reading starts over if the API server is overloaded or a list expires.
const ATTEMPTS: u32 = 4;
/// The longest wait that the API server can demand before the next attempt.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Memcacheds request policies, so that lints look at them.
const MEMCACHEDS: Resource = Resource {
    group: "memcached.c5c3.io",
    versions: &["v1alpha1", "v1beta1"],
    kind: "Memcached",
    plural: "memcacheds",
};

/// Ingresses and the routes of the Gateway API, which name Services.
const ROUTES: [Resource; 6] = [
    Resource {
        group: "networking.k8s.io",
        versions: &["v1"],
        kind: "Ingress",
        plural: "ingresses",
    },
    gateway_route(&["v1", "v1beta1"], "HTTPRoute", "httproutes"),
    gateway_route(&["v1", "v1alpha2"], "GRPCRoute", "grpcroutes"),
    gateway_route(&["v1", "v1alpha3", "v1alpha2"], "TLSRoute", "tlsroutes"),
    gateway_route(&["v1alpha2"], "TCPRoute", "tcproutes"),
    gateway_route(&["v1alpha2"], "UDPRoute", "udproutes"),
];

const fn gateway_route(
    versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    Resource { group: "gateway.networking.k8s.io", versions, kind, plural }
}

/// The progress of reading a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The kinds that were read.
    pub done: usize,
    /// The number of all kinds.
    pub all: usize,
}

/// Reads these kinds of a cluster once, completely. Pods without an address keep none.
pub fn read_cluster(
    access: &Access,
    kinds: ClusterKinds,
    mut progress: impl FnMut(Progress),
) -> Result<Manifests, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, server) = access.client().await?;
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
        loop {
            let error = match read_all(&client, kinds, &mut progress).await {
                Ok(manifests) => return Ok(manifests),
                Err(error) => error.with_server(Some(server.clone())),
            };
            let can_retry = error.is_temporary() || matches!(error, ApiError::Gone { .. });
            if !can_retry || backoff.failures() + 1 >= ATTEMPTS {
                return Err(error);
            }
            let demanded = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
            sleep(backoff.next_delay().max(demanded)).await;
        }
    })
}

async fn read_all(
    client: &Client,
    kinds: ClusterKinds,
    progress: &mut impl FnMut(Progress),
) -> Result<Manifests, ApiError> {
    let mut reader = ManifestReader::new().with_pod_details(kinds.pod_details());
    let (mut nodes_error, mut services_error) = (None, None);
    let all = kinds.kinds();
    for (done, kind) in all.iter().enumerate() {
        let step = || progress(Progress { done, all: all.len() });
        match read_kind(client, &kind.spec(), &mut reader, step).await {
            Ok(Served::Yes) => (),
            Ok(Served::No) if kind.is_optional() => (),
            Ok(Served::No) => {
                return Err(ApiError::Missing { resource: kind.resource().name() });
            }
            Err(error @ ApiError::Forbidden { .. }) if *kind == ModelKind::Node => {
                nodes_error = Some(error);
            }
            Err(error @ ApiError::Forbidden { .. }) if !kinds.requires(*kind) => {
                services_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let memcacheds_error = read_memcacheds(client, &mut reader).await?;
    let mut routes_error = None;
    if kinds.has_routes() {
        routes_error = read_routes(client, &mut reader).await?;
    }
    let mut manifests = reader.finish().of_cluster();
    manifests.findings.extend(memcacheds_error.as_ref().map(memcacheds_unread));
    manifests.findings.extend(services_error.as_ref().map(services_unread));
    manifests.findings.extend(routes_error.as_ref().map(routes_unread));
    if let Some(error) = nodes_error {
        // Without the nodes, the meaning of such a policy is unknown.
        if manifests.objects.policies().any(selects_nodes) {
            return Err(error);
        }
        manifests.findings.push(nodes_unread(&error));
    }
    Ok(manifests)
}

/// Whether brackets of a document are nested more deeply than those of any object that weir knows. Those
/// in texts count, too.
fn is_deep(bytes: &[u8]) -> bool {
    const USUAL_DEPTH: usize = 32;
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in bytes {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => (),
        }
        deepest = deepest.max(depth);
    }
    deepest > USUAL_DEPTH
}

/// A page without its deepest values. Users can write managed fields of any depth: one object must not
/// make its page unreadable.
fn without_deep_values(page: &[u8]) -> Result<Vec<u8>, ApiError> {
    let garbled = |error: serde_json::Error| ApiError::Garbled {
        resource: "the list".into(),
        message: error.to_string(),
    };
    let tree: Tree = serde_json::from_slice(page).map_err(garbled)?;
    serde_json::to_vec(&Value::from(&tree)).map_err(garbled)
}

/// Whether the API server serves a kind.
enum Served {
    Yes,
    No,
}

/// Reads all objects of a kind, in the first version that is served.
async fn read_kind(
    client: &Client,
    spec: &WatchSpec,
    reader: &mut ManifestReader,
    mut step: impl FnMut(),
) -> Result<Served, ApiError> {
    let resource = spec.resource;
    let file = format!("cluster {}", resource.plural);
    for version in resource.versions {
        let (mut after, mut limit) = (None::<String>, PAGE_SIZE);
        loop {
            step();
            let start = after.as_deref().map_or(PageStart::Latest, PageStart::After);
            let page = wire::page_bytes(client, spec, version, &mut limit, start).await;
            let bytes = match page {
                Ok(bytes) => bytes,
                Err(ApiError::Missing { .. }) if after.is_none() => break,
                // The API server checks permissions before it checks whether the kind exists.
                Err(error @ ApiError::Forbidden { .. })
                    if spec.on_missing == OnMissing::TreatAsEmpty =>
                {
                    let api_version = resource.api_version(version);
                    if wire::is_served(client, &api_version, resource.plural).await? {
                        return Err(error);
                    }
                    break;
                }
                Err(error) => return Err(error),
            };
            let page = ListPage::parse(&bytes, spec, version, |_: Unread| ())?;
            let bytes = if is_deep(&bytes) { without_deep_values(&bytes)? } else { bytes };
            reader.read_file(file.clone().into(), &bytes);
            after = page.next;
            if after.is_none() {
                return Ok(Served::Yes);
            }
        }
    }
    Ok(Served::No)
}

/// Reads the Memcacheds, if the kind is installed. Their NetworkPolicies are read anyway, so that
/// an error costs only some lints. It is returned for a finding.
async fn read_memcacheds(
    client: &Client,
    reader: &mut ManifestReader,
) -> Result<Option<ApiError>, ApiError> {
    let spec = WatchSpec { on_missing: OnMissing::TreatAsEmpty, ..WatchSpec::all(MEMCACHEDS) };
    match read_kind(client, &spec, reader, || ()).await {
        Ok(_) => Ok(None),
        Err(error @ ApiError::Gone { .. }) => Err(error),
        Err(error) => Ok(Some(error)),
    }
}

/// Reads the routes of all kinds that are installed. If the user may not list one of them, the
/// error is returned for a finding.
async fn read_routes(
    client: &Client,
    reader: &mut ManifestReader,
) -> Result<Option<ApiError>, ApiError> {
    let mut forbidden = None;
    for resource in ROUTES {
        let spec = WatchSpec { on_missing: OnMissing::TreatAsEmpty, ..WatchSpec::all(resource) };
        match read_kind(client, &spec, reader, || ()).await {
            Ok(_) => (),
            Err(error @ ApiError::Forbidden { .. }) => _ = forbidden.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    Ok(forbidden)
}

fn memcacheds_unread(error: &ApiError) -> Finding {
    Finding {
        location: None,
        code: "memcacheds-unread",
        severity: Severity::Info,
        object: None,
        field: String::new(),
        message: format!("{}: Memcacheds are not checked, their NetworkPolicies are", error.text()),
        hint: error.hint(),
    }
}

fn services_unread(error: &ApiError) -> Finding {
    Finding {
        location: None,
        code: SERVICES_UNREAD,
        severity: Severity::Info,
        object: None,
        field: String::new(),
        message: format!("{}: Services and their addresses are unknown", error.text()),
        hint: error.hint(),
    }
}

fn routes_unread(error: &ApiError) -> Finding {
    Finding {
        location: None,
        code: ROUTES_UNREAD,
        severity: Severity::Info,
        object: None,
        field: String::new(),
        message: format!("{}: some Ingresses or routes are unknown", error.text()),
        hint: error.hint(),
    }
}

fn selects_nodes(policy: &Policy) -> bool {
    let rules = policy.spec.ingress.iter().chain(&policy.spec.egress);
    rules
        .flatten()
        .flat_map(|rule| rule.peers.iter().flatten())
        .any(|peer| matches!(peer.who, Who::Nodes(_)))
}

fn nodes_unread(error: &ApiError) -> Finding {
    Finding {
        location: None,
        code: "nodes-unread",
        severity: Severity::Warning,
        object: None,
        field: String::new(),
        message: format!("{error}: the addresses of nodes are unknown"),
        hint: error.hint(),
    }
}
