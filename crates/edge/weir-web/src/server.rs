//! The server of the page.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::sync::Semaphore;
use weir_runtime::{
    Signals,
    http::{self, ListenError},
};

use crate::{
    access::{AccessRules, RESPONSE_HEADERS},
    assets,
    request::{PageData, PageError, PageRequest},
};

/// The largest body of a request, for manifests that the user drops on the page.
const MAX_BODY_BYTES: usize = 4 << 20;
/// The most requests that are answered at a time.
const MAX_CONCURRENT: usize = 2;
/// The most requests that wait or are answered.
const MAX_WAITING: usize = 32;

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The port cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system has no random numbers for the token.
    #[error("cannot make a random token")]
    Token,
    /// The system has no resources for the server.
    #[error("cannot start the server")]
    Start(#[source] std::io::Error),
}

/// A server that listens and does not answer yet.
pub struct Server {
    listener: TcpListener,
    rules: AccessRules,
}

impl Server {
    /// Listens on a port of loopback; 0 for any free port.
    pub fn bind(port: u16) -> Result<Self, ServerError> {
        let listener = http::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let port = listener.local_addr().map_err(ServerError::Start)?.port();
        Ok(Server { listener, rules: AccessRules::new(port).map_err(|_| ServerError::Token)? })
    }

    /// The address of the page, with the token.
    pub fn url(&self) -> String {
        self.rules.url()
    }

    /// Answers requests until the process receives a signal to stop.
    pub fn run(self, data: Arc<dyn PageData>) -> Result<(), ServerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServerError::Start)?;
        runtime.block_on(async {
            let mut signals = Signals::stop().map_err(ServerError::Start)?;
            let router = router(self.rules, data);
            tokio::select! {
                () = http::serve(self.listener, router) => (),
                _ = signals.next() => (),
            }
            Ok::<(), ServerError>(())
        })?;
        // An answer that is being computed must not delay the end.
        runtime.shutdown_background();
        Ok(())
    }
}

#[derive(Clone)]
struct Answers {
    data: Arc<dyn PageData>,
    rules: Arc<AccessRules>,
    waiting: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

fn router(rules: AccessRules, data: Arc<dyn PageData>) -> Router {
    let rules = Arc::new(rules);
    let answers = Answers {
        data,
        rules: Arc::clone(&rules),
        waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        running: Arc::new(Semaphore::new(MAX_CONCURRENT)),
    };
    Router::new()
        .route("/api", post(answer).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)))
        .with_state(answers)
        .fallback(get(file))
        .layer(middleware::from_fn_with_state(rules, check))
}

/// Checks every request, and adds the headers to every response.
async fn check(State(rules): State<Arc<AccessRules>>, request: Request, next: Next) -> Response {
    let mut response = match rules.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(status) => status.into_response(),
    };
    response.headers_mut().extend(RESPONSE_HEADERS);
    response
}

async fn file(uri: Uri) -> Response {
    match assets::find(uri.path()) {
        Some(asset) => {
            let kind = HeaderValue::from_static(asset.content_type);
            ([(header::CONTENT_TYPE, kind)], asset.text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn answer(State(answers): State<Answers>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(status) = answers.rules.check_data(&headers) {
        return status.into_response();
    }
    let request: PageRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let error = PageError { error: error.to_string(), hint: String::new() };
            return json(StatusCode::BAD_REQUEST, serde_json::to_vec(&error));
        }
    };
    let Ok(_waiting) = answers.waiting.try_acquire() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let Ok(running) = Arc::clone(&answers.running).acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let data = answers.data;
    let answered = tokio::task::spawn_blocking(move || {
        // The computation holds its place even if the client has closed the connection.
        let _running = running;
        match data.answer(&request) {
            Ok(value) => (StatusCode::OK, serde_json::to_vec(&value)),
            Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, serde_json::to_vec(&error)),
        }
    });
    match answered.await {
        Ok((status, body)) => json(status, body),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn json(status: StatusCode, body: serde_json::Result<Vec<u8>>) -> Response {
    match body {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests;
