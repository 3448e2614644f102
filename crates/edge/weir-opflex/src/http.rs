use std::sync::Arc;

use axum::{Json, Router, extract::State, response::IntoResponse, routing::get};

use crate::report::{OpflexReport, OpflexStatus};

/// The HTTP endpoints.
pub(crate) fn router(report: Arc<OpflexReport>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/container", get(async || weir_runtime::http::container()))
        .route("/status", get(status))
        .with_state(report.clone())
        .merge(metrics_router(report))
}

/// Only `/metrics`.
pub(crate) fn metrics_router(report: Arc<OpflexReport>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(report)
}

async fn readyz(State(report): State<Arc<OpflexReport>>) -> impl IntoResponse {
    weir_runtime::http::readiness(&report.reasons())
}

async fn metrics(State(report): State<Arc<OpflexReport>>) -> impl IntoResponse {
    weir_runtime::http::metrics(&report.registry)
}

async fn status(State(report): State<Arc<OpflexReport>>) -> Json<OpflexStatus> {
    Json(report.status().clone())
}
