use std::process::Stdio;

use expect_test::expect;

use crate::{check, command, json, stderr, stdout, weir};

const COMMANDS: [&str; 8] =
    ["test", "explain", "matrix", "diff", "lint", "render", "completions", "version"];

#[test]
fn version_is_said_in_two_ways() {
    assert!(stdout(&weir("version")).starts_with("weir 0."));
    assert!(stdout(&weir("--version")).starts_with("weir 0."));
    let version = json(&weir("version -o json"));
    assert!(version["version"].is_string() && version["platform"].is_string());
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
            let arguments = example.split(" > ").next().unwrap();
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
    }
}

#[test]
fn wrong_words_are_a_failure() {
    for arguments in ["", "frobnicate", "lint --frob", "matrix -f examples/shop -o jpg", "diff one"]
    {
        let output = weir(arguments);
        assert_eq!(output.status.code(), Some(2), "weir {arguments}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "weir {arguments}");
    }
}

#[test]
fn a_live_cluster_is_not_there_yet() {
    check(
        &weir("lint"),
        expect![[r#"
            --- stderr
            error: this build cannot read a live cluster
            hint: give manifests with -f PATH, for example from `kubectl get pods,namespaces,networkpolicies -A -o yaml`
            --- exit 2
        "#]],
    );
}

#[test]
fn a_path_that_is_not_there_is_named() {
    check(
        &weir("lint -f examples/nowhere"),
        expect![[r#"
            --- stderr
            error: cannot find examples/nowhere
            hint: check the path; it is relative to the current folder
            --- exit 2
        "#]],
    );
}

#[test]
fn kubectl_finds_it_under_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &plugin).unwrap();
    let output = std::process::Command::new(plugin).args(["lint", "--help"]).output().unwrap();
    assert!(stdout(&output).contains("Usage: kubectl weir lint"), "{}", stdout(&output));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = command()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
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
