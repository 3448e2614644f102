//! Serves `/hpp`: the policies that share each object.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{Json, Router, extract::State, routing::get};
use serde_json::Value;
use tokio::task::JoinSet;
use weir_aci::{HostprotId, HostprotKind, HostprotObject};

/// The status of each HostprotPol, by its name in ACI.
type Statuses = Arc<Mutex<BTreeMap<String, Value>>>;

/// The HTTP server for `/hpp`.
pub(super) struct StatusServer {
    statuses: Statuses,
    /// The names of HostprotPols in ACI by their object names.
    names: BTreeMap<String, String>,
    /// Why the server does not run.
    problem: Option<String>,
    /// Aborts the server on drop.
    _server: JoinSet<()>,
}

impl StatusServer {
    pub(super) fn start(address: Option<SocketAddr>) -> Self {
        let (statuses, mut server) = (Statuses::default(), JoinSet::new());
        let problem = address.and_then(|address| match TcpListener::bind(address) {
            Ok(listener) => {
                let router = Router::new().route("/hpp", get(hpp)).with_state(statuses.clone());
                server.spawn(weir_runtime::http::serve(listener, router));
                None
            }
            Err(error) => Some(format!(
                "cannot listen at {address} for /hpp: {error}; choose another address with \
                 `--hpp-http`, or `off`"
            )),
        });
        StatusServer { statuses, names: BTreeMap::new(), problem, _server: server }
    }

    /// Records an object, or its deletion.
    pub(super) fn put(
        &mut self,
        id: &HostprotId,
        object: Option<&HostprotObject>,
        namespace: &str,
    ) {
        if id.kind != HostprotKind::Pol {
            return;
        }
        let status = match object {
            Some(HostprotObject::Pol(pol)) => pol.status(namespace),
            Some(HostprotObject::Container(_)) | None => None,
        };
        let mut statuses = lock(&self.statuses);
        if let Some(old) = self.names.remove(&id.name) {
            statuses.remove(&old);
        }
        if let Some((name, status)) = status {
            self.names.insert(id.name.clone(), name.clone());
            statuses.insert(name, status);
        }
    }

    /// Why the server does not run.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}

async fn hpp(State(statuses): State<Statuses>) -> Json<Value> {
    let statuses = lock(&statuses);
    let statuses = statuses.iter().map(|(name, status)| (name.clone(), status.clone()));
    Json(Value::Object(statuses.collect()))
}

fn lock(statuses: &Statuses) -> MutexGuard<'_, BTreeMap<String, Value>> {
    statuses.lock().unwrap_or_else(PoisonError::into_inner)
}
