//! `weir status --follow` and `weir top --follow` print again and again, and end with their reader.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use crate::{agents::FakeCluster, command, schema};

/// A command that prints until it is ended.
struct Following {
    process: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        // A test may have ended it.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Following {
    fn start(cluster: &FakeCluster, arguments: &str) -> Self {
        let mut command = command();
        command.args(arguments.split_whitespace()).arg("--kubeconfig").arg(cluster.kubeconfig());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = process.stdout.take().map(BufReader::new);
        Following { process, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let length = self.out.as_mut().unwrap().read_line(&mut line).unwrap();
        assert!(length > 0, "the command ended");
        line
    }

    fn json(&mut self) -> Value {
        let value = serde_json::from_str(&self.line()).unwrap();
        schema::check(&value);
        value
    }

    /// The lines up to an empty one.
    fn table(&mut self) -> String {
        let mut table = String::new();
        loop {
            match self.line() {
                line if line == "\n" => return table,
                line => table.push_str(&line),
            }
        }
    }

    /// Closes the pipe, and returns the exit status and the messages.
    fn close(&mut self) -> (Option<i32>, String) {
        drop(self.out.take());
        let code = self.process.wait().unwrap().code();
        (code, self.messages())
    }

    fn messages(&mut self) -> String {
        let mut messages = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        messages
    }
}

fn status(is_ready: bool) -> String {
    let status = json!({
        "ready": is_ready, "reasons": [], "version": "0.1.0", "datapath": "nftables",
        "mode": "enforce", "source": {"inSync": true}, "drops": 12, "warnings": [],
        "lockedDown": [], "leftovers": [],
    });
    format!("{status}\n")
}

#[test]
fn a_followed_status_names_nodes_that_are_away_and_survives_an_api_server_that_fails() {
    let cluster = FakeCluster::start(&["n1"], &["n3"]);
    cluster.print("n1", "status", &status(true));
    let mut follow = Following::start(&cluster, "status --follow -o json");
    let nodes = |value: Value| -> Vec<(Value, Value)> {
        let nodes = value["nodes"].as_array().unwrap().iter();
        nodes.map(|node| (node["ready"].clone(), node["problems"].clone())).collect()
    };
    let away = || (Value::Null, json!(["no agent runs on this node"]));
    assert_eq!(nodes(follow.json()), [(json!(true), json!([])), away()]);
    // The agent starts again, and prints nothing.
    let silent = (Value::Null, json!(["does not answer: the agent has not started"]));
    assert_eq!(nodes(follow.json()), [silent, away()]);
    // The list of nodes fails until the agent answers again.
    cluster.hide_nodes(true);
    cluster.print("n1", "status", &status(false));
    cluster.wait_until_refused();
    cluster.hide_nodes(false);
    assert_eq!(nodes(follow.json()), [(json!(false), json!([])), away()]);
    let (code, messages) = follow.close();
    assert_eq!((code, &*messages), (Some(0), "not allowed to list nodes; trying again\n"));
}

#[test]
fn the_first_reading_of_a_followed_status_must_succeed() {
    let cluster = FakeCluster::start(&["n1"], &[]);
    cluster.hide_nodes(true);
    let mut follow = Following::start(&cluster, "status --follow");
    assert_eq!(follow.process.wait().unwrap().code(), Some(2));
    let messages = follow.messages();
    assert!(messages.starts_with("error: not allowed to list nodes\n"), "{messages}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_followed_status_after_a_whole_table() {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{Pid, Signal, kill_process};

    let cluster = FakeCluster::start(&["n1"], &["n3"]);
    cluster.print("n1", "status", &status(true));
    let mut follow = Following::start(&cluster, "status --follow");
    let head = "NODE  VERSION  DATAPATH  MODE     READY      IN SYNC  HELD  DROPS\n";
    let n3 = "n3    -        -         -        no answer\nn3\n  no agent runs on this node\n";
    let n1 = "n1    0.1.0    nftables  enforce  yes        yes      0     12\n";
    assert_eq!(follow.table(), format!("{head}{n1}{n3}"));
    kill_process(Pid::from_child(&follow.process), Signal::INT).unwrap();
    let status = follow.process.wait().unwrap();
    let mut rest = String::new();
    follow.out.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!((status.signal(), rest.as_str()), (Some(Signal::INT.as_raw()), ""));
}

#[test]
fn a_followed_top_shows_the_connections_of_each_interval_and_names_nodes_that_are_away() {
    let cluster = FakeCluster::start(&["n1"], &["n3"]);
    let flow = |connections: u64| {
        let end = |name: &str| json!({"namespace": "shop", "kind": "Deployment", "name": name, "pod": name});
        let time = "2026-01-02T03:04:05Z";
        let flow = json!({
            "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "allow",
            "from": end("web"), "to": end("api"), "protocol": "TCP", "port": 8080,
            "policies": [], "morePolicies": 0, "firstSeen": time, "lastSeen": time,
            "connections": connections, "sampling": {"source": "conntrack", "complete": true},
        });
        cluster.print("n1", "flows", &format!("{flow}\n"));
    };
    flow(7);
    let mut follow = Following::start(&cluster, "top --follow -o json");
    cluster.wait_until_read("n1", "flows");
    flow(12);
    assert_eq!(follow.json()["connections"], 5);
    flow(13);
    assert_eq!(follow.json()["connections"], 1);
    flow(20);
    let (code, messages) = follow.close();
    let away = "node n3 does not answer: no agent runs on this node\n";
    assert_eq!((code, &*messages), (Some(0), away));
}
