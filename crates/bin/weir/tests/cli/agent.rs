use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    process::Stdio,
    thread,
};

use expect_test::expect;

use crate::{check, command, json, stderr, stdout, weir};

#[test]
fn help_has_examples() {
    for name in ["agent", "drops"] {
        let text = stdout(&weir(&format!("{name} --help")));
        assert!(text.contains(&format!("\n  weir {name}")), "{text}");
    }
}

#[test]
fn the_source_of_an_agent_is_a_folder() {
    let output = weir("agent --source Cargo.toml --node n1");
    assert_eq!(output.status.code(), Some(2));
    let expected = "error: --source Cargo.toml is a file; expected a folder\nhint: name the folder";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn an_agent_needs_a_node_and_a_source() {
    for arguments in [
        "agent",
        "agent --source examples",
        "agent --node n1",
        "agent --source examples --node n1 --once --cleanup",
        "agent --source examples --node n1 --established maybe",
        "agent --source examples --node n1 --http 9640",
    ] {
        let output = weir(arguments);
        assert_eq!(output.status.code(), Some(2), "weir {arguments}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "weir {arguments}");
    }
}

#[test]
fn only_iptables_accepts_forwarded_packets() {
    for datapath in ["nftables", "opflex"] {
        let command = format!(
            "agent --source examples --node n1 --datapath {datapath} --accept-forwarded auto"
        );
        let output = weir(&command);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = format!("--accept-forwarded is not supported with `--datapath {datapath}`");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("hint: leave it out: only `--datapath iptables` has it"), "{text}");
    }
}

#[test]
fn an_agent_with_an_unusable_kubeconfig_ends_with_one_error() {
    for datapath in ["nftables", "opflex"] {
        let command = "agent --source kube --node n1 --kubeconfig nowhere --datapath";
        let output = weir(&format!("{command} {datapath}"));
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = "error: cannot use the kubeconfig nowhere: No such file or directory";
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.matches("nowhere").count(), 1, "{text}");
    }
}

#[test]
fn debug_lines_appear_only_at_level_debug() {
    // A folder is no source for opflex, so the agent starts its log, fails and exits.
    for (command, expected) in [
        ("agent --datapath opflex --source examples --node n1", "needs `--source kube`"),
        (
            "controller --enable memcached --kubeconfig nowhere --http 127.0.0.1:0",
            "cannot use the kubeconfig nowhere",
        ),
    ] {
        for (flags, has_debug) in
            [("", false), ("--log-level warn", false), ("--log-level debug", true)]
        {
            let output = weir(&format!("{command} {flags}"));
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains(expected), "{command} {flags}: {text}");
            assert_eq!(text.contains("DEBUG log started"), has_debug, "{command} {flags}: {text}");
        }
    }
    let output = weir(
        "agent --datapath opflex --source examples --node n1 --log-level debug --log-format json",
    );
    let text = String::from_utf8(output.stderr).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&line["level"], &line["message"]), (&"DEBUG".into(), &"log started".into()));
}

/// Starts a server that answers every request with a body. Returns its address.
fn answering(body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

const ONE: &str = r#"{"drops": [{"number": 7, "time": "2026-01-02T03:04:05.678Z", "direction": "ingress", "from": "10.0.0.3", "fromPod": null, "fromPort": 40000, "to": "10.0.0.1", "toPod": "shop/web", "toPort": 80, "protocol": "TCP", "policies": ["NetworkPolicy shop/web"]}], "last": 7, "missed": 0}"#;

#[test]
fn drops_are_a_table_or_json() {
    let agent = answering(ONE);
    check(
        &weir(&format!("drops --agent {agent}")),
        expect![[r#"
            2026-01-02T03:04:05.678Z ingress 10.0.0.3 → shop/web (10.0.0.1) 80/TCP
              NetworkPolicy shop/web
            --- exit 0
        "#]],
    );
    let answer = json(&weir(&format!("drops -o json --agent {agent}")));
    assert_eq!(answer["drops"][0]["toPod"], "shop/web");
}

#[test]
fn drops_have_a_verdict() {
    let agent = answering(ONE);
    let dropped = json(&weir(&format!("drops -o json --verdict deny --agent {agent}")));
    assert_eq!(dropped["drops"][0]["number"], 7);
    check(
        &weir(&format!("drops --verdict audit --agent {agent}")),
        expect![[r#"
            --- stderr
            no such packet is among the drops that the agent keeps
            --- exit 0
        "#]],
    );
}

#[test]
fn follow_ends_when_the_reader_closes_the_pipe() {
    let agent = answering(ONE);
    let mut child = command()
        .args(["drops", "--follow", "-o", "json", "--agent", &agent.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let drop: serde_json::Value =
            serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        crate::schema::check(&drop);
        assert_eq!(drop["number"], 7);
    }
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A page with a flow of the verdict `deny`.
const DENIED: &str = r#"{"flows": [{"schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "deny", "from": {"address": "10.0.0.3"}, "to": {"address": "10.0.0.1"}, "protocol": "TCP", "port": 80, "policies": [], "firstSeen": "2026-01-02T03:04:05.678Z", "lastSeen": "2026-01-02T03:04:05.678Z", "connections": 1, "sampling": {"source": "reports", "complete": false}}], "last": 7, "more": false, "since": "2026-01-02T03:04:05.678Z", "evicted": 0, "lost": 0}"#;

/// Without the line, a node whose packets all have another verdict counts as one that does not answer.
#[test]
fn follow_prints_an_empty_line_if_the_filter_leaves_nothing() {
    for (name, page) in [("drops", ONE), ("flows", DENIED)] {
        let agent = answering(page);
        let mut child = command()
            .args([name, "--follow", "--heartbeat", "-o", "json", "--verdict", "audit"])
            .args(["--agent", &agent.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "", "{name}");
        drop(lines);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
    }
}

#[test]
fn without_an_agent_drops_fails_with_a_hint() {
    let unused = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let output = weir(&format!("drops --agent {unused}"));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with(&format!("error: no agent answers at {unused}")), "{message}");
    assert!(message.contains("hint: start `weir agent`"), "{message}");
    assert_eq!(output.status.code(), Some(2));
    let other = answering("<html>");
    let output = weir(&format!("drops --agent {other}"));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.starts_with(&format!("error: the server at {other} is not a weir agent")),
        "{message}"
    );
    assert_eq!(output.status.code(), Some(2));
}
