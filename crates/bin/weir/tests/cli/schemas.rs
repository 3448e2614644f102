//! The JSON of every command is valid for its schema.
//!
//! The function `json` of these tests also validates every output that it parses.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{root, schema, stdout, weir, weir_reading};

const SHOP: &str = "-f examples/shop/manifests";
const SERVICES: &str = "examples/shop/services.yaml";
const INGRESS: &str = "examples/shop/ingress.yaml";
const SET: &str = "--cluster east=examples/clusterset/east --cluster west=examples/clusterset/west";

/// The commands that run without an agent. Tests of the agent validate the others.
fn commands() -> Vec<String> {
    vec![
        "version".to_owned(),
        format!("lint {SHOP}"),
        "test examples/shop/tests.yaml".to_owned(),
        format!("explain {SHOP} --from shop/web --to shop/db --port 5432"),
        format!("explain {SHOP} --from shop/api --to shop/db --port 5432"),
        format!("explain {SHOP} -f {SERVICES} --from shop/api --to shop/svc/db --port 5432"),
        format!("explain {SHOP} --from 203.0.113.7 --to shop/deployment/web --port http"),
        format!("explain {SHOP} -f {SERVICES} -f {INGRESS} --from 203.0.113.7 --to shop/ing/shop"),
        format!("matrix {SHOP}"),
        format!("matrix {SHOP} -n shop"),
        format!("matrix {SHOP} -f {SERVICES} -f {INGRESS}"),
        format!("matrix {SHOP} --exposure"),
        format!("diff {SHOP}/apps examples/shop/manifests/policies examples/shop/repaired"),
        format!("diff -f examples/shop/repaired examples/shop/repaired {}", &SHOP[3..]),
        format!("recommend {SHOP} --flows examples/shop/flows.jsonl"),
        format!("recommend {SHOP} --flows examples/shop/flows.jsonl --diff"),
        format!("render {SHOP}"),
        format!("render {SHOP} --datapath hcn"),
        format!("render {SHOP} --datapath opflex"),
        format!("render {SET}"),
        "render -f examples/memcached/manifests --generated".to_owned(),
    ]
}

fn output_of(command: &str) -> Value {
    let output = weir(&format!("{command} -o json"));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{command}: {error}: {}", stdout(&output)))
}

#[test]
fn the_output_of_every_command_is_valid_for_its_schema() {
    for command in commands() {
        let problems = schema::problems(&output_of(&command));
        assert!(problems.is_empty(), "weir {command}\n{}", problems.join("\n"));
    }
}

#[test]
fn every_schema_is_used_and_documented() {
    let mut used: BTreeSet<String> = commands()
        .iter()
        .map(|command| output_of(command)["schemaVersion"].as_str().unwrap().to_owned())
        .map(|version| version.split('/').nth(1).unwrap().to_owned())
        .collect();
    // Other tests validate the output of commands that need an agent or a cluster.
    let others = [
        "datapath-dump",
        "drop",
        "drops",
        "finding",
        "flow",
        "names",
        "policies-unused",
        "policy-uses",
        "render-live",
        "status",
        "status-nodes",
        "status-opflex",
        "status-policy",
        "top",
    ];
    used.extend(others.map(ToOwned::to_owned));
    let page = fs::read_to_string(root().join("docs/reference/json.md")).unwrap();
    let mut files = BTreeSet::new();
    for file in fs::read_dir(root().join("docs/reference/schemas")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(page.contains(&format!("](schemas/{name}.json)")), "{name} is not in json.md");
        let schema: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = format!("weir.dev/{name}/v1");
        let version = &schema["properties"]["schemaVersion"]["const"];
        assert!(name == "finding" || version == &expected, "{name}: {version}");
        files.insert(name);
    }
    assert_eq!(files, used);
}

#[test]
fn the_validator_finds_unknown_missing_and_wrong_fields() {
    let version = json!({"schemaVersion": "weir.dev/version/v1", "version": "1", "platform": "x"});
    assert_eq!(schema::problems(&version), Vec::<String>::new());
    let mut wrong = version.clone();
    wrong["plaform"] = "x".into();
    assert_eq!(schema::problems(&wrong), ["version.json: $: unexpected field plaform"]);
    let mut wrong = version.clone();
    wrong["platform"] = 1.into();
    assert_eq!(schema::problems(&wrong), [r#"version.json: $.platform: not type "string""#]);
    let mut wrong = version;
    wrong.as_object_mut().unwrap().remove("platform");
    assert_eq!(schema::problems(&wrong).len(), 1);
    assert_eq!(schema::problems(&json!({})).len(), 1, "the version is required");
    let mut lint = output_of("lint -f examples/argo-cd/before");
    lint["findings"][0]["severity"] = "fatal".into();
    assert!(schema::problems(&lint)[0].starts_with("finding.json: $.findings[0].severity"));
}

#[test]
fn a_flow_record_is_valid_for_its_schema() {
    let pod = json!({"namespace": "shop", "kind": "Deployment", "name": "web", "pod": "web-x"});
    let rule = json!({"kind": "NetworkPolicy", "namespace": "shop", "name": "web",
        "direction": "egress", "rule": 0, "effect": "allow"});
    let isolates = json!({"kind": "ClusterNetworkPolicy", "name": "a", "direction": "ingress",
        "effect": "isolate"});
    let limited = json!({"source": "reports", "complete": false, "limitPerSecond": 20});
    let complete = json!({"source": "conntrack", "complete": true});
    let ends = [pod.clone(), json!({"address": "203.0.113.7"}), json!({"others": true})];
    for (to, sampling) in ends.into_iter().zip([limited, complete.clone(), complete]) {
        let record = json!({
            "schemaVersion": "weir.dev/flow/v1", "node": "n1", "verdict": "audit", "from": pod,
            "to": to, "protocol": "TCP", "port": 443, "policies": [rule, isolates],
            "morePolicies": 2, "firstSeen": "2026-01-02T03:04:05.678Z",
            "lastSeen": "2026-01-02T03:04:05.678Z", "connections": 1, "packets": 2, "bytes": 300,
            "sampling": sampling,
        });
        // The reader and the writer have exactly the fields of the schema.
        let read: weir_flows::FlowRecord = serde_json::from_value(record.clone()).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written, record);
        assert_eq!(schema::problems(&written), Vec::<String>::new());
        for field in ["verdict", "from", "sampling"] {
            let mut wrong = written.clone();
            wrong[field] = json!({"unknown": 1});
            assert!(!schema::problems(&wrong).is_empty(), "{field}");
        }
    }
}

#[test]
fn yaml_has_the_same_fields_as_json() {
    for command in ["version", "lint -f examples/argo-cd/before"] {
        let yaml = weir_reading(&format!("{command} -o yaml"), "");
        let value: Value = serde_saphyr::from_str(&stdout(&yaml)).unwrap();
        assert_eq!(value, output_of(command));
    }
}
