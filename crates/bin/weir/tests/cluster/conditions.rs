//! The controller of conditions beside a real agent.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Right};

use crate::{
    objects::{self, policies_of},
    shop::{DB, WEB, lab},
    site::{Agent, Scratch, until},
};

const GROUP: &str = "policy.networking.k8s.io";
const POLICIES: &str = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies";

/// The definition of a kind of admin policies, with a status.
fn definition((kind, short, version): (&str, &str, &str)) -> Value {
    let singular = kind.to_lowercase();
    let plural = plural(kind);
    json!({
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": singular, "kind": kind, "shortNames": [short]},
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

/// The other kinds of admin policies, each with its short name and version.
const OTHER_KINDS: [(&str, &str, &str); 2] =
    [("AdminNetworkPolicy", "anp", "v1alpha1"), ("BaselineAdminNetworkPolicy", "banp", "v1alpha1")];

fn plural(kind: &str) -> String {
    kind.to_lowercase().replace("policy", "policies")
}

fn policy(priority: u32) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1beta1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {
            "tier": "Admin", "priority": priority, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        },
    })
}

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The rights of the controller, as in the chart.
const CONTROLLER: [Right; 7] = [
    Right {
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        verbs: &["get"],
    },
    Right { group: "", resources: &["namespaces", "nodes", "pods"], verbs: &["list", "watch"] },
    Right {
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
        verbs: &["list", "watch"],
    },
    Right {
        group: "policy.networking.k8s.io",
        resources: &[
            "adminnetworkpolicies",
            "baselineadminnetworkpolicies",
            "clusternetworkpolicies",
        ],
        verbs: &["list", "watch"],
    },
    Right {
        group: "policy.networking.k8s.io",
        resources: &[
            "adminnetworkpolicies/status",
            "baselineadminnetworkpolicies/status",
            "clusternetworkpolicies/status",
        ],
        verbs: &["patch"],
    },
    Right { group: "", resources: &["events"], verbs: &["create", "patch"] },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["list", "watch", "get", "create", "update"],
    },
];

pub(crate) fn say_where_policies_are_in_force() {
    let (lab, cluster, scratch) = (lab(), Cluster::start().unwrap(), Scratch::new());
    let admin = scratch.kubeconfig(cluster.admin(), "admin");
    objects::node(&cluster, "n1", "192.168.77.1");
    for name in ["shop", "weir-system"] {
        cluster.create("/api/v1/namespaces", &objects::namespace(name, &json!({}))).unwrap();
    }
    objects::run(&cluster, "web", "web", "n1", &WEB.to_string());
    objects::run(&cluster, "db", "db", "n1", &DB.to_string());
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let own = ("ClusterNetworkPolicy", "cnp", "v1beta1");
    for kind in [own].into_iter().chain(OTHER_KINDS) {
        cluster.create(definitions, &definition(kind)).unwrap();
    }
    let user = cluster.user("conditions", &CONTROLLER).unwrap();
    let kubeconfig = scratch.kubeconfig(&user, "conditions");
    let start_agent = || {
        let reports = ["--report-to", "weir-system"];
        Agent::start(&cluster, &lab, &scratch, "n1", cluster.admin(), &reports).ready(&lab)
    };
    let agent = start_agent();
    let log = scratch.path("conditions.log");
    let controller = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args("controller --enable conditions --namespace weir-system --http off".split(' '))
        .env("KUBECONFIG", &kubeconfig)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn();
    let _controller = Process(controller.unwrap());
    let log = || std::fs::read_to_string(&log).unwrap();
    until("the kind is served", || cluster.create(POLICIES, &policy(1)).is_ok(), log);

    // kubectl waits for the condition.
    let waited = kubectl(&admin, "wait --for=condition=InForce cnp/deny --timeout=80s");
    assert!(waited.status.success(), "{}{}", String::from_utf8_lossy(&waited.stderr), log());
    let conditions = || conditions(&cluster);
    let [accepted, in_force, degraded] = conditions();
    assert_eq!([&accepted["status"], &degraded["status"]], ["True", "False"]);
    assert_eq!(in_force["observedGeneration"], 1);
    assert_eq!(in_force["message"], "1 of 1 nodes with a selected pod enforce it");

    // The other kinds have conditions, too.
    for (kind, short, version) in OTHER_KINDS {
        let path = format!("/apis/{GROUP}/{version}/{}", plural(kind));
        let mut spec = json!({
            "subject": {"namespaces": {}},
            "ingress": [{"action": "Allow", "from": [{"namespaces": {}}]}],
        });
        if kind == "AdminNetworkPolicy" {
            spec["priority"] = 5.into();
        }
        let object = json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": kind,
            "metadata": {"name": "default"}, "spec": spec,
        });
        until("the kind is served", || cluster.create(&path, &object).is_ok(), log);
        let words = format!("wait --for=condition=InForce {short}/default --timeout=80s");
        let waited = kubectl(&admin, &words);
        let error = String::from_utf8_lossy(&waited.stderr).into_owned();
        assert!(waited.status.success(), "{kind}: {error}{}", log());
        let object = cluster.get(&format!("{path}/default")).unwrap();
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let status = |wanted: &str| {
            let one = all.iter().find(|one| one["type"] == wanted);
            one.map(|one| (one["status"].clone(), one["observedGeneration"].clone()))
        };
        let is = |status: &str| Some((json!(status), json!(1)));
        assert_eq!([status("Accepted"), status("Degraded")], [is("True"), is("False")], "{kind}");
        assert_eq!(status("InForce"), is("True"), "{kind}");
    }

    // Without an agent, the next generation lags.
    drop(agent);
    cluster.patch(&format!("{POLICIES}/deny"), &json!({"spec": {"priority": 2}})).unwrap();
    let lags = || {
        let [_, in_force, _] = conditions();
        in_force["status"] == "False" && in_force["observedGeneration"] == 2
    };
    until("the change lags", lags, log);
    assert!(conditions()[1]["message"].as_str().unwrap().contains("not yet: n1"));

    // A NetworkPolicy has no status: the commands and an Event say where it is in force.
    let netpol = json!({"metadata": {"name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}}});
    cluster.create(&policies_of("shop"), &netpol).unwrap();
    let weir = |words: &str| {
        let output = weir(&admin, words);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = weir("wait netpol/shop/db --timeout 1");
    assert_eq!(code, Some(1), "{text}");
    let expected = "NetworkPolicy shop/db, generation 1: not in force; 0 of 1 nodes with a selected pod enforce it; not yet: n1\n";
    assert_eq!(text, expected);
    let agent = start_agent();
    let (code, text) = weir("wait netpol/shop/db --timeout 80");
    assert_eq!(code, Some(0), "{text}{}", agent.log());
    let (code, text) = weir("status netpol/shop/db -o json");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &status["inForce"], &status["nodes"]), (Some(0), &json!(true), &json!(1)));
    until("the change is in force", || conditions()[1]["status"] == "True", log);
    say_that_policies_are_staged(&cluster, &admin, log);

    // A node that can no longer enforce the policy as written says so, and also when it can again.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/weir-system/leases/weir-node-n1";
    let report = |degraded: Value| {
        let annotations = json!({"weir.dev/degraded": degraded.to_string()});
        cluster.patch(lease, &json!({"metadata": {"annotations": annotations}})).unwrap();
    };
    drop(agent);
    report(json!({"ClusterNetworkPolicy deny": "too large"}));
    let is = |wanted: [&str; 2]| {
        let [_, in_force, degraded] = conditions();
        [&in_force["status"], &degraded["status"]] == wanted
    };
    until("the policy is degraded", || is(["False", "True"]), log);
    assert_eq!(conditions()[2]["message"], "n1: too large");
    report(json!({}));
    until("the policy is in force again", || is(["True", "False"]), log);
    until("the Event", || has_event(&cluster, "InForce"), log);
    assert!(!log().contains("not allowed"), "a right is missing: {}", log());
}

/// Stages both policies, and enforces them again.
fn say_that_policies_are_staged(cluster: &Cluster, admin: &Path, log: impl Fn() -> String + Copy) {
    let paths = [format!("{POLICIES}/deny"), format!("{}/db", policies_of("shop"))];
    let set_mode = |mode: Value| {
        let change = json!({"metadata": {"annotations": {"weir.dev/mode": mode}}});
        paths.iter().for_each(|path| _ = cluster.patch(path, &change).unwrap());
    };
    set_mode(json!("audit"));
    until("the condition says so", || conditions(cluster)[1]["reason"] == "Staged", log);
    assert_eq!(conditions(cluster)[1]["status"], "False");
    until("the Event says so", || has_event(cluster, "Staged"), log);
    let waited = weir(admin, "wait netpol/shop/db --timeout 80");
    let message = String::from_utf8_lossy(&waited.stderr);
    assert_eq!(waited.status.code(), Some(2), "{message}");
    assert!(message.contains("NetworkPolicy shop/db is staged"), "{message}");
    let status = weir(admin, "status netpol/shop/db");
    let text = String::from_utf8_lossy(&status.stdout);
    assert_eq!(status.status.code(), Some(1), "{text}");
    let nodes = "staged: 1 of 1 nodes with a selected pod do not enforce it";
    assert!(text.contains(nodes), "{text}");
    set_mode(Value::Null);
    let in_force = || conditions(cluster)[1]["reason"] == "Enforced";
    until("the policy is in force again", in_force, log);
    let waited = weir(admin, "wait netpol/shop/db --timeout 80");
    assert_eq!(waited.status.code(), Some(0), "{}", String::from_utf8_lossy(&waited.stdout));
}

/// The conditions `Accepted`, `InForce` and `Degraded` of the ClusterNetworkPolicy.
fn conditions(cluster: &Cluster) -> [Value; 3] {
    let object = cluster.get(&format!("{POLICIES}/deny")).unwrap();
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let find = |kind: &str| all.iter().find(|one| one["type"] == kind).cloned();
    ["Accepted", "InForce", "Degraded"].map(|kind| find(kind).unwrap_or_default())
}

/// Whether the NetworkPolicy has an Event with this reason.
fn has_event(cluster: &Cluster, reason: &str) -> bool {
    let events = cluster.get("/api/v1/namespaces/shop/events").unwrap();
    let is_it =
        |event: &Value| event["reason"] == reason && event["involvedObject"]["name"] == "db";
    events["items"].as_array().unwrap().iter().any(is_it)
}

/// Runs weir with an account.
fn weir(kubeconfig: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words.split(' ')).env("KUBECONFIG", kubeconfig).output().unwrap()
}

fn kubectl(kubeconfig: &Path, words: &str) -> Output {
    let mut command = Command::new("kubectl");
    command.args(words.split(' ')).arg("--kubeconfig").arg(kubeconfig);
    command.stdin(Stdio::null()).output().unwrap()
}
