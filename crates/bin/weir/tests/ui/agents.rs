//! A fake API server with agents: it lists their pods, and prints scripted lines in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tungstenite::{
    Message,
    handshake::server::{Request, Response},
    http::HeaderValue,
};

/// The channels of output and of the exit status in messages of pods/exec.
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// The kinds that the API server has, by the last part of the path of their list.
const KINDS: [(&str, &str); 7] = [
    ("namespaces", "Namespace"),
    ("nodes", "Node"),
    ("pods", "Pod"),
    ("networkpolicies", "NetworkPolicy"),
    ("services", "Service"),
    ("endpointslices", "EndpointSlice"),
    ("ingresses", "Ingress"),
];

/// A cluster whose agents print what a test says.
pub(crate) struct FakeCluster {
    state: Arc<State>,
    folder: tempfile::TempDir,
}

struct State {
    /// The nodes with an agent.
    agents: Vec<String>,
    /// The nodes without one.
    others: Vec<String>,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    /// The text that waits to be printed, by node and command.
    output: BTreeMap<(String, String), String>,
    /// The same for standard error.
    messages: BTreeMap<(String, String), String>,
    /// The nodes and commands whose connection is to be closed.
    closing: BTreeSet<(String, String)>,
    /// Whether the user may not list nodes.
    hides_nodes: bool,
    /// The number of requests for nodes that were refused.
    refusals: usize,
    /// The objects by the path of their list. With any, other lists are empty.
    objects: BTreeMap<String, Vec<Value>>,
}

impl FakeCluster {
    pub(crate) fn start(agents: &[&str], others: &[&str]) -> Self {
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let (agents, others) = (names(agents), names(others));
        let state = Arc::new(State { agents, others, script: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&own);
                thread::spawn(move || state.serve(stream));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: test, user: {{}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
        );
        std::fs::write(folder.path().join("config"), config).unwrap();
        FakeCluster { state, folder }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        Path::join(self.folder.path(), "config")
    }

    /// The command (`flows`, `drops` or `status`) in the pod of this node prints a text.
    pub(crate) fn print(&self, node: &str, command: &str, text: &str) {
        let mut script = self.state.script.lock().unwrap();
        let output = script.output.entry((node.to_owned(), command.to_owned())).or_default();
        output.push_str(text);
    }

    /// The command in the pod of this node prints a text to standard error.
    pub(crate) fn print_error(&self, node: &str, command: &str, text: &str) {
        let mut script = self.state.script.lock().unwrap();
        let messages = script.messages.entry((node.to_owned(), command.to_owned())).or_default();
        messages.push_str(text);
    }

    /// Adds an object to the list at a path.
    pub(crate) fn add(&self, path: &str, object: Value) {
        let mut script = self.state.script.lock().unwrap();
        script.objects.entry(path.to_owned()).or_default().push(object);
    }

    /// Whether the user may not list nodes.
    pub(crate) fn hide_nodes(&self, hides: bool) {
        self.state.script.lock().unwrap().hides_nodes = hides;
    }

    /// Waits until a request for nodes was refused.
    pub(crate) fn wait_until_refused(&self) {
        while self.state.script.lock().unwrap().refusals == 0 {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the command in the pod of this node printed its text.
    pub(crate) fn wait_until_read(&self, node: &str, command: &str) {
        let key = (node.to_owned(), command.to_owned());
        while self.state.script.lock().unwrap().output.contains_key(&key) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Both commands in the pod of this node end.
    pub(crate) fn disconnect(&self, node: &str) {
        let mut script = self.state.script.lock().unwrap();
        script.closing.extend(["flows", "drops"].map(|name| (node.to_owned(), name.to_owned())));
    }
}

impl State {
    fn serve(&self, stream: TcpStream) {
        let mut head = [0; 4096];
        let length = stream.peek(&mut head).unwrap_or_default();
        let head = String::from_utf8_lossy(&head[..length]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        match path.strip_prefix("/api/v1/namespaces/weir-system/pods/agent-") {
            Some(exec) => self.run(stream, exec),
            None => self.list(stream, &path),
        }
    }

    /// Prints the lines of a command. With `--follow`, until the test ends it.
    fn run(&self, stream: TcpStream, exec: &str) {
        let node = exec.split('/').next().unwrap().to_owned();
        let is_command = |name: &&str| exec.contains(&format!("command={name}"));
        let command = ["flows", "drops", "status"].into_iter().find(is_command).unwrap();
        let follows = exec.contains("command=--follow");
        assert_eq!(follows, exec.contains("command=--heartbeat"), "{exec}");
        let key = (node, command.to_owned());
        #[allow(clippy::result_large_err, reason = "the type of the library")]
        let accept = |_: &Request, mut response: Response| {
            let protocol = HeaderValue::from_static("v4.channel.k8s.io");
            response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
            Ok(response)
        };
        let Ok(mut socket) = tungstenite::accept_hdr(stream, accept) else { return };
        loop {
            let (messages, is_closing) = {
                let mut script = self.script.lock().unwrap();
                let (output, errors) = (script.output.remove(&key), script.messages.remove(&key));
                let status = (!follows).then(|| json!({"status": "Success"}).to_string());
                let parts = [(STDERR, errors), (STDOUT, output), (STATUS, status)];
                let messages = parts
                    .into_iter()
                    .filter_map(|(channel, text)| Some([&[channel], text?.as_bytes()].concat()));
                (messages.collect::<Vec<_>>(), !follows || script.closing.remove(&key))
            };
            for message in messages {
                if socket.send(Message::binary(message)).is_err() {
                    return;
                }
            }
            if is_closing {
                _ = socket.close(None);
                _ = socket.flush();
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Answers a list, and closes the connection.
    fn list(&self, mut stream: TcpStream, path: &str) {
        let pod = |node: &String| {
            json!({
                "metadata": {"name": format!("agent-{node}"), "namespace": "weir-system",
                    "labels": {"app.kubernetes.io/component": "agent"}},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "agent", "state": {"running": {}}}]},
            })
        };
        let node = |name: &String| json!({"metadata": {"name": name}});
        let objects = self.script.lock().unwrap().objects.clone();
        let list = path.split('?').next().unwrap_or_default();
        let items: Vec<Value> = if path.starts_with("/api/v1/nodes") {
            self.agents.iter().chain(&self.others).map(node).collect()
        } else if objects.is_empty() || list == "/api/v1/namespaces/weir-system/pods" {
            self.agents.iter().map(pod).collect()
        } else {
            objects.get(list).cloned().unwrap_or_default()
        };
        let is_hidden = {
            let mut script = self.script.lock().unwrap();
            let is_hidden = path.starts_with("/api/v1/nodes") && script.hides_nodes;
            script.refusals += usize::from(is_hidden);
            is_hidden
        };
        let kind = KINDS.iter().find(|(plural, _)| list.rsplit('/').next() == Some(*plural));
        let (status, body) = match (is_hidden, kind) {
            (false, None) => {
                let absent = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "the server could not find the requested resource",
                    "reason": "NotFound", "code": 404});
                ("404 Not Found", absent)
            }
            (true, _) => {
                let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "forbidden", "reason": "Forbidden", "code": 403});
                ("403 Forbidden", refusal)
            }
            (false, Some((_, kind))) => {
                let metadata = json!({"resourceVersion": "1"});
                let list = json!({"kind": format!("{kind}List"), "apiVersion": "v1",
                    "metadata": metadata, "items": items});
                ("200 OK", list)
            }
        };
        let body = body.to_string();
        let length = body.len();
        _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        _ = stream.shutdown(std::net::Shutdown::Write);
        _ = stream.read(&mut [0; 4096]);
    }
}
