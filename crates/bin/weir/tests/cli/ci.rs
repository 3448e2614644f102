//! The GitHub Action, the pre-commit hooks, and the recipes of docs/guides/ci.md, executed in a
//! temporary git repository.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{root, stderr, stdout};

const PODS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web, ports: [{containerPort: 8080}]}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: db, image: db, ports: [{containerPort: 5432}]}]}
status: {podIP: 10.0.0.2}
";

const CLOSED: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: []
";

const OPEN: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
";

const TEST: &str = "\
name: the shop
manifests: [../deploy]
probes:
- {from: {pod: shop/db}, to: {pod: shop/web}, port: 8080, protocol: TCP, expect: allow}
";

/// A clone of a repository, on a branch that opens a connection.
struct PullRequest {
    folder: TempDir,
}

impl PullRequest {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let this = PullRequest { folder };
        let origin = this.folder.path().join("origin");
        fs::create_dir_all(origin.join("deploy")).unwrap();
        fs::create_dir_all(origin.join("tests")).unwrap();
        fs::write(origin.join("deploy/pods.yaml"), PODS).unwrap();
        fs::write(origin.join("deploy/policy.yaml"), CLOSED).unwrap();
        fs::write(origin.join("tests/shop.yaml"), TEST).unwrap();
        this.git(&origin, &["init", "--quiet", "--initial-branch", "main"]);
        this.commit(&origin);
        this.git(this.folder.path(), &["clone", "--quiet", "origin", "work"]);
        this.git(&this.work(), &["checkout", "--quiet", "-b", "change"]);
        fs::write(this.work().join("deploy/policy.yaml"), OPEN).unwrap();
        this.commit(&this.work());
        fs::create_dir(this.folder.path().join("bin")).unwrap();
        this.program(
            "gh",
            "#!/bin/sh\necho \"$@\" >> \"$RUNNER_TEMP/gh\"\ncat \"$5\" >> \"$RUNNER_TEMP/gh\"\n",
        );
        this
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.folder.path().join("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn git(&self, folder: &Path, arguments: &[&str]) {
        let output = self.command("git", folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", stderr(&output));
    }

    fn commit(&self, folder: &Path) {
        self.git(folder, &["add", "."]);
        self.git(folder, &["commit", "--quiet", "-m", "a change"]);
    }

    /// A program with weir of this build in `PATH`, and without the settings of the user.
    fn command(&self, program: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap().to_owned();
        let path = env::var_os("PATH").unwrap_or_default();
        let folders =
            [self.folder.path().join("bin"), weir].into_iter().chain(env::split_paths(&path));
        command.current_dir(folder).env("PATH", env::join_paths(folders).unwrap());
        command.env("HOME", self.folder.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        for name in ["GIT_AUTHOR", "GIT_COMMITTER"] {
            command.env(format!("{name}_NAME"), "a").env(format!("{name}_EMAIL"), "a@example.com");
        }
        command.env_remove("KUBECONFIG").env_remove("GIT_DIR");
        command
    }

    /// Runs a script as the runner of GitHub or GitLab does.
    fn bash(&self, script: &str, variables: &BTreeMap<String, String>) -> Output {
        let temp = self.folder.path();
        let mut command = self.command("bash", &self.work());
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
        command.env("GITHUB_ACTION_PATH", root()).env("RUNNER_TEMP", temp);
        command
            .env("GITHUB_OUTPUT", temp.join("output"))
            .env("GITHUB_STEP_SUMMARY", temp.join("summary"));
        command.env("GITHUB_BASE_REF", "main").env("GITHUB_HEAD_REF", "change");
        command.env("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main");
        command.envs(variables).output().unwrap()
    }
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Replaces the expressions of a workflow. Fails for an unknown one.
fn expand(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${{") {
        let (name, tail) = after.split_once("}}").unwrap();
        let value = values.get(name.trim()).unwrap_or_else(|| panic!("unknown value {name}"));
        expanded.extend([before, value]);
        rest = tail;
    }
    expanded + rest
}

/// Runs the steps of the action with inputs. Returns the output of the first step that fails, or
/// of the last one.
fn run_action(request: &PullRequest, inputs: &Value) -> Output {
    let action = yaml(&fs::read_to_string(root().join("action.yml")).unwrap());
    let mut values = BTreeMap::from([("github.base_ref".to_owned(), "main".to_owned())]);
    for (name, input) in action["inputs"].as_object().unwrap() {
        let default = input["default"].as_str().map(|text| expand(text, &values));
        let given = inputs[name].as_str().map(ToOwned::to_owned);
        let value = given.or(default).unwrap_or_else(|| panic!("the input {name} is required"));
        values.insert(format!("inputs.{name}"), value);
    }
    let mut last = None;
    for step in action["runs"]["steps"].as_array().unwrap() {
        let mut variables = BTreeMap::new();
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            variables.insert(name.clone(), expand(value.as_str().unwrap(), &values));
        }
        let output = request.bash(step["run"].as_str().unwrap(), &variables);
        let failed = !output.status.success();
        last = Some(output);
        if failed {
            break;
        }
    }
    last.unwrap()
}

#[test]
fn the_action_annotates_lines_and_writes_a_comment() {
    let request = PullRequest::new();
    let inputs = serde_json::json!({"paths": "deploy/", "tests": "tests/", "sarif": "weir.sarif"});
    let output = run_action(&request, &inputs);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let log = stdout(&output);
    let opened = "::warning file=deploy/policy.yaml,line=7,title=connection-opened::";
    assert!(log.contains(opened), "{log}");
    let comment = request.file("weir.md");
    for part in [
        "### weir lint\n\nnothing found\n",
        "### weir test\n\n1 passed, 0 failed\n",
        "| ➕ | shop/web | shop/db | 5432/TCP |",
    ] {
        assert!(comment.contains(part), "no {part}: {comment}");
    }
    assert_eq!(request.file("summary"), comment);
    let outputs = request.file("output");
    assert!(outputs.contains("changed=true\n") && outputs.contains("weir.md\n"), "{outputs}");
    let sarif: Value =
        serde_json::from_str(&fs::read_to_string(request.work().join("weir.sarif")).unwrap())
            .unwrap();
    assert_eq!(sarif["version"], "2.1.0");
}

#[test]
fn the_action_fails_if_a_check_fails() {
    let request = PullRequest::new();
    let fail = serde_json::json!({"paths": "deploy/", "fail-on-diff": "true"});
    assert_eq!(run_action(&request, &fail).status.code(), Some(1));
    let nothing = OPEN.replace("app: db", "app: gone");
    fs::write(request.work().join("deploy/policy.yaml"), nothing).unwrap();
    let inputs = serde_json::json!({"paths": "deploy/", "base": ""});
    let output = run_action(&request, &inputs);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("title=selects-nothing::"), "{}", stdout(&output));
    let errors = serde_json::json!({"paths": "deploy/", "base": "", "fail-on": "error"});
    assert_eq!(run_action(&request, &errors).status.code(), Some(0));
    fs::write(request.work().join("deploy/policy.yaml"), "a: [").unwrap();
    assert_ne!(run_action(&request, &errors).status.code(), Some(0));
    let missing = serde_json::json!({"paths": "nowhere/", "base": ""});
    assert_eq!(run_action(&request, &missing).status.code(), Some(2));
}

/// The YAML blocks of the guide, by their first line, which is a comment.
fn recipes() -> BTreeMap<String, Value> {
    let text = fs::read_to_string(root().join("docs/guides/ci.md")).unwrap();
    let blocks = text.split("```yaml\n# ").skip(1);
    let recipe = |block: &str| {
        let (name, rest) = block.split_once('\n').unwrap();
        (name.to_owned(), yaml(rest.split_once("```").unwrap().0))
    };
    blocks.map(recipe).collect()
}

#[test]
fn the_recipe_for_github_works_with_the_action() {
    let workflow = &recipes()[".github/workflows/policies.yaml"];
    let steps = workflow["jobs"]["weir"]["steps"].as_array().unwrap();
    let request = PullRequest::new();
    let action = steps.iter().find(|step| step["id"] == "weir").unwrap();
    let output = run_action(&request, &action["with"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let outputs = request.file("output");
    let outputs = outputs.lines().filter_map(|line| line.split_once('='));
    let mut values: BTreeMap<String, String> = outputs
        .map(|(name, value)| (format!("steps.weir.outputs.{name}"), value.to_owned()))
        .collect();
    values.insert("github.token".into(), "secret".into());
    let comment = steps.last().unwrap();
    let variables = comment["env"].as_object().unwrap().iter();
    let variables =
        variables.map(|(name, value)| (name.clone(), expand(value.as_str().unwrap(), &values)));
    let output = request.bash(comment["run"].as_str().unwrap(), &variables.collect());
    assert!(output.status.success(), "{}", stderr(&output));
    let posted = request.file("gh");
    assert!(posted.starts_with("pr comment change --body-file "), "{posted}");
    assert!(posted.contains("| ➕ | shop/web | shop/db | 5432/TCP |"), "{posted}");
}

#[test]
fn the_recipes_without_the_action_work() {
    let recipes = recipes();
    let request = PullRequest::new();
    let run = |script: &str| {
        let output = request.bash(script, &BTreeMap::new());
        assert!(output.status.success(), "{script}: {}{}", stdout(&output), stderr(&output));
    };
    for step in recipes["Steps of a GitHub workflow"].as_array().unwrap() {
        run(step["run"].as_str().unwrap());
    }
    assert!(request.file("summary").contains("shop/web | shop/db | 5432/TCP"));
    for line in recipes[".gitlab-ci.yml"]["network-policies"]["script"].as_array().unwrap() {
        run(line.as_str().unwrap());
    }
    let work = request.work();
    assert!(fs::read_to_string(work.join("weir.md")).unwrap().contains("shop/web | shop/db"));
    assert!(fs::read_to_string(work.join("weir.xml")).unwrap().contains("<testsuites"));
    fs::write(work.join("deploy/policy.yaml"), "a: [").unwrap();
    let diff = recipes[".gitlab-ci.yml"]["network-policies"]["script"][3].as_str().unwrap();
    let output = request.bash(diff, &BTreeMap::new());
    assert!(!output.status.success(), "a broken manifest is no difference");
}

/// pre-commit runs the entry and the arguments of a hook without a shell.
#[test]
fn the_hooks_for_pre_commit_work() {
    let hooks = yaml(&fs::read_to_string(root().join(".pre-commit-hooks.yaml")).unwrap());
    let hooks = hooks.as_array().unwrap();
    let used = recipes().remove(".pre-commit-config.yaml").unwrap();
    let request = PullRequest::new();
    let words = |value: &Value| -> Vec<String> {
        let list = value.as_array().unwrap().iter();
        list.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let run = |hook: &Value, arguments: &Value| {
        assert_eq!(hook["language"], "system");
        assert_eq!(hook["pass_filenames"], false);
        let entry: Vec<&str> = hook["entry"].as_str().unwrap().split(' ').collect();
        let mut command = request.command(entry[0], &request.work());
        command.args(&entry[1..]).args(words(arguments)).output().unwrap()
    };
    let find = |id: &Value| hooks.iter().find(|hook| hook["id"] == *id).unwrap();
    let all = used["repos"][0]["hooks"].as_array().unwrap();
    assert_eq!(all.len(), hooks.len(), "the recipe shows every hook");
    for hook in all {
        let output = run(find(&hook["id"]), &hook["args"]);
        assert!(output.status.success(), "{hook}: {}{}", stdout(&output), stderr(&output));
        let output = run(find(&hook["id"]), &find(&hook["id"])["args"]);
        assert!(output.status.success(), "{hook}: {}{}", stdout(&output), stderr(&output));
    }
    fs::write(request.work().join("deploy/policy.yaml"), OPEN.replace("app: db", "app: x"))
        .unwrap();
    let lint = all.iter().find(|hook| hook["id"] == "weir-lint").unwrap();
    assert_eq!(run(find(&lint["id"]), &lint["args"]).status.code(), Some(1));
}
