//! `cargo xtask bench datapath`: the cost of packets, the number of kernel objects of a node and the cost
//! of changes, in network namespaces.

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

/// The options of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct Datapath {
    /// Print tables or JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// The number of rounds, each in new namespaces.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Measure one part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Measure fewer and smaller clusters.
    #[arg(long)]
    quick: bool,
    /// Write the tables to docs/performance.md and the plots to docs/img.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    write_docs: bool,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The cost of packets.
    Packets,
    /// The number of objects in the kernel.
    Objects,
    /// The cost of changes.
    Control,
}

impl Datapath {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        ensure!(self.rounds > 0, "--rounds must be at least 1");
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
