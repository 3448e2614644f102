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

/// The channel of standard output in a message of pods/exec.
const STDOUT: u8 = 1;

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
    /// The nodes and commands whose connection is to be closed.
    closing: BTreeSet<(String, String)>,
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

    /// The command (`flows` or `drops`) in the pod of this node prints a text.
    pub(crate) fn print(&self, node: &str, command: &str, text: &str) {
        let mut script = self.state.script.lock().unwrap();
        let output = script.output.entry((node.to_owned(), command.to_owned())).or_default();
        output.push_str(text);
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

    /// Prints the lines of a command until the test ends it.
    fn run(&self, stream: TcpStream, exec: &str) {
        let node = exec.split('/').next().unwrap().to_owned();
        let command = if exec.contains("command=flows") { "flows" } else { "drops" };
        assert!(
            exec.contains("command=--follow") && exec.contains("command=--heartbeat"),
            "{exec}"
        );
        let key = (node, command.to_owned());
        #[allow(clippy::result_large_err, reason = "the type of the library")]
        let accept = |_: &Request, mut response: Response| {
            let protocol = HeaderValue::from_static("v4.channel.k8s.io");
            response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
            Ok(response)
        };
        let Ok(mut socket) = tungstenite::accept_hdr(stream, accept) else { return };
        loop {
            let (text, is_closing) = {
                let mut script = self.script.lock().unwrap();
                (script.output.remove(&key), script.closing.remove(&key))
            };
            if let Some(text) = text {
                let message = [&[STDOUT][..], text.as_bytes()].concat();
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
        let items: Vec<Value> = if path.starts_with("/api/v1/nodes") {
            self.agents.iter().chain(&self.others).map(node).collect()
        } else {
            self.agents.iter().map(pod).collect()
        };
        let body = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
        let body = body.to_string();
        let length = body.len();
        _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        _ = stream.shutdown(std::net::Shutdown::Write);
        _ = stream.read(&mut [0; 4096]);
    }
}
