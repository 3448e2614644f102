//! A scripted API server on a loopback socket.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_kube::Access;

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// The last segment of the path, as in `pods`.
    pub(crate) plural: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) at: Instant,
}

impl Request {
    /// Whether this is a watch that does not begin with a list.
    pub(crate) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true") && !self.is_stream()
    }

    /// Whether this is a watch that begins with a list.
    pub(crate) fn is_stream(&self) -> bool {
        self.query.contains_key("sendInitialEvents")
    }

    pub(crate) fn is_list_of(&self, plural: &str) -> bool {
        self.plural == plural && !self.is_watch() && !self.is_stream()
    }

    pub(crate) fn is_watch_of(&self, plural: &str) -> bool {
        self.plural == plural && self.is_watch()
    }

    fn version(&self) -> u64 {
        let version = self.query.get("resourceVersion").and_then(|text| text.parse().ok());
        version.unwrap_or_default()
    }

    /// Whether any state from a version on suffices.
    pub(crate) fn is_not_older_than(&self) -> bool {
        self.query.get("resourceVersionMatch").is_some_and(|rule| rule == "NotOlderThan")
    }

    fn parse(line: &str) -> Self {
        let target = line.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        Request {
            path: path.into(),
            plural: path.rsplit('/').next().unwrap_or_default().into(),
            query: query.map(|(key, value)| (key.into(), value.into())).collect(),
            at: Instant::now(),
        }
    }
}

/// A response that replaces the normal one.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A complete response with a correct Content-Length.
    Answer { code: u16, headers: String, body: Vec<u8> },
    /// The same in two parts. The second one is sent after another request that matches.
    Parts { first: String, second: String, after: fn(&Request) -> bool },
    /// A watch that sends these chunks, each after a delay.
    Stream { chunks: Vec<(Duration, String)>, end: End },
    /// A watch of protocol buffers, which stays open.
    Protobuf(Vec<u8>),
}

/// The end of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Close,
    /// The connection stays open, and silent.
    Hold,
}

impl Reply {
    pub(crate) fn status(code: u16, message: &str) -> Self {
        let body = json!({"kind": "Status", "code": code, "message": message}).to_string();
        Reply::Answer { code, headers: String::new(), body: body.into() }
    }

    pub(crate) fn ok(body: impl ToString) -> Self {
        Reply::Answer { code: 200, headers: String::new(), body: body.to_string().into() }
    }

    pub(crate) fn silence() -> Self {
        Reply::Stream { chunks: Vec::new(), end: End::Hold }
    }
}

type Fault = Box<dyn FnMut(&Request) -> Option<Reply> + Send>;

/// A small API server: lists and watches the objects that tests put into it.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    folder: TempDir,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    fault: Mutex<Option<Fault>>,
    log: Mutex<Vec<Request>>,
    sends_bookmarks: AtomicBool,
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<(String, String), Value>,
    /// Version, plural and event.
    events: Vec<(u64, String, Value)>,
    /// How often all watches were ended.
    ended: u64,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().version = 100;
        let server = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                thread::spawn(move || server.serve(stream));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "token").unwrap();
        Server { address, shared, folder }
    }

    pub(crate) fn access(&self) -> Access {
        let url = format!("http://{}", self.address);
        Access::direct(&url, &self.folder.path().join("token"), None)
    }

    /// Creates or changes an object and sends the event to open watches.
    pub(crate) fn put(&self, plural: &str, name: &str, mut object: Value) {
        let mut state = self.shared.state.lock().unwrap();
        state.version += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        let event = json!({"type": "MODIFIED", "object": object});
        let version = state.version;
        state.events.push((version, plural.into(), event));
        state.objects.insert((plural.into(), name.into()), object);
    }

    /// Creates or changes an object. The event is lost on its way.
    pub(crate) fn put_silently(&self, plural: &str, name: &str, object: Value) {
        self.put(plural, name, object);
        self.shared.state.lock().unwrap().events.pop();
    }

    /// Ends all watches that are open.
    pub(crate) fn end_watches(&self) {
        self.shared.state.lock().unwrap().ended += 1;
    }

    /// Changes the store without events, as the restore of an etcd backup does.
    pub(crate) fn restore(&self, version: u64, objects: &[(&str, &str, Value)]) {
        let mut state = self.shared.state.lock().unwrap();
        state.version = version;
        state.events.clear();
        state.objects.clear();
        for (plural, name, object) in objects {
            let mut object = object.clone();
            object["metadata"]["name"] = (*name).into();
            state.objects.insert(((*plural).into(), (*name).into()), object);
        }
    }

    /// From now on, watches send bookmarks.
    pub(crate) fn send_bookmarks(&self) {
        self.shared.sends_bookmarks.store(true, Ordering::Relaxed);
    }

    /// Sets the fault: a function that can replace any response.
    pub(crate) fn inject(&self, fault: impl FnMut(&Request) -> Option<Reply> + Send + 'static) {
        *self.shared.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn heal(&self) {
        *self.shared.fault.lock().unwrap() = None;
    }

    /// The requests so far that match.
    pub(crate) fn requests(&self, matches: impl Fn(&Request) -> bool) -> Vec<Request> {
        let log = self.shared.log.lock().unwrap();
        log.iter().filter(|request| matches(request)).cloned().collect()
    }

    /// The response to a list of everything.
    pub(crate) fn list(&self, plural: &str) -> Value {
        self.shared.list(plural)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line);
            }
            let request = Request::parse(&lines[0]);
            self.log.lock().unwrap().push(request.clone());
            let is_list = !request.is_watch() && !request.is_stream();
            if self.answer(&request, &stream).is_err() || !is_list {
                return;
            }
        }
    }

    fn answer(&self, request: &Request, mut stream: &TcpStream) -> io::Result<()> {
        let fault = self.fault.lock().unwrap().as_mut().and_then(|fault| fault(request));
        match fault {
            Some(Reply::Answer { code, headers, body }) => {
                let end = if request.is_stream() { "Connection: close\r\n" } else { "" };
                write_answer(stream, code, &(headers + end), &body)
            }
            Some(Reply::Parts { first, second, after }) => {
                let length = first.len() + second.len();
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{first}")?;
                while !self.log.lock().unwrap().iter().any(after) && !self.is_stopped() {
                    self.wait(Duration::from_millis(5));
                }
                stream.write_all(second.as_bytes())
            }
            Some(Reply::Stream { chunks, end }) => {
                write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
                for (delay, chunk) in chunks {
                    self.wait(delay);
                    stream.write_all(chunk.as_bytes())?;
                }
                if let End::Hold = end {
                    self.hold();
                }
                Ok(())
            }
            Some(Reply::Protobuf(body)) => {
                let media = "application/vnd.kubernetes.protobuf;stream=watch";
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n\r\n")?;
                stream.write_all(&body)?;
                self.hold();
                Ok(())
            }
            // As an API server without lists as events.
            None if request.is_stream() => {
                let message = "resourceVersionMatch is forbidden for watch";
                let status = json!({"kind": "Status", "code": 422, "message": message});
                write_answer(stream, 422, "Connection: close\r\n", status.to_string())
            }
            None if request.is_watch() => self.watch(request, stream),
            None if kind_of(&request.plural).is_some() => self.answer_list(request, stream),
            None if request.path.contains("/customresourcedefinitions/") => {
                let status = json!({
                    "kind": "Status", "reason": "NotFound", "code": 404,
                    "details": {"name": request.plural, "kind": "customresourcedefinitions"},
                });
                write_answer(stream, 404, "", status.to_string())
            }
            None => write_answer(stream, 404, "", "404 page not found"),
        }
    }

    fn answer_list(&self, request: &Request, stream: &TcpStream) -> io::Result<()> {
        let current = self.state.lock().unwrap().version;
        if request.version() > current {
            let message = format!("Too large resource version, current: {current}");
            let status = json!({"kind": "Status", "code": 504, "message": message});
            return write_answer(stream, 504, "", status.to_string());
        }
        let mut list = self.list(&request.plural);
        let number = |key: &str| request.query.get(key).and_then(|text| text.parse().ok());
        let start: usize = number("continue").unwrap_or(0);
        let limit = number("limit").unwrap_or(usize::MAX);
        if let Value::Array(items) = &mut list["items"] {
            let end = items.len().min(start.saturating_add(limit));
            let is_page = end < items.len();
            *items = items.drain(start.min(end)..end).collect();
            if is_page {
                list["metadata"]["continue"] = end.to_string().into();
            }
        }
        write_answer(stream, 200, "", list.to_string())
    }

    fn watch(&self, request: &Request, mut stream: &TcpStream) -> io::Result<()> {
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
        let mut position = request.version();
        let ended = self.state.lock().unwrap().ended;
        while !self.is_stopped() {
            let state = self.state.lock().unwrap();
            if state.ended != ended {
                return Ok(());
            }
            let mut text = String::new();
            for (version, plural, event) in &state.events {
                if *version > position && *plural == request.plural {
                    text += &format!("{event}\n");
                    position = *version;
                }
            }
            drop(state);
            if self.sends_bookmarks.load(Ordering::Relaxed) {
                let object = json!({"metadata": {"resourceVersion": position.to_string()}});
                text += &format!("{}\n", json!({"type": "BOOKMARK", "object": object}));
            }
            stream.write_all(text.as_bytes())?;
            self.wait(Duration::from_millis(10));
        }
        Ok(())
    }

    fn list(&self, plural: &str) -> Value {
        let state = self.state.lock().unwrap();
        let objects = state.objects.iter().filter(|((of, _), _)| of == plural);
        json!({
            "kind": format!("{}List", kind_of(plural).unwrap_or_default()),
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": objects.map(|(_, object)| object).collect::<Vec<_>>(),
        })
    }

    /// Keeps a connection open.
    fn hold(&self) {
        while !self.is_stopped() {
            self.wait(Duration::from_millis(20));
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// The kinds that the server knows. All others are not installed.
pub(crate) fn kind_of(plural: &str) -> Option<&'static str> {
    match plural {
        "pods" => Some("Pod"),
        "namespaces" => Some("Namespace"),
        "nodes" => Some("Node"),
        "networkpolicies" => Some("NetworkPolicy"),
        "adminnetworkpolicies" => Some("AdminNetworkPolicy"),
        _ => None,
    }
}

fn write_answer(
    mut stream: &TcpStream,
    code: u16,
    headers: &str,
    body: impl AsRef<[u8]>,
) -> io::Result<()> {
    let (body, length) = (body.as_ref(), body.as_ref().len());
    let head = format!("HTTP/1.1 {code} Scripted\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())
}
