//! Events in the life of an agent, none of which may change a verdict.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use weir_model::{Flow, Protocol, Verdict};

use crate::{
    filter::Filter,
    node::{HTTP, Node},
    prober::Prober,
    schema,
    swap::{CLOSED, DB, OPEN, WEB, policy},
};

/// The table of the node, without the sources of reported packets, which the rules add.
fn table(node: &Node) -> String {
    let listed = node.nft("--stateless list table inet weir");
    let sets = listed.split("\n\n").filter(|one| !one.contains("flags dynamic,timeout"));
    sets.collect::<Vec<_>>().join("\n\n")
}
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);

fn prober(node: &Node) -> Prober {
    Prober::new(&node.lab, WEB, DB, OPEN, CLOSED)
}

pub(crate) fn verdict(node: &Node, port: u16) -> Verdict {
    let flow = Flow { from: WEB, to: DB, protocol: Protocol::Udp, port };
    node.lab.probe(&[flow], PROBE_TIMEOUT).unwrap()[0]
}

pub(crate) fn killed_again_and_again(filter: Filter) {
    kill_again_and_again(
        &Node::with(filter),
        if filter == Filter::Nftables { 50 } else { 15 },
        &[],
    );
}

/// Kills agents with these options, while a prober sends packets. All packets must get the right
/// verdict.
pub(crate) fn kill_again_and_again(node: &Node, lives: u64, options: &[&str]) {
    let mut agent = node.started(options);
    let probing = prober(node).start();
    for life in 0..lives {
        agent.kill();
        agent = node.start(options);
        // The kill hits the agent while it starts or while it runs, sometimes with a pending
        // change.
        if life % 3 == 0 {
            node.write("policy.yaml", &policy(usize::try_from(life).unwrap()));
        }
        thread::sleep(Duration::from_millis(life * 7 % 190));
    }
    drop(agent);
    probing.stop().check(1_000);
    let agent = node.started(options);
    assert_eq!((verdict(node, OPEN), verdict(node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    drop(agent);
}

pub(crate) fn the_table_is_deleted() {
    let node = Node::new();
    let _agent = node.started(&[]);
    let before = table(&node);
    let probing = prober(&node).start();
    thread::sleep(Duration::from_millis(200));
    let deleted = Instant::now();
    node.nft("delete table inet weir");
    let window = node.until("the table is back", || {
        node.run("nft", &["list", "table", "inet", "weir"]).status.success()
    });
    thread::sleep(Duration::from_millis(300));
    assert!(window < Duration::from_secs(2), "repaired only after {window:?}");
    // The agent terminates connections that passed meanwhile, which the first sets show; all else
    // is unchanged.
    let after = table(&node);
    let rest = |table: &str| table.split_once("map in4").map(|(_, rest)| rest.to_owned()).unwrap();
    assert_eq!(rest(&after), rest(&before));
    let seen = probing.stop();
    assert!(seen.lost.is_empty(), "{} packets lost", seen.lost.len());
    let last = seen.slipped.iter().max().map(|at| at.saturating_duration_since(deleted));
    assert!(last.is_none_or(|last| last < Duration::from_secs(2)), "open for {last:?}");
    let (_, metrics) = node.get("/metrics").unwrap();
    assert!(metrics.contains("weir_repairs_total 1"), "{metrics}");
}

pub(crate) fn a_manifest_breaks() {
    let node = Node::new();
    let agent = node.started(&[]);
    let before = table(&node);
    let broken = policy(0).replace("policyTypes: [Ingress]", "policyTypes: [Ingress");
    node.write("policy.yaml", &broken);
    node.until("the agent says so", || node.get("/readyz").is_some_and(|(code, _)| code == 503));
    let (_, reasons) = node.get("/readyz").unwrap();
    let (_, status) = node.get("/status").unwrap();
    let (_, metrics) = node.get("/metrics").unwrap();
    for text in [&reasons, &status, &agent.log()] {
        assert!(text.contains("policy.yaml"), "{text}");
    }
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let finding = &status["findings"][0];
    assert!(finding["line"].as_u64().is_some_and(|line| line > 1), "{status}");
    assert!(metrics.contains("weir_source_unread 1"), "{metrics}");
    assert_eq!(table(&node), before);
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    node.write("policy.yaml", &policy(1));
    node.until("it is ready again", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    assert_ne!(table(&node), before);
}

pub(crate) fn starts_with_a_broken_manifest() {
    let node = Node::new();
    let broken = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: [\n";
    node.write("broken.yaml", broken);
    let agent = node.start(&[]);
    node.until("the rules are in force", || verdict(&node, CLOSED) == Verdict::Deny);
    assert_eq!(verdict(&node, OPEN), Verdict::Allow);
    let (code, reasons) = node.get("/readyz").unwrap();
    assert_eq!(code, 503);
    for text in [&reasons, &agent.log()] {
        assert!(text.contains("the agent enforces the rest"), "{text}");
        assert!(text.contains("broken.yaml"), "{text}");
    }
    drop(agent);
    // The next agent cannot know whether the rules are those of the broken file.
    let before = table(&node);
    let agent = node.start(&[]);
    node.until("the agent has read the folder", || agent.log().contains("stay in force unchanged"));
    assert_eq!(table(&node), before);
    node.write("broken.yaml", "{apiVersion: v1, kind: List, items: []}");
    node.until("it is ready", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
}

pub(crate) fn a_restart_writes_nothing() {
    let node = Node::new();
    let mut agent = node.started(&[]);
    let handles = "--handle list table inet weir";
    let before = node.nft(handles);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    assert_eq!(node.nft(handles), before, "rules stay when the agent stops");
    let agent = node.started(&[]);
    assert_eq!(node.nft(handles), before, "a restart writes nothing");
    agent.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(node.nft(handles), before, "nor does reading everything again");
}

pub(crate) fn cleanup() {
    let node = Node::new();
    node.nft("add table ip others");
    node.nft("add chain ip others c { type filter hook forward priority 10 ; }");
    node.nft("add rule ip others c counter accept");
    let before = node.nft("--stateless list ruleset");
    let mut agent = node.started(&["--established", "keep"]);
    let refused = node.weir(&as_str(&[&node.arguments()[..], &["--cleanup".to_owned()]].concat()));
    assert_eq!(refused.status.code(), Some(2), "not while an agent runs");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    assert_ne!(node.nft("--stateless list ruleset"), before);
    for _ in 0..2 {
        let cleaned =
            node.weir(&as_str(&[&node.arguments()[..], &["--cleanup".to_owned()]].concat()));
        assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
        assert_eq!(node.nft("--stateless list ruleset"), before);
    }
}

/// The exit status of the startup probe, in the PID namespace of the agents.
fn answers_in_container(node: &Node, address: &str) -> Option<i32> {
    node.weir(&["status", "--same-container", "--agent", address]).status.code()
}

/// The same in a PID namespace of its own.
fn answers_elsewhere(node: &Node, address: &str) -> Option<i32> {
    let weir = env!("CARGO_BIN_EXE_weir");
    let words = ["--pid", "--fork", "--mount-proc", weir, "status", "--same-container", "--agent"];
    node.run("unshare", &[&words[..], &[address]].concat()).status.code()
}

pub(crate) fn a_second_agent() {
    const SECOND: &str = "127.0.0.1:9641";
    let node = Node::new();
    let mut first = node.started(&[]);
    let mut second = node.start(&["--http", SECOND]);
    let mut third = node.start(&[]);
    // All agents of a node have one log.
    node.until("both wait", || third.log().matches("another weir agent").count() == 2);
    // At their common address, the first agent answers.
    assert!(node.get("/readyz").is_some_and(|(code, _)| code == 200));
    let is_alive = || node.get_at(SECOND, "/healthz").is_some_and(|(code, _)| code == 200);
    node.until("the second agent answers", is_alive);
    let reason = "another weir agent runs in this network namespace\n";
    assert_eq!(node.get_at(SECOND, "/readyz"), Some((503, reason.into())));
    assert_eq!([HTTP, SECOND].map(|address| answers_in_container(&node, address)), [Some(0); 2]);
    // A command in another PID namespace is in another container.
    assert_eq!(
        [HTTP, SECOND].map(|address| answers_elsewhere(&node, address)),
        [Some(1); 2],
        "the startup probe fails"
    );
    // A waiting agent obeys signals.
    third.signal(Signal::TERM);
    assert_eq!(third.ends(), Some(0), "{}", third.log());
    first.signal(Signal::TERM);
    assert_eq!(first.ends(), Some(0));
    node.until("the second agent takes over", || {
        node.get_at(SECOND, "/readyz").is_some_and(|(code, _)| code == 200)
    });
    assert!(node.get_at(SECOND, "/status").is_some_and(|(code, _)| code == 200));
    second.signal(Signal::TERM);
    assert_eq!(second.ends(), Some(0), "{}", second.log());
    // A command that ends by itself does not wait.
    let _agent = node.started(&[]);
    let once = node.weir(&as_str(&[&node.arguments()[..], &["--once".to_owned()]].concat()));
    let output = String::from_utf8_lossy(&once.stderr);
    assert_eq!(once.status.code(), Some(2), "{output}");
    assert!(output.contains("another weir agent"), "{output}");
}

pub(crate) fn once_and_audit(filter: Filter) {
    let node = Node::with(filter);
    let arguments = [&node.arguments()[..], &["--once".to_owned()]].concat();
    let once = node.weir(&as_str(&arguments));
    assert_eq!(once.status.code(), Some(0), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    // A missing folder is an error, and the installed rules stay.
    let words = ["agent", "--source", "/nowhere", "--datapath", filter.datapath(), "--node", "n1"];
    let lost = node.weir(&[&words[..], &["--once"]].concat());
    let output = String::from_utf8_lossy(&lost.stderr);
    assert_eq!(lost.status.code(), Some(2), "{output}");
    assert!(output.contains("error: nothing was applied: cannot find /nowhere\n"), "{output}");
    assert!(output.contains("hint: correct the files, or name another folder with `--source`"));
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    let _agent = node.started(&["--audit"]);
    assert_eq!(verdict(&node, OPEN), Verdict::Allow);
    node.until("the audited drop is reported", || {
        assert_eq!(verdict(&node, CLOSED), Verdict::Allow);
        node.get("/drops").is_some_and(|(_, drops)| drops.contains(&CLOSED.to_string()))
    });
    let drops = node.weir(&["drops", "-o", "json"]);
    let drops: serde_json::Value = serde_json::from_slice(&drops.stdout).unwrap();
    schema::check(&drops);
    assert_eq!(drops["drops"][0]["passed"], true, "{drops}");
    let text = node.weir(&["drops"]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains(" passed (audit) "), "{text}");
    // The rules of audit mode are those that should be there.
    let source = node.path().to_str().unwrap();
    let compare = ["render", "-f", source, "--live", "--node", "n1"];
    let live = node.weir(&[&compare[..], &["--datapath", filter.datapath()]].concat());
    assert_eq!(String::from_utf8_lossy(&live.stdout), "no difference\n");
}

pub(crate) fn the_log_is_closed() {
    let node = Node::new();
    let mut agent = node.start_unread();
    node.until("the agent is ready", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    agent.close_log();
    node.write("policy.yaml", "kind: [");
    node.until("the agent goes on", || node.get("/readyz").is_some_and(|(code, _)| code == 503));
    node.write("policy.yaml", &policy(1));
    node.until("it is ready again", || node.get("/readyz").is_some_and(|(code, _)| code == 200));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    let nameless = node.weir(&["agent", "--source", "/nowhere", "--node", ""]);
    assert_eq!(nameless.status.code(), Some(2), "a node has a name");
}

pub(crate) fn drops(filter: Filter) {
    let node = Node::with(filter);
    let agent = node.started(&[]);
    let output = || String::from_utf8(node.weir(&["drops"]).stdout).unwrap();
    // A ready agent may not read the reports yet.
    node.until("the drop is reported", || {
        assert_eq!(verdict(&node, CLOSED), Verdict::Deny);
        output().contains(&CLOSED.to_string())
    });
    let text = output();
    for word in ["shop/web", "shop/db", "ingress", "UDP", "NetworkPolicy shop/db"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    let json = node.weir(&["drops", "-o", "json"]);
    let first = String::from_utf8(json.stdout).unwrap();
    assert!(first.contains("\"shop/db\"") && first.contains("ingress"), "{first}");
    schema::check(&serde_json::from_str(&first).unwrap());
    let source = node.path().to_str().unwrap();
    let compare = ["-f", source, "--live", "--node", "n1", "--datapath", filter.datapath()];
    for command in [&["status"][..], &[&["render"][..], &compare].concat()] {
        let output = node.weir(&[command, &["-o", "json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
        schema::check(&serde_json::from_slice(&output.stdout).unwrap());
    }
    let (_, metrics) = node.get("/metrics").unwrap();
    assert!(metrics.contains("weir_drops_total{") && metrics.contains("shop/db"), "{metrics}");
    assert!(agent.log().contains("5433"), "{}", agent.log());
}

pub(crate) fn a_tightened_policy_cuts(filter: Filter) {
    let node = Node::with(filter);
    let _agent = node.started(&[]);
    let flow = Flow { from: WEB, to: DB, protocol: Protocol::Udp, port: OPEN };
    let mut talk = node.lab.converse(flow, PROBE_TIMEOUT).unwrap();
    assert_eq!(talk.exchange(PROBE_TIMEOUT).unwrap(), Verdict::Allow);
    node.write("policy.yaml", &policy(0).replace(&OPEN.to_string(), "1"));
    let cut = node.until("the conversation ends", || {
        node.get("/metrics").is_some_and(|(_, text)| text.contains("weir_cut_connections_total 1"))
    });
    assert_eq!(talk.exchange(PROBE_TIMEOUT).unwrap(), Verdict::Deny, "after {cut:?}");
}

fn as_str(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
