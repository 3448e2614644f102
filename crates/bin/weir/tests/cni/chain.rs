//! The other commands, many pods, reused addresses, and the installer.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    node::{BAD, GOOD, Node, PORT, manifest},
    runtime::{Runtime, Sandbox, addresses},
};

pub(crate) fn verbs() {
    let node = Node::new();
    let (lab, runtime) = (&node.lab, node.ptp(5, 9, &[("timeout", 3.into())]));
    node.database("db", "u1", None);
    assert!(!node.status(&runtime), "there is no agent");
    let agent = node.agent(&runtime);
    let sandbox = Sandbox::new("db", "u1");
    let result = runtime.add(lab, &sandbox).unwrap();
    runtime.check(lab, &sandbox).unwrap();

    // A restarted agent reads the attachments from the kernel.
    drop(agent);
    let agent = node.agent(&runtime);
    runtime.check(lab, &sandbox).unwrap();
    node.database("db", "u1", Some(addresses(&result)[0]));
    runtime.check(lab, &sandbox).unwrap();
    runtime.del(lab, &sandbox).unwrap();
    runtime.del(lab, &sandbox).unwrap();

    node.database("api", "u2", None);
    let other = Sandbox::new("api", "u2");
    runtime.add(lab, &other).unwrap();
    let gc = |left: Value| {
        let more = [("cniVersion", "1.1.0".into()), ("cni.dev/valid-attachments", left)];
        runtime.ours(lab, "GC", &other, &more).unwrap();
    };
    gc(json!([{"containerID": other.container, "ifname": "eth0"}]));
    runtime.check(lab, &other).unwrap();
    gc(json!([]));
    assert_eq!(runtime.check(lab, &other).unwrap_err()["code"], 100);
    drop(agent);
    gc(json!([]));
    runtime.del(lab, &other).unwrap();
    let version = runtime.ours(lab, "VERSION", &other, &[]).unwrap();
    assert!(version.contains("\"supportedVersions\":[\"0.3.1\""), "{version}");
}

/// A younger pod without policies still has the address that a database gets.
pub(crate) fn reused() {
    let node = Node::new();
    let runtime = node.ptp(5, 5, &[]);
    let address = IpAddr::from([10, 23, 0, 5]);
    let young = manifest("open", "u9", "open", Some(address));
    node.write(
        "open.yaml",
        &young.replace("uid:", "creationTimestamp: '2030-01-01T00:00:00Z', uid:"),
    );
    node.database("db", "u1", None);
    let _agent = node.agent(&runtime);
    let sandbox = Sandbox::new("db", "u1");
    let inside = sandbox.namespace.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    let send = |from: IpAddr, text: &str| {
        let socket = node.lab.at(from, || UdpSocket::bind((from, 0))).unwrap().unwrap();
        socket.send_to(text.as_bytes(), SocketAddr::new(address, PORT)).unwrap();
    };
    runtime.add(&node.lab, &sandbox).unwrap();
    let hears_only_good = || {
        send(BAD, "bad");
        send(GOOD, "good");
        let mut buffer = [0; 64];
        inside.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let length = inside.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"good");
        inside.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(inside.recv(&mut buffer).is_err());
    };
    hears_only_good();
    node.database("db", "u1", Some(address));
    thread::sleep(Duration::from_millis(500));
    hears_only_good();
}

pub(crate) fn many() {
    const PODS: u8 = 24;
    let node = Node::new();
    let runtime = node.ptp(10, 200, &[("timeout", 30.into())]);
    (0..PODS).for_each(|n| node.database(&format!("db-{n}"), "u1", None));
    let _agent = node.agent(&runtime);
    let sandboxes: Vec<Sandbox> =
        (0..PODS).map(|n| Sandbox::new(&format!("db-{n}"), "u1")).collect();
    let start_time = Instant::now();
    thread::scope(|scope| {
        let adding: Vec<_> = sandboxes
            .iter()
            .map(|sandbox| scope.spawn(|| runtime.add(&node.lab, sandbox)))
            .collect();
        adding.into_iter().for_each(|one| drop(one.join().unwrap().unwrap()));
    });
    eprintln!("{PODS} pods in {:?}", start_time.elapsed());
    sandboxes.iter().for_each(|sandbox| runtime.check(&node.lab, sandbox).unwrap());
    sandboxes.iter().for_each(|sandbox| runtime.del(&node.lab, sandbox).unwrap());
}

pub(crate) fn installed() {
    let node = Node::new();
    let mut runtime = node.ptp(5, 5, &[]);
    node.database("db", "u1", None);
    let _agent = node.agent(&runtime);
    // A node with a single plugin.
    let mut single = runtime.list["plugins"][0].clone();
    (single["cniVersion"], single["name"]) = ("0.4.0".into(), "test".into());
    let net = node.path("net.d");
    fs::create_dir(&net).unwrap();
    fs::write(net.join("10-ptp.conf"), single.to_string()).unwrap();
    let install = |verb: &str| {
        let words =
            [verb.into(), "--conf-dir".into(), net.clone(), "--bin-dir".into(), node.path("bin")];
        let words = words.iter().map(|word| word.to_str().unwrap().to_owned());
        let socket = format!("--socket={}", node.path("agent.sock").display());
        let mut messages = Vec::new();
        let status = weir_cni::run(weir_cni::Call {
            arguments: words.chain([socket]).collect(),
            variable: &|_| None,
            input: &mut "".as_bytes(),
            output: &mut Vec::new(),
            messages: &mut messages,
        });
        assert_eq!(status, 0, "{}", String::from_utf8_lossy(&messages));
    };
    let sandbox = Sandbox::new("db", "u1");
    let goes_round = |runtime: &Runtime| {
        let result = runtime.add(&node.lab, &sandbox).unwrap();
        runtime.check(&node.lab, &sandbox).unwrap();
        runtime.del(&node.lab, &sandbox).unwrap();
        result
    };

    fs::remove_file(node.path("bin/weir-cni")).unwrap();
    install("install");
    runtime.list =
        serde_json::from_str(&fs::read_to_string(net.join("10-ptp.conflist")).unwrap()).unwrap();
    assert_eq!(runtime.list["plugins"].as_array().unwrap().len(), 2);
    let result = goes_round(&runtime);
    assert_eq!(result["cniVersion"], "0.4.0");

    install("uninstall");
    let restored: Value =
        serde_json::from_str(&fs::read_to_string(net.join("10-ptp.conf")).unwrap()).unwrap();
    assert_eq!(restored, single);
    assert!(!node.path("bin/weir-cni").exists());
    runtime.list = json!({"cniVersion": "0.4.0", "name": "test", "plugins": [restored]});
    goes_round(&runtime);
}
