//! Elements of other programs in the maps, with numbers that no rule uses.

use weir_datapath::Planner;
use weir_ebpf::{
    Installed, Tables,
    layout::{Decision, TierAction},
};
use weir_model::{Delta, Verdict};
use weir_trials::cluster::{PODS, flow, policy};

use crate::{machine::Maps, packets::opening, planner, programs, rules, run};
use weir_ebpf::program::HookPoint::Forward;

/// `db` accepts this pod on port 81 only.
fn text(pod: &str) -> String {
    let spec = format!(
        "podSelector: {{matchLabels: {{app: db}}}}, ingress: [
         {{from: [{{podSelector: {{matchExpressions: [{{key: app, operator: In, values: [{pod}]}}]}}}}],
          ports: [{{port: 81}}]}}]"
    );
    format!("{PODS}policies:\n{}", policy("db", &spec))
}

/// Whether `far` reaches another port of `db` after a change of its rules from `api` to `far`.
fn reaches(installed: Tables) -> Verdict {
    let (before, after) = (rules(&text("api")), rules(&text("far")));
    let mut next = planner();
    let (is_intact, capacity) = (true, 1 << 16);
    next.replan(&before, &Installed { tables: Some(installed), is_intact, capacity });
    next.plan(&after, &Delta::from(&after));
    let mut maps = Maps::from_tables(next.tables());
    let to_db = flow("10.0.0.4", "10.0.0.3", weir_model::Protocol::Tcp, 80);
    run(&programs(), &mut maps, &opening(&to_db, Forward), 1 << 40)
}

#[test]
fn a_foreign_decision_never_becomes_one_of_the_rules() {
    let mut first = planner();
    let before = rules(&text("api"));
    first.plan(&before, &Delta::from(&before));
    let tables = first.tables();
    assert_eq!(reaches(tables.clone()), Verdict::Deny);
    let mut foreign = tables.clone();
    let unused = tables.kinds.keys().max().unwrap() + 1;
    for tier in 0..20 {
        for kind in unused..unused + 20 {
            foreign.decisions.insert((tier, kind), Decision::always(TierAction::Allow));
        }
    }
    assert_eq!(reaches(foreign.clone()), Verdict::Deny);
    // Numbers without a meaning end in new maps, not in an overflow.
    foreign.kinds.insert(u32::MAX, [7; 16]);
    foreign.tiers.insert(u32::MAX, [7; 16]);
    foreign.networks.insert("192.0.2.0/24".parse().unwrap(), u32::MAX);
    assert_eq!(reaches(foreign), Verdict::Deny);
}
