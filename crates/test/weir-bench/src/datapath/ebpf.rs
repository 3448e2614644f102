//! The figures about eBPF: packets, changes, and how they compare with the goals.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    backend::MeasuredBackend,
    control::{AdminRules, ChangeCost, EBPF, Task},
    flood::{self, Flood},
    packets::{Figure, InstalledRules},
    probe::Operation,
    report::{capitalised, changes_table, packets_table},
};
use crate::{
    measure::Spread,
    plot::{Plot, Series},
};

/// The figures of one run.
#[derive(Default)]
pub(crate) struct EbpfReport {
    pub(crate) packets: Vec<Figure>,
    pub(crate) changes: Vec<ChangeCost>,
    pub(crate) floods: Vec<Flood>,
}

/// A limit, and the figure that it is for.
struct Goal {
    what: String,
    limit: f64,
    measured: f64,
    unit: &'static str,
}

impl EbpfReport {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn json(&self) -> Value {
        let goal = |Goal { what, limit, measured, unit }: Goal| json!({"what": what, "limit": limit, "measured": measured, "unit": unit});
        json!({
            "packets": self.packets.iter().map(Figure::json).collect::<Vec<_>>(),
            "changes": self.changes.iter().map(ChangeCost::json).collect::<Vec<_>>(),
            "floods": self.floods.iter().map(Flood::json).collect::<Vec<_>>(),
            "goals": self.goals().into_iter().map(goal).collect::<Vec<_>>(),
        })
    }

    /// The tables, each with its name in `docs/performance.md`.
    pub(crate) fn tables(&self) -> [(&'static str, String); 4] {
        let hook = |figure: &Figure| figure.times_hook;
        let packets = packets_table(&self.packets)
            + "\n"
            + &super::report::ratio_table(&self.packets, InstalledRules::BareHook, &hook);
        [
            ("ebpf-goals", self.goals_table()),
            ("ebpf-packets", packets),
            ("ebpf-changes", changes_table(&self.changes)),
            ("ebpf-flood", flood::table(&self.floods)),
        ]
    }

    fn goals_table(&self) -> String {
        let mut table =
            String::from("| goal | limit | measured | |\n| --- | ---: | ---: | --- |\n");
        for Goal { what, limit, measured, unit } in self.goals() {
            let is_reached = if measured <= limit { "reached" } else { "missed" };
            let digits = if unit.is_empty() { 3 } else { 1 };
            _ = writeln!(
                table,
                "| {what} | {limit:.digits$}{unit} | {measured:.digits$}{unit} | {is_reached} |"
            );
        }
        table
    }

    /// The goals. Of several sizes of clusters, the worst median counts.
    fn goals(&self) -> Vec<Goal> {
        use Operation::{Connection, FirstDatagram, OneWay, Refused, RoundTrip};
        let nothing: Ratio = |figure| figure.times_nothing;
        let conntrack: Ratio = |figure| figure.times_conntrack;
        let packets: [PacketGoals; 3] = [
            (
                "weir, ebpf, × no rules",
                is_ebpf,
                nothing,
                &[
                    (Connection, 1.06),
                    (RoundTrip, 1.06),
                    (OneWay, 1.06),
                    (FirstDatagram, 1.09),
                    (Refused, 0.80),
                ],
            ),
            (
                "beside conntrack, × conntrack alone",
                is_beside_conntrack,
                conntrack,
                &[(Connection, 1.02), (OneWay, 1.06)],
            ),
            (
                "fast lane, × no rules",
                is_fast_lane,
                nothing,
                &[(Connection, 0.92), (RoundTrip, 0.88), (OneWay, 0.90)],
            ),
        ];
        let mut goals = Vec::new();
        for (what, kind, ratio, limits) in packets {
            for (operation, limit) in limits {
                let medians = self.medians(*operation, kind, ratio);
                let what = format!("{what}: {}", operation.name());
                let measured = medians.fold(f64::NAN, f64::max);
                goals.push(Goal { what, limit: *limit, measured, unit: "" });
            }
        }
        for operation in [Connection, RoundTrip, OneWay, FirstDatagram] {
            let medians = || self.medians(operation, is_ebpf, nothing);
            let (low, high) =
                (medians().fold(f64::NAN, f64::min), medians().fold(f64::NAN, f64::max));
            let what = format!("weir, ebpf, all sizes: range of {}", operation.name());
            goals.push(Goal { what, limit: 3.0, measured: (high / low - 1.0) * 100.0, unit: " %" });
        }
        let limits = [
            (
                Some(Task::OneHere(AdminRules::Thousand)),
                "a pod of the node starts or ends",
                100.0,
                " µs",
            ),
            (Some(Task::One), "one peer more or less", 6.0, " µs"),
            (
                Some(Task::OneOfRuled(AdminRules::Thousand)),
                "one peer of 1000 admin rules more or less",
                6.0,
                " µs",
            ),
            (None, "last packet of forbidden connections", 5.0, " ms"),
        ];
        for (task, what, limit, unit) in limits {
            let is_it = |row: &&ChangeCost| match task {
                Some(task) => row.task == Some(task),
                None => row.what.ends_with("last packet after"),
            };
            let rows = self.changes.iter().filter(|row| row.how == EBPF).filter(is_it);
            let measured = rows.map(|row| row.spread.median).fold(f64::NAN, f64::max);
            goals.push(Goal { what: format!("weir, ebpf: {what}"), limit, measured, unit });
        }
        goals
    }

    fn medians(
        &self,
        operation: Operation,
        kind: Kind,
        ratio: Ratio,
    ) -> impl Iterator<Item = f64> + '_ {
        let ours = self.packets.iter().filter(move |figure| figure.operation == operation);
        ours.filter(move |figure| kind(figure.rules)).map(move |figure| ratio(figure).median)
    }

    /// The cost of an operation by the number of policies.
    pub(crate) fn plot(&self, operation: Operation) -> String {
        let of = |name, policies: fn(InstalledRules) -> Option<usize>| {
            let figures = self.packets.iter().filter(|figure| figure.operation == operation);
            let points = figures
                .filter_map(|figure| Some((policies(figure.rules)? as f64, figure.times_nothing)));
            Series { name, points: points.collect(), is_constant: false }
        };
        let constant = |mut series: Series| {
            series.is_constant = true;
            series.points =
                series.points.iter().flat_map(|(_, y)| [(1.0, *y), (1000.0, *y)]).collect();
            series
        };
        let conntrack =
            of("conntrack alone", |rules| (rules == InstalledRules::Conntrack).then_some(1));
        let hook = of("bare hook", |rules| (rules == InstalledRules::BareHook).then_some(1));
        let series = vec![
            of("beside conntrack", |rules| match rules {
                InstalledRules::WeirBesideConntrack(load)
                    if load.members == plotted(load.policies) =>
                {
                    Some(load.policies)
                }
                _ => None,
            }),
            of("weir, ebpf", |rules| match rules {
                InstalledRules::Weir(MeasuredBackend::Ebpf, load)
                    if load.members == plotted(load.policies) =>
                {
                    Some(load.policies)
                }
                _ => None,
            }),
            constant(conntrack),
            of("fast lane", |rules| match rules {
                InstalledRules::FastLane(load) if load.members == plotted(load.policies) => {
                    Some(load.policies)
                }
                _ => None,
            }),
            constant(hook),
        ];
        Plot {
            title: format!(
                "{}: CPU time, as a multiple of no rules",
                capitalised(operation.name())
            ),
            below: "NetworkPolicies that select the pod",
            series,
        }
        .to_string()
    }
}

/// Limits for the rows of a kind, as multiples.
type PacketGoals = (&'static str, Kind, Ratio, &'static [(Operation, f64)]);
type Kind = fn(InstalledRules) -> bool;
type Ratio = fn(&Figure) -> Spread;

fn is_ebpf(rules: InstalledRules) -> bool {
    matches!(rules, InstalledRules::Weir(MeasuredBackend::Ebpf, _))
}

fn is_beside_conntrack(rules: InstalledRules) -> bool {
    matches!(rules, InstalledRules::WeirBesideConntrack(_))
}

fn is_fast_lane(rules: InstalledRules) -> bool {
    matches!(rules, InstalledRules::FastLane(_))
}

/// The number of peers of each policy in the plots.
fn plotted(policies: usize) -> usize {
    if policies == 1000 { 100 } else { 1000 }
}
