use std::process::{Command, Stdio};

use crate::{command, json, stderr, stdout, weir, weir_reading};

const COMMANDS: [&str; 11] = [
    "test",
    "explain",
    "matrix",
    "diff",
    "lint",
    "render",
    "demo",
    "crds",
    "completions",
    "man",
    "version",
];

#[test]
fn version_has_a_command_and_a_flag() {
    assert!(stdout(&weir("version")).starts_with("weir 0."));
    assert!(stdout(&weir("--version")).starts_with("weir 0."));
    let version = json(&weir("version -o json"));
    assert!(version["version"].is_string() && version["platform"].is_string());
}

#[test]
fn version_names_the_commit_and_the_build() {
    let version = json(&weir("version -o json"));
    let text = stdout(&weir("version"));
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output().unwrap();
    // Sources without a repository have no commit, or the one that their packager gave.
    if head.status.success() {
        let head = String::from_utf8(head.stdout).unwrap().trim().to_owned();
        assert_eq!(version["commit"], head);
        assert_eq!(text.lines().nth(1), Some(&*format!("commit {}", &head[..12])), "{text}");
    }
    assert!(version["build"]["rustc"].as_str().unwrap().starts_with("rustc 1."));
    assert_eq!(version["build"]["profile"], "debug");
}

#[test]
fn every_command_has_help_with_an_example_that_works() {
    for name in COMMANDS {
        let help = weir(&format!("{name} --help"));
        assert_eq!(help.status.code(), Some(0), "{name}");
        let text = stdout(&help);
        let examples: Vec<&str> = text
            .lines()
            .map(str::trim)
            .skip_while(|line| !line.starts_with("Example"))
            .filter_map(|line| line.strip_prefix("weir "))
            .collect();
        assert!(!examples.is_empty(), "{name} has no example");
        for example in examples {
            let arguments = example.split(['>', '|']).next().unwrap();
            let output = weir(arguments);
            let code = output.status.code();
            assert!(code < Some(2), "weir {arguments} exits {code:?}: {}", stderr(&output));
            assert!(!output.stdout.is_empty(), "weir {arguments} prints nothing");
        }
    }
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = weir(&format!("completions {shell}"));
        assert!(output.status.success() && stdout(&output).contains("explain"), "{shell}");
        for datapath in ["sim", "nftables", "iptables", "hcn", "opflex"] {
            assert!(stdout(&output).contains(datapath) || shell == "elvish", "{shell} {datapath}");
        }
        if shell == "bash" {
            let values = r#"compgen -W "clusterset conditions hpp memcached""#;
            let values = stdout(&output).matches(values).count();
            assert_eq!(values, 2, "--enable and --only");
        }
    }
}

#[test]
fn manual_pages_exist_for_every_command() {
    let page = stdout(&weir("man"));
    assert!(page.contains(".TH weir 1") && page.contains("weir\\-explain(1)"), "{page}");
    for name in COMMANDS {
        let page = stdout(&weir(&format!("man {name}")));
        assert!(page.contains(&format!(".TH weir-{name} 1")), "{page}");
        assert!(page.contains("Example"), "{name}");
    }
    let unknown = weir("man frobnicate");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there is no command `frobnicate`"));
}

#[test]
fn invalid_arguments_are_an_error() {
    for arguments in
        ["", "frobnicate", "lint --frob", "matrix -f examples/shop -o jpg", "diff -f one two"]
    {
        let output = weir(arguments);
        assert_eq!(output.status.code(), Some(2), "weir {arguments}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "weir {arguments}");
    }
}

#[test]
fn kubectl_weir_uses_its_own_name_in_help() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &plugin).unwrap();
    let output = std::process::Command::new(plugin).args(["lint", "--help"]).output().unwrap();
    let help = stdout(&output);
    assert!(help.contains("Usage: kubectl weir lint"), "{help}");
    assert!(help.contains("  kubectl weir lint -f"), "{help}");
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let denied = "explain -f examples/shop/manifests --from shop/web --to shop/db --port 5432";
    for (arguments, code) in [("completions bash", 0), (denied, 1)] {
        let mut child = command()
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn colour_is_for_terminals() {
    let mut coloured = command();
    coloured.args(["lint", "-f", "examples/shop/manifests"]).env("CLICOLOR_FORCE", "1");
    let text = stdout(&coloured.output().unwrap());
    assert!(text.contains("\u{1b}["), "{text}");
    assert!(!stdout(&weir("lint -f examples/shop/manifests")).contains('\u{1b}'));
    let plain = coloured.env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE").output().unwrap();
    assert!(!stdout(&plain).contains('\u{1b}'));
}

const BROKEN: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]
";

#[test]
fn incomplete_input_gets_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.yaml"), BROKEN).unwrap();
    std::fs::write(folder.path().join("whole.yaml"), BROKEN.split("---").next().unwrap()).unwrap();
    let place = folder.path().display();
    let refused = [
        format!("explain -f {place}/broken.yaml --from 192.0.2.1 --to shop/web --port 80"),
        format!("explain -f {place}/broken.yaml --from 192.0.2.1 --to shop/web --port 80 -o json"),
        format!("matrix -f {place}/broken.yaml"),
        format!("matrix -f {place}/broken.yaml -o svg"),
        format!("diff {place}/broken.yaml {place}/whole.yaml"),
        format!("diff {place}/whole.yaml {place}/broken.yaml -o yaml"),
        format!("render -f {place}/broken.yaml"),
        format!("render -f {place}/broken.yaml --datapath nftables"),
    ];
    for arguments in refused {
        let output = weir(&arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert!(message.contains("[syntax]"), "{arguments}: {message}");
        let refusal = "error: part of the input is unreadable or contradictory, so an answer could be wrong\nhint: ";
        assert!(message.contains(refusal), "{arguments}: {message}");
    }
    assert_eq!(weir(&format!("lint -f {place}/broken.yaml")).status.code(), Some(1));
    assert_eq!(weir(&format!("lint -f {place}/broken.yaml -n nosuch")).status.code(), Some(1));
}

#[test]
fn empty_input_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.yaml");
    std::fs::write(&empty, "").unwrap();
    let text = folder.path().join("passwd");
    std::fs::write(&text, "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    for (arguments, expected) in [
        ("lint -f -".to_owned(), "error: standard input is empty\nhint: ".to_owned()),
        ("matrix -f -".to_owned(), "error: standard input is empty\nhint: ".to_owned()),
        (format!("lint -f {}", empty.display()), format!("error: {} is empty", empty.display())),
        (
            format!("matrix -f {}", text.display()),
            format!("error: there is no Kubernetes object in {}\nhint: ", text.display()),
        ),
    ] {
        let output = weir_reading(&arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(stderr(&output).contains(&expected), "{arguments}: {}", stderr(&output));
    }
}

#[test]
fn a_broken_object_that_weir_ignores_does_not_stop_an_answer() {
    let manifests =
        format!("{}---\nkind: ConfigMap\ndata: [\n", BROKEN.split("---").next().unwrap());
    let output = weir_reading("explain -f - --from 192.0.2.1 --to shop/web --port 80", &manifests);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = weir_reading("lint -f -", &manifests);
    assert!(stdout(&output).contains("warning: this is not YAML"), "{}", stdout(&output));
}

#[test]
fn every_json_answer_contains_the_findings() {
    let odd = BROKEN.replace("[Ingress]", "[Ingres]}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd.yaml");
    std::fs::write(&file, odd).unwrap();
    let file = file.display();
    for arguments in [
        format!("explain -f {file} --from 192.0.2.1 --to shop/web --port 80"),
        format!("matrix -f {file}"),
        format!("diff {file} {file}"),
        format!("render -f {file}"),
        format!("lint -f {file}"),
    ] {
        let answer = json(&weir(&format!("{arguments} -o json")));
        let found = answer["findings"].as_array().unwrap();
        let is_it = |f: &serde_json::Value| f["code"] == "invalid" && f["line"].is_number();
        assert!(found.iter().any(is_it), "{arguments}: {answer}");
    }
}

/// Pods, a policy, a kind and a file name with control characters.
const HOSTILE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: "web\e[31mRED\a\r\nfake line", namespace: "shop\e]0;pwn\a", labels: {"a\nfake line": "b\e[2J"}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: "deny\e[1A\nfake line", namespace: "shop\e]0;pwn\a"}
spec:
  podSelector: {matchLabels: {"a\nfake line": "b\e[2J"}}
  ingress: [{from: [{podSelector: {matchLabels: {"x\nfake line": "\e[2J"}}}], ports: [{port: "htt\e[31mp\nfake line"}]}]
---
apiVersion: foo/v1
kind: "X\e[31mRED\nfake line"
metadata: {name: a}
"#;

#[test]
fn untrusted_text_is_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evil\u{1b}[31m\u{7}.yaml");
    std::fs::write(&file, HOSTILE).unwrap();
    let test = folder.path().join("test.yaml");
    let case = "name: \"a\\e[31m\\nfake line\"\nmanifests: [\"evil\\e[31m\\a.yaml\"]\nprobes:\n- {from: {pod: \"a/b\\e[31m\\nfake line\"}, to: {ip: 192.0.2.1}, port: 80, expect: deny, note: \"x\\nfake line\"}\n";
    std::fs::write(&test, case).unwrap();
    let pod = "shop\u{1b}]0;pwn\u{7}/web\u{1b}[31mRED\u{7}\r\nfake line";
    let explain = ["--from", "192.0.2.1", "--to", pod, "--port", "80"];
    for (name, rest) in [
        ("lint", &[][..]),
        ("matrix", &[]),
        ("matrix", &["-o", "dot"]),
        ("matrix", &["-o", "svg"]),
        ("matrix", &["-o", "yaml"]),
        ("matrix", &["-n", "no\u{1b}[31m\nfake line"]),
        ("render", &[]),
        ("render", &["-o", "json"]),
        ("explain", &explain),
        ("explain", &["--from", "192.0.2.1", "--to", "no/b\u{1b}[31m\nfake line", "--port", "80"]),
        ("test", &[]),
    ] {
        let mut weir = command();
        // Force colours, so that anstream strips nothing.
        weir.env("CLICOLOR_FORCE", "1").arg(name).args(rest);
        match name {
            "test" => weir.arg(&test),
            _ => weir.arg("-f").arg(&file),
        };
        let output = weir.output().unwrap();
        let mut message = format!("{}{}", stdout(&output), stderr(&output));
        for colour in ["0", "1", "2", "31", "32", "33"] {
            message = message.replace(&format!("\u{1b}[{colour}m"), "");
        }
        let obeyed = |c: char| c.is_control() && c != '\n';
        assert!(!message.contains(obeyed), "{name} {rest:?}: {message:?}");
        assert!(!message.contains("\nfake line"), "{name} {rest:?}: {message}");
        assert!(!message.is_empty() && output.status.code() < Some(3), "{name} {rest:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_named() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut lint = command();
    lint.args(["lint", "-f", "examples/shop/manifests"]).stdout(full).stderr(Stdio::piped());
    let output = lint.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let expected =
        "error: cannot write to standard output: No space left on device (os error 28)\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn the_address_of_an_agent_is_checked_before_anything_else() {
    let ends = "--from 10.0.0.1 --to 10.0.0.2 --port 80";
    for command in [
        "flows --agent foo",
        "drops --agent foo",
        "top --agent foo",
        "status --agent foo",
        "names --agent foo",
        "render --live --agent foo",
        "ui --live --agent foo",
        &format!("explain {ends} --agent foo"),
    ] {
        let output = weir(command);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let text = stderr(&output);
        assert!(text.contains("expected HOST:PORT, such as 127.0.0.1:9640"), "{command}: {text}");
    }
    // A filter that no flow can match is refused before an agent is contacted.
    let output = weir("flows --agent 127.0.0.1:1 --pod a --pod b --pod c");
    assert!(stderr(&output).contains("a connection has two ends"), "{}", stderr(&output));
}
