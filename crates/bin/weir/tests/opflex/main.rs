//! Cisco ACI from end to end: a real API server, the controller, the agents of two nodes, and their
//! files. The test follows the example of the design. `cargo xtask cluster build` provides the API
//! server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod beside;
mod insecure;
mod order;
#[path = "../schema/mod.rs"]
mod schema;
mod services;
#[allow(dead_code, reason = "the benchmark needs more of it")]
mod site;
mod wrong_options;

use std::{fs, path::Path};

use serde_json::{Value, json};
use site::{PODS_OF_DEFAULT, Site, eventually};

use crate::{insecure::the_warning_is_logged_once, wrong_options::agents_with_wrong_options};

const NAME: &str = "demo-xyz1-np-54f6fbaeb1e26d3bbcd23109158b9bb3";
const FILE: &str = "demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3.netpol";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces";

/// The policy of the design, for the pods with a label.
fn policy(name: &str, app: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"purpose": "production"}}}]}],
            "podSelector": {"matchLabels": {"app": app}},
            "policyTypes": ["Ingress"],
        },
    })
}

/// The rule of that policy for an IP family.
fn rule(family: &str) -> Value {
    json!({
        "connTrack": "reflexive",
        "direction": "ingress",
        "ethertype": family,
        "fromPort": "unspecified",
        "hostprotFilterContainer": {},
        "name": format!("0-{family}"),
        "protocol": "unspecified",
        "rsRemoteIpContainer": ["prod"],
        "toPort": "unspecified",
    })
}

/// A policy with networks of both families, for the pods of the web.
fn wide() -> Value {
    let out = json!([
        {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}},
        {"ipBlock": {"cidr": "203.0.113.0/24"}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "browser"}}},
    ]);
    json!({
        "metadata": {"name": "wide"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "egress": [{"to": out, "ports": [{"port": 8000, "endPort": 8100}, {"port": 53, "protocol": "UDP"}]}],
            "policyTypes": ["Egress"],
        },
    })
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../backends/weir-aci/tests/golden");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// The versions of a definition without one field of rules.
fn without(mut versions: Value, field: &str) -> Value {
    let rule = "/0/schema/openAPIV3Schema/properties/spec/properties/hostprotSubj/items/properties/hostprotRule/items/properties";
    let fields = versions.pointer_mut(rule).unwrap().as_object_mut().unwrap();
    assert!(fields.remove(field).is_some());
    versions
}

#[test]
fn policies_become_objects_and_files_on_two_nodes() {
    let mut site = Site::new();
    site.pod("default", "web", "n1", &["10.2.0.10"], json!({"app": "web"}));
    site.start_controller();

    // Without policies: objects of the nodes, static objects, and a container for each namespace.
    eventually("the first objects", || {
        let wanted = [
            "demo-xyz1-node-n1",
            "demo-xyz1-node-n2",
            "demo-xyz1-np-static-discovery",
            "demo-xyz1-np-static-egress",
            "demo-xyz1-np-static-ingress",
        ];
        site.pols() == wanted && site.containers() == site.namespaces()
    });
    agents_with_wrong_options(&site);
    the_warning_is_logged_once(&site);
    site.start_agent("n1");
    site.start_agent("n2");
    eventually("the first files", || {
        let files = |node: &str| {
            let own = format!("demo_xyz1_node_{node}.netpol");
            let fixed = ["discovery", "egress", "ingress"]
                .map(|name| format!("demo_xyz1_np_static-{name}.netpol"));
            site.files(node) == [[own].as_slice(), &fixed].concat()
        };
        files("n1") && files("n2")
    });

    eventually("a ready agent", || {
        site.get_from_agent("n2", "/readyz").is_some_and(|(code, _)| code == 200)
    });

    // Without pods the policy has no rules.
    site.cluster
        .create(&format!("{POLICIES}/default/networkpolicies"), &policy("taatfan-np", "web"))
        .unwrap();
    let alone = json!({
        "hostprotSubj": [{"name": "networkpolicy-ingress"}],
        "name": "demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3",
        "networkPolicies": ["default/taatfan-np"],
    });
    eventually("an object for the policy", || site.pol(NAME) == Some(alone.clone()));
    eventually("its file", || site.file("n1", FILE) == Some(golden("1-policy-alone.netpol")));
    assert_eq!(site.file("n2", FILE), None, "no pod of n2 is selected");

    // A namespace and a pod.
    let namespace = json!({"metadata": {"name": "prod", "labels": {"purpose": "production"}}});
    site.cluster.create("/api/v1/namespaces", &namespace).unwrap();
    eventually("a container", || site.container("prod") == Some(json!({"name": "prod"})));
    assert_eq!(site.pol(NAME), Some(alone));
    site.pod("prod", "prod-ns-pod", "n2", &["10.2.64.1"], json!({}));
    let has_rules = |site: &Site, families: &[&str]| {
        let rules: Value = families.iter().map(|family| rule(family)).collect();
        site.pol(NAME).is_some_and(|spec| spec["hostprotSubj"][0]["hostprotRule"] == rules)
    };
    eventually("a rule", || has_rules(&site, &["ipv4"]));
    let printed = json!({"hostprotRemoteIp": [{"addr": "10.2.64.1"}], "name": "prod"});
    assert_eq!(site.container("prod"), Some(printed));
    eventually("the file with the rule", || {
        site.file("n1", FILE) == Some(golden("2-namespace-and-pod.netpol"))
    });

    // A label change affects only the container.
    let version = site.version(NAME);
    let labels = json!({"metadata": {"labels": {"app": "browser"}}});
    site.cluster.patch("/api/v1/namespaces/prod/pods/prod-ns-pod", &labels).unwrap();
    let labelled =
        json!([{"addr": "10.2.64.1", "hppEpLabel": [{"key": "app", "value": "browser"}]}]);
    eventually("labels in the container", || {
        site.container("prod").is_some_and(|spec| spec["hostprotRemoteIp"] == labelled)
    });
    assert_eq!(site.version(NAME), version);
    let stamp = site.stamp("n1", FILE);

    // A second policy with the same rules shares the object.
    site.cluster
        .create(&format!("{POLICIES}/prod/networkpolicies"), &policy("another-np", "browser"))
        .unwrap();
    let both = json!(["default/taatfan-np", "prod/another-np"]);
    eventually("two policies with one object", || {
        site.pol(NAME).is_some_and(|spec| spec["networkPolicies"] == both)
    });
    eventually("the file on the second node", || site.file("n2", FILE) == site.file("n1", FILE));
    assert_eq!(site.stamp("n1", FILE), stamp, "a file that says the same is not written");
    let status = site.hpp();
    let object = &status["demo_xyz1_np_54f6fbaeb1e26d3bbcd23109158b9bb3"];
    assert_eq!((&object["ref-count"], &object["npkeys"]), (&json!(2), &both));
    assert_eq!(object["hpp-cr"]["metadata"]["name"], NAME);
    assert_eq!(object["hpp-cr"]["spec"], site.pol(NAME).unwrap());

    // A second address of the other family appears in rules, containers and files.
    site.address("prod", "prod-ns-pod", &["10.2.64.1", "fd00:64::1"]);
    site.address("default", "web", &["10.2.0.10", "fd00::10"]);
    let both = json!(["10.2.64.1", "fd00:64::1"]);
    eventually("a container with both", || {
        let addresses = |spec: Value| -> Value {
            let all = spec["hostprotRemoteIp"].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| one["addr"].clone()).collect()
        };
        site.container("prod").is_some_and(|spec| addresses(spec) == both)
    });
    eventually("a rule for each family", || has_rules(&site, &["ipv4", "ipv6"]));
    let with_rules = golden("4-two-families.netpol");
    for node in ["n1", "n2"] {
        eventually("the file with both", || site.file(node, FILE).as_ref() == Some(&with_rules));
    }

    // `weir render` prints the same files as those on the nodes.
    site.cluster.create(&format!("{POLICIES}/default/networkpolicies"), &wide()).unwrap();
    for node in ["n1", "n2"] {
        eventually("the files that are rendered", || site.rendered(node) == site.on_disk(node));
        let text = format!("{:?}", site.on_disk(node));
        assert_eq!(text.contains("2001:db8:"), node == "n1", "only a pod of n1 is selected");
        for part in ["icmpv6-ingress", "allow-all-reflexive-v6", "allow-all-ingress-v6"] {
            assert!(text.contains(part), "{node}: {part}");
        }
    }
    let stamp = site.stamp("n1", FILE);

    // All processes stop and the objects stay. After a restart stale objects are removed, but only
    // after a complete list.
    site.stop();
    assert_eq!(site.stamp("n1", FILE), stamp);
    let stale = json!({
        "apiVersion": "aci.hpp/v1",
        "kind": "HostprotPol",
        "metadata": {"name": "demo-xyz1-np-stale"},
        "spec": {"name": "demo_xyz1_np_stale", "networkPolicies": ["default/gone"]},
    });
    site.cluster.create(&site.path("hostprotpols"), &stale).unwrap();
    fs::write(site.folder("n1").join("demo_xyz1_np_stale.netpol"), "[]").unwrap();
    site.start();
    eventually("stale objects to go", || !site.pols().contains(&"demo-xyz1-np-stale".to_owned()));
    eventually("stale files to go", || site.file("n1", "demo_xyz1_np_stale.netpol").is_none());
    assert_eq!((site.stamp("n1", FILE), site.version(NAME).is_some()), (stamp, true));

    // The controller repairs an object that another client changes.
    let wrong = json!({"spec": {"hostprotSubj": [{"name": "networkpolicy-ingress", "hostprotRule": [{
        "name": "all", "direction": "ingress", "ethertype": "ipv4", "connTrack": "reflexive",
    }]}]}});
    site.cluster.patch(&format!("{}/{NAME}", site.path("hostprotpols")), &wrong).unwrap();
    eventually("the object to be put right", || has_rules(&site, &["ipv4", "ipv6"]));

    // A definition that drops a field leaves a rule for every peer in the API, but none on the
    // nodes.
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hostprotpols.aci.hpp";
    let whole = site.cluster.get(crd).unwrap()["spec"]["versions"].clone();
    eventually("the rules to be back", || site.file("n1", FILE).as_ref() == Some(&with_rules));
    let before = fs::read_to_string(site.log()).unwrap().len();
    let less = without(whole.clone(), "rsRemoteIpContainer");
    site.cluster.patch(crd, &json!({"spec": {"versions": less}})).unwrap();
    let field = "/hostprotSubj/0/hostprotRule/0/rsRemoteIpContainer";
    eventually("the field to be dropped", || {
        site.pol(NAME).is_some_and(|spec| spec.pointer(field).is_none())
    });
    let touch = json!({"metadata": {"labels": {"touched": "yes"}}});
    site.cluster.patch(&format!("{}/{NAME}", site.path("hostprotpols")), &touch).unwrap();
    eventually("a file without rules", || {
        site.file("n1", FILE).is_some_and(|text| !text.contains("GbpLocalSecGroupRule"))
    });
    eventually("a word about the definition", || {
        let log = fs::read_to_string(site.log()).unwrap().split_off(before);
        log.contains("the definition of hostprotpols.aci.hpp is incompatible")
    });
    site.cluster.patch(crd, &json!({"spec": {"versions": whole}})).unwrap();
    eventually("the rules to be back", || site.file("n1", FILE).as_ref() == Some(&with_rules));

    // Remove the first policy, then the second.
    site.cluster.delete(&format!("{POLICIES}/default/networkpolicies/taatfan-np")).unwrap();
    eventually("the file of the first to go", || site.file("n1", FILE).is_none());
    assert!(site.file("n2", FILE).is_some());
    site.cluster.delete(&format!("{POLICIES}/prod/networkpolicies/another-np")).unwrap();
    eventually("the object to go", || site.pol(NAME).is_none());
    eventually("its last file to go", || site.file("n2", FILE).is_none());

    // A removed namespace removes its container.
    site.cluster.delete("/api/v1/namespaces/prod/pods/prod-ns-pod").unwrap();
    eventually("an empty container", || site.container("prod") == Some(json!({"name": "prod"})));

    // Cleanup fails while a controller runs, and in an empty namespace.
    for (user, more) in [("controller", &[][..]), ("admin", &["--lease", "another"])] {
        let (code, said) = site.cleanup(user, more);
        let why = "holds the lease kube-system/weir-controller and runs the controller hpp";
        assert!(code == Some(2) && said.contains(why), "{code:?} {said}");
    }
    let (code, said) = site.cleanup("admin", &["--hpp-namespace", "nowhere"]);
    assert!(code == Some(2) && said.contains("there is no namespace nowhere"), "{code:?} {said}");
    let objects = (site.pols().len(), site.containers().len());
    assert_eq!(objects, (6, site.namespaces().len()));
    site.stop_controller();
    let (code, said) = site.cleanup("admin", &["--hpp-namespace", "default"]);
    let hint = "in default; check --hpp-namespace";
    assert!(code == Some(0) && said.contains(hint), "{code:?} {said}");
    let (code, said) = site.cleanup("controller", &[]);
    let counts = format!("removed 6 HostprotPols and {} HostprotRemoteIpContainers", objects.1);
    assert!(code == Some(0) && said.contains(&counts), "{code:?} {said}");
    eventually("no objects", || site.pols().is_empty() && site.containers().is_empty());
    eventually("no files", || site.files("n1").is_empty() && site.files("n2").is_empty());
    assert!(site.cluster.get(PODS_OF_DEFAULT).is_ok());

    // A definition that drops a list of addresses would leave a rule for every peer: the controller
    // writes nothing.
    let whole = site.cluster.get(crd).unwrap()["spec"]["versions"].clone();
    let versions = without(whole, "hostprotServiceRemoteIps");
    site.cluster.patch(crd, &json!({"spec": {"versions": versions}})).unwrap();
    let before = fs::read_to_string(site.log()).unwrap().len();
    site.start_controller();
    eventually("a word about the definition", || {
        let log = fs::read_to_string(site.log()).unwrap().split_off(before);
        // The API server may still serve the old definition for a moment.
        log.contains("the definition of hostprotpols.aci.hpp is incompatible: it lacks some fields")
    });
    assert_eq!(site.pols(), [""; 0]);
}
