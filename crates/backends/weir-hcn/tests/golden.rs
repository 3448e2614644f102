//! The rendered ACLs as text, for review. `UPDATE_EXPECT=1 cargo test -p weir-hcn` accepts changes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use expect_test::{Expect, expect, expect_file};
use weir_engine::{Locality, compile};
use weir_hcn::{Acl, RuleType, render};
use weir_model::{PodId, Program, World};

#[track_caller]
fn program(case: &str) -> Program {
    let anything = "probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]";
    let text = format!("{case}\n{anything}");
    let mut cases = weir_api::cases("case.yaml".into(), text.as_bytes());
    let case = cases.pop().expect("there is a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let world: World = case.objects.into_iter().collect();
    compile(&world, Locality::Everywhere)
}

#[track_caller]
fn acls(case: &str, pod: &str) -> Vec<Acl> {
    let program = program(case);
    let id = PodId::new("shop", pod);
    render(&id, &program.endpoints[&id], &program, &BTreeSet::new()).acls
}

#[track_caller]
fn check(case: &str, expected: Expect) {
    let program = program(case);
    let mut text = String::new();
    for (id, endpoint) in &program.endpoints {
        let rendered = render(id, endpoint, &program, &BTreeSet::new());
        writeln!(text, "{id}").unwrap();
        rendered.acls.iter().for_each(|acl| writeln!(text, "  {acl}").unwrap());
        rendered.shortfalls.iter().for_each(|lack| writeln!(text, "  ! {lack}").unwrap());
    }
    expected.assert_eq(&text);
}

/// The ACLs of the pods of each case in the repository. Pods with equal ACLs share an entry.
#[test]
fn all_cases_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["upstream", "semantics"] {
        let cases = root.join("../../../cases").join(folder);
        let mut files: Vec<PathBuf> =
            fs::read_dir(&cases).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.is_file());
        files.sort();
        assert!(!files.is_empty(), "there are cases in {folder}");
        for file in files {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let golden = root.join(format!("tests/golden/{folder}-{name}.txt"));
            expect_file![golden].assert_eq(&of_cases(&cases, &file));
        }
    }
}

fn of_cases(folder: &Path, file: &Path) -> String {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let mut text = String::new();
    for mut case in weir_api::cases(name.as_str().into(), &fs::read(file).unwrap()) {
        if !case.manifests.is_empty() {
            let mut reader = weir_api::ManifestReader::new();
            for path in &case.manifests {
                reader.read_file(path.as_str().into(), &fs::read(folder.join(path)).unwrap());
            }
            case.join(reader.finish());
        }
        let world: World = case.objects.iter().cloned().collect();
        let program = compile(&world, Locality::Everywhere);
        let mut pods: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (id, endpoint) in &program.endpoints {
            let rendered = render(id, endpoint, &program, &BTreeSet::new());
            // Leave out the ACLs about the pod itself, which differ for every pod, and those of the
            // host firewall, which are always the same.
            let is_always =
                |acl: &&Acl| acl.id.starts_with("weir:own-") || acl.rule_type == RuleType::Host;
            let rules = rendered.acls.iter().filter(|acl| !is_always(acl));
            let mut list: String = rules.map(|acl| format!("  {acl}\n")).collect();
            rendered
                .shortfalls
                .iter()
                .for_each(|lack| writeln!(list, "  ! {}", lack.what).unwrap());
            pods.entry(list).or_default().push(id.to_string());
        }
        writeln!(text, "# {}", case.name).unwrap();
        for (rules, names) in pods.iter().filter(|(rules, _)| !rules.is_empty()) {
            write!(text, "{}\n{rules}", names.join(" ")).unwrap();
        }
    }
    text
}

/// The example of the design of this backend.
const ALLOW_WEB: &str = "
nodes: [{name: win-1, ips: [192.168.0.11]}]
pods: [{namespace: shop, name: web, labels: {app: webserver}, ips: [10.244.1.7], node: win-1}]
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: allow-web, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: webserver}}
    policyTypes: [Ingress, Egress]
    ingress:
    - from: [{ipBlock: {cidr: 0.0.0.0/0}}]
      ports: [{protocol: TCP, port: 80}, {protocol: TCP, port: 443}]
    egress:
    - to: [{ipBlock: {cidr: 0.0.0.0/0}}]
      ports: [{protocol: UDP, port: 53}]
";

#[test]
fn allow_web_is_three_rules_and_the_default_acls() {
    check(
        ALLOW_WEB,
        expect![[r#"
            shop/web
                300 In  Allow remote 10.244.1.7,192.168.0.11  weir:own-in
               2000 In  Allow protocol 6 remote 0.0.0.0/0 local-ports 80  weir:NetworkPolicy/shop/allow-web#in.0
               2000 In  Allow protocol 6 remote 0.0.0.0/0 local-ports 443  weir:NetworkPolicy/shop/allow-web#in.0
               3000 In  Block  weir:tail-in
                300 Out Allow remote 10.244.1.7  weir:own-out
               2000 Out Allow protocol 17 remote 0.0.0.0/0 remote-ports 53  weir:NetworkPolicy/shop/allow-web#out.0
               3000 Out Block  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
        "#]],
    );
    let rules = acls(ALLOW_WEB, "web");
    let listed: Vec<_> = rules
        .iter()
        .filter(|acl| acl.id.contains("/allow-web#"))
        .map(|acl| {
            let Acl { protocols, local_ports, remote_ports, remote_addresses, .. } = acl.clone();
            let (action, direction) = (acl.action.to_string(), acl.direction.to_string());
            let lists = [protocols, local_ports, remote_ports, remote_addresses];
            let [protocols, local, remote, addresses] = lists.map(|list| list.to_string());
            [action, direction, protocols, local, remote, addresses]
        })
        .collect();
    assert_eq!(
        listed,
        [
            ["Allow", "In", "6", "80", "", "0.0.0.0/0"],
            ["Allow", "In", "6", "443", "", "0.0.0.0/0"],
            ["Allow", "Out", "17", "", "53", "0.0.0.0/0"],
        ]
    );
}

#[test]
fn a_policy_in_the_format_of_hns() {
    let rules = acls(ALLOW_WEB, "web");
    let first = rules.iter().find(|acl| acl.id.contains("/allow-web#")).unwrap();
    let text = serde_json::to_string_pretty(&first.policy()).unwrap();
    expect![[r#"
        {
          "Type": "ACL",
          "Settings": {
            "Id": "weir:NetworkPolicy/shop/allow-web#in.0",
            "Protocols": "6",
            "Action": "Allow",
            "Direction": "In",
            "RemoteAddresses": "0.0.0.0/0",
            "LocalPorts": "80",
            "RuleType": "Switch",
            "Priority": 2000
          }
        }"#]]
    .assert_eq(&text);
}

#[test]
fn a_pod_that_no_policy_selects_gets_no_acls() {
    check(
        "pods: [{namespace: shop, name: web, ips: [10.0.0.1]}]",
        expect![[r#"
            shop/web
        "#]],
    );
}

#[test]
fn one_direction_is_isolated_and_the_other_open() {
    check(
        "
nodes: [{name: n1, ips: [192.168.0.1]}]
pods:
- {namespace: shop, name: db, labels: {app: db}, ips: [10.0.0.1, 'fd00::1'], node: n1}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.2, 'fd00::2']}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: db, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: db}}
    ingress:
    - from: [{podSelector: {matchLabels: {app: api}}}, {ipBlock: {cidr: 10.8.0.0/16, except: [10.8.1.0/24]}}]
      ports: [{port: 5432}, {port: 8000, endPort: 8080}]
",
        expect![[r#"
            shop/api
            shop/db
                300 In  Allow remote 10.0.0.1,192.168.0.1  weir:own-in
                300 In  Allow remote fd00::1  weir:own-in
                300 In  Allow protocol 58 remote fe80::/10,ff02::/16  weir:neighbours-in
               2000 In  Allow protocol 6 remote 10.0.0.2,10.8.0.0/24,10.8.2.0/23,10.8.4.0/22,10.8.8.0/21,10.8.16.0/20,10.8.32.0/19,10.8.64.0/18,10.8.128.0/17 local-ports 5432  weir:NetworkPolicy/shop/db#in.0
               2000 In  Allow protocol 6 remote fd00::2 local-ports 5432  weir:NetworkPolicy/shop/db#in.0
               2000 In  Allow protocol 6 remote 10.0.0.2,10.8.0.0/24,10.8.2.0/23,10.8.4.0/22,10.8.8.0/21,10.8.16.0/20,10.8.32.0/19,10.8.64.0/18,10.8.128.0/17 local-ports 8000-8080  weir:NetworkPolicy/shop/db#in.0
               2000 In  Allow protocol 6 remote fd00::2 local-ports 8000-8080  weir:NetworkPolicy/shop/db#in.0
               3000 In  Block  weir:tail-in
                300 Out Allow remote 10.0.0.1  weir:own-out
                300 Out Allow remote fd00::1  weir:own-out
                300 Out Allow protocol 58 remote fe80::/10,ff02::/16  weir:neighbours-out
               3100 Out Allow  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
        "#]],
    );
}

#[test]
fn named_ports_become_numbers_and_sctp_is_denied_and_reported() {
    check(
        "
pods:
- {namespace: shop, name: web, labels: {app: web}, ips: [10.0.0.1], ports: [{name: http, containerPort: 8080}]}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.2], ports: [{name: http, containerPort: 9090}]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: web}}
    policyTypes: [Ingress, Egress]
    ingress: [{ports: [{port: http}, {port: 9, protocol: SCTP}]}]
    egress: [{to: [{podSelector: {}}], ports: [{port: http}]}]
",
        expect![[r#"
            shop/api
            shop/web
                300 In  Allow remote 10.0.0.1  weir:own-in
               2000 In  Allow protocol 6 local-ports 8080  weir:NetworkPolicy/shop/web#in.0
               3000 In  Block  weir:tail-in
                300 Out Allow remote 10.0.0.1  weir:own-out
               2000 Out Allow protocol 6 remote 10.0.0.1 remote-ports 8080  weir:NetworkPolicy/shop/web#out.0
               2000 Out Allow protocol 6 remote 10.0.0.2 remote-ports 9090  weir:NetworkPolicy/shop/web#out.0
               3000 Out Block  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
              ! NetworkPolicy shop/web for shop/web: HNS cannot filter SCTP by port: SCTP that its rules match is denied
        "#]],
    );
}

#[test]
fn tiers_are_in_order_and_pass_is_replaced_by_lower_tiers() {
    check(
        "
namespaces: [{name: shop, labels: {team: shop}}]
pods:
- {namespace: shop, name: web, labels: {app: web}, ips: [10.0.0.1]}
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.2]}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: web}}
    ingress: [{from: [{podSelector: {}}], ports: [{port: 80}, {port: 90}]}]
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {name: first}
  spec:
    priority: 1
    subject: {namespaces: {}}
    ingress:
    - {action: Allow, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: api}}}}], ports: [{portNumber: {port: 22, protocol: TCP}}]}
    - {action: Pass, from: [{namespaces: {matchLabels: {team: shop}}}], ports: [{portRange: {start: 80, end: 85, protocol: TCP}}]}
    - {action: Deny, from: [{namespaces: {}}]}
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: BaselineAdminNetworkPolicy
  metadata: {name: default}
  spec:
    subject: {namespaces: {}}
    egress:
    - {action: Deny, to: [{namespaces: {}}], ports: [{portNumber: {port: 25, protocol: TCP}}]}
",
        expect![[r#"
            shop/api
                300 In  Allow remote 10.0.0.2  weir:own-in
                400 In  Allow protocol 6 remote 10.0.0.2 local-ports 22  weir:AdminNetworkPolicy/first#in.0
                400 In  Allow protocol 6 remote 10.0.0.1,10.0.0.2 local-ports 80-85  weir:pass
                401 In  Block remote 10.0.0.1,10.0.0.2  weir:AdminNetworkPolicy/first#in.2
               3100 In  Allow  weir:tail-in
                300 Out Allow remote 10.0.0.2  weir:own-out
               2100 Out Block protocol 6 remote 10.0.0.1,10.0.0.2 remote-ports 25  weir:BaselineAdminNetworkPolicy/default#out.0
               3100 Out Allow  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
            shop/web
                300 In  Allow remote 10.0.0.1  weir:own-in
                400 In  Allow protocol 6 remote 10.0.0.2 local-ports 22  weir:AdminNetworkPolicy/first#in.0
                400 In  Allow protocol 6 remote 10.0.0.1,10.0.0.2 local-ports 80  weir:NetworkPolicy/shop/web#in.0
                401 In  Block protocol 6 remote 10.0.0.1,10.0.0.2 local-ports 80-85  weir:pass
                401 In  Block remote 10.0.0.1,10.0.0.2  weir:AdminNetworkPolicy/first#in.2
               2000 In  Allow protocol 6 remote 10.0.0.1,10.0.0.2 local-ports 80  weir:NetworkPolicy/shop/web#in.0
               2000 In  Allow protocol 6 remote 10.0.0.1,10.0.0.2 local-ports 90  weir:NetworkPolicy/shop/web#in.0
               3000 In  Block  weir:tail-in
                300 Out Allow remote 10.0.0.1  weir:own-out
               2100 Out Block protocol 6 remote 10.0.0.1,10.0.0.2 remote-ports 25  weir:BaselineAdminNetworkPolicy/default#out.0
               3100 Out Allow  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
        "#]],
    );
}

#[test]
fn denying_some_sctp_denies_all_sctp() {
    check(
        "
namespaces: [{name: shop}]
pods: [{namespace: shop, name: web, ips: [10.0.0.1]}]
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {name: no-sctp}
  spec:
    priority: 1
    subject: {namespaces: {}}
    ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 9, protocol: SCTP}}]}]
",
        expect![[r#"
            shop/web
                300 In  Allow remote 10.0.0.1  weir:own-in
               3100 In  Allow protocol 1  weir:tail-in
               3100 In  Allow protocol 2  weir:tail-in
               3100 In  Allow protocol 6  weir:tail-in
               3100 In  Allow protocol 17  weir:tail-in
               3100 In  Allow protocol 58  weir:tail-in
               3200 In  Block  weir:tail-in
                300 Out Allow remote 10.0.0.1  weir:own-out
               3100 Out Allow  weir:tail-out
                  - In  Allow (host)  weir:host-in
                  - Out Allow (host)  weir:host-out
              ! AdminNetworkPolicy no-sctp for shop/web: HNS cannot filter SCTP by port: SCTP that its rules match is denied
        "#]],
    );
}

#[test]
fn long_lists_are_split_at_the_limit_of_hns() {
    // Use every second address, so that no two join to one network.
    let pods: Vec<String> = (0..9000_u32)
        .map(|n| {
            let [_, b, c, d] = (2 * n).to_be_bytes();
            format!("- {{namespace: many, name: p{n}, ips: [10.{b}.{c}.{d}]}}")
        })
        .collect();
    let case = format!(
        "
namespaces: [{{name: many}}, {{name: shop}}]
pods:
- {{namespace: shop, name: web, ips: [10.200.0.1]}}
{}
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {{name: web, namespace: shop}}
  spec: {{podSelector: {{}}, ingress: [{{from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: many}}}}}}]}}]}}
",
        pods.join("\n")
    );
    let rules = acls(&case, "web");
    let grants = rules.iter().filter(|acl| acl.id.contains("/web#"));
    let sizes: Vec<usize> = grants.map(|acl| acl.remote_addresses.split(',').count()).collect();
    assert_eq!(sizes, [4000, 4000, 1000]);
}

#[test]
fn a_long_id_is_shortened_and_stays_unique() {
    let name = |last: &str| format!("{}{last}", "n".repeat(240));
    let case = |last: &str| {
        format!(
            "
pods: [{{namespace: shop, name: web, ips: [10.0.0.1]}}]
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {{name: {}, namespace: shop}}
  spec: {{podSelector: {{}}, ingress: [{{ports: [{{port: 1}}]}}]}}
",
            name(last)
        )
    };
    let id =
        |last| acls(&case(last), "web").into_iter().find(|acl| acl.id.contains("nnn")).unwrap().id;
    assert_eq!((id("a").len(), id("a") == id("b")), (200, false));
}
