//! The figures as tables, JSON and plots.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    backend::{MeasuredBackend, Ruleset},
    control, objects,
    packets::{Figure, InstalledRules},
    plot::{Plot, Series},
    probe::Operation,
};
use crate::measure::Spread;

/// All figures.
#[derive(Default)]
pub(crate) struct DatapathReport {
    pub(crate) packets: Vec<Figure>,
    pub(crate) objects: Vec<objects::ObjectCount>,
    pub(crate) control: Vec<control::ChangeCost>,
    pub(crate) policies: Vec<control::ChangeCost>,
}

impl DatapathReport {
    pub(crate) fn json(&self) -> Value {
        json!({
            "packets": self.packets.iter().map(Figure::json).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(objects::ObjectCount::json).collect::<Vec<_>>(),
            "control": self.control.iter().map(control::ChangeCost::json).collect::<Vec<_>>(),
            "policies": self.policies.iter().map(control::ChangeCost::json).collect::<Vec<_>>(),
        })
    }

    /// The measured tables, each with its name in `docs/performance.md`.
    pub(crate) fn tables(&self) -> Vec<(&'static str, String)> {
        let mut tables = Vec::new();
        if self.has_packets() {
            tables.push(("packets", self.packets_table()));
        }
        if !self.objects.is_empty() {
            tables.push(("objects", self.objects_table()));
        }
        for (name, rows) in [("control", &self.control), ("policies", &self.policies)] {
            if !rows.is_empty() {
                tables.push((name, changes_table(rows)));
            }
        }
        tables
    }

    /// Whether the cost of packets was measured.
    pub(crate) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
    }

    /// The cost of packets, as multiples of no rules and of conntrack alone.
    fn packets_table(&self) -> String {
        let of = |anchor: InstalledRules, ratio: fn(&Figure) -> Spread| {
            let mut table = format!("| × {anchor} |");
            let names = Operation::ALL.map(|operation| format!(" {} |", operation.name()));
            table.extend(names);
            table += "\n| --- |";
            table += &" ---: |".repeat(Operation::ALL.len());
            for figures in self.packets.chunks(Operation::ALL.len()) {
                let rules = figures[0].rules;
                if anchor == InstalledRules::Conntrack && rules == InstalledRules::Nothing {
                    continue;
                }
                _ = write!(table, "\n| {rules} |");
                for figure in figures {
                    let (Spread { median, min, max }, unit) =
                        if rules == anchor { (figure.time, " µs") } else { (ratio(figure), "") };
                    _ = write!(table, " {median:.2}{unit} ({min:.2}–{max:.2}) |");
                }
            }
            table + "\n"
        };
        let nothing = of(InstalledRules::Nothing, |figure| figure.times_nothing);
        nothing + "\n" + &of(InstalledRules::Conntrack, |figure| figure.times_conntrack)
    }

    /// The number of kernel objects.
    fn objects_table(&self) -> String {
        let mut table = String::from(
            "| world | backend | objects | of which | listed by the kernel |\n| --- | --- | ---: | --- | ---: |\n",
        );
        for objects::ObjectCount { shape, backend, rendered, listed } in &self.objects {
            let (pods, policies) = (shape.pods(), shape.policies());
            _ = writeln!(
                table,
                "| {shape} ({pods} pods, {policies} policies) | {backend} | {} | {rendered} | {} |",
                rendered.all(),
                listed.all()
            );
        }
        table
    }

    /// The cost of an operation by the number of policies.
    pub(crate) fn plot(&self, operation: Operation) -> String {
        let of = |name, kind: fn(InstalledRules) -> Option<usize>| {
            let figures = self.packets.iter().filter(|figure| figure.operation == operation);
            let points = figures
                .filter_map(|figure| Some((kind(figure.rules)? as f64, figure.times_nothing)));
            Series { name, points: points.collect(), is_constant: false }
        };
        let mut conntrack =
            of("conntrack alone", |rules| (rules == InstalledRules::Conntrack).then_some(1));
        let weir = of("weir, nftables", |rules| match rules {
            InstalledRules::Weir(MeasuredBackend::Rules(Ruleset::Nftables), cluster)
                if cluster.members <= 1000 =>
            {
                Some(cluster.policies)
            }
            _ => None,
        });
        let ebpf = of("weir, ebpf", |rules| match rules {
            InstalledRules::Weir(MeasuredBackend::Ebpf, cluster) if cluster.members <= 1000 => {
                Some(cluster.policies)
            }
            _ => None,
        });
        let linear = of("kube-router's shape", |rules| match rules {
            InstalledRules::Linear(Ruleset::Nftables, cluster) => Some(cluster.policies),
            _ => None,
        });
        // Conntrack alone has no policies, so its cost is constant.
        let last = weir.points.last().map_or(1.0, |(policies, _)| *policies);
        conntrack.is_constant = true;
        conntrack.points =
            conntrack.points.iter().flat_map(|(_, y)| [(1.0, *y), (last, *y)]).collect();
        Plot {
            title: format!(
                "{}: CPU time, as a multiple of no rules",
                capitalised(operation.name())
            ),
            below: "NetworkPolicies that select the pod",
            series: vec![linear, weir, conntrack, ebpf],
        }
        .to_string()
    }
}

/// The cost of changes.
fn changes_table(rows: &[control::ChangeCost]) -> String {
    let mut table =
        String::from("| what | how | cost | × bare netlink |\n| --- | --- | ---: | ---: |\n");
    for control::ChangeCost { what, how, unit, spread, times_bare } in rows {
        let range = |Spread { median, min, max }: &Spread, unit: &str| match min == max {
            true => format!("{median:.1}{unit}"),
            false => format!("{median:.1}{unit} ({min:.1}–{max:.1})"),
        };
        let times_bare = times_bare.as_ref().map(|ratio| range(ratio, "")).unwrap_or_default();
        let spread = range(spread, &format!(" {unit}"));
        _ = writeln!(table, "| {what} | {how} | {spread} | {times_bare} |");
    }
    table
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}
