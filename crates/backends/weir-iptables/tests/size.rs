//! The number of rules and entries is proportional to the size of the policies, whatever their
//! shape.

use std::fmt::Write;

use weir_engine::{Engine, Locality};
use weir_iptables::{ChainsAndSets, render};
use weir_model::{Change, Program};
use weir_testkit::{
    HostileAdminShape,
    egress::{block, port, rule},
};

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}
";

/// Renders the egress rules of a policy for `db`.
fn rendered(pods: &str, rules: &[String]) -> ChainsAndSets {
    let policy = format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{app: db}}}}, policyTypes: [Egress], egress: [{}]}}}}",
        rules.join(", ")
    );
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), format!("{PODS}{pods}{policy}").as_bytes());
    let changes: Vec<Change> = reader.finish().objects.into_iter().map(Change::Put).collect();
    let mut program = Program::default();
    program.apply(Engine::new(Locality::Everywhere).apply(&changes));
    render(&program)
}

/// Checks the number of rules and entries that policies add to those of every node. Bytes are those
/// of the rendered text.
#[track_caller]
fn check(pods: &str, rules: &[String], max_count: usize) {
    let empty = rendered(pods, &[]);
    let all = rendered(pods, rules);
    let count = |all: &ChainsAndSets| {
        let rules: usize = all.chains.values().map(Vec::len).sum();
        let entries: usize = all.sets.values().map(|set| set.entries.len()).sum();
        rules + entries
    };
    let added = count(&all) - count(&empty);
    assert!(added <= max_count, "{added} rules and entries");
    let bytes = all.to_string().len() - empty.to_string().len();
    assert!(bytes <= 200 * max_count, "{bytes} bytes");
}

#[test]
fn blocks_do_not_multiply_with_ports() {
    check("", &[rule((0..400).map(block), (0..400).map(port))], 400 + 2 * 400 + 20);
    check("", &[rule((0..1).map(block), (0..4000).map(port))], 2 * 4000 + 20);
    let range = |number| format!("{{port: {}, endPort: {}}}", 1 + 10 * number, 5 + 10 * number);
    check("", &[rule((0..400).map(block), (0..400).map(range))], 400 + 400 / 7 + 20);
}

#[test]
fn a_few_ports_are_entries_with_their_blocks() {
    check("", &[rule((0..400).map(block), (0..4).map(port))], 4 * 400 + 20);
}

#[test]
fn members_do_not_multiply_with_ports() {
    let mut pods = String::new();
    for number in 0..200 {
        writeln!(pods, "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: m{number}, namespace: shop, labels: {{app: member}}}}, status: {{podIP: 10.0.1.{number}}}}}").expect("writing to a string");
    }
    // The pod has two families: each has a set of the ports, with two entries for each.
    let members = || std::iter::once("{podSelector: {matchLabels: {app: member}}}".to_owned());
    check(&pods, &[rule(members(), (0..400).map(port))], 200 + 4 * 400 + 20);
    // The same ports, one per rule.
    let rules: Vec<String> = (0..400).map(|one| rule(members(), [port(one)].into_iter())).collect();
    check(&pods, &rules, 200 + 4 * 400 + 20);
}

#[test]
fn an_exception_is_one_entry() {
    let except = |rule: u32, count: u32| {
        let list: Vec<String> = (0..count)
            .map(|number| {
                let [_, b, c, d] = (rule * 7919 + number * 97).to_be_bytes();
                format!("20.{b}.{c}.{d}/32")
            })
            .collect();
        format!("{{ipBlock: {{cidr: 0.0.0.0/0, except: [{}]}}}}", list.join(", "))
    };
    let one = |number| rule([except(number, 10)].into_iter(), [port(number)].into_iter());
    check("", &(0..100).map(one).collect::<Vec<_>>(), 100 * 12 + 20);
    check("", &[rule([except(0, 1000)].into_iter(), [port(0)].into_iter())], 1000 + 20);
    let except: Vec<String> =
        (0..500).map(|number| format!("'2001:db8:{number}::1/128'")).collect();
    let block = format!("{{ipBlock: {{cidr: '::/0', except: [{}]}}}}", except.join(", "));
    check("", &[rule([block].into_iter(), [port(0)].into_iter())], 500 + 20);
}

#[test]
fn overlapping_ranges_do_not_multiply() {
    let range = |number: u32| format!("{{port: {}, endPort: {}}}", 1 + number, 3000 + number);
    let one = |number| rule([block(number)].into_iter(), [range(number)].into_iter());
    check("", &(0..300).map(one).collect::<Vec<_>>(), 2 * 300 + 20);
}

#[test]
fn pods_with_equal_rules_share_chains_and_sets() {
    let mut pods = String::new();
    for number in 0..100 {
        writeln!(pods, "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: m{number}, namespace: shop, labels: {{app: db}}}}, status: {{podIP: 10.0.1.{number}}}}}").expect("writing to a string");
    }
    check(&pods, &[rule((0..400).map(block), (0..400).map(port))], 3 * 400 + 20 * 100);
}

/// Admin rules are evaluated in order. Peers of a rule share sets, so they do not multiply with its
/// ports.
#[test]
fn peers_of_admin_rules_do_not_multiply_with_ports() {
    for shape in HostileAdminShape::ALL {
        for &direction in shape.directions() {
            let mut reader = weir_api::ManifestReader::new();
            reader.read_file("test".into(), shape.manifests(direction, 200_000).as_bytes());
            let changes: Vec<Change> =
                reader.finish().objects.into_iter().map(Change::Put).collect();
            let mut program = Program::default();
            program.apply(Engine::new(Locality::Everywhere).apply(&changes));
            let all = render(&program);
            // 40 rules with 40 peers and 40 ports each.
            let rules: usize = all.chains.values().map(Vec::len).sum();
            assert!(rules <= 2_000, "{shape}, {direction}: {rules} rules");
            assert!(all.sets.len() <= 300, "{shape}, {direction}: {} sets", all.sets.len());
        }
    }
}
