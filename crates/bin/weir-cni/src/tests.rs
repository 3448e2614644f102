//! Every command, with a fake agent.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use expect_test::expect;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A folder for the socket of an agent.
struct Fixture {
    disk: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Fixture { disk: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.disk.path().join("agent.sock")
    }

    /// Starts an agent that gives these answers in order. Returns the requests that it receives.
    fn agent(&self, answers: &[&'static str]) -> Receiver<Value> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let answers = answers.to_vec();
        let (sender, requests) = mpsc::channel();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                sender.send(serde_json::from_str(&line).unwrap()).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        requests
    }

    /// A configuration with additional fields.
    fn config(&self, more: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "weir-cni", "socket": self.socket(), "timeout": 0.3,
            "prevResult": {
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
                "ips": [
                    {"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 1},
                    {"address": "fd00::5/64", "interface": 1},
                    {"address": "169.254.1.1/32", "interface": 0},
                ],
                "dns": {"nameservers": ["10.0.0.10"]}, "unknown": 1,
            },
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }
}

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u";

/// Starts the plugin with an environment.
fn start(command: &str, input: &str, environment: &[(&str, &str)]) -> (u8, String, String) {
    let variable = |name: &str| match name {
        "CNI_COMMAND" => Some(command.to_owned()),
        _ => environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()),
    };
    let (mut output, mut messages) = (Vec::new(), Vec::new());
    let status = run(Call {
        arguments: Vec::new(),
        variable: &variable,
        input: &mut input.as_bytes(),
        output: &mut output,
        messages: &mut messages,
    });
    (status, String::from_utf8(output).unwrap(), String::from_utf8(messages).unwrap())
}

/// Starts the plugin for a pod.
fn call(command: &str, config: &Value) -> (u8, String) {
    let environment = [
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", POD),
    ];
    let (status, output, _) = start(command, &config.to_string(), &environment);
    (status, output)
}

/// Checks the error of a command.
#[track_caller]
fn check_error(fixture: &Fixture, (status, output): (u8, String), expected: &str) {
    assert_eq!(status, 1, "{output}");
    let error: Value = serde_json::from_str(&output).unwrap();
    assert!(error["code"].is_u64() && error["msg"].is_string() && error["cniVersion"].is_string());
    let output = output.replace(fixture.disk.path().to_str().unwrap(), "DIR");
    assert_eq!(output, format!("{expected}\n"));
}

#[test]
fn add_waits_for_the_agent_and_returns_the_previous_result() {
    let fixture = Fixture::new();
    let requests = fixture.agent(&["{\"ok\":true}\n"]);
    let config = fixture.config(json!({"timeout": 20}));
    let (status, output) = call("ADD", &config);
    assert_eq!((status, output), (0, format!("{}\n", config["prevResult"])));
    let mut request = requests.recv().unwrap();
    let timeout = request.as_object_mut().unwrap().shift_remove("timeout").unwrap();
    assert!((1.0..20.0).contains(&timeout.as_f64().unwrap()), "{timeout}");
    expect![[r#"{"verb":"add","namespace":"shop","name":"web","uid":"u","container":"c","interface":"eth0","network":"net","addresses":["10.0.0.5","fd00::5"],"links":["veth1"]}"#]]
        .assert_eq(&request.to_string());
}

#[test]
fn every_supported_version_has_a_result() {
    for version in config::VERSIONS {
        let fixture = Fixture::new();
        let _requests = fixture.agent(&["{\"ok\":true}\n"]);
        // Before 1.0 an address also has a version field.
        let result =
            json!({"cniVersion": version, "ips": [{"version": "4", "address": "10.0.0.5/24"}]});
        let config = fixture.config(json!({"cniVersion": version, "prevResult": result}));
        assert_eq!(call("ADD", &config), (0, format!("{result}\n")));
    }
    let fixture = Fixture::new();
    for version in [json!("0.2.0"), json!("1.2.0"), json!(null), json!(1)] {
        let (status, output) = call("ADD", &fixture.config(json!({ "cniVersion": version })));
        assert_eq!((status, output.contains(r#""code":1,"#)), (1, true), "{output}");
    }
}

#[test]
fn on_failure_decides_if_the_agent_is_unreachable() {
    let fixture = Fixture::new();
    let start_time = Instant::now();
    check_error(
        &fixture,
        call("ADD", &fixture.config(json!({}))),
        r#"{"cniVersion":"1.0.0","code":11,"msg":"the weir agent does not answer","details":"DIR/agent.sock: No such file or directory (os error 2)"}"#,
    );
    let waited = start_time.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_secs(3)).contains(&waited), "{waited:?}");
    let config = fixture.config(json!({"onFailure": "allow"}));
    assert_eq!(call("ADD", &config), (0, format!("{}\n", config["prevResult"])));
    // The socket exists, but no process listens.
    drop(UnixListener::bind(fixture.socket()).unwrap());
    check_error(
        &fixture,
        call("CHECK", &fixture.config(json!({}))),
        r#"{"cniVersion":"1.0.0","code":11,"msg":"the weir agent does not answer","details":"DIR/agent.sock: Connection refused (os error 111)"}"#,
    );
    assert_eq!(call("CHECK", &config), (0, String::new()));
    check_error(
        &fixture,
        call("STATUS", &config),
        r#"{"cniVersion":"1.0.0","code":50,"msg":"the weir agent is not ready","details":"DIR/agent.sock: Connection refused (os error 111)"}"#,
    );
    assert_eq!(call("DEL", &config), (0, String::new()));
    let gone = fixture.config(json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}));
    assert_eq!(call("GC", &gone), (0, String::new()));
}

#[test]
fn a_silent_agent_does_not_block_longer_than_the_timeout() {
    let fixture = Fixture::new();
    let _listener = UnixListener::bind(fixture.socket()).unwrap();
    for (command, expected) in [("ADD", 1), ("CHECK", 1), ("DEL", 0), ("STATUS", 1)] {
        let start_time = Instant::now();
        assert_eq!(call(command, &fixture.config(json!({}))).0, expected, "{command}");
        assert!(
            start_time.elapsed() < Duration::from_secs(3),
            "{command}: {:?}",
            start_time.elapsed()
        );
    }
}

#[test]
fn a_request_is_retried_while_the_agent_restarts() {
    let fixture = Fixture::new();
    let requests = fixture.agent(&["", "nonsense\n", "{\"ok\":true}\n"]);
    let config = fixture.config(json!({"timeout": 20}));
    assert_eq!(call("ADD", &config).0, 0);
    assert_eq!(requests.iter().count(), 3);
}

#[test]
fn the_reason_of_the_agent_reaches_the_runtime() {
    let fixture = Fixture::new();
    let no = "{\"ok\":false,\"reason\":\"the source does not have it on this node\"}\n";
    let _requests = fixture.agent(&[no, no, no, no, "{\"ok\":true}\n"]);
    check_error(
        &fixture,
        call("ADD", &fixture.config(json!({}))),
        r#"{"cniVersion":"1.0.0","code":11,"msg":"the pod's policies are not in force","details":"the source does not have it on this node"}"#,
    );
    check_error(
        &fixture,
        call("CHECK", &fixture.config(json!({"onFailure": "allow"}))),
        r#"{"cniVersion":"1.0.0","code":100,"msg":"the pod's policies are not in force","details":"the source does not have it on this node"}"#,
    );
    check_error(
        &fixture,
        call("STATUS", &fixture.config(json!({}))),
        r#"{"cniVersion":"1.0.0","code":50,"msg":"the weir agent is not ready","details":"the source does not have it on this node"}"#,
    );
    assert_eq!(call("ADD", &fixture.config(json!({"onFailure": "allow"}))).0, 0);
    assert_eq!(call("STATUS", &fixture.config(json!({}))), (0, String::new()));
}

#[test]
fn del_and_gc_notify_the_agent() {
    let fixture = Fixture::new();
    let requests = fixture.agent(&["{\"ok\":true}\n", "{\"ok\":true}\n", "{\"ok\":true}\n"]);
    let bare = json!({"cniVersion": "0.4.0", "name": "net", "type": "weir-cni", "socket": fixture.socket()});
    let (status, output, _) =
        start("DEL", &bare.to_string(), &[("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "eth0")]);
    assert_eq!((status, output), (0, String::new()), "neither a pod nor a result is needed");
    assert_eq!(call("DEL", &fixture.config(json!({}))).0, 0);
    let left =
        json!([{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "eth0"}]);
    let config = fixture.config(json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": left}));
    assert_eq!(call("GC", &config), (0, String::new()));
    let requests: Vec<Value> = requests.iter().collect();
    assert_eq!((&requests[0]["container"], &requests[0]["name"]), (&json!("c"), &json!("")));
    assert_eq!(requests[1]["verb"], "del");
    assert_eq!(requests[2]["containers"], json!(["a", "b"]));
}

#[test]
fn version_needs_no_environment() {
    let (status, output, _) = start("VERSION", r#"{"cniVersion":"0.4.0"}"#, &[]);
    assert_eq!(status, 0);
    let versions =
        r#"{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
    assert_eq!(output, format!("{versions}\n"));
    assert_eq!(start("VERSION", "", &[]).0, 0);
}

#[test]
fn an_invalid_configuration_is_reported_as_the_specification_defines() {
    let fixture = Fixture::new();
    let check =
        |config: Value, expected: &str| check_error(&fixture, call("ADD", &config), expected);
    check(
        json!([]),
        r#"{"cniVersion":"1.1.0","code":6,"msg":"the network configuration is not an object","details":""}"#,
    );
    check(
        fixture.config(json!({"cniVersion": "0.2.0"})),
        r#"{"cniVersion":"1.1.0","code":1,"msg":"CNI version 0.2.0 is not supported","details":"supported versions: 0.3.1, 0.4.0, 1.0.0, 1.1.0"}"#,
    );
    check(
        fixture.config(json!({"prevResult": null})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"prevResult is missing","details":"weir-cni creates no interface: it must follow a plugin that does"}"#,
    );
    check(
        fixture.config(json!({"prevResult": {"ips": []}})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"prevResult has no address of the container","details":"weir identifies pods by their addresses"}"#,
    );
    check(
        fixture.config(json!({"prevResult": {"ips": [{"address": "10.0.0"}]}})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"invalid prevResult","details":"expected an address, found \"10.0.0\""}"#,
    );
    check(
        fixture.config(json!({"timeout": 0})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"invalid timeout","details":"expected a number of seconds from 0.1 to 60, found 0"}"#,
    );
    check(
        fixture.config(json!({"onFailure": "maybe"})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"invalid onFailure","details":"expected refuse or allow, found \"maybe\""}"#,
    );
    check(
        fixture.config(json!({"socket": 5})),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"invalid socket","details":"expected a string, found 5"}"#,
    );
    let jump = call("JUMP", &fixture.config(json!({})));
    check_error(
        &fixture,
        jump,
        r#"{"cniVersion":"1.0.0","code":4,"msg":"unknown command \"JUMP\"","details":"CNI_COMMAND is invalid"}"#,
    );
    check_error(
        &fixture,
        call("GC", &fixture.config(json!({}))),
        r#"{"cniVersion":"1.0.0","code":7,"msg":"cni.dev/valid-attachments is missing","details":"without it the agent would forget all pods"}"#,
    );
}

#[test]
fn a_missing_variable_is_reported_as_the_specification_defines() {
    let fixture = Fixture::new();
    let config = fixture.config(json!({})).to_string();
    let all = [("CNI_CONTAINERID", "c"), ("CNI_NETNS", "/run/netns/x"), ("CNI_IFNAME", "eth0")];
    for missing in 0..3 {
        let mut some = all.to_vec();
        let (name, _) = some.remove(missing);
        let (status, output, _) = start("ADD", &config, &some);
        let error: Value = serde_json::from_str(&output).unwrap();
        assert_eq!((status, &error["code"]), (1, &json!(4)), "{output}");
        assert_eq!(error["msg"], format!("{name} is missing"));
    }
    let (status, output, _) = start("ADD", &config, &all);
    check_error(
        &fixture,
        (status, output),
        r#"{"cniVersion":"1.0.0","code":4,"msg":"CNI_ARGS does not name the pod","details":"expected K8S_POD_NAMESPACE and K8S_POD_NAME"}"#,
    );
    let (status, output, _) = start("ADD", "{", &all);
    check_error(
        &fixture,
        (status, output),
        r#"{"cniVersion":"1.1.0","code":6,"msg":"the network configuration is not JSON","details":"EOF while parsing an object at line 1 column 1"}"#,
    );
}

#[test]
fn the_program_has_help_and_rejects_unknown_arguments() {
    let run_with = |arguments: &[&str]| {
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        let status = run(Call {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            variable: &|_| None,
            input: &mut "".as_bytes(),
            output: &mut output,
            messages: &mut messages,
        });
        (status, String::from_utf8(output).unwrap(), String::from_utf8(messages).unwrap())
    };
    for arguments in [&["--help"][..], &["install", "-h"], &["uninstall", "--help"]] {
        let (status, help, _) = run_with(arguments);
        assert!(status == 0 && help.contains("weir-cni uninstall"), "{help}");
    }
    assert_eq!(run_with(&["--version"]).1, format!("weir-cni {}\n", env!("CARGO_PKG_VERSION")));
    let (status, _, messages) = run_with(&[]);
    assert!(status == 2 && messages.starts_with("error: CNI_COMMAND is not set"), "{messages}");
    let (status, _, messages) = run_with(&["jump"]);
    assert_eq!((status, messages.lines().next()), (2, Some("error: unknown command `jump`")));
    let (status, _, messages) = run_with(&["install", "--timeout", "soon"]);
    assert!(status == 2 && messages.contains("invalid timeout"), "{messages}");
}

#[test]
fn a_file_instead_of_a_socket_is_not_an_agent() {
    let fixture = Fixture::new();
    fs::write(fixture.socket(), "").unwrap();
    assert_eq!(call("ADD", &fixture.config(json!({}))).0, 1);
    assert_eq!(fs::read(fixture.socket()).unwrap(), b"");
}
