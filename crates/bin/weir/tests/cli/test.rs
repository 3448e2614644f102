use std::process::Output;

use expect_test::expect;

#[cfg(target_os = "linux")]
use crate::variant;
use crate::{check, command, json, stdout, weir, weir_reading};

#[test]
fn files_without_tests_are_an_error() {
    // An empty folder.
    let empty = tempfile::tempdir().unwrap();
    check(
        &command().current_dir(&empty).args(["test", "."]).output().unwrap(),
        expect![[r#"
            --- stderr
            error: there are no tests in .
            hint: a test is a .yaml or .json file with `manifests: [FOLDER]` and `probes: [{from: {pod: shop/web}, to: {pod: shop/db}, port: 5432, expect: deny}]`; see docs/reference/policy-tests.md, and examples/shop/tests.yaml for an example
            --- exit 2
        "#]],
    );
}

#[test]
fn all_cases_of_the_repository_pass() {
    all_pass("test cases/upstream cases/semantics");
}

/// With real packets. Needs root or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn all_cases_of_the_repository_pass_in_a_kernel() {
    all_pass("test --datapath nftables cases/upstream cases/semantics");
}

/// With real packets. Needs root and Linux 6.6.
#[cfg(target_os = "linux")]
#[test]
fn all_cases_of_the_repository_pass_in_a_kernel_with_ebpf() {
    all_pass("test --datapath ebpf cases/upstream cases/semantics");
}

/// The cases with ClusterNetworkPolicies, as v1beta1.
fn cases_of_v1beta1(folder: &std::path::Path) -> usize {
    let cases = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases");
    std::fs::create_dir(folder.join("manifests")).unwrap();
    let manifests = "manifests/quarters.yaml";
    std::fs::copy(cases.join("conformance").join(manifests), folder.join(manifests)).unwrap();
    let mut replaced = 0;
    let conformance = ["admin-tier", "baseline-tier", "integration"];
    let conformance = conformance.map(|name| format!("conformance/{name}.yaml"));
    let semantics = ["semantics/c.yaml", "semantics/d.yaml"].map(str::to_owned);
    for path in semantics.into_iter().chain(conformance) {
        let text = std::fs::read_to_string(cases.join(&path)).unwrap();
        let [old, new] = ["v1alpha2", "v1beta1"].map(|v| format!("policy.networking.k8s.io/{v}"));
        replaced += text.matches(&old).count();
        let file = folder.join(path.replace('/', "-"));
        std::fs::write(file, text.replace(&old, &new)).unwrap();
    }
    replaced
}

/// Probes of the cases that [`cases_of_v1beta1`] writes, which all pass.
#[track_caller]
fn v1beta1_passes(run: fn(&str) -> std::process::Output, datapath: &str) {
    let folder = tempfile::tempdir().unwrap();
    assert!(cases_of_v1beta1(folder.path()) > 80);
    let output = run(&format!("test --datapath {datapath} {}", folder.path().display()));
    let text = stdout(&output);
    let closing = text.lines().last().unwrap_or_default();
    assert!(closing.ends_with(" passed, 0 failed"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn policies_of_v1beta1_pass_every_case_of_v1alpha2() {
    v1beta1_passes(weir, "sim");
}

/// With real packets. Needs root or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn policies_of_v1beta1_pass_every_case_in_a_kernel() {
    v1beta1_passes(weir, "nftables");
    v1beta1_passes(weir_with_iptables, "iptables");
}

/// With real packets. Needs root and Linux 6.6.
#[cfg(target_os = "linux")]
#[test]
fn policies_of_v1beta1_pass_every_case_in_a_kernel_with_ebpf() {
    v1beta1_passes(weir, "ebpf");
}

/// Runs weir with iptables-nft.
#[cfg(target_os = "linux")]
fn weir_with_iptables(words: &str) -> std::process::Output {
    let programs = variant::programs(variant::NFT);
    let mut command = command();
    command.env("PATH", variant::path(programs.path()));
    command.args(words.split(' ')).output().unwrap()
}

/// Cases of the repository, with a rule about a domain name for every pod.
#[cfg(target_os = "linux")]
fn cases_with_names(folder: &std::path::Path, parts: &[&str]) {
    let rule = serde_json::json!({
        "apiVersion": "policy.networking.k8s.io/v1beta1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "names-on"},
        "spec": {
            "tier": "Admin", "priority": 1000, "subject": {"namespaces": {}},
            "egress": [{"action": "Accept", "to": [{"domainNames": ["names.example.com"]}]}],
        },
    });
    let dns = serde_json::json!({"names.example.com": ["198.18.7.7"]});
    let cases = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases");
    for part in parts {
        let (from, to) = (cases.join(part), folder.join(part));
        std::fs::create_dir_all(to.join("manifests")).unwrap();
        for file in std::fs::read_dir(&from).unwrap().map(|file| file.unwrap().file_name()) {
            let Ok(text) = std::fs::read_to_string(from.join(&file)) else { continue };
            let changed = if file.to_str().unwrap().ends_with(".json") {
                let mut all: serde_json::Value = serde_json::from_str(&text).unwrap();
                for case in all.as_array_mut().unwrap() {
                    case["adminPolicies"] = serde_json::json!([rule]);
                    case["dns"] = dns.clone();
                }
                all.to_string()
            } else {
                let documents = text.split("\n---\n").map(|case| {
                    let policies = "adminPolicies:\n";
                    let case = if case.contains(policies) {
                        case.replacen(policies, &format!("{policies}- {rule}\n"), 1)
                    } else {
                        assert!(!case.contains("adminPolicies"), "{case}");
                        format!("{case}\nadminPolicies: [{rule}]\n")
                    };
                    let name = "names.example.com: [198.18.7.7]";
                    let forms =
                        [("\ndns: {", format!("{name}, ")), ("\ndns:\n", format!("  {name}\n"))];
                    match forms.into_iter().find(|(before, _)| case.contains(before)) {
                        Some((before, name)) => {
                            case.replacen(before, &format!("{before}{name}"), 1)
                        }
                        None => format!("{case}\ndns: {dns}\n"),
                    }
                });
                documents.collect::<Vec<_>>().join("\n---\n")
            };
            std::fs::write(to.join(file), changed).unwrap();
        }
        for file in std::fs::read_dir(from.join("manifests")).into_iter().flatten() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join("manifests").join(file.file_name())).unwrap();
        }
    }
}

/// With real packets and a real resolver, whose answers the nodes observe during all probes.
#[cfg(target_os = "linux")]
#[track_caller]
fn passes_with_names(run: fn(&str) -> std::process::Output, datapath: &str, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    cases_with_names(folder.path(), parts);
    let text = stdout(&run(&format!("test --datapath {datapath} {}", folder.path().display())));
    let paths: Vec<String> = parts.iter().map(|part| format!("cases/{part}")).collect();
    let expected = stdout(&weir(&format!("test {}", paths.join(" "))));
    assert!(expected.ends_with(" passed, 0 failed\n"), "{expected}");
    assert_eq!(text.lines().last(), expected.lines().last(), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn all_cases_pass_with_names_in_a_kernel() {
    passes_with_names(weir, "nftables", &["upstream", "semantics", "conformance"]);
}

#[cfg(target_os = "linux")]
#[test]
fn cases_pass_with_names_in_a_kernel_with_iptables() {
    passes_with_names(weir_with_iptables, "iptables", &["semantics"]);
}

/// Needs root and Linux 6.6.
#[cfg(target_os = "linux")]
#[test]
fn cases_pass_with_names_in_a_kernel_with_ebpf() {
    passes_with_names(weir, "ebpf", &["semantics"]);
}

/// The expectations of the conformance suite of network-policy-api.
#[test]
fn conformance_cases_pass() {
    let output = weir("test cases/conformance");
    assert!(stdout(&output).ends_with("\n914 passed, 0 failed\n"), "{}", stdout(&output));
}

/// With real packets. Needs root or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn conformance_cases_pass_in_a_kernel() {
    let output = weir("test --datapath nftables cases/conformance");
    assert!(stdout(&output).ends_with("\n914 passed, 0 failed\n"), "{}", stdout(&output));
}

/// With real packets. Needs root and Linux 6.6.
#[cfg(target_os = "linux")]
#[test]
fn conformance_cases_pass_in_a_kernel_with_ebpf() {
    let output = weir("test --datapath ebpf cases/conformance");
    assert!(stdout(&output).ends_with("\n914 passed, 0 failed\n"), "{}", stdout(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn conformance_cases_pass_in_a_kernel_with_iptables() {
    let programs = variant::programs(variant::NFT);
    let mut command = command();
    command.env("PATH", variant::path(programs.path()));
    let output = command.args(["test", "--datapath", "iptables", "cases/conformance"]).output();
    let output = output.unwrap();
    assert!(stdout(&output).ends_with("\n914 passed, 0 failed\n"), "{}", stdout(&output));
}

/// The ACLs of Windows deny SCTP that a rule allows or passes by port, and the result says so.
#[test]
fn conformance_cases_pass_in_acls_but_for_sctp() {
    let answer = json(&weir("test --datapath hcn -o json cases/conformance"));
    for case in answer["cases"].as_array().unwrap() {
        for probe in case["probes"].as_array().unwrap() {
            let is_short = probe["protocol"] == "SCTP" && probe["verdict"] == "deny";
            assert!(probe["verdict"] == probe["expect"] || is_short, "{} {probe}", case["name"]);
        }
    }
    assert_eq!((answer["passed"].as_u64(), answer["failed"].as_u64()), (Some(818), Some(96)));
}

/// With iptables. Needs the programs of both variants.
#[cfg(target_os = "linux")]
#[test]
fn all_cases_of_the_repository_pass_in_a_kernel_with_iptables_nft() {
    all_pass_with_iptables(variant::NFT);
}

#[cfg(target_os = "linux")]
#[test]
fn all_cases_of_the_repository_pass_in_a_kernel_with_iptables_legacy() {
    all_pass_with_iptables(variant::LEGACY);
}

#[cfg(target_os = "linux")]
#[track_caller]
fn all_pass_with_iptables(program: &str) {
    let programs = variant::programs(program);
    let mut command = command();
    command.env("PATH", variant::path(programs.path()));
    command.args("test --datapath iptables cases/upstream cases/semantics".split(' '));
    check_passed(&command.output().unwrap());
}

/// The ACLs of Windows give the same verdict for every probe, except SCTP that a rule allows by
/// port: they deny it, and the result says so.
#[test]
fn all_cases_of_the_repository_are_the_same_in_acls_but_for_sctp() {
    let answer = json(&weir("test --datapath hcn -o json cases/upstream cases/semantics"));
    let (mut passed, mut short) = (0, 0);
    for case in answer["cases"].as_array().unwrap() {
        assert_eq!(case.get("error"), None, "{}", case["name"]);
        for probe in case["probes"].as_array().unwrap() {
            if probe["verdict"] == probe["expect"] {
                passed += 1;
                continue;
            }
            short += 1;
            let (protocol, verdict) = (&probe["protocol"], &probe["verdict"]);
            assert_eq!(
                (protocol.as_str(), verdict.as_str()),
                (Some("SCTP"), Some("deny")),
                "{probe}"
            );
            assert!(probe["why"].as_str().unwrap().contains("HNS cannot filter SCTP"), "{probe}");
        }
    }
    assert_eq!((answer["passed"].as_u64(), answer["failed"].as_u64()), (Some(passed), Some(short)));
    assert!(passed > 1000 && short > 0 && short < 10, "{passed} passed, {short} are short");
}

/// Evaluates the files as opflex-agent does. Policies of the admin tiers that groups cannot express
/// fail with the reason.
#[test]
fn cases_pass_with_opflex_except_for_unsupported_kinds() {
    let output = weir("test --datapath opflex cases/upstream -o json");
    let answer = crate::json(&output);
    assert_eq!((answer["failed"].as_u64(), output.status.code()), (Some(0), Some(0)));
    assert!(answer["passed"].as_u64() > Some(800), "{}", answer["passed"]);
    let output = weir("test --datapath opflex cases/semantics -o json");
    assert_eq!(output.status.code(), Some(1));
    let answer = crate::json(&output);
    for case in answer["cases"].as_array().unwrap() {
        match case["error"].as_str() {
            Some(error) => assert!(error.contains("opflex"), "{error}"),
            None => {
                for probe in case["probes"].as_array().unwrap() {
                    assert_eq!(probe["verdict"], probe["expect"], "{} {probe}", case["name"]);
                }
            }
        }
    }
    assert!(answer["passed"].as_u64() > Some(400), "{}", answer["passed"]);
}

#[track_caller]
fn all_pass(command: &str) {
    check_passed(&weir(command));
}

#[track_caller]
fn check_passed(output: &Output) {
    let text = stdout(output);
    let closing = text.lines().last().unwrap_or_default();
    let passed: usize = closing
        .strip_suffix(" passed, 0 failed")
        .unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
        .parse()
        .unwrap();
    assert!(passed > 1300, "{closing}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn probes_that_differ_in_family_or_note_have_different_names_in_junit() {
    let case = "\
name: both
pods:
- {namespace: shop, name: a, ips: [10.0.0.1, 'fd00::1']}
- {namespace: shop, name: b, ips: [10.0.0.2, 'fd00::2']}
probes:
- {from: {pod: shop/a}, to: {pod: shop/b}, port: 80, expect: allow}
- {from: {pod: shop/a}, to: {pod: shop/b}, port: 80, expect: allow, ipFamily: IPv4}
- {from: {pod: shop/a}, to: {pod: shop/b}, port: 80, expect: allow, ipFamily: IPv6}
- {from: {pod: shop/a}, to: {pod: shop/b}, port: 80, expect: allow, note: again}
";
    let report = stdout(&weir_reading("test - -o junit", case));
    let names: Vec<&str> = report
        .lines()
        .filter_map(|line| line.split_once(" name=\"")?.1.split('"').next())
        .collect();
    assert_eq!(
        names[1..],
        [
            "both",
            "shop/a to shop/b 80/TCP is allow",
            "shop/a to shop/b 80/TCP over IPv4 is allow",
            "shop/a to shop/b 80/TCP over IPv6 is allow",
            "shop/a to shop/b 80/TCP is allow (again)",
        ]
    );
}

#[test]
fn an_unreadable_manifest_fails_the_test() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = "apiVersion: networking.k8s.io/v1\nkind: networkpolicy\nmetadata: {name: d, namespace: a}\nspec: {podSelector: {}}\n";
    let case = "
name: nothing is in the way
manifests: [m.yaml]
pods: [{namespace: a, name: p, ips: [10.0.0.1]}]
probes: [{from: {ip: 10.9.9.9}, to: {pod: a/p}, port: 80, expect: allow}]";
    std::fs::write(folder.path().join("m.yaml"), manifests).unwrap();
    std::fs::write(folder.path().join("t.yaml"), case).unwrap();
    let output = crate::command().arg("test").arg(folder.path().join("t.yaml")).output().unwrap();
    assert!(stdout(&output).ends_with("0 passed, 1 failed\n"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(1));
}

/// A shop whose workloads come from manifests.
fn shop_with_workloads(folder: &std::path::Path, probes: &str) -> std::path::PathBuf {
    let workload = |name: &str, port: u16| {
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: \
             [{{name: c, image: i, ports: [{{name: http, containerPort: {port}}}]}}]}}}}}}\n"
        )
    };
    let manifests = workload("web", 8080)
        + &workload("api", 9090)
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: shop}\n\
           spec: {selector: {app: api}, ports: [{name: http, port: 80, targetPort: http}]}\n\
           ---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: api, namespace: shop}\n\
           spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: \
           {matchLabels: {app: web}}}], ports: [{port: http}]}]}\n";
    std::fs::write(folder.join("shop.yml"), manifests).unwrap();
    let file = folder.join("case.yaml");
    std::fs::write(&file, format!("name: shop\nmanifests: [shop.yml]\nprobes:\n{probes}")).unwrap();
    file
}

const WORKLOAD_PROBES: &str = "\
- {from: {deployment: shop/web}, to: {service: shop/api}, port: http, expect: allow}
- {from: {deployment: shop/web}, to: {deployment: shop/api}, port: http, expect: allow}
- {from: {workload: shop/deployment/web}, to: {pod: shop/api}, port: 80, expect: deny}
- {from: {deployment: shop/api}, to: {deployment: shop/web}, port: http, expect: allow}
- {from: {ip: 192.0.2.1}, to: {service: shop/api}, port: 80, expect: deny}
";

#[test]
fn probes_name_workloads_services_and_ports() {
    let folder = tempfile::tempdir().unwrap();
    let file = shop_with_workloads(folder.path(), WORKLOAD_PROBES);
    let output = weir(&format!("test {}", file.display()));
    assert!(stdout(&output).ends_with("5 passed, 0 failed\n"), "{}", stdout(&output));
}

/// With real packets. Needs root or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn probes_of_workloads_and_services_pass_in_a_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let file = shop_with_workloads(folder.path(), WORKLOAD_PROBES);
    let output = weir(&format!("test --datapath nftables {}", file.display()));
    assert!(stdout(&output).ends_with("5 passed, 0 failed\n"), "{}", stdout(&output));
}
