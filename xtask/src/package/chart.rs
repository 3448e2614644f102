//! Tests of the rendered chart and of the values that it rejects.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use super::{
    CHART, CONTROLLER_NAMESPACE, CONTROLLERS, MANIFESTS, Manifest, NAMESPACE, Origin, render,
};
use crate::{shell::root, tools::HELM};

/// Values that enable all features that can be combined.
const EVERYTHING: &[&str] = &[
    "agent.cni.enabled=true",
    "agent.datapath=iptables",
    "windows.enabled=true",
    "controller.enable={clusterset,conditions,hpp,memcached}",
    "controller.clusterset.clusterId=east",
    "controller.clusterset.podCidrs={10.1.0.0/16}",
    "controller.clusterset.memberCidrs.west={10.2.0.0/16,fd02::/64}",
    "controller.clusterset.memberCidrs.north-1={10.3.0.0/16}",
    "controller.clusterset.brokerUrl=https://broker.example:6443",
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.alerts.enabled=true",
    "monitoring.dashboard.enabled=true",
];

/// The YAML documents of a text.
pub(super) fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("rendered YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// The documents of every file in deploy/ and of a release with all features.
fn all_documents() -> Vec<Value> {
    let files =
        MANIFESTS.iter().map(|manifest| fs::read_to_string(manifest.path()).expect("a file"));
    let everything = render("weir", EVERYTHING).expect("renders");
    files.chain([everything]).flat_map(|text| documents(&text)).collect()
}

fn kind(document: &Value) -> &str {
    document["kind"].as_str().unwrap_or_default()
}

#[test]
fn generated_files_match_the_chart() {
    for manifest in MANIFESTS {
        let current = fs::read_to_string(manifest.path()).unwrap_or_default();
        let text = manifest.generate().expect("renders");
        assert!(current == text, "deploy/{} is stale: run `cargo xtask package`", manifest.file);
    }
    let files = fs::read_dir(root().join("deploy")).expect("a folder").flatten();
    for file in files.map(|file| file.file_name().to_string_lossy().into_owned()) {
        let is_generated = MANIFESTS.iter().any(|manifest| manifest.file == file);
        assert!(is_generated || !file.ends_with(".yaml"), "no task generates deploy/{file}");
    }
}

/// Kind, namespace and name of the objects in a file.
fn object_names(manifest: &Manifest) -> BTreeSet<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| {
        let metadata = &object["metadata"];
        [text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"])]
    };
    let text_of_file = fs::read_to_string(manifest.path()).expect("a file");
    documents(&text_of_file).iter().map(name).collect()
}

#[test]
fn the_namespace_and_the_definitions_have_separate_files() {
    for manifest in MANIFESTS {
        let kinds: BTreeSet<String> =
            object_names(manifest).into_iter().map(|[kind, ..]| kind).collect();
        assert!(!kinds.is_empty(), "{} has objects", manifest.file);
        let is_alone = |kind: &str| kinds.len() == 1 && kinds.contains(kind);
        match manifest.from {
            Origin::Namespaces => assert!(is_alone("Namespace"), "{}", manifest.file),
            Origin::Definitions(_) => {
                assert!(is_alone("CustomResourceDefinition"), "{}", manifest.file);
            }
            Origin::Release(..) => {
                for kind in ["Namespace", "CustomResourceDefinition"] {
                    assert!(!kinds.contains(kind), "{} has a {kind}", manifest.file);
                }
            }
        }
    }
}

#[test]
fn controllers_share_no_object_and_no_lease() {
    let is_controller = |manifest: &&Manifest| manifest.file.starts_with("controller-");
    let controllers: Vec<&Manifest> = MANIFESTS.iter().filter(is_controller).collect();
    // conditions has no definitions.
    assert_eq!(controllers.len(), 1 + CONTROLLERS.len());
    let mut leases = BTreeSet::new();
    for one in controllers {
        for other in MANIFESTS.iter().filter(|other| other.file != one.file) {
            let shared: Vec<_> =
                object_names(one).intersection(&object_names(other)).cloned().collect();
            assert!(shared.is_empty(), "{} and {}: {shared:?}", one.file, other.file);
        }
        let text = fs::read_to_string(one.path()).expect("a file");
        let lease = text.split("--lease=").nth(1).and_then(|rest| rest.split('\n').next());
        let lease = lease.expect("a lease").to_owned();
        assert!(
            text.contains(&format!("resourceNames: [{lease}]")),
            "{}: the role names the lease",
            one.file
        );
        assert!(leases.insert(lease), "{}: another controller has this lease", one.file);
    }
}

#[test]
fn helm_lint_reports_nothing() {
    for values in [&[][..], EVERYTHING, &["agent.audit=true"], &["cleanup.enabled=true"]] {
        let mut helm = HELM.command().expect("helm");
        helm.args(["lint", "--strict", CHART]);
        values.iter().for_each(|value| {
            helm.args(["--set", value]);
        });
        let output = helm.output().expect("helm runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn an_invalid_value_is_rejected_with_its_name() {
    for (value, names) in [
        ("agent.datapth=iptables", "datapth"),
        ("agent.datapath=xdp", "agent.datapath"),
        ("agent.established=maybe", "agent.established"),
        ("agent.cni.onFailure=ignore", "agent.cni.onFailure"),
        ("agent.cni.timeout=90", "agent.cni.timeout"),
        ("agent.port=70000", "agent.port"),
        ("agent.flowLog.hostPath=flows", "agent.flowLog.hostPath"),
        ("controller.enable={unknown}", "controller.enable"),
        ("controller.enable={clusterset}", "controller.clusterset.clusterId"),
        ("controller.clusterset.memberCidrs.West={10.2.0.0/16}", "memberCidrs"),
        ("controller.clusterset.memberCidrs.west=10.2.0.0/16", "memberCidrs.west"),
        ("controller.clusterset.memberCidrs.west={}", "memberCidrs.west"),
        ("surprise=1", "surprise"),
    ] {
        let error = render("weir", &[value]).expect_err(value).to_string();
        assert!(error.contains(names), "{value}: {error}");
    }
    for values in [
        ["windows.enabled=true", "agent.audit=true"],
        ["agent.datapath=opflex", "agent.audit=true"],
    ] {
        let error = render("weir", &values).expect_err("no audit").to_string();
        assert!(error.contains("agent.audit"), "{values:?}: {error}");
    }
    // The agents could write the Leases of the control plane.
    let conditions = |namespace| {
        let mut helm = HELM.command().expect("helm");
        helm.args(["template", "weir", CHART, "-n", namespace]);
        helm.args(["--set", "controller.enable={conditions}"]);
        let output = helm.output().expect("helm runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(conditions("weir-system").0);
    let (is_rendered, error) = conditions("kube-system");
    assert!(
        !is_rendered && error.contains("conditions is not supported in kube-system"),
        "{error}"
    );
    // An empty list would render no --member-cidr, and the controller would trust every address.
    let mut helm = HELM.command().expect("helm");
    helm.args(["lint", CHART, "--set-json", r#"controller.clusterset.memberCidrs={"west":[]}"#]);
    let output = helm.output().expect("helm runs");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn member_cidrs_become_flags() {
    let rendered = documents(&render("weir", EVERYTHING).expect("renders"));
    let containers = rendered
        .iter()
        .filter_map(|document| document["spec"]["template"]["spec"]["containers"].as_array());
    let args = containers.flatten().filter_map(|container| container["args"].as_array()).flatten();
    let members: Vec<&str> = args
        .filter_map(|word| word.as_str().filter(|word| word.starts_with("--member-cidr=")))
        .collect();
    assert_eq!(
        members,
        [
            "--member-cidr=north-1=10.3.0.0/16",
            "--member-cidr=west=10.2.0.0/16",
            "--member-cidr=west=fd02::/64",
        ]
    );
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = fs::read_to_string(root().join(CHART).join("Chart.yaml")).expect("a file");
    let chart: Value = serde_saphyr::from_str(&chart).expect("YAML");
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_windows_agent_runs_as_a_host_process() {
    let is_for_windows = |document: &&Value| {
        document["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/os"] == "windows"
    };
    let documents = all_documents();
    let sets: Vec<&Value> = documents.iter().filter(is_for_windows).collect();
    assert!(!sets.is_empty(), "the chart has a Windows agent");
    for set in sets {
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!((&set["kind"], &pod["hostNetwork"]), (&"DaemonSet".into(), &true.into()));
        let windows = &pod["securityContext"]["windowsOptions"];
        assert_eq!(windows["hostProcess"], true, "the API server requires it");
        assert_eq!(windows["runAsUserName"], r"NT AUTHORITY\SYSTEM", "HCN requires it");
        let container = &pod["containers"][0];
        if container["name"] == "agent" {
            let arguments = container["args"].to_string();
            assert!(arguments.contains("--datapath=hcn") && arguments.contains("--source=kube"));
            assert_eq!(container["env"][0]["name"], "NODE_NAME");
            for probe in ["livenessProbe", "readinessProbe"] {
                assert_eq!(container[probe]["httpGet"]["host"], "127.0.0.1", "{probe}");
            }
        }
    }
}

#[test]
fn agents_on_linux_are_probed_only_once_their_own_container_answers() {
    let mut agents = 0;
    for document in all_documents() {
        let pod = &document["spec"]["template"]["spec"];
        let containers = pod["containers"].as_array().into_iter().flatten();
        let is_agent = |one: &&Value| {
            one["name"] == "agent" && pod["nodeSelector"]["kubernetes.io/os"] == "linux"
        };
        for container in containers.filter(is_agent) {
            agents += 1;
            let port = &container["readinessProbe"]["httpGet"]["port"];
            let command = ["/usr/local/bin/weir", "status", "--same-container"].map(Value::from);
            let address = Value::from(format!("--agent=127.0.0.1:{port}"));
            let command = Value::from([&command[..], &[address]].concat());
            assert_eq!(container["startupProbe"]["exec"]["command"], command);
        }
    }
    assert!(agents >= 4, "the chart has agents for Linux");
}

#[test]
fn controllers_and_relays_meet_the_restricted_pod_security_level() {
    let namespaces = documents(&MANIFESTS[0].generate().expect("renders"));
    let levels: Vec<(&Value, &Value)> = namespaces
        .iter()
        .map(|one| {
            let label = &one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
            (&one["metadata"]["name"], label)
        })
        .collect();
    let [agents, controllers] = [NAMESPACE, CONTROLLER_NAMESPACE].map(Value::from);
    let [privileged, restricted] = ["privileged", "restricted"].map(Value::from);
    assert_eq!(levels, [(&agents, &privileged), (&controllers, &restricted)]);
    let mut deployments = 0;
    for document in all_documents() {
        let pod = &document["spec"]["template"]["spec"];
        if kind(&document) != "Deployment" {
            assert!(pod.is_null() || document["metadata"]["namespace"] == agents);
            continue;
        }
        deployments += 1;
        // Relays are beside the agents, whose tokens they check.
        let is_relay = document["metadata"]["name"] == "weir-relay";
        let home = if is_relay { &agents } else { &controllers };
        assert_eq!(document["metadata"]["namespace"], *home);
        // The requirements of the level `restricted`, except those that
        // `containers_have_minimal_privileges` checks for all pods.
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod["hostNetwork"].is_null());
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            assert!(volume["secret"].is_object(), "{volume}");
        }
        for container in pod["containers"].as_array().expect("containers") {
            assert!(container["securityContext"]["capabilities"]["add"].is_null());
            assert!(container["ports"][0]["hostPort"].is_null());
        }
    }
    // Another controller has no definitions, and a release has all features.
    assert_eq!(deployments, 3 + CONTROLLERS.len());
}

#[test]
fn only_the_chosen_pods_reach_a_controller() {
    let policies = |values: &[&str]| -> Vec<Value> {
        let rendered = documents(&render("weir", values).expect("renders"));
        rendered.into_iter().filter(|one| kind(one) == "NetworkPolicy").collect()
    };
    assert!(policies(&[]).is_empty(), "agents are no endpoints of policies");
    let closed = policies(&["controller.enable={hpp}"]);
    let [closed] = &closed[..] else { panic!("{closed:?}") };
    assert_eq!(closed["metadata"]["namespace"], CONTROLLER_NAMESPACE);
    assert_eq!(closed["spec"]["policyTypes"], serde_json::json!(["Ingress"]));
    assert!(closed["spec"]["ingress"].is_null(), "{closed}");
    let rendered = documents(&render("weir", &["controller.enable={hpp}"]).expect("renders"));
    let deployment = rendered.iter().find(|one| kind(one) == "Deployment").expect("a Deployment");
    assert_eq!(
        closed["spec"]["podSelector"]["matchLabels"],
        deployment["spec"]["selector"]["matchLabels"]
    );
    let from = "monitoring.from[0].namespaceSelector.matchLabels.team=metrics";
    let open = policies(&["controller.enable={hpp}", from]);
    let rule = &open[0]["spec"]["ingress"][0];
    assert_eq!(rule["from"][0]["namespaceSelector"]["matchLabels"]["team"], "metrics");
    assert_eq!(rule["ports"], serde_json::json!([{"protocol": "TCP", "port": 9641}]));
}

#[test]
fn every_image_names_its_registry() {
    for document in all_documents() {
        let pod = &document["spec"]["template"]["spec"];
        for list in ["containers", "initContainers"] {
            for container in pod[list].as_array().into_iter().flatten() {
                let image = container["image"].as_str().expect("an image");
                let registry = image.split_once('/').map_or("", |(registry, _)| registry);
                let has_registry = registry == "localhost" || registry.contains(['.', ':']);
                assert!(has_registry, "{image}");
            }
        }
    }
    let error = render("weir", &["image.repository=weir"]).expect_err("no registry").to_string();
    assert!(error.contains("image.repository"), "{error}");
}

/// The capabilities that a Linux container may add, by the name of the container.
fn allowed_capabilities(container: &str) -> &'static [&'static str] {
    match container {
        "agent" | "rules" => &["NET_ADMIN", "NET_RAW"],
        _ => &[],
    }
}

#[test]
fn containers_have_minimal_privileges() {
    let mut containers = 0;
    for document in all_documents() {
        let pod = &document["spec"]["template"]["spec"];
        if pod.is_null() || pod["nodeSelector"]["kubernetes.io/os"] == "windows" {
            continue;
        }
        let name = &document["metadata"]["name"];
        assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null(), "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        let is_iptables = pod.to_string().contains("iptables");
        for list in ["containers", "initContainers"] {
            for container in pod[list].as_array().into_iter().flatten() {
                containers += 1;
                let (context, name) =
                    (&container["securityContext"], container["name"].as_str().expect("a name"));
                assert!(context["privileged"].is_null(), "{name}");
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]), "{name}");
                let added = context["capabilities"]["add"].as_array();
                for capability in added.into_iter().flatten().filter_map(Value::as_str) {
                    assert!(
                        allowed_capabilities(name).contains(&capability),
                        "{name} has {capability}"
                    );
                    assert!(capability != "NET_RAW" || is_iptables, "{name} has {capability}");
                }
            }
        }
    }
    assert!(containers > 8, "the manifests have containers: {containers}");
}

#[test]
fn an_agent_without_the_cni_plugin_mounts_no_host_path() {
    let agent = documents(&render("weir", &["agent.cni.enabled=false"]).expect("renders"));
    let set = agent.iter().find(|document| kind(document) == "DaemonSet").expect("a DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    for container in pod["containers"].as_array().expect("containers") {
        assert!(container["volumeMounts"].is_null(), "{container}");
    }
    // A plugin that was enabled before would wait for an agent without a socket.
    assert_eq!(pod["initContainers"][0]["args"][0], "uninstall");
}

#[test]
fn a_flow_log_adds_one_folder_of_the_node() {
    let log = "agent.flowLog.hostPath=/srv/flows";
    let rendered = render("weir", &["agent.cni.enabled=false", log]).expect("renders");
    let agent = documents(&rendered);
    let set = agent.iter().find(|document| kind(document) == "DaemonSet").expect("a DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mounts = serde_json::json!([{"name": "flow-log", "mountPath": "/var/log/weir"}]);
    assert_eq!(container["volumeMounts"], mounts);
    let folder = serde_json::json!({"path": "/srv/flows", "type": "DirectoryOrCreate"});
    let volumes = pod["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "flow-log").expect("a volume");
    assert_eq!(volume["hostPath"], folder);
    let args: Vec<&str> = container["args"]
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(|word| word.as_str().filter(|word| word.starts_with("--flow-log")))
        .collect();
    let file = "--flow-log=/var/log/weir/flows.jsonl";
    assert_eq!(args, [file, "--flow-log-size=64", "--flow-log-files=3"]);
    for other in ["agent.flows=false", "agent.datapath=opflex"] {
        let error = render("weir", &[log, other]).expect_err("no flows").to_string();
        assert!(error.contains("agent.flowLog.hostPath"), "{other}: {error}");
    }
}

#[test]
fn only_an_agent_that_sends_packets_gets_net_raw() {
    let has_raw = |values: &[&str]| {
        let agent = documents(&render("weir", values).expect("renders"));
        let set = agent.iter().find(|document| kind(document) == "DaemonSet").expect("a DaemonSet");
        let containers = &set["spec"]["template"]["spec"]["containers"];
        containers[0]["securityContext"]["capabilities"]["add"].to_string().contains("NET_RAW")
    };
    let (ebpf, reject) = ("agent.datapath=ebpf", "agent.denied=reject");
    assert!(has_raw(&[ebpf, reject]));
    assert!(!has_raw(&[ebpf]));
    assert!(!has_raw(&[ebpf, reject, "agent.audit=true"]));
    assert!(!has_raw(&[reject]));
}

#[test]
fn no_controllers_are_enabled_by_an_empty_list() {
    let without = render("weir", &[]).expect("renders");
    assert_eq!(render("weir", &["controller.enable={}"]).expect("renders"), without);
}
