//! The figures as tables, JSON and plots.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    backend::{MeasuredBackend, Ruleset},
    control,
    ebpf::EbpfReport,
    objects,
    packets::{Figure, InstalledRules},
    probe::Operation,
};
use crate::{
    measure::Spread,
    plot::{Plot, Series},
};

/// All figures.
#[derive(Default)]
pub(crate) struct DatapathReport {
    pub(crate) packets: Vec<Figure>,
    pub(crate) objects: Vec<objects::ObjectCount>,
    pub(crate) control: Vec<control::ChangeCost>,
    pub(crate) policies: Vec<control::ChangeCost>,
    pub(crate) ebpf: EbpfReport,
}

impl DatapathReport {
    pub(crate) fn json(&self) -> Value {
        json!({
            "packets": self.packets.iter().map(Figure::json).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(objects::ObjectCount::json).collect::<Vec<_>>(),
            "control": self.control.iter().map(control::ChangeCost::json).collect::<Vec<_>>(),
            "policies": self.policies.iter().map(control::ChangeCost::json).collect::<Vec<_>>(),
            "ebpf": (!self.ebpf.is_empty()).then(|| self.ebpf.json()),
        })
    }

    /// The measured tables, each with its name in `docs/performance.md`.
    pub(crate) fn tables(&self) -> Vec<(&'static str, String)> {
        let mut tables = Vec::new();
        if self.has_packets() {
            tables.push(("packets", packets_table(&self.packets)));
        }
        if !self.objects.is_empty() {
            tables.push(("objects", self.objects_table()));
        }
        for (name, rows) in [("control", &self.control), ("policies", &self.policies)] {
            if !rows.is_empty() {
                tables.push((name, changes_table(rows)));
            }
        }
        if !self.ebpf.is_empty() {
            tables.extend(self.ebpf.tables());
        }
        tables
    }

    /// Whether the cost of packets was measured.
    pub(crate) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
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
            series: vec![linear, weir, conntrack],
        }
        .to_string()
    }
}

/// The cost of packets, as multiples of no rules and of conntrack alone.
pub(super) fn packets_table(figures: &[Figure]) -> String {
    let nothing =
        ratio_table(figures, InstalledRules::Nothing, &|figure| Some(figure.times_nothing));
    let is_nothing = |figure: &Figure| figure.rules == InstalledRules::Nothing;
    let conntrack = ratio_table(figures, InstalledRules::Conntrack, &|figure| {
        (!is_nothing(figure)).then_some(figure.times_conntrack)
    });
    nothing + "\n" + &conntrack
}

/// The cost of packets, as multiples of one of the rows. Rows without a ratio are left out.
pub(super) fn ratio_table(
    figures: &[Figure],
    anchor: InstalledRules,
    ratio: &dyn Fn(&Figure) -> Option<Spread>,
) -> String {
    let mut table = format!("| × {anchor} |");
    table.extend(Operation::ALL.map(|operation| format!(" {} |", operation.name())));
    table += "\n| --- |";
    table += &" ---: |".repeat(Operation::ALL.len());
    for figures in figures.chunks(Operation::ALL.len()) {
        let rules = figures[0].rules;
        if figures.iter().any(|figure| ratio(figure).is_none()) {
            continue;
        }
        _ = write!(table, "\n| {rules} |");
        for figure in figures {
            let (spread, unit) = match ratio(figure) {
                Some(ratio) if rules != anchor => (ratio, ""),
                _ => (figure.time, " µs"),
            };
            let Spread { median, min, max } = spread;
            _ = write!(table, " {median:.2}{unit} ({min:.2}–{max:.2}) |");
        }
    }
    table + "\n"
}

/// The cost of changes.
pub(super) fn changes_table(rows: &[control::ChangeCost]) -> String {
    let mut table = String::from("| what | how | cost | × bare |\n| --- | --- | ---: | ---: |\n");
    for control::ChangeCost { what, how, unit, spread, times_bare, .. } in rows {
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

pub(super) fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}
