//! Policies that change under traffic: packets that both versions allow are never lost, and packets
//! that both deny never pass.

use weir_iptables::Variant;
use weir_trials::{
    cluster::{TrialCluster, policy},
    traffic::Traffic,
};

use crate::backend::Tables;

/// Policies by which `api` reaches `db` over UDP, and `far` does not: as grants, chains, networks,
/// and merged.
fn rule_lists() -> Vec<String> {
    let from = |app: &str| format!("{{podSelector: {{matchLabels: {{app: {app}}}}}}}");
    let udp = "ports: [{protocol: UDP, port: 80}]";
    let some: Vec<String> = ["api", "web", "db", "absent", "none", "noone"]
        .iter()
        .map(|app| format!("{{from: [{}], {udp}}}", from(app)))
        .collect();
    let rules = [
        format!("{{from: [{}], {udp}}}", from("api")),
        format!("{{from: [{}]}}", from("api")),
        format!("{{from: [{}], ports: [{{protocol: UDP, port: 50, endPort: 90}}]}}", from("api")),
        "{from: [{ipBlock: {cidr: 10.0.0.0/30}}, {ipBlock: {cidr: 'fd00::/126'}}]}".to_owned(),
        some.join(","),
        format!("{{from: [{}, {}], {udp}}}", from("web"), from("api")),
    ];
    let spec =
        |rules: String| format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{rules}]");
    rules.map(spec).to_vec()
}

pub(crate) fn no_packet_is_lost_and_none_slips_through(variant: Variant) {
    let rule_lists = rule_lists();
    let mut cluster = TrialCluster::with(Tables(variant), &[policy("db", &rule_lists[0])]);
    let pairs =
        (0..rule_lists.len()).flat_map(|one| (0..rule_lists.len()).map(move |other| [one, other]));
    let transitions: Vec<usize> = pairs.flatten().collect();
    Traffic::new(&cluster.lab).check_during(|| {
        for number in transitions {
            cluster.put(&policy("db", &rule_lists[number]));
        }
    });
}
