//! The exact permissions of the manifests' ServiceAccounts, evaluated by a real API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use weir_cluster::Cluster;

use super::{
    CONTROLLER_NAMESPACE, NAMESPACE,
    chart::documents,
    live::{ACI, cluster, collection},
};
use crate::shell::root;

const VERBS: [&str; 9] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "impersonate",
];

/// A target of permissions: group, resource with subresource, and a name if the role has one.
type Target = (String, String, String);

/// All resources that the API server serves.
fn served(cluster: &Cluster) -> BTreeSet<Target> {
    let groups = cluster.get("/apis").expect("groups");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut versions = vec![(String::new(), "/api/v1".to_owned())];
    for group in groups["groups"].as_array().expect("groups") {
        let version = text(&group["preferredVersion"]["groupVersion"]);
        versions.push((text(&group["name"]), format!("/apis/{version}")));
    }
    let mut targets = BTreeSet::new();
    for (group, path) in versions {
        let list = cluster.get(&path).expect("a group");
        for resource in list["resources"].as_array().expect("resources") {
            targets.insert((group.clone(), text(&resource["name"]), String::new()));
        }
    }
    assert!(targets.len() > 80, "the API server has resources: {}", targets.len());
    targets
}

/// The resources that roles name, whether the server serves them or not.
fn named(roles: &[Value]) -> BTreeSet<Target> {
    let mut targets = BTreeSet::new();
    let list = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
    };
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten()) {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                targets.insert((group.clone(), resource.clone(), String::new()));
                for name in list(&rule["resourceNames"]) {
                    targets.insert((group.clone(), resource.clone(), name));
                }
            }
        }
    }
    targets
}

/// Whether an account has a permission in a namespace or, if that is empty, in the whole cluster.
fn is_allowed(
    cluster: &Cluster,
    (home, account): (&str, &str),
    namespace: &str,
    target: &Target,
    verb: &str,
) -> bool {
    let (group, resource, name) = target;
    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{home}:{account}"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{home}"), "system:authenticated"],
            "resourceAttributes": {
                "namespace": namespace, "group": group, "resource": resource, "subresource": sub, "name": name, "verb": verb,
            },
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = cluster.create(path, &review).expect("an answer");
    answer["status"]["allowed"] == true
}

/// Creates the accounts and roles of a file and compares the account's permissions with a list.
#[track_caller]
fn check(file: &str, account: &str, expected: Expect) {
    let cluster = cluster();
    let text = fs::read_to_string(root().join("deploy").join(file)).expect("a file");
    // Accounts of agents have the same name in several files, and their permissions would add up.
    let name = |account: &str| format!("name: {account}\n");
    let (text, account) = (text.replace(&name(account), &name(file)), file);
    let rbac = |object: &Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind.contains("Role") || kind == "ServiceAccount"
    };
    let objects: Vec<Value> = documents(&text).into_iter().filter(rbac).collect();
    for object in &objects {
        if let Err(error) = cluster.create(&collection(object), object) {
            panic!("{} {}: {error}", object["kind"], object["metadata"]["name"]);
        }
    }
    let is_controller = file.starts_with("controller-");
    let home = if is_controller { CONTROLLER_NAMESPACE } else { NAMESPACE };
    let targets: BTreeSet<Target> = served(cluster).into_iter().chain(named(&objects)).collect();
    let mut rights: BTreeMap<(&str, Target), Vec<&str>> = BTreeMap::new();
    for target in targets {
        for verb in VERBS {
            let can = |account: &str, namespace: &str| {
                is_allowed(cluster, (home, account), namespace, &target, verb)
            };
            // Skip permissions of every authenticated account.
            if can("no-such-account", "") {
                continue;
            }
            let unnamed = (target.0.clone(), target.1.clone(), String::new());
            let places = [
                ("everywhere", ""),
                ("in its own namespace", home),
                ("in ACI's namespace", ACI),
                ("in the agents' namespace", NAMESPACE),
            ];
            let Some((place, at)) = places.into_iter().find(|(_, at)| can(account, at)) else {
                continue;
            };
            // A permission for all names includes this name.
            if target.2.is_empty() || !is_allowed(cluster, (home, account), at, &unnamed, verb) {
                rights.entry((place, target.clone())).or_default().push(verb);
            }
        }
    }
    let lines = rights.iter().map(|((place, (group, resource, name)), verbs)| {
        let dot = if group.is_empty() { "" } else { "." };
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        format!("{resource}{dot}{group}{name}: {} {place}\n", verbs.join(" "))
    });
    expected.assert_eq(&lines.collect::<String>());
}

#[test]
fn an_agent_can_only_read_cluster_state_and_write_events() {
    check(
        "agent.yaml",
        "weir-agent",
        expect![[r#"
        events: create patch everywhere
        namespaces: list watch everywhere
        nodes: list watch everywhere
        pods: get list watch everywhere
        customresourcedefinitions.apiextensions.k8s.io adminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io baselineadminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io clusternetworkpolicies.policy.networking.k8s.io: get everywhere
        networkpolicies.networking.k8s.io: list watch everywhere
        adminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        baselineadminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        clusternetworkpolicies.policy.networking.k8s.io: list watch everywhere
    "#]],
    );
}

#[test]
fn a_relay_can_only_read_cluster_state_and_review_tokens() {
    check(
        "relay.yaml",
        "weir-relay",
        expect![[r#"
            namespaces: list watch everywhere
            nodes: list watch everywhere
            pods: list watch everywhere
            customresourcedefinitions.apiextensions.k8s.io adminnetworkpolicies.policy.networking.k8s.io: get everywhere
            customresourcedefinitions.apiextensions.k8s.io baselineadminnetworkpolicies.policy.networking.k8s.io: get everywhere
            customresourcedefinitions.apiextensions.k8s.io clusternetworkpolicies.policy.networking.k8s.io: get everywhere
            tokenreviews.authentication.k8s.io: create everywhere
            networkpolicies.networking.k8s.io: list watch everywhere
            adminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
            baselineadminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
            clusternetworkpolicies.policy.networking.k8s.io: list watch everywhere
        "#]],
    );
}

#[test]
fn the_memcached_controller_can_only_write_network_policies_status_and_its_lease() {
    check(
        "controller-memcached.yaml",
        "weir-memcached-controller",
        expect![[r#"
            events: create patch everywhere
            memcacheds.memcached.c5c3.io: list watch everywhere
            memcacheds/finalizers.memcached.c5c3.io: update everywhere
            memcacheds/status.memcached.c5c3.io: patch everywhere
            networkpolicies.networking.k8s.io: list watch create update delete everywhere
            leases.coordination.k8s.io: create in its own namespace
            leases.coordination.k8s.io weir-memcached-controller: get update in its own namespace
        "#]],
    );
}

#[test]
fn the_conditions_controller_can_only_write_status_and_its_lease() {
    check(
        "controller-conditions.yaml",
        "weir-conditions-controller",
        expect![[r#"
        events: create patch everywhere
        namespaces: list watch everywhere
        nodes: list watch everywhere
        pods: list watch everywhere
        customresourcedefinitions.apiextensions.k8s.io adminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io baselineadminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io clusternetworkpolicies.policy.networking.k8s.io: get everywhere
        networkpolicies.networking.k8s.io: list watch everywhere
        adminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        adminnetworkpolicies/status.policy.networking.k8s.io: patch everywhere
        baselineadminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        baselineadminnetworkpolicies/status.policy.networking.k8s.io: patch everywhere
        clusternetworkpolicies.policy.networking.k8s.io: list watch everywhere
        clusternetworkpolicies/status.policy.networking.k8s.io: patch everywhere
        leases.coordination.k8s.io: create in its own namespace
        leases.coordination.k8s.io weir-conditions-controller: get update in its own namespace
        leases.coordination.k8s.io: list watch in the agents' namespace
    "#]],
    );
}

#[test]
fn an_opflex_agent_can_only_read_pods_and_host_protection_objects() {
    check(
        "agent-opflex.yaml",
        "weir-agent",
        expect![[r#"
        pods: list watch everywhere
        hostprotpols.aci.hpp: list watch in ACI's namespace
        hostprotremoteipcontainers.aci.hpp: list watch in ACI's namespace
    "#]],
    );
}

#[test]
fn the_hpp_controller_can_only_write_its_two_kinds_and_its_lease() {
    check(
        "controller-hpp.yaml",
        "weir-hpp-controller",
        expect![[r#"
        events: create patch everywhere
        namespaces: list watch everywhere
        nodes: list watch everywhere
        pods: list watch everywhere
        services: list watch everywhere
        customresourcedefinitions.apiextensions.k8s.io adminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io baselineadminnetworkpolicies.policy.networking.k8s.io: get everywhere
        customresourcedefinitions.apiextensions.k8s.io clusternetworkpolicies.policy.networking.k8s.io: get everywhere
        endpointslices.discovery.k8s.io: list watch everywhere
        networkpolicies.networking.k8s.io: list watch everywhere
        adminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        baselineadminnetworkpolicies.policy.networking.k8s.io: list watch everywhere
        clusternetworkpolicies.policy.networking.k8s.io: list watch everywhere
        configmaps aci-containers-config: list watch in ACI's namespace
        hostprotpols.aci.hpp: list watch create update delete in ACI's namespace
        hostprotpols/status.aci.hpp: patch in ACI's namespace
        hostprotremoteipcontainers.aci.hpp: list watch create update delete in ACI's namespace
        leases.coordination.k8s.io: create in its own namespace
        leases.coordination.k8s.io weir-hpp-controller: get update in its own namespace
    "#]],
    );
}

#[test]
fn the_clusterset_controller_can_only_write_network_policies_status_and_its_lease() {
    check(
        "controller-clusterset.yaml",
        "weir-clusterset-controller",
        expect![[r#"
            events: create patch everywhere
            namespaces: list watch everywhere
            pods: list watch everywhere
            networkpolicies.networking.k8s.io: list watch create update delete everywhere
            clustersetnetworkpolicies.submariner.io: list watch everywhere
            clustersetnetworkpolicies/finalizers.submariner.io: update everywhere
            clustersetnetworkpolicies/status.submariner.io: patch everywhere
            leases.coordination.k8s.io: create in its own namespace
            leases.coordination.k8s.io weir-clusterset-controller: get update in its own namespace
        "#]],
    );
}
