//! Input that `kubectl apply -f` alone cannot describe: other workloads, default namespaces,
//! kustomizations and charts.

use std::{fs, path::Path, process::Output};

use expect_test::expect;
use tempfile::TempDir;

use crate::{check, command, json, stderr, stdout, weir_reading};

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// Runs weir in a folder, with the programs of another folder.
fn weir_in(folder: &Path, programs: &Path, arguments: &str) -> Output {
    let mut command = command();
    command.current_dir(folder).env("PATH", programs);
    command.args(arguments.split_whitespace()).output().unwrap()
}

/// A Deployment whose policy accepts nothing but pods of its own namespace.
const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web}]}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: argocd}}}]
";

const OTHER: &str = "---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: other}
";

#[test]
fn a_rollout_is_an_end() {
    let rollout = "\
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web}]}}}
";
    let output = weir_reading("explain -f - --from 10.0.0.1 --to shop/ro/web --port 80", rollout);
    assert!(stdout(&output).starts_with("allowed: 10.0.0.1 → shop/web 80/TCP"), "{output:?}");
    let output = weir_reading("matrix -f - -o json", rollout);
    assert_eq!(json(&output)["ends"], serde_json::json!(["shop/web", "outside"]));
    assert_eq!(stderr(&output), "");
}

#[test]
fn objects_without_a_namespace_belong_to_the_given_one() {
    let explain = "explain -f - --from web --to argocd/web --port 80";
    assert_eq!(weir_reading(explain, APP).status.code(), Some(2));
    let input = format!("{APP}{OTHER}");
    let output = weir_reading(&format!("{explain} -n argocd"), &input);
    assert!(stdout(&output).starts_with("allowed: argocd/web → argocd/web"), "{output:?}");
    let explain = "explain -n argocd -f - --from other/other --to web --port 80";
    assert!(stdout(&weir_reading(explain, &input)).starts_with("denied: other/other"));
    let matrix = json(&weir_reading("matrix -f - -n argocd -o json", &input));
    let ends = serde_json::json!(["argocd/web", "other namespaces", "outside the cluster"]);
    assert_eq!(matrix["ends"], ends);
    assert_eq!(weir_reading("lint -f - -n argocd", &input).status.code(), Some(0));
    let output = weir_reading("lint -f - -n argo", OTHER);
    check(
        &output,
        expect![[r#"
        --- stderr
        error: there is no namespace argo
        hint: did you mean other?
        --- exit 2
    "#]],
    );
}

#[test]
fn a_kustomization_is_rendered_by_an_installed_program() {
    let programs = folder(&[]);
    let here = folder(&[("overlays/prod/kustomization.yaml", "namespace: argocd\n")]);
    let output = weir_in(here.path(), programs.path(), "lint -k overlays/prod");
    check(
        &output,
        expect![[r#"
        --- stderr
        error: cannot render overlays/prod: there is no kubectl and no kustomize
        hint: install one of them, or run `kubectl kustomize overlays/prod > rendered.yaml` where it is installed, and use `-f rendered.yaml`
        --- exit 2
    "#]],
    );
    let program = |name: &str, body: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = programs.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("kustomize", "echo 'Error: no such field' >&2; exit 1");
    let output = weir_in(here.path(), programs.path(), "lint -k overlays/prod");
    check(
        &output,
        expect![[r#"
        --- stderr
        error: `kustomize build overlays/prod` failed: Error: no such field
        hint: run that command to see its whole output
        --- exit 2
    "#]],
    );
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: $1, namespace: shop}}";
    program("kubectl", &format!("[ \"$2\" = ./overlays/prod ] && echo \"{pod}\""));
    let output = weir_in(here.path(), programs.path(), "matrix -k overlays/prod -o json");
    assert_eq!(json(&output)["ends"], serde_json::json!(["shop/kustomize", "outside"]));
    let output = weir_in(here.path(), programs.path(), "lint -k overlays/prod --context x");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_tree_of_kustomizations_is_reported_once() {
    let patch = APP.split("---").next().unwrap().replace("name: web}]", "name: web, image: v2}]");
    let here = folder(&[
        ("base/kustomization.yaml", "resources: [app.yaml]\n"),
        ("base/app.yaml", APP),
        ("parts/tls/kustomization.yaml", "kind: Component\npatches: [{path: tls.yaml}]\n"),
        ("parts/tls/tls.yaml", "{op: add, path: /spec}\n"),
        ("prod/kustomization.yaml", "resources: [../base]\npatches: [{path: patch.yaml}]\n"),
        ("prod/patch.yaml", &patch),
        ("test/Kustomization", "resources: [../base]\ncomponents: [../parts/tls]\n"),
        ("test/more.yaml", &APP.replace("app: web", "app: more")),
    ]);
    let programs = folder(&[]);
    let weir = |arguments: &str| weir_in(here.path(), programs.path(), arguments);
    check(
        &weir("lint -f ."),
        expect![[r#"
            ./base/kustomization.yaml:1: error: kustomizations were not rendered: ./prod, ./test; not applied: components, patches; 2 objects have several definitions that differ [unrendered]
              hint: render one of them: `weir … -k ./prod`, or `kubectl kustomize ./prod | weir … -f -`
            1 error
            --- exit 1
        "#]],
    );
    check(
        &weir("matrix -f prod"),
        expect![[r#"
            --- stderr
            prod/kustomization.yaml:1: error: a kustomization was not rendered: prod; not applied: patches [unrendered]
              hint: render it: `weir … -k prod`, or `kubectl kustomize prod | weir … -f -`
            error: part of the input is unreadable or contradictory, so an answer could be wrong
            hint: fix the errors above; `weir lint` lists all findings
            --- exit 2
        "#]],
    );
    check(
        &weir("lint -f base"),
        expect![[r#"
        base/app.yaml:12: warning: no namespace has kubernetes.io/metadata.name=argocd [unknown-namespace-label]
          NetworkPolicy default/web spec.ingress[0].from[0]
          hint: namespaces have kubernetes.io/metadata.name=default
        1 warning
        --- exit 1
    "#]],
    );
    let here = folder(&[
        ("kustomization.yaml", "namespace: shop\nresources: [app.yaml]\n"),
        ("app.yaml", APP),
    ]);
    let output = weir_in(here.path(), programs.path(), "lint -f . -n argocd");
    check(
        &output,
        expect![[r#"
            ./kustomization.yaml:1: warning: a kustomization was not rendered: .; not applied: namespace [unrendered]
              hint: render it: `weir … -k .`, or `kubectl kustomize . | weir … -f -`
            1 warning
            --- exit 1
        "#]],
    );
}

#[test]
fn a_helm_chart_is_reported_once() {
    let here = folder(&[
        ("app.yaml", APP),
        ("chart/Chart.yaml", "name: web\n"),
        ("chart/values.yaml", "replicas: 5\n"),
        ("chart/charts/sub/Chart.yaml", "name: sub\n"),
        ("chart/templates/a.yaml", "kind: Deployment\nspec: {{ .Values.spec }}\n"),
        ("chart/templates/b.yaml", "{{ if .Values.x }}\nkind: Deployment\n{{ end }}\n"),
    ]);
    let programs = folder(&[]);
    check(
        &weir_in(here.path(), programs.path(), "matrix -f ."),
        expect![[r#"
        --- stderr
        ./chart/Chart.yaml:1: error: this is a Helm chart, whose templates are not manifests; it was not read [unrendered]
          hint: render it first: `helm template ./chart | weir … -f -`
        error: part of the input is unreadable or contradictory, so an answer could be wrong
        hint: fix the errors above; `weir lint` lists all findings
        --- exit 2
    "#]],
    );
    check(
        &weir_in(here.path(), programs.path(), "lint -f chart"),
        expect![[r#"
        chart/Chart.yaml:1: error: this is a Helm chart, whose templates are not manifests; it was not read [unrendered]
          hint: render it first: `helm template chart | weir … -f -`
        1 error
        --- exit 1
    "#]],
    );
}

#[test]
fn equal_definitions_are_no_error() {
    let output = weir_reading("lint -f - -n argocd", &format!("{APP}---\n{APP}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("both definitions are equal"), "{output:?}");
}
