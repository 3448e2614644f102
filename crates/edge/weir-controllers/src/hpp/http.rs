//! `/hpp`: which policies share which object.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{Json, Router, extract::State, routing::get};
use serde_json::Value;
use tokio::task::JoinSet;
use weir_aci::{Kind, Object, ObjectId};

/// What is told, by name.
type Told = Arc<Mutex<BTreeMap<String, Value>>>;

/// Somebody may ask about the objects of policies.
pub(super) struct Hearing {
    told: Told,
    /// The names of objects in ACI by their names in the API.
    names: BTreeMap<String, String>,
    trouble: Option<String>,
    /// Ends with us.
    _server: JoinSet<()>,
}

impl Hearing {
    pub(super) fn start(address: Option<SocketAddr>) -> Self {
        let (told, mut server) = (Told::default(), JoinSet::new());
        let trouble = address.and_then(|address| match TcpListener::bind(address) {
            Ok(listener) => {
                let router = Router::new().route("/hpp", get(hpp)).with_state(told.clone());
                server.spawn(weir_runtime::http::serve(listener, router));
                None
            }
            Err(error) => Some(format!(
                "cannot listen at {address} for /hpp: {error}; choose another address with `--hpp-http`, or `off`"
            )),
        });
        Hearing { told, names: BTreeMap::new(), trouble, _server: server }
    }

    /// An object is now so, or gone.
    pub(super) fn put(&mut self, id: &ObjectId, object: Option<&Object>, namespace: &str) {
        if id.kind != Kind::Pol {
            return;
        }
        let status = match object {
            Some(Object::Pol(pol)) => pol.status(namespace),
            Some(Object::Container(_)) | None => None,
        };
        let mut told = lock(&self.told);
        if let Some(old) = self.names.remove(&id.name) {
            told.remove(&old);
        }
        if let Some((name, status)) = status {
            self.names.insert(id.name.clone(), name.clone());
            told.insert(name, status);
        }
    }

    /// Why nobody can ask.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }
}

async fn hpp(State(told): State<Told>) -> Json<Value> {
    let told = lock(&told);
    Json(Value::Object(told.iter().map(|(name, value)| (name.clone(), value.clone())).collect()))
}

fn lock(told: &Told) -> MutexGuard<'_, BTreeMap<String, Value>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
