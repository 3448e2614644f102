//! Serves `/hpp`, as the controller does: the policies that share each object.

use std::net::{SocketAddr, TcpListener};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::run::OpflexEvent;

/// Serves `/hpp` until the result is dropped. If the address is not free, the agent works without:
/// Cisco's controller serves the same there.
pub(crate) fn serve(address: Option<SocketAddr>, loop_: &mpsc::Sender<OpflexEvent>) -> JoinSet<()> {
    let mut server = JoinSet::new();
    let Some(address) = address else { return server };
    match TcpListener::bind(address) {
        Ok(listener) => {
            let router = Router::new().route("/hpp", get(hpp)).with_state(loop_.clone());
            server.spawn(weir_runtime::http::serve(listener, router));
        }
        Err(error) => tracing::warn!(
            "/hpp is not served: cannot listen at {address}: {error}; choose another address with \
             `--hpp-http`, or `off`"
        ),
    }
    server
}

async fn hpp(State(events): State<mpsc::Sender<OpflexEvent>>) -> Response {
    let (answer, status) = oneshot::channel();
    let unavailable = |why: &'static str| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if events.send(OpflexEvent::Status(answer)).await.is_err() {
        return unavailable("the agent is stopping\n");
    }
    match status.await {
        Ok(Some(status)) => Json(status).into_response(),
        Ok(None) => unavailable("the objects have not been listed yet\n"),
        Err(_) => unavailable("the agent is stopping\n"),
    }
}
