//! Every verb, with an agent that says what the test wants.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Where an agent may listen.
struct Place {
    disk: TempDir,
}

impl Place {
    fn new() -> Self {
        Place { disk: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.disk.path().join("agent.sock")
    }

    /// An agent that gives these answers, one to each question. What is it asked?
    fn agent(&self, answers: &[&'static str]) -> Receiver<Value> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let answers = answers.to_vec();
        let (asked, questions) = mpsc::channel();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                asked.send(serde_json::from_str(&line).unwrap()).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        questions
    }

    /// A configuration, with more in it.
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
                "dns": {"nameservers": ["10.0.0.10"]}, "unheardOf": 1,
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
    let (mut output, mut talk) = (Vec::new(), Vec::new());
    let status = run(Call {
        arguments: Vec::new(),
        variable: &variable,
        input: &mut input.as_bytes(),
        output: &mut output,
        talk: &mut talk,
    });
    (status, String::from_utf8(output).unwrap(), String::from_utf8(talk).unwrap())
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

/// What the plugin says when it fails.
#[track_caller]
fn refuses(place: &Place, (status, output): (u8, String), expected: Expect) {
    assert_eq!(status, 1, "{output}");
    let error: Value = serde_json::from_str(&output).unwrap();
    assert!(error["code"].is_u64() && error["msg"].is_string() && error["cniVersion"].is_string());
    expected.assert_eq(&output.replace(place.disk.path().to_str().unwrap(), "DIR"));
}

#[test]
fn add_waits_for_the_agent_and_passes_the_result_on() {
    let place = Place::new();
    let questions = place.agent(&["{\"ok\":true}\n"]);
    let config = place.config(json!({"timeout": 20}));
    let (status, output) = call("ADD", &config);
    assert_eq!((status, output), (0, format!("{}\n", config["prevResult"])));
    let mut question = questions.recv().unwrap();
    let timeout = question.as_object_mut().unwrap().shift_remove("timeout").unwrap();
    assert!((1.0..20.0).contains(&timeout.as_f64().unwrap()), "{timeout}");
    expect![[r#"{"verb":"add","namespace":"shop","name":"web","uid":"u","container":"c","interface":"eth0","network":"net","addresses":["10.0.0.5","fd00::5"]}"#]]
        .assert_eq(&question.to_string());
}

#[test]
fn every_version_has_its_result() {
    for version in config::VERSIONS {
        let place = Place::new();
        let _questions = place.agent(&["{\"ok\":true}\n"]);
        // Before 1.0 an address also said its family.
        let result =
            json!({"cniVersion": version, "ips": [{"version": "4", "address": "10.0.0.5/24"}]});
        let config = place.config(json!({"cniVersion": version, "prevResult": result}));
        assert_eq!(call("ADD", &config), (0, format!("{result}\n")));
    }
    let place = Place::new();
    for version in [json!("0.2.0"), json!("1.2.0"), json!(null), json!(1)] {
        let (status, output) = call("ADD", &place.config(json!({ "cniVersion": version })));
        assert_eq!((status, output.contains(r#""code":1,"#)), (1, true), "{output}");
    }
}

#[test]
fn an_agent_that_is_away_means_refusal_or_not() {
    let place = Place::new();
    let begun = Instant::now();
    refuses(
        &place,
        call("ADD", &place.config(json!({}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":11,"msg":"the weir agent does not answer","details":"DIR/agent.sock: No such file or directory (os error 2)"}
        "#]],
    );
    let waited = begun.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_secs(3)).contains(&waited), "{waited:?}");
    let config = place.config(json!({"onFailure": "allow"}));
    assert_eq!(call("ADD", &config), (0, format!("{}\n", config["prevResult"])));
    // Nobody listens any more.
    drop(UnixListener::bind(place.socket()).unwrap());
    refuses(
        &place,
        call("CHECK", &place.config(json!({}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":11,"msg":"the weir agent does not answer","details":"DIR/agent.sock: Connection refused (os error 111)"}
        "#]],
    );
    assert_eq!(call("CHECK", &config), (0, String::new()));
    refuses(
        &place,
        call("STATUS", &config),
        expect![[r#"
            {"cniVersion":"1.0.0","code":50,"msg":"the weir agent is not ready","details":"DIR/agent.sock: Connection refused (os error 111)"}
        "#]],
    );
    assert_eq!(call("DEL", &config), (0, String::new()));
    let gone = place.config(json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}));
    assert_eq!(call("GC", &gone), (0, String::new()));
}

#[test]
fn an_agent_that_says_nothing_is_not_waited_for_longer_than_that() {
    let place = Place::new();
    let _listener = UnixListener::bind(place.socket()).unwrap();
    for (command, expected) in [("ADD", 1), ("CHECK", 1), ("DEL", 0), ("STATUS", 1)] {
        let begun = Instant::now();
        assert_eq!(call(command, &place.config(json!({}))).0, expected, "{command}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{command}: {:?}", begun.elapsed());
    }
}

#[test]
fn an_agent_that_restarts_is_asked_again() {
    let place = Place::new();
    let questions = place.agent(&["", "nonsense\n", "{\"ok\":true}\n"]);
    let config = place.config(json!({"timeout": 20}));
    assert_eq!(call("ADD", &config).0, 0);
    assert_eq!(questions.iter().count(), 3);
}

#[test]
fn the_agents_reasons_reach_the_runtime() {
    let place = Place::new();
    let no = "{\"ok\":false,\"reason\":\"the source does not have it on this node\"}\n";
    let _questions = place.agent(&[no, no, no, no, "{\"ok\":true}\n"]);
    refuses(
        &place,
        call("ADD", &place.config(json!({}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":11,"msg":"the pod's policies are not in force","details":"the source does not have it on this node"}
        "#]],
    );
    refuses(
        &place,
        call("CHECK", &place.config(json!({"onFailure": "allow"}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":100,"msg":"the pod's policies are not in force","details":"the source does not have it on this node"}
        "#]],
    );
    refuses(
        &place,
        call("STATUS", &place.config(json!({}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":50,"msg":"the weir agent is not ready","details":"the source does not have it on this node"}
        "#]],
    );
    assert_eq!(call("ADD", &place.config(json!({"onFailure": "allow"}))).0, 0);
    assert_eq!(call("STATUS", &place.config(json!({}))), (0, String::new()));
}

#[test]
fn del_and_gc_say_what_is_gone() {
    let place = Place::new();
    let questions = place.agent(&["{\"ok\":true}\n", "{\"ok\":true}\n", "{\"ok\":true}\n"]);
    let bare =
        json!({"cniVersion": "0.4.0", "name": "net", "type": "weir-cni", "socket": place.socket()});
    let (status, output, _) =
        start("DEL", &bare.to_string(), &[("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "eth0")]);
    assert_eq!((status, output), (0, String::new()), "neither a pod nor a result is needed");
    assert_eq!(call("DEL", &place.config(json!({}))).0, 0);
    let left =
        json!([{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "eth0"}]);
    let config = place.config(json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": left}));
    assert_eq!(call("GC", &config), (0, String::new()));
    let questions: Vec<Value> = questions.iter().collect();
    assert_eq!((&questions[0]["container"], &questions[0]["name"]), (&json!("c"), &json!("")));
    assert_eq!(questions[1]["verb"], "del");
    assert_eq!(questions[2]["containers"], json!(["a", "b"]));
}

#[test]
fn version_needs_nothing_else() {
    let (status, output, _) = start("VERSION", r#"{"cniVersion":"0.4.0"}"#, &[]);
    assert_eq!(status, 0);
    expect![[r#"
        {"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}
    "#]]
    .assert_eq(&output);
    assert_eq!(start("VERSION", "", &[]).0, 0);
}

#[test]
fn what_makes_no_sense_is_told_as_the_specification_wants() {
    let place = Place::new();
    let check = |config: Value, expected: Expect| refuses(&place, call("ADD", &config), expected);
    check(
        json!([]),
        expect![[r#"
            {"cniVersion":"1.1.0","code":6,"msg":"the network configuration is not an object","details":""}
        "#]],
    );
    check(
        place.config(json!({"cniVersion": "0.2.0"})),
        expect![[r#"
            {"cniVersion":"1.1.0","code":1,"msg":"CNI version 0.2.0 is not supported","details":"this plugin speaks 0.3.1, 0.4.0, 1.0.0, 1.1.0"}
        "#]],
    );
    check(
        place.config(json!({"prevResult": null})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"prevResult is missing","details":"weir-cni makes no interface: it comes after a plugin that does"}
        "#]],
    );
    check(
        place.config(json!({"prevResult": {"ips": []}})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"prevResult has no address of the container","details":"policies know pods by their addresses"}
        "#]],
    );
    check(
        place.config(json!({"prevResult": {"ips": [{"address": "10.0.0"}]}})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"prevResult makes no sense","details":"expected an address, found \"10.0.0\""}
        "#]],
    );
    check(
        place.config(json!({"timeout": 0})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"timeout makes no sense","details":"expected seconds, 0.1 to 60, found 0"}
        "#]],
    );
    check(
        place.config(json!({"onFailure": "maybe"})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"onFailure makes no sense","details":"expected refuse or allow, found \"maybe\""}
        "#]],
    );
    check(
        place.config(json!({"socket": 5})),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"socket makes no sense","details":"expected text, found 5"}
        "#]],
    );
    let jump = call("JUMP", &place.config(json!({})));
    refuses(
        &place,
        jump,
        expect![[r#"
            {"cniVersion":"1.0.0","code":4,"msg":"there is no command \"JUMP\"","details":"CNI_COMMAND makes no sense"}
        "#]],
    );
    refuses(
        &place,
        call("GC", &place.config(json!({}))),
        expect![[r#"
            {"cniVersion":"1.0.0","code":7,"msg":"cni.dev/valid-attachments is missing","details":"without it everything would be gone"}
        "#]],
    );
}

#[test]
fn an_environment_that_lacks_something_is_told_as_the_specification_wants() {
    let place = Place::new();
    let config = place.config(json!({})).to_string();
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
    refuses(
        &place,
        (status, output),
        expect![[r#"
            {"cniVersion":"1.0.0","code":4,"msg":"CNI_ARGS does not say which pod it is","details":"expected K8S_POD_NAMESPACE and K8S_POD_NAME"}
        "#]],
    );
    let (status, output, _) = start("ADD", "{", &all);
    refuses(
        &place,
        (status, output),
        expect![[r#"
            {"cniVersion":"1.1.0","code":6,"msg":"the network configuration is not JSON","details":"EOF while parsing an object at line 1 column 1"}
        "#]],
    );
}

#[test]
fn the_program_explains_itself() {
    let run_with = |arguments: &[&str]| {
        let (mut output, mut talk) = (Vec::new(), Vec::new());
        let status = run(Call {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            variable: &|_| None,
            input: &mut "".as_bytes(),
            output: &mut output,
            talk: &mut talk,
        });
        (status, String::from_utf8(output).unwrap(), String::from_utf8(talk).unwrap())
    };
    for ask in [&["--help"][..], &["install", "-h"], &["uninstall", "--help"]] {
        let (status, help, _) = run_with(ask);
        assert!(status == 0 && help.contains("weir-cni uninstall"), "{help}");
    }
    assert_eq!(run_with(&["--version"]).1, format!("weir-cni {}\n", env!("CARGO_PKG_VERSION")));
    let (status, _, talk) = run_with(&[]);
    assert!(status == 2 && talk.starts_with("error: CNI_COMMAND is not set"), "{talk}");
    let (status, _, talk) = run_with(&["jump"]);
    assert_eq!((status, talk.lines().next()), (2, Some("error: there is no `jump`")));
    let (status, _, talk) = run_with(&["install", "--timeout", "soon"]);
    assert!(status == 2 && talk.contains("timeout makes no sense"), "{talk}");
}

#[test]
fn a_socket_of_nobody_is_not_mistaken_for_an_agent() {
    let place = Place::new();
    fs::write(place.socket(), "").unwrap();
    assert_eq!(call("ADD", &place.config(json!({}))).0, 1);
    assert_eq!(fs::read(place.socket()).unwrap(), b"");
}
