//! Flows and drops that arrive while the page is open.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::{Ui, agents::FakeCluster, open, webdriver::Browser, weir};

/// A flow record.
pub(crate) fn flow(from: &str, to: &str, port: u16, verdict: &str, time: &str) -> String {
    let end = |name: &str| {
        let parts: Vec<&str> = name.split('/').collect();
        serde_json::json!({"namespace": parts[0], "kind": parts[1], "name": parts[2], "pod": "gone"})
    };
    let record = serde_json::json!({
        "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": verdict, "from": end(from),
        "to": end(to), "protocol": "TCP", "port": port, "policies": [{"kind": "NetworkPolicy",
        "namespace": "shop", "name": "api", "direction": "ingress", "rule": 0, "effect": "allow"}],
        "firstSeen": time, "lastSeen": time, "connections": 7,
        "sampling": {"source": "conntrack", "complete": true},
    });
    format!("{record}\n")
}

/// A dropped packet.
fn dropped(number: u64, from: &str, to: &str, port: u16) -> String {
    let drop = serde_json::json!({
        "number": number, "time": format!("2026-01-02T03:04:{number:02}Z"), "direction": "ingress",
        "from": "10.0.0.1", "fromPod": from, "fromPort": 40000, "to": "10.0.0.2", "toPod": to,
        "toPort": port, "toNames": [], "protocol": "TCP",
        "policies": ["NetworkPolicy shop/db"], "morePolicies": 0, "passed": false,
    });
    format!("{drop}\n")
}

#[test]
fn flows_arrive_while_the_page_is_open_and_mark_unused_connections() {
    let command = ["ui", "-f", "examples/shop/manifests", "--flows", "-"];
    let mut process = weir(&command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let ui = Ui::from_process(process);
    let time = "2026-01-02T03:04:05Z";
    let used = flow("shop/Deployment/web", "shop/Deployment/api", 8080, "allow", time);
    input.write_all(used.as_bytes()).unwrap();
    let browser = Browser::start();
    open(&browser, &ui.url);
    browser.click("#tab-flows");
    browser.wait_for_text("#view", "shop/deployment/api");
    let denied = flow("shop/Deployment/web", "shop/StatefulSet/db", 5432, "deny", time);
    input.write_all(b"not a record\n").unwrap();
    input.write_all(denied.as_bytes()).unwrap();
    let text = browser.wait_for_text("#view", "5432/TCP");
    assert!(text.contains("NetworkPolicy shop/api ingress"), "{text}");
    assert!(text.contains("1 wrong line:"), "{text}");
    let wrong = "standard input, line 2: not a flow record: expected ident at column 2";
    assert!(text.contains(wrong), "{text}");
    browser.click("[aria-label='Explain shop/deployment/web to shop/statefulset/db 5432/TCP']");
    browser.wait_for_text("#panel .explanation", "Smallest fix");
    browser.picture("flows-light");

    // After a reload, the map distinguishes the connections that were used.
    browser.click("#reload");
    browser.click("#tab-map");
    browser.wait("return document.querySelector('.edge.unused')");
    let kinds = browser.run(
        "return [...document.querySelectorAll('.edge')].map((edge) => [edge.nextElementSibling.textContent, edge.classList.contains('unused')])",
        &[],
    );
    let kinds: Vec<(String, bool)> = serde_json::from_value(kinds).unwrap();
    let is_unused = |from: &str, to: &str| {
        let start = format!("{from} → {to}:");
        kinds.iter().find(|(title, _)| title.starts_with(&start)).map(|(_, unused)| *unused)
    };
    assert_eq!(is_unused("shop/deployment/web", "shop/deployment/api"), Some(false));
    assert_eq!(is_unused("shop/deployment/api", "payments/deployment/checkout"), Some(true));
    browser.picture("map-unused-light");
}

const TIME: &str = "2026-01-02T03:04:05Z";
const WEB: &str = "shop/Deployment/web";
const API: &str = "shop/Deployment/api";
const DB: &str = "shop/StatefulSet/db";

#[test]
fn flows_and_drops_of_all_nodes_arrive_through_the_api_server() {
    let cluster = FakeCluster::start(&["n1", "n2"], &["n3"]);
    cluster.print("n1", "flows", &flow(WEB, API, 8080, "allow", TIME));
    let mut command = weir(&["ui", "-f", "examples/shop/manifests", "--live"]);
    command.env("KUBECONFIG", cluster.kubeconfig());
    let ui = Ui::from_process(command.stdout(Stdio::piped()).spawn().unwrap());
    let browser = Browser::start();
    open(&browser, &ui.url);
    browser.click("#tab-flows");
    let text = browser.wait_for_text("#view", "8080/TCP");
    assert!(text.contains("live · 1 flow"), "{text}");
    browser.wait_for_text("#view .problems", "node n3 does not answer: no agent runs on this node");
    let why = "the agent does not observe connections: the agent runs with `--flows off`";
    cluster.print_error("n2", "flows", &format!("{why}\n"));
    browser.wait_for_text("#view .problems", &format!("node n2: {why}"));

    // Another node reports a flow, and the first one counts further connections.
    cluster.print("n2", "flows", &flow(WEB, DB, 5432, "deny", TIME));
    browser.wait_for_text("#view", "5432/TCP");
    let again =
        flow(WEB, API, 8080, "allow", TIME).replace("\"connections\":7", "\"connections\":12");
    cluster.print("n1", "flows", &again);
    browser.wait(
        "return [...document.querySelectorAll('table.flows td.number')].some((cell) => cell.innerText === '12')",
    );
    let rows = browser.run("return document.querySelectorAll('table.flows tbody tr').length", &[]);
    assert_eq!(rows, 2);
    browser.picture("live-flows-light");

    browser.click("#tab-drops");
    cluster.print("n2", "drops", &dropped(7, "shop/web", "shop/db", 5432));
    let text = browser.wait_for_text("#view", "shop/db");
    assert!(text.contains("NetworkPolicy shop/db") && text.contains("n2"), "{text}");
    browser.picture("live-drops-light");
    browser.click("table.drops button.link");
    browser.wait_for_text("#panel", "Observed: dropped");
    browser.wait("return document.querySelector('#panel .explanation').innerText.length > 0");

    // The connection to a node breaks. Its drops are reported again, and shown once.
    cluster.disconnect("n2");
    browser.wait_for_text("#view .problems", "node n2 does not answer: the agent stopped");
    let both = dropped(7, "shop/web", "shop/db", 5432) + &dropped(8, "shop/web", "shop/db", 5433);
    cluster.print("n2", "drops", &both);
    browser.wait_for_text("#view", "5433/TCP");
    browser.wait("return !document.querySelector('.problems').innerText.includes('n2')");
    let rows = browser.run("return document.querySelectorAll('table.drops tbody tr').length", &[]);
    assert_eq!(rows, 2);
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_cluster_that_cannot_be_followed_is_named_on_the_page() {
    let cluster = FakeCluster::start(&[], &[]);
    let mut command = weir(&["ui", "-f", "examples/shop/manifests", "--live"]);
    command.env("KUBECONFIG", cluster.kubeconfig());
    let ui = Ui::from_process(command.stdout(Stdio::piped()).spawn().unwrap());
    let browser = Browser::start();
    open(&browser, &ui.url);
    for tab in ["flows", "drops"] {
        browser.click(&format!("#tab-{tab}"));
        let text = browser
            .wait_for_text("#view .problems", "there are no agents in namespace weir-system");
        assert!(text.contains("--agent-namespace"), "{text}");
    }
}

#[test]
fn the_page_keeps_a_bounded_number_of_flows() {
    let command = ["ui", "-f", "examples/shop/manifests", "--flows", "-"];
    let mut process = weir(&command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let ui = Ui::from_process(process);
    let browser = Browser::start();
    open(&browser, &ui.url);
    browser.click("#tab-flows");
    // One more than the limit, and at the end again the flow that made room for it.
    let record = flow(WEB, API, 1, "allow", TIME);
    for port in (1..=50_001).chain([1]) {
        let line = record.replace("\"port\":1", &format!("\"port\":{port}"));
        input.write_all(line.as_bytes()).unwrap();
    }
    browser.wait_for_text("#view", "50,000 flows · 2 older left out");
    assert_eq!(
        browser.run("return document.querySelectorAll('table.flows tbody tr').length", &[]),
        300
    );
}

#[test]
fn an_exported_page_has_all_flows_of_standard_input() {
    const FLOWS: u16 = 4500;
    let folder = tempfile::tempdir().unwrap();
    let mut command = weir(&["ui", "-f", "examples/shop/manifests", "--flows", "-", "--export"]);
    let command = command.arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let record = flow(WEB, API, 1, "allow", TIME);
    for port in 1..=FLOWS {
        let line = record.replace("\"port\":1", &format!("\"port\":{port}"));
        input.write_all(line.as_bytes()).unwrap();
    }
    drop(input);
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let page = String::from_utf8(output.stdout).unwrap();
    let browser = Browser::start();
    open(&browser, &format!("file://{}", page.trim()));
    // The view reads several answers, and reads them again when it is opened again.
    for _ in 0..2 {
        browser.click("#tab-flows");
        browser.wait_for_text("#view", "recording · 4,500 flows");
        browser.click("#tab-map");
        browser.wait("return document.querySelector('.edge')");
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn wrong_lines_of_a_recording_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.json");
    let run = || -> (Option<i32>, String) {
        let mut command: Command = weir(&["ui", "-f", "examples/shop/manifests", "--flows"]);
        command.arg(&file).arg("--export").arg(folder.path().join("page"));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let record = flow(WEB, API, 8080, "allow", TIME);
    std::fs::write(&file, format!("{record}{{}}\n")).unwrap();
    let (code, text) = run();
    assert_eq!(code, Some(0), "{text}");
    let line =
        format!("{}, line 2: not a flow record: missing field `schemaVersion`", file.display());
    assert!(text.contains(&line), "{text}");
    std::fs::write(&file, "{}\n").unwrap();
    let (code, text) = run();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is a flow record") && text.contains("weir flows -o json"), "{text}");
}
