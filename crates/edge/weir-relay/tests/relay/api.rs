//! A server that answers like an API server: lists, watches and token reviews.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// The path of each collection, and the kind of its objects.
const COLLECTIONS: [(&str, &str); 5] = [
    ("/api/v1/namespaces", "Namespace"),
    ("/api/v1/nodes", "Node"),
    ("/api/v1/pods", "Pod"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy"),
    ("/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies", ADMIN),
];

/// A kind that is served from its first object on.
pub(crate) const ADMIN: &str = "AdminNetworkPolicy";

#[derive(Default)]
struct Store {
    version: u64,
    objects: BTreeMap<(&'static str, String), Value>,
    events: Vec<(u64, &'static str, Value)>,
    lists: usize,
    reviews: usize,
    is_cut: bool,
    serves_admin: bool,
    /// Whether definitions cannot be read.
    hides_definitions: bool,
    /// The kind that cannot be listed or watched.
    forbidden: Option<&'static str>,
}

/// The server, and the objects that it has.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<Store>, Condvar)>,
}

impl Api {
    /// A server on a listener, which can be in another network namespace.
    pub(crate) fn start(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let shared: Arc<(Mutex<Store>, Condvar)> = Arc::default();
        shared.0.lock().unwrap().version = 100;
        let server = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                thread::spawn(move || _ = serve(&server, stream));
            }
        });
        Api { address, shared }
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, kind: &str, mut object: Value) {
        let kind = COLLECTIONS.iter().find(|(_, known)| *known == kind).unwrap().1;
        let mut store = self.shared.0.lock().unwrap();
        store.serves_admin |= kind == ADMIN;
        store.version += 1;
        object["metadata"]["resourceVersion"] = store.version.to_string().into();
        let (version, key) = (store.version, (kind, key(&object)));
        let verb = if store.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        store.objects.insert(key, object.clone());
        store.events.push((version, kind, json!({"type": verb, "object": object})));
        self.shared.1.notify_all();
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let kind = COLLECTIONS.iter().find(|(_, known)| *known == kind).unwrap().1;
        let mut store = self.shared.0.lock().unwrap();
        store.version += 1;
        let version = store.version;
        let mut object = store.objects.remove(&(kind, format!("{namespace}/{name}"))).unwrap();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        store.events.push((version, kind, json!({"type": "DELETED", "object": object})));
        self.shared.1.notify_all();
    }

    /// The number of lists and of token reviews so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let store = self.shared.0.lock().unwrap();
        (store.lists, store.reviews)
    }

    /// Refuses requests for a kind from now on. Open watches go on.
    pub(crate) fn forbid(&self, kind: Option<&'static str>) {
        self.shared.0.lock().unwrap().forbidden = kind;
    }

    /// Serves no admin policies from now on, as right after a start, and no definitions. Open watches
    /// go on.
    pub(crate) fn hide_admin_policies(&self) {
        let mut store = self.shared.0.lock().unwrap();
        (store.serves_admin, store.hides_definitions) = (false, true);
    }

    /// Answers nothing from now on, or again.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.shared.0.lock().unwrap().is_cut = is_cut;
        self.shared.1.notify_all();
    }
}

fn key(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn serve(shared: &(Mutex<Store>, Condvar), stream: TcpStream) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let lower = |line: &String| line.to_ascii_lowercase();
        let length = head
            .iter()
            .map(lower)
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        input.read_exact(&mut body)?;
        if shared.0.lock().unwrap().is_cut {
            return Ok(());
        }
        let target = head[0].split(' ').nth(1).unwrap_or_default().to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query: BTreeMap<&str, &str> =
            query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        if path.ends_with("/tokenreviews") {
            shared.0.lock().unwrap().reviews += 1;
            let review: Value = serde_json::from_slice(&body).unwrap_or_default();
            answer(&mut out, 201, &reviewed(review))?;
            continue;
        }
        let (serves_admin, hides_definitions) = {
            let store = shared.0.lock().unwrap();
            (store.serves_admin, store.hides_definitions)
        };
        let mut served = COLLECTIONS.iter().filter(|(_, kind)| serves_admin || *kind != ADMIN);
        let Some((_, kind)) = served.find(|(known, _)| *known == path) else {
            let name = path.rsplit('/').next().unwrap_or_default();
            let status = json!({"kind": "Status", "code": 404, "reason": "NotFound",
                "message": "not found", "details": {"name": name}});
            // Only the definitions are served, and none exists.
            let is_definition = path.contains("/customresourcedefinitions/");
            if is_definition && hides_definitions {
                let status = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "forbidden"});
                answer(&mut out, 403, &status)?;
                continue;
            }
            answer(&mut out, 404, if is_definition { &status } else { &Value::Null })?;
            continue;
        };
        if shared.0.lock().unwrap().forbidden == Some(*kind) {
            let status = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "forbidden"});
            answer(&mut out, 403, &status)?;
        } else if query.contains_key("sendInitialEvents") {
            let status = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "unsupported"});
            answer(&mut out, 422, &status)?;
        } else if query.contains_key("watch") {
            return watch(shared, &mut out, kind, query.get("resourceVersion").copied());
        } else {
            let list = {
                let mut store = shared.0.lock().unwrap();
                store.lists += 1;
                let items = store.objects.iter().filter(|((of, _), _)| of == kind);
                json!({
                    "kind": format!("{kind}List"), "apiVersion": "v1",
                    "metadata": {"resourceVersion": store.version.to_string()},
                    "items": items.map(|(_, object)| object.clone()).collect::<Vec<_>>(),
                })
            };
            answer(&mut out, 200, &list)?;
        }
    }
}

/// A token for relays. Its signature is a name.
pub(crate) fn token(name: &str) -> String {
    format!("e30.eyJhdWQiOlsid2Vpci1yZWxheSJdfQ.{name}")
}

/// The names in the tokens of agents are `agent-` and the node, for the audience that was asked for.
fn reviewed(review: Value) -> Value {
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let name = token.rsplit('.').next().unwrap_or_default();
    let status = match name.strip_prefix("agent-") {
        Some(node) => json!({
            "authenticated": true,
            "audiences": review["spec"]["audiences"],
            "user": {
                "username": "system:serviceaccount:weir:agent",
                "extra": {"authentication.kubernetes.io/node-name": [node]},
            },
        }),
        None => json!({"authenticated": false}),
    };
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
        "spec": review["spec"], "status": status})
}

fn answer(out: &mut TcpStream, code: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        out,
        "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn watch(
    shared: &(Mutex<Store>, Condvar),
    out: &mut TcpStream,
    kind: &str,
    from: Option<&str>,
) -> std::io::Result<()> {
    let mut from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
    write!(out, "HTTP/1.1 200 -\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")?;
    loop {
        let mut lines = String::new();
        {
            let store = shared.0.lock().unwrap();
            let wait = Duration::from_secs(1);
            let is_idle = |store: &mut Store| store.version == from && !store.is_cut;
            let (store, timeout) = shared.1.wait_timeout_while(store, wait, is_idle).unwrap();
            if store.is_cut {
                return Ok(());
            }
            for (_, _, event) in
                store.events.iter().filter(|(version, of, _)| *version > from && *of == kind)
            {
                lines += &format!("{event}\n");
            }
            from = store.version;
            if timeout.timed_out() {
                let metadata = json!({"resourceVersion": from.to_string()});
                let bookmark =
                    json!({"type": "BOOKMARK", "object": {"kind": kind, "metadata": metadata}});
                lines += &format!("{bookmark}\n");
            }
        }
        out.write_all(lines.as_bytes())?;
    }
}
