use std::sync::Arc;

use axum::{Json, Router, extract::State, response::IntoResponse, routing::get};

use crate::report::{Report, Status};

/// The HTTP endpoints.
pub(crate) fn router(report: Arc<Report>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(report)
}

async fn readyz(State(report): State<Arc<Report>>) -> impl IntoResponse {
    weir_runtime::http::readiness(&report.reasons())
}

async fn metrics(State(report): State<Arc<Report>>) -> impl IntoResponse {
    weir_runtime::http::metrics(&report.registry)
}

async fn status(State(report): State<Arc<Report>>) -> Json<Status> {
    Json(report.status().clone())
}
