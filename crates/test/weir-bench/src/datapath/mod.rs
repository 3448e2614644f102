//! `cargo xtask bench datapath`: what packets cost under rules, how many rules a node has, and what it costs to change them, in
//! real kernels' namespaces.

mod backend;
mod churn;
mod cluster;
mod control;
mod ipset;
mod linear;
mod linear_iptables;
mod netlink;
mod nft;
mod node;
mod objects;
mod packets;
mod plot;
mod probe;
mod program;
mod report;

use std::io::Write;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use self::packets::Effort;
pub(crate) use self::{probe::Operation, report::Report};
use crate::{Output, docs};

/// What and how to measure.
#[derive(Debug, Args)]
pub(crate) struct Datapath {
    /// As tables or as JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// How often everything is measured, each time in new namespaces.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Only one part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Fewer and smaller clusters, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Put the tables into docs/performance.md and the pictures into docs/img.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    write_docs: bool,
}

/// What there is to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What packets cost under rules.
    Packets,
    /// How many objects there are in the kernel.
    Objects,
    /// What it costs to change them.
    Control,
}

impl Datapath {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        ensure!(self.rounds > 0, "without rounds there is nothing to tell");
        weir_lab::enter()?;
        let report = self.measure()?;
        match self.output {
            Output::Json => writeln!(out, "{:#}", report.json())?,
            Output::Text => {
                for (part, table) in [
                    (Part::Packets, report.packets_table()),
                    (Part::Objects, report.objects_table()),
                    (Part::Control, report.control_table()),
                ] {
                    if self.wants(part) {
                        writeln!(out, "{table}")?;
                    }
                }
            }
        }
        if self.write_docs { docs::write(&report) } else { Ok(()) }
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn measure(&self) -> Result<Report> {
        let mut report = Report::default();
        if self.wants(Part::Packets) {
            report.packets = packets::measure(Effort::new(self.rounds, self.quick))?;
        }
        if self.wants(Part::Objects) {
            report.objects = objects::count(self.quick)?;
        }
        if self.wants(Part::Control) {
            report.control = control::measure(self.rounds, self.quick)?;
        }
        Ok(report)
    }
}
