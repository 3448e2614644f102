use std::process::Output;

use expect_test::expect;

#[cfg(target_os = "linux")]
use crate::variant;
use crate::{check, command, json, stdout, weir, weir_reading};

const CASE: &str = "\
name: only the api reaches the database
namespaces: [{name: shop}]
pods:
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.1]}
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.2]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: db, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}]}]
probes:
- {from: {pod: shop/api}, to: {pod: shop/db}, port: 5432, expect: allow}
- {from: {pod: shop/api}, to: {pod: shop/db}, port: 80, expect: allow, note: the old port}
- {from: {ip: 203.0.113.7}, to: {pod: shop/db}, port: 5432, expect: deny}
";

#[test]
fn the_tests_of_the_shop_pass() {
    check(
        &weir("test examples/shop/tests.yaml"),
        expect![[r#"
        ok   customers reach the web servers and nothing behind them (4 probes)
        ok   an order goes from the web to the api to the checkout to the bank (5 probes)
        ok   only prometheus reads metrics (3 probes)
        ok   every pod of the shop can query DNS (3 probes)
        ok   the api does not reach the database yet (1 probe)
        16 passed, 0 failed
        --- exit 0
    "#]],
    );
}

#[test]
fn a_probe_that_fails_is_explained() {
    check(
        &weir_reading("test -", CASE),
        expect![[r#"
            FAIL only the api reaches the database (1 of 3 probes)
                 shop/api → shop/db 80/TCP: expected allow, got deny  -:15
                   ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches; NetworkPolicy shop/db ingress[0].from[0] (-:12) matches except for the port
                   note: the old port
            2 passed, 1 failed
            --- exit 1
        "#]],
    );
}

#[test]
fn results_as_json() {
    check(
        &weir_reading("test - -o json", CASE),
        expect![[r#"
            {
              "passed": 2,
              "failed": 1,
              "cases": [
                {
                  "name": "only the api reaches the database",
                  "probes": [
                    {
                      "from": "shop/api",
                      "to": "shop/db",
                      "port": 5432,
                      "protocol": "TCP",
                      "expect": "allow",
                      "verdict": "allow",
                      "why": "egress of shop/api: no policy isolates it for egress; ingress of shop/db: allowed by NetworkPolicy shop/db ingress[0].from[0] (-:12)"
                    },
                    {
                      "from": "shop/api",
                      "to": "shop/db",
                      "port": 80,
                      "protocol": "TCP",
                      "expect": "allow",
                      "verdict": "deny",
                      "why": "ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches; NetworkPolicy shop/db ingress[0].from[0] (-:12) matches except for the port"
                    },
                    {
                      "from": "203.0.113.7",
                      "to": "shop/db",
                      "port": 5432,
                      "protocol": "TCP",
                      "expect": "deny",
                      "verdict": "deny",
                      "why": "ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches; NetworkPolicy shop/db ingress[0].from[0] (-:12) matches except for the peer"
                    }
                  ]
                }
              ]
            }
            --- exit 1
        "#]],
    );
}

#[test]
fn results_as_junit() {
    let case = CASE.replace("only the api", "<only> the \"api\" &");
    check(
        &weir_reading("test - -o junit", &case),
        expect![[r#"
            <?xml version="1.0" encoding="UTF-8"?>
            <testsuites name="weir" tests="3" failures="1" errors="0">
              <testsuite name="&lt;only&gt; the &quot;api&quot; &amp; reaches the database" tests="3" failures="1" errors="0">
                <testcase classname="&lt;only&gt; the &quot;api&quot; &amp; reaches the database" name="shop/api to shop/db 5432/TCP is allow"/>
                <testcase classname="&lt;only&gt; the &quot;api&quot; &amp; reaches the database" name="shop/api to shop/db 80/TCP is allow (the old port)">
                  <failure message="expected allow, got deny">-:15: ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches; NetworkPolicy shop/db ingress[0].from[0] (-:12) matches except for the port</failure>
                </testcase>
                <testcase classname="&lt;only&gt; the &quot;api&quot; &amp; reaches the database" name="203.0.113.7 to shop/db 5432/TCP is deny"/>
              </testsuite>
            </testsuites>
            --- exit 1
        "#]],
    );
}

#[test]
fn an_invalid_case_fails() {
    let case = CASE.replace("ports: [{port: 5432}]", "prots: [{port: 5432}]");
    let case = case.replace("{ip: 203.0.113.7}", "{pod: shop/nobody}");
    check(
        &weir_reading("test -", &case),
        expect![[r#"
            FAIL only the api reaches the database
                   -:12: error: there is no field "prots" here; expected from, ports [unknown-field]
                     NetworkPolicy shop/db spec.ingress[0].prots
                     hint: did you mean `ports`?
                   -:16: error: there is no pod shop/nobody in this case [invalid]
                     case only the api reaches the database probes[2].from.pod
                     hint: add it to `pods:`, or correct the name
                 shop/api → shop/db 5432/TCP: expected allow, got deny  -:14
                   ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches
                 shop/api → shop/db 80/TCP: expected allow, got deny  -:15
                   ingress of shop/db: isolated by NetworkPolicy shop/db (-:7), and no rule matches
                   note: the old port
                 shop/nobody → shop/db 5432/TCP: cannot be tried  -:16
                   there is no pod shop/nobody
            0 passed, 3 failed
            --- exit 1
        "#]],
    );
    let result = json(&weir_reading("test - -o json", &case));
    assert_eq!((&result["passed"], &result["failed"]), (&0.into(), &3.into()));
    assert!(result["cases"][0]["error"].is_string());
}

#[test]
fn a_case_with_missing_manifests_fails() {
    let case = CASE.replace("namespaces:", "manifests: [nowhere]\nnamespaces:");
    check(
        &weir_reading("test -", &case),
        expect![[r#"
            FAIL only the api reaches the database
                   error: -:1: cannot find nowhere
                 shop/api → shop/db 80/TCP: expected allow, got deny  -:16
                   ingress of shop/db: isolated by NetworkPolicy shop/db (-:8), and no rule matches; NetworkPolicy shop/db ingress[0].from[0] (-:13) matches except for the port
                   note: the old port
            0 passed, 3 failed
            --- exit 1
        "#]],
    );
}

#[test]
fn a_case_without_probes_fails_once() {
    check(
        &weir_reading("test -", "name: nothing\nprobes: []\n"),
        expect![[r#"
        FAIL nothing
               -:1: error: a case without probes tests nothing [invalid]
                 case nothing probes
                 hint: add `probes:` with the connections to test
        0 passed, 1 failed
        --- exit 1
    "#]],
    );
}

#[test]
fn files_without_tests_are_an_error() {
    check(
        &weir_reading("test -", "name: [\n"),
        expect![[r#"
        FAIL -
               -:2: error: this is not YAML: while parsing a node, did not find expected node content (column 1); the rest of the file was not read [syntax]
                 hint: check indentation, quotes and brackets around this line
        0 passed, 1 failed
        --- stderr
        error: -:2: this is not YAML: while parsing a node, did not find expected node content (column 1); the rest of the file was not read
        hint: check indentation, quotes and brackets around this line
        --- exit 2
    "#]],
    );
    check(
        &weir_reading("test -", ""),
        expect![[r#"
            --- stderr
            error: there are no tests in -
            hint: a test is a .yaml or .json file with `manifests: [FOLDER]` and `probes: [{from: {pod: shop/web}, to: {pod: shop/db}, port: 5432, expect: deny}]`; see docs/reference/policy-tests.md, and examples/shop/tests.yaml for an example
            --- exit 2
        "#]],
    );
    // An empty folder, and a folder that has only manifests.
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
    check(
        &weir("test examples/clusterset/east"),
        expect![[r#"
            --- stderr
            error: there are no tests in examples/clusterset/east
            hint: a test is a .yaml or .json file with `manifests: [FOLDER]` and `probes: [{from: {pod: shop/web}, to: {pod: shop/db}, port: 5432, expect: deny}]`; see docs/reference/policy-tests.md, and examples/shop/tests.yaml for an example
            --- exit 2
        "#]],
    );
    check(
        &weir("test examples/nowhere.yaml"),
        expect![[r#"
        --- stderr
        error: cannot find examples/nowhere.yaml
        hint: check the path; it is relative to the current folder
        --- exit 2
    "#]],
    );
}

#[test]
fn the_shop_passes_in_a_kernel() {
    check(
        &weir("test --datapath nftables examples/shop/tests.yaml"),
        expect![[r#"
            ok   customers reach the web servers and nothing behind them (4 probes)
            ok   an order goes from the web to the api to the checkout to the bank (5 probes)
            ok   only prometheus reads metrics (3 probes)
            ok   every pod of the shop can query DNS (3 probes)
            ok   the api does not reach the database yet (1 probe)
            16 passed, 0 failed
            --- exit 0
        "#]],
    );
}

#[test]
fn the_findings_of_a_failed_case_are_shown() {
    let case = "
pods: [{namespace: shop, name: web}, {namespace: lab, name: client}]
policies:
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: lab}}}]}]}}
probes:
- {from: {pod: lab/client}, to: {pod: shop/web}, port: 80, expect: allow}
";
    check(
        &weir_reading("test -", case),
        expect![[r#"
            FAIL -:2 (1 of 1 probe)
                   -:2: warning: the namespace lab is not declared, so no namespace selector matches its pods [undeclared-namespace]
                     case -:2 namespaces
                     hint: add `{name: lab}` to `namespaces:`
                   -:2: warning: the namespace shop is not declared, so no namespace selector matches its pods [undeclared-namespace]
                     case -:2 namespaces
                     hint: add `{name: shop}` to `namespaces:`
                 lab/client → shop/web 80/TCP: expected allow, got deny  -:6
                   ingress of shop/web: isolated by NetworkPolicy shop/web (-:4), and no rule matches; NetworkPolicy shop/web ingress[0].from[0] (-:4) matches except for the peer
            0 passed, 1 failed
            --- exit 1
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

#[test]
fn a_probe_that_acls_cannot_express_fails_with_the_reason() {
    let case = "
pods: [{namespace: shop, name: web, ips: [10.0.0.1]}]
policies:
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: sctp, namespace: shop}, spec: {podSelector: {}, ingress: [{ports: [{port: 9, protocol: SCTP}, {port: 80}]}]}}
probes:
- {from: {ip: 203.0.113.7}, to: {pod: shop/web}, port: 9, protocol: SCTP, expect: allow}
- {from: {ip: 203.0.113.7}, to: {pod: shop/web}, port: 80, expect: allow}
";
    check(
        &weir_reading("test --datapath hcn -", case),
        expect![[r#"
            FAIL -:2 (1 of 2 probes)
                 203.0.113.7 → shop/web 9/SCTP: expected allow, got deny  -:6
                   allowed by policy, but the datapath cannot express it: NetworkPolicy shop/sctp for shop/web: HNS cannot filter SCTP by port: SCTP that its rules match is denied
            1 passed, 1 failed
            --- exit 1
        "#]],
    );
}

/// Evaluates the files as opflex-agent does. It enforces only NetworkPolicies; other kinds fail
/// with the reason.
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
            Some(error) => assert!(error.contains("not enforced by opflex"), "{error}"),
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
