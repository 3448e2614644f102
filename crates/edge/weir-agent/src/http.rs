//! What can be asked over HTTP. Only the report is read: the loop never waits for anybody here.

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
    drops::Page,
    report::{Report, Status},
};

/// How many may wait for drops at once; the others are answered at once.
pub(crate) const WAITING: usize = 32;
/// How long to wait for drops that have not happened yet, at most.
const WAIT: u64 = 30;

/// What can be asked for at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Everything, also who talks to whom.
    Everything,
    /// What is counted, for those who may know no more.
    Metrics,
}

/// The paths of an address.
pub(crate) fn router(report: Arc<Report>, offer: Offer) -> Router {
    let router = Router::new().route("/metrics", get(metrics));
    let router = match offer {
        Offer::Metrics => router,
        Offer::Everything => router
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .route("/drops", get(drops)),
    };
    router.with_state(report)
}

async fn healthz(State(report): State<Arc<Report>>) -> impl IntoResponse {
    match report.is_alive() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the loop does not answer\n"),
    }
}

async fn readyz(State(report): State<Arc<Report>>) -> impl IntoResponse {
    weir_runtime::http::readiness(&report.status().reasons())
}

async fn metrics(State(report): State<Arc<Report>>) -> impl IntoResponse {
    weir_runtime::http::metrics(&report.registry)
}

#[derive(Serialize)]
struct Answer {
    ready: bool,
    /// Why not.
    reasons: Vec<String>,
    #[serde(flatten)]
    status: Status,
}

async fn status(State(report): State<Arc<Report>>) -> impl IntoResponse {
    let status = report.status().clone();
    let reasons = status.reasons();
    Json(Answer { ready: reasons.is_empty(), reasons, status })
}

#[derive(Deserialize)]
struct Since {
    /// Only drops with a higher number.
    #[serde(default)]
    after: u64,
    /// So many seconds are waited for one, if there is none.
    #[serde(default)]
    wait: u64,
}

async fn drops(
    State(report): State<Arc<Report>>,
    Query(Since { after, wait }): Query<Since>,
) -> impl IntoResponse {
    let mut last = report.drops.subscribe();
    let page = || Page { deaf: report.status().deaf.clone(), ..report.drops.after(after) };
    let now = page();
    if !now.drops.is_empty() || wait == 0 {
        return Json(now);
    }
    let Ok(_place) = report.waiting.try_acquire() else { return Json(now) };
    // Whether one came or the time is over: the page tells.
    _ = timeout(Duration::from_secs(wait.min(WAIT)), last.changed()).await;
    Json(page())
}
