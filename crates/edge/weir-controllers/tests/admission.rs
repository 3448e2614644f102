//! The admission policy for brokers, `examples/clusterset/broker.yaml`. The test evaluates its CEL
//! expressions itself, because the test API server is too old for such policies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

use std::{path::Path, sync::Arc};

use cel::{Context, Program, Value as Cel, extractors::This};
use serde_json::{Value, json};
use weir_clusterset::{RemoteId, RemotePod};
use weir_controllers::clusterset::wire;
use weir_kube::KubeObject;

const BROKER: &str = "submariner-k8s-broker";

/// The documents of the example.
fn documents() -> Vec<Value> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/clusterset/broker.yaml");
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn of_kind(kind: &str) -> Value {
    documents().into_iter().find(|document| document["kind"] == kind).unwrap()
}

/// One request to the broker.
struct Request {
    user: String,
    resource: &'static str,
    old: Value,
    new: Value,
}

/// The string function of Kubernetes' CEL library that the policy uses.
fn substring(This(this): This<Arc<String>>, from: i64) -> String {
    this.chars().skip(usize::try_from(from).unwrap()).collect()
}

fn evaluate(context: &Context<'_, '_>, expression: &Value) -> Cel {
    let text = expression["expression"].as_str().unwrap();
    Program::compile(text)
        .unwrap()
        .execute(context)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The decision of the policy, or `None` if it does not match the request.
fn verdict(request: &Request) -> Option<Result<(), String>> {
    let policy = of_kind("ValidatingAdmissionPolicy");
    let spec = &policy["spec"];
    assert_eq!(spec["failurePolicy"], "Fail");
    let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap();
    let has =
        |rule: &Value| rule["resources"].as_array().unwrap().contains(&json!(request.resource));
    assert!(rules.iter().any(has), "{} is not covered", request.resource);
    let mut context = Context::default();
    context.add_function("substring", substring).unwrap();
    let user = json!({"username": request.user});
    let attributes = json!({"userInfo": user, "resource": {"resource": request.resource}});
    for (name, value) in
        [("request", &attributes), ("object", &request.new), ("oldObject", &request.old)]
    {
        context.add_variable(name, value.clone()).unwrap();
    }
    let conditions = spec["matchConditions"].as_array().unwrap();
    if conditions.iter().any(|condition| evaluate(&context, condition) == Cel::Bool(false)) {
        return None;
    }
    let mut variables = json!({});
    for variable in spec["variables"].as_array().unwrap() {
        let Cel::String(value) = evaluate(&context, variable) else { panic!("{variable}") };
        variables[variable["name"].as_str().unwrap()] = json!(*value);
    }
    context.add_variable("variables", variables).unwrap();
    let violated = spec["validations"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| evaluate(&context, rule) != Cel::Bool(true));
    Some(violated.map_or(Ok(()), |rule| Err(rule["message"].as_str().unwrap().to_owned())))
}

/// The decision on a request of a member.
fn member(id: &str, resource: &'static str, old: Value, new: Value) -> Result<(), String> {
    let user = format!("system:serviceaccount:{BROKER}:cluster-{id}");
    verdict(&Request { user, resource, old, new }).unwrap()
}

fn json_of(object: &KubeObject) -> Value {
    serde_json::to_value(object).unwrap()
}

fn pod(cluster: &str) -> Value {
    let id = RemoteId { namespace: "shop".into(), cluster: cluster.into(), name: "web".into() };
    let addresses = vec!["10.1.0.1".parse().unwrap()];
    let labels = [("app", "web")].into_iter().collect();
    json_of(&wire::remote_pod(&RemotePod { id, labels, addresses, ports: Vec::new() }, BROKER))
}

fn lease(cluster: &str) -> Value {
    json!({
        "metadata": {"name": format!("weir-clusterset-{cluster}"), "labels": {wire::CLUSTER: cluster}},
        "spec": {"holderIdentity": "uid"},
    })
}

#[test]
fn a_member_may_write_and_delete_its_own_objects() {
    let labels = [("team", "a")].into_iter().collect();
    let networks = ["10.1.0.0/16".parse().unwrap()];
    for (resource, object) in [
        ("remotepods", pod("east")),
        (
            "remotenamespaces",
            json_of(&wire::remote_namespace(&"east".into(), &"shop".into(), &labels, BROKER)),
        ),
        ("clustersetmembers", json_of(&wire::member(&"east".into(), "uid", &networks, [], BROKER))),
        ("leases", lease("east")),
    ] {
        for (old, new) in [
            (Value::Null, object.clone()),
            (object.clone(), object.clone()),
            (object.clone(), Value::Null),
        ] {
            assert_eq!(member("east", resource, old, new), Ok(()), "{resource} {object}");
        }
    }
}

#[test]
fn a_member_may_neither_change_objects_of_others_nor_forge_its_id() {
    let (own, other) = (pod("east"), pod("west"));
    let mut taken = other.clone();
    taken["metadata"]["labels"][wire::CLUSTER] = json!("east");
    let mut unlabelled = own.clone();
    unlabelled["metadata"]["labels"] = json!({"app": "web"});
    let mut bare = own.clone();
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    let mut named = own.clone();
    named["metadata"]["name"] = json!("west.shop.web");
    let mut alike = own.clone();
    alike["metadata"]["name"] = json!("eastern.shop.web");
    let mut forged = own.clone();
    forged["spec"]["clusterID"] = json!("west");
    let mut stolen = lease("east");
    stolen["metadata"]["name"] = json!("weir-clusterset-west");
    for (resource, old, new, expected) in [
        ("remotepods", Value::Null, other.clone(), "label"),
        ("remotepods", other.clone(), Value::Null, "another member's"),
        ("remotepods", other.clone(), taken, "another member's"),
        ("remotepods", own.clone(), other, "label"),
        ("remotepods", Value::Null, unlabelled, "label"),
        ("remotepods", Value::Null, bare, "label"),
        ("remotepods", Value::Null, named, "name"),
        ("remotepods", Value::Null, alike, "name"),
        ("remotepods", Value::Null, forged, "spec.clusterID"),
        ("leases", Value::Null, stolen, "name"),
        ("leases", Value::Null, lease("west"), "label"),
        ("leases", lease("west"), lease("west"), "label"),
    ] {
        let message = member("east", resource, old, new.clone()).unwrap_err();
        assert!(message.contains(expected), "{message}: {new}");
    }
}

#[test]
fn the_policy_ignores_users_that_are_not_members() {
    let user = "admin".to_owned();
    let request = Request { user, resource: "remotepods", old: pod("west"), new: Value::Null };
    assert_eq!(verdict(&request), None);
}

#[test]
fn the_policy_is_bound_and_members_have_the_rights_that_the_controller_needs() {
    let binding = of_kind("ValidatingAdmissionPolicyBinding");
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    assert_eq!(
        binding["spec"]["policyName"],
        of_kind("ValidatingAdmissionPolicy")["metadata"]["name"]
    );
    let role = of_kind("Role");
    assert_eq!(
        role["rules"],
        json!([
            {"apiGroups": ["submariner.io"], "resources": ["remotepods", "remotenamespaces", "clustersetmembers"], "verbs": ["list", "watch", "create", "update", "delete"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "create", "update", "delete"]},
        ])
    );
    for subject in of_kind("RoleBinding")["subjects"].as_array().unwrap() {
        let is_subject = |one: &Value| {
            one["kind"] == "ServiceAccount" && one["metadata"]["name"] == subject["name"]
        };
        assert!(documents().iter().any(is_subject), "{subject}");
    }
}
