//! The NetworkPolicies of a policy.

use serde_json::{Value, json};

use crate::{
    common::eventually,
    fixture::{network_policies, policies, set, unused},
    until,
};

/// Allows pods of an app, in namespaces of the same name, to reach the database pods.
fn from_app(app: &str) -> Value {
    json!({
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}], "ports": [{"port": 5432}]}],
    })
}

#[test]
fn local_peers_keep_their_selector_and_remote_pods_become_single_addresses() {
    let (set, namespace) = (set(), unused("peers"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    let uid = set.east.policy(&namespace, "db", from_app("api"));
    // Here the policy exists before the pod; below it is the other way round.
    set.west.pod(&namespace, "api", "api", &["10.2.1.1", "fd02::1"]);
    set.west.pod(&namespace, "other", "other", &["10.2.1.2"]);
    until("both addresses of the remote pod are allowed, and no others", || {
        let expected = ["ingress 10.2.1.1/32", "ingress fd02::1/128"].map(String::from);
        set.east.allowed(&namespace) == expected.into()
    });
    let all = set.east.network_policies(&namespace);
    let base = all.iter().find(|one| one["metadata"]["name"] == format!("csnp-{uid}")).unwrap();
    assert_eq!(base["spec"]["policyTypes"], json!(["Ingress"]));
    assert_eq!(
        base["spec"]["ingress"][0]["from"],
        json!([{"podSelector": {"matchLabels": {"app": "api"}}}])
    );
    for policy in &all {
        assert_eq!(policy["spec"]["podSelector"], json!({"matchLabels": {"app": "db"}}));
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
        assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], 5432);
        let owner = &policy["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"]),
            (&json!("ClusterSetNetworkPolicy"), &json!(uid))
        );
        assert_eq!(owner["controller"], true);
        assert_eq!(policy["metadata"]["labels"]["app.kubernetes.io/managed-by"], "weir-clusterset");
    }
    // The policies are local to the cluster.
    assert_eq!(set.west.network_policies(&namespace).len(), 0);
    // A policy that is created after the pod.
    let second = set.east.policy(&namespace, "second", from_app("other"));
    until("the existing pod is allowed", || {
        set.east.allowed(&namespace).contains("ingress 10.2.1.2/32")
    });
    assert_ne!(uid, second);
}

#[test]
fn policies_follow_pods_and_namespaces_as_they_change() {
    let (set, namespace) = (set(), unused("follow"));
    set.east.namespace(&namespace, json!({}));
    set.west.namespace(&namespace, json!({"team": "other"}));
    let spec = json!({
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": namespace}}}]}],
        "egress": [{
            "to": [{"namespaceSelector": {"matchLabels": {"team": namespace}}, "podSelector": {"matchLabels": {"app": "web"}}}],
            "ports": [{"port": "http"}],
        }],
    });
    set.east.policy(&namespace, "all", spec);
    set.west.pod(&namespace, "web", "web", &["10.2.2.1"]);
    until("the base isolates", || set.east.network_policies(&namespace).len() == 1);
    assert!(set.east.allowed(&namespace).is_empty(), "the namespace has other labels");
    let path = format!("/api/v1/namespaces/{namespace}");
    set.west.relabel(&path, json!({"team": namespace}));
    let both = ["egress 10.2.2.1/32", "ingress 10.2.2.1/32"].map(String::from);
    until("the relabelled namespace is selected", || {
        set.east.allowed(&namespace) == both.clone().into()
    });
    let egress = set.east.network_policies(&namespace);
    let egress = egress.iter().find(|one| one["spec"]["egress"][0]["to"][0]["ipBlock"].is_object());
    assert_eq!(
        egress.unwrap()["spec"]["egress"][0]["ports"][0]["port"],
        8080,
        "the number of the pod's named port"
    );
    set.west.relabel(&format!("{path}/pods/web"), json!({"app": "other"}));
    until("the relabelled pod leaves egress", || {
        set.east.allowed(&namespace) == ["ingress 10.2.2.1/32".to_owned()].into()
    });
    set.west.status(&namespace, "web", "Running", &["10.2.2.9"]);
    until("the new address is allowed", || {
        set.east.allowed(&namespace) == ["ingress 10.2.2.9/32".to_owned()].into()
    });
    set.west.status(&namespace, "web", "Succeeded", &["10.2.2.9"]);
    until("the finished pod is not allowed", || set.east.allowed(&namespace).is_empty());
    set.west.pod(&namespace, "again", "web", &["10.2.2.9"]);
    until("another pod with the same address is allowed", || {
        set.east.allowed(&namespace).len() == 2
    });
    set.west.cluster.delete(&format!("{path}/pods/again")).unwrap();
    until("the deleted pod is not allowed", || set.east.allowed(&namespace).is_empty());
    assert_eq!(set.east.network_policies(&namespace).len(), 1, "the base stays");
}

#[test]
fn policies_of_others_stay_and_ours_are_repaired() {
    let (set, namespace) = (set(), unused("drift"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    // A user's policy, and one with our labels only.
    for (name, labels) in [
        ("mine", json!({})),
        (
            "like-yours",
            json!({"app.kubernetes.io/managed-by": "weir-clusterset", "clusterset.weir.dev/policy-uid": "x"}),
        ),
    ] {
        let policy = json!({"metadata": {"name": name, "labels": labels}, "spec": {"podSelector": {}, "ingress": [{}]}});
        set.east.cluster.create(&network_policies(&namespace), &policy).unwrap();
    }
    set.west.pod(&namespace, "api", "api", &["10.2.3.1"]);
    let uid = set.east.policy(&namespace, "db", from_app("api"));
    until("the remote pod is allowed", || set.east.allowed(&namespace).len() == 1);
    let shard = |all: &[Value]| {
        let is = |one: &&Value| one["spec"]["ingress"][0]["from"][0]["ipBlock"].is_object();
        all.iter().find(is).map(|one| one["metadata"]["name"].as_str().unwrap().to_owned())
    };
    let name = shard(&set.east.network_policies(&namespace)).unwrap();
    let path = format!("{}/{name}", network_policies(&namespace));
    set.east.cluster.patch(&path, &json!({"spec": {"ingress": [{}]}})).unwrap();
    until("the changed shard is repaired", || {
        set.east.cluster.get(&path).unwrap()["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"]
            == "10.2.3.1/32"
    });
    for name in [name.clone(), format!("csnp-{uid}")] {
        let path = format!("{}/{name}", network_policies(&namespace));
        set.east.cluster.delete(&path).unwrap();
        eventually("the deleted policy is created again", || set.east.cluster.get(&path).ok());
    }
    // Removed labels and owner references are restored.
    for name in [name, format!("csnp-{uid}")] {
        let path = format!("{}/{name}", network_policies(&namespace));
        let is_whole = || {
            let metadata = &set.east.cluster.get(&path).unwrap()["metadata"];
            metadata["labels"]["app.kubernetes.io/managed-by"] == "weir-clusterset"
                && metadata["labels"]["clusterset.weir.dev/policy-uid"] == uid
                && metadata["ownerReferences"][0]["uid"] == uid
        };
        for damage in [json!({"labels": null}), json!({"ownerReferences": null})] {
            set.east.cluster.patch(&path, &json!({"metadata": damage})).unwrap();
            until("the metadata is restored", is_whole);
        }
    }
    // After the policy is deleted, the controller deletes ours. No garbage collector runs here.
    set.east.cluster.delete(&format!("{}/db", policies(&namespace))).unwrap();
    until("only the policies of others remain", || {
        let all = set.east.network_policies(&namespace);
        let names: Vec<&str> =
            all.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
        names == ["like-yours", "mine"]
    });
    let all = set.east.network_policies(&namespace);
    assert!(
        all.iter().all(|one| one["metadata"]["generation"] == 1),
        "the policies of others are unchanged"
    );
    // The same policy with another name is another object.
    let other = set.east.policy(&namespace, "renamed", from_app("api"));
    until("the renamed policy allows the pod", || set.east.allowed(&namespace).len() == 1);
    assert!(
        set.east
            .network_policies(&namespace)
            .iter()
            .any(|one| one["metadata"]["name"] == format!("csnp-{other}"))
    );
}

#[test]
fn remote_pods_are_split_into_bounded_shards_and_one_pod_changes_one_shard() {
    let (set, namespace) = (set(), unused("shards"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    for at in 0..24 {
        set.west.pod(&namespace, &format!("api-{at}"), "api", &[&format!("10.2.4.{at}")]);
    }
    set.east.policy(&namespace, "db", from_app("api"));
    // An address that moves to another shard is in both for a while.
    let written = || -> usize {
        let all = set.east.network_policies(&namespace);
        let rules = all.iter().flat_map(|one| one["spec"]["ingress"].as_array().unwrap());
        let peers = rules.flat_map(|rule| rule["from"].as_array().unwrap());
        peers.filter(|peer| peer["ipBlock"].is_object()).count()
    };
    until("all pods are allowed, each once", || {
        set.east.allowed(&namespace).len() == 24 && written() == 24
    });
    let versions = || -> std::collections::BTreeMap<String, String> {
        let text = |one: &Value, key: &str| one["metadata"][key].as_str().unwrap().to_owned();
        let all = set.east.network_policies(&namespace);
        all.iter().map(|one| (text(one, "name"), text(one, "resourceVersion"))).collect()
    };
    for policy in set.east.network_policies(&namespace) {
        for rule in policy["spec"]["ingress"].as_array().unwrap() {
            let peers = rule["from"].as_array().unwrap();
            assert!((1..=10).contains(&peers.len()), "{policy}");
            let cidrs: Vec<&str> =
                peers.iter().filter_map(|one| one["ipBlock"]["cidr"].as_str()).collect();
            assert!(cidrs.len() == peers.len() || peers.len() == 1);
        }
    }
    let before = versions();
    assert!(before.len() >= 4, "{before:?}");
    set.west.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/api-3")).unwrap();
    until("the deleted pod is not allowed", || set.east.allowed(&namespace).len() == 23);
    let after = versions();
    let changed = before.iter().filter(|(name, version)| after.get(*name) != Some(version)).count();
    assert_eq!(changed, 1, "{before:?} {after:?}");
    // Without changes nothing is written.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(versions(), after);
}

#[test]
fn the_status_has_conditions_and_counts_and_an_invalid_policy_isolates() {
    let (set, namespace) = (set(), unused("status"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    set.west.pod(&namespace, "api", "api", &["10.2.5.1"]);
    set.east.policy(&namespace, "db", from_app("api"));
    let status = eventually("the status has the counts", || {
        let policy = set.east.get_policy(&namespace, "db");
        let status = policy["status"].clone();
        (status["remoteAddresses"] == 1).then_some(status)
    });
    assert_eq!((&status["clusters"], &status["networkPolicies"]), (&json!(1), &json!(2)));
    let condition = |status: &Value, kind: &str| {
        let all = status["conditions"].as_array().unwrap();
        let one = all.iter().find(|one| one["type"] == kind).unwrap();
        (one["status"].as_str().unwrap().to_owned(), one["reason"].as_str().unwrap().to_owned())
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(condition(&status, "Accepted"), is("True", "Valid"));
    assert_eq!(condition(&status, "Programmed"), is("True", "Written"));
    assert_eq!(condition(&status, "Degraded"), is("False", "AsExpected"));
    // The CustomResourceDefinition accepts this, but the API server would reject such a
    // NetworkPolicy.
    let bad =
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]});
    let uid = set.east.policy(&namespace, "bad", bad);
    let status = eventually("the error is reported", || {
        let policy = set.east.get_policy(&namespace, "bad");
        policy["status"]["conditions"].is_array().then(|| policy["status"].clone())
    });
    for (kind, holds) in [("Accepted", "False"), ("Programmed", "False"), ("Degraded", "True")] {
        assert_eq!(condition(&status, kind), is(holds, "Invalid"));
    }
    let bad = |status: &Value| status["networkPolicies"] == 1 && status["remoteAddresses"] == 0;
    until("the status counts the base", || bad(&set.east.get_policy(&namespace, "bad")["status"]));
    let path = format!("{}/csnp-{uid}", network_policies(&namespace));
    let base = eventually("the base exists", || set.east.cluster.get(&path).ok());
    assert_eq!(base["spec"]["policyTypes"], json!(["Ingress"]));
    assert!(
        base["spec"]["ingress"].as_array().is_none_or(Vec::is_empty),
        "the base allows nothing"
    );
    let events = format!("/api/v1/namespaces/{namespace}/events");
    until("there is an Event", || {
        let events = set.east.cluster.get(&events).unwrap();
        events["items"].as_array().unwrap().iter().any(|one| one["reason"] == "Invalid")
    });
}

/// The unhealthy conditions, as `type reason`.
pub(crate) fn unhealthy(policy: &Value) -> Vec<String> {
    let all = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let bad = all.iter().filter(|one| (one["status"] == "True") == (one["type"] == "Degraded"));
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    bad.map(|one| format!("{} {}", text(one, "type"), text(one, "reason"))).collect()
}

#[test]
fn a_taken_name_is_reported_and_does_not_block_other_writes() {
    let (set, namespace) = (set(), unused("taken"));
    for site in [&set.east, &set.west] {
        site.namespace(&namespace, json!({}));
    }
    let uid = set.east.policy(&namespace, "db", from_app("api"));
    set.west.pod(&namespace, "six", "api", &["fd02::c1"]);
    until("the first pod is allowed", || set.east.allowed(&namespace).len() == 1);
    // A user's NetworkPolicy has the name that the shard of the other family will need.
    let shard = format!("csnp-{uid}-i4-00000000-0");
    let mine = json!({"metadata": {"name": shard}, "spec": {"podSelector": {"matchLabels": {"app": "mine"}}}});
    let mine = set.east.cluster.create(&network_policies(&namespace), &mine).unwrap();
    set.west.pod(&namespace, "four", "api", &["10.2.12.1"]);
    until("the conflict is reported", || {
        unhealthy(&set.east.get_policy(&namespace, "db"))
            == ["Programmed NameConflict", "Degraded NameConflict"]
    });
    let events = format!("/api/v1/namespaces/{namespace}/events");
    until("there is an Event", || {
        let events = set.east.cluster.get(&events).unwrap();
        events["items"].as_array().unwrap().iter().any(|one| one["reason"] == "NameConflict")
    });
    set.west.cluster.delete(&format!("/api/v1/namespaces/{namespace}/pods/six")).unwrap();
    until("the deleted pod is still withdrawn", || set.east.allowed(&namespace).is_empty());
    let path = format!("{}/{shard}", network_policies(&namespace));
    assert_eq!(
        set.east.cluster.get(&path).unwrap()["spec"],
        mine["spec"],
        "the user's policy is unchanged"
    );
    set.east.cluster.delete(&path).unwrap();
    until("the policy is healthy once the name is free", || {
        set.east.allowed(&namespace) == ["ingress 10.2.12.1/32".to_owned()].into()
            && unhealthy(&set.east.get_policy(&namespace, "db")).is_empty()
    });
}

#[test]
fn a_forged_policy_in_another_namespace_is_ignored() {
    let (set, namespace, other) = (set(), unused("home"), unused("elsewhere"));
    for name in [&namespace, &other] {
        set.east.namespace(name, json!({}));
    }
    set.west.namespace(&namespace, json!({}));
    let uid = set.east.policy(&namespace, "db", from_app("api"));
    let forged = json!({
        "metadata": {
            "name": format!("csnp-{uid}-i4-00000000-0"),
            "labels": {"app.kubernetes.io/managed-by": "weir-clusterset", "clusterset.weir.dev/policy-uid": uid},
            "ownerReferences": [{
                "apiVersion": "submariner.io/v1alpha1", "kind": "ClusterSetNetworkPolicy", "name": "db", "uid": uid, "controller": true,
            }],
        },
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.2.13.1/32"}}], "ports": [{"port": 5432, "protocol": "TCP"}]}],
        },
    });
    set.east.cluster.create(&network_policies(&other), &forged).unwrap();
    set.west.pod(&namespace, "api", "api", &["10.2.13.1"]);
    until("the pod is allowed in the policy's namespace", || {
        set.east.allowed(&namespace).len() == 1
    });
    set.east.cluster.delete(&format!("{}/db", policies(&namespace))).unwrap();
    until("its NetworkPolicies are deleted", || set.east.network_policies(&namespace).is_empty());
}

#[test]
fn a_failed_write_is_reported() {
    let (set, namespace) = (set(), unused("quota"));
    set.east.namespace(&namespace, json!({}));
    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    let hard = json!({"count/networkpolicies.networking.k8s.io": "0"});
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": hard}});
    set.east.cluster.create(&path, &quota).unwrap();
    let status = json!({"status": {"hard": hard, "used": hard}});
    set.east.cluster.patch(&format!("{path}/none/status"), &status).unwrap();
    let probe = json!({"metadata": {"name": "probe"}, "spec": {"podSelector": {}}});
    until("the quota is enforced", || {
        let made = set.east.cluster.create(&network_policies(&namespace), &probe);
        let probe = format!("{}/probe", network_policies(&namespace));
        made.map(|_| set.east.cluster.delete(&probe)).is_err()
    });
    set.east.policy(&namespace, "db", from_app("api"));
    until("the failure is reported", || {
        unhealthy(&set.east.get_policy(&namespace, "db")).contains(&"Programmed WriteFailed".into())
    });
    set.east.cluster.delete(&format!("{path}/none")).unwrap();
    until("the policy is healthy without the quota", || {
        let policy = set.east.get_policy(&namespace, "db");
        set.east.network_policies(&namespace).len() == 1 && unhealthy(&policy).is_empty()
    });
}
