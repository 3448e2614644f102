//! The HTTP paths. They read only the report, so no request ever blocks the loop.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::StatusCode,
    response::IntoResponse,
    routing::get,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::{
    drops::DropsPage,
    report::{AgentReport, AgentStatus},
};

/// The most requests that wait for drops or flows at a time. Further ones get an empty page immediately.
pub(crate) const MAX_WAITING: usize = 32;
/// The longest time that a request waits, in seconds.
const MAX_WAIT_SECONDS: u64 = 30;

/// The response to a liveness probe of an agent that works.
const ALIVE: (StatusCode, &str) = (StatusCode::OK, "ok\n");

/// The paths that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// All paths, also those that reveal which pods communicate.
    Everything,
    /// Only `/metrics`.
    Metrics,
}

/// The router of an address.
pub(crate) fn router(report: Arc<AgentReport>, offer: Offer) -> Router {
    let router = Router::new().route("/metrics", get(metrics));
    let router = match offer {
        Offer::Metrics => router,
        Offer::Everything => router
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/container", get(container))
            .route("/status", get(status))
            .route("/drops", get(drops))
            .route("/flows", get(flows))
            .route("/policies", get(policies))
            .route("/names", get(names)),
    };
    router.with_state(report)
}

/// The router of an agent that waits: it works, and is not ready for this reason.
pub(crate) fn waiting_router(reason: String) -> Router {
    let readyz = move || std::future::ready(weir_runtime::http::readiness(&[reason]));
    Router::new()
        .route("/healthz", get(async || ALIVE))
        .route("/readyz", get(readyz))
        .route("/container", get(container))
}

async fn container() -> impl IntoResponse {
    weir_runtime::http::container()
}

async fn healthz(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    if report.is_alive() {
        ALIVE
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the agent's loop hangs\n")
    }
}

async fn readyz(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    weir_runtime::http::readiness(&report.status().reasons())
}

async fn metrics(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    weir_runtime::http::metrics(&report.registry)
}

#[derive(Serialize)]
struct StatusBody {
    /// The schema of `weir status -o json`, with its version.
    #[serde(rename = "schemaVersion")]
    schema_version: &'static str,
    ready: bool,
    /// Why the agent is not ready.
    reasons: Vec<String>,
    /// The number of reported drops since the agent started. In audit mode nothing was dropped.
    drops: u64,
    #[serde(flatten)]
    status: AgentStatus,
}

async fn status(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    let mut status = report.status().clone();
    if status.staged.count > 0 {
        status.staged.reports_unavailable = report.flows.unavailable();
    }
    let reasons = status.reasons();
    Json(StatusBody {
        schema_version: "weir.dev/status/v1",
        ready: reasons.is_empty(),
        reasons,
        drops: report.drops.last(),
        status,
    })
}

async fn names(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    Json(report.names().clone())
}

#[derive(Deserialize)]
struct PageQuery {
    /// Return only entries with a higher number.
    #[serde(default)]
    after: u64,
    /// If there is none, wait this many seconds for one.
    #[serde(default)]
    wait: u64,
}

async fn drops(
    State(report): State<Arc<AgentReport>>,
    Query(PageQuery { after, wait }): Query<PageQuery>,
) -> impl IntoResponse {
    let mut last = report.drops.subscribe();
    let page =
        || DropsPage { drops_unavailable: report.drops_unavailable(), ..report.drops.after(after) };
    let now = page();
    if !now.drops.is_empty() || wait == 0 {
        return Json(now);
    }
    let Ok(_slot) = report.waiting.try_acquire() else { return Json(now) };
    // The page is the same whether a drop arrived or the time is over.
    _ = timeout(Duration::from_secs(wait.min(MAX_WAIT_SECONDS)), last.changed()).await;
    Json(page())
}

async fn flows(
    State(report): State<Arc<AgentReport>>,
    Query(PageQuery { after, wait }): Query<PageQuery>,
) -> impl IntoResponse {
    let mut last = report.flows.subscribe();
    let now = report.flows.since(after);
    if !now.flows.is_empty() || wait == 0 {
        return Json(now);
    }
    let Ok(_slot) = report.waiting.try_acquire() else { return Json(now) };
    _ = timeout(Duration::from_secs(wait.min(MAX_WAIT_SECONDS)), last.changed()).await;
    Json(report.flows.since(after))
}

async fn policies(State(report): State<Arc<AgentReport>>) -> impl IntoResponse {
    Json(report.flows.policies())
}
