//! The server of the page.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State, rejection::BytesRejection},
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
use weir_view::page::{PageData, PageError, PageRequest};

use crate::{
    access::{AccessRules, RESPONSE_HEADERS, Rejection},
    assets,
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
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(rules, check))
}

/// Checks every request, and adds the headers to every response.
async fn check(State(rules): State<Arc<AccessRules>>, request: Request, next: Next) -> Response {
    let mut response = match rules.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(rejection) => rejected(rejection),
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
        None => failed(
            StatusCode::NOT_FOUND,
            "there is no such file",
            "open the address that `weir ui` printed",
        ),
    }
}

async fn wrong_method() -> Response {
    let hint = "send POST to /api, and GET for the files of the page";
    failed(StatusCode::METHOD_NOT_ALLOWED, "the path does not have this method", hint)
}

async fn answer(
    State(answers): State<Answers>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    if let Err(rejection) = answers.rules.check_data(&headers) {
        return rejected(rejection);
    }
    let body = match body {
        Ok(body) => body,
        Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let what = format!("the request has more than {} MiB", MAX_BODY_BYTES >> 20);
            let hint = "evaluate fewer manifests at a time, or use `weir diff`";
            return failed(StatusCode::PAYLOAD_TOO_LARGE, what, hint);
        }
        Err(error) => return failed(error.status(), error.body_text(), ""),
    };
    let request: PageRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let what = format!("the request cannot be read: {error}");
            return failed(StatusCode::BAD_REQUEST, what, "reload the page in the browser");
        }
    };
    let Ok(_waiting) = answers.waiting.try_acquire() else {
        return busy();
    };
    let Ok(running) = Arc::clone(&answers.running).acquire_owned().await else {
        return busy();
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
        Err(_) => {
            let hint = "the output of `weir ui` has the details; please report them";
            failed(StatusCode::INTERNAL_SERVER_ERROR, "the request failed", hint)
        }
    }
}

fn busy() -> Response {
    let hint = "wait until the other requests are answered, or close other tabs of this page";
    failed(StatusCode::SERVICE_UNAVAILABLE, "too many requests are waiting", hint)
}

fn rejected(Rejection { status, error, hint }: Rejection) -> Response {
    failed(status, error, hint)
}

/// A response that says what failed, and how to resolve it.
fn failed(status: StatusCode, error: impl Into<String>, hint: &str) -> Response {
    let error = PageError { error: error.into(), hint: hint.to_owned() };
    json(status, serde_json::to_vec(&error))
}

fn json(status: StatusCode, body: serde_json::Result<Vec<u8>>) -> Response {
    match body {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests;
