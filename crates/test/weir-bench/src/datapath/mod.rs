//! `cargo xtask bench datapath`: the cost of packets, the number of kernel objects of a node and the cost
//! of changes, in network namespaces.

mod backend;
mod bare_bpf;
mod bare_hook;
mod churn;
mod cluster;
mod control;
mod cut;
mod ebpf;
mod flood;
mod ipset;
mod linear;
mod linear_iptables;
mod netlink;
mod nft;
mod node;
mod objects;
mod packets;
mod policies;
mod probe;
mod program;
mod replay;
mod report;

use std::io::Write;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use weir_lab::LabError;

pub(crate) use self::{
    backend::{ebpf, iptables, nftables},
    control::in_new_lab,
    node::{ApplyResult, BenchAgent},
    probe::Operation,
    report::DatapathReport,
};
use self::{
    ebpf::EbpfReport,
    packets::{Effort, Measured},
};
use crate::{Output, docs};

/// The options of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct DatapathBench {
    /// Print tables or JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// The number of rounds, each in new namespaces.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Make only one measurement.
    #[arg(long, value_enum)]
    only: Option<Measurement>,
    /// Measure fewer and smaller clusters.
    #[arg(long)]
    quick: bool,
    /// Write the measured tables to docs/performance.md and the plots to docs/img.
    #[arg(long, conflicts_with = "quick")]
    write_docs: bool,
}

/// A measurement of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// The cost of packets.
    Packets,
    /// The number of objects in the kernel.
    Objects,
    /// The cost of changes.
    Control,
    /// The cost of policy changes in large clusters.
    Policies,
    /// eBPF: packets, changes, cut connections and a flood of new ones, beside the other backends.
    Ebpf,
}

impl DatapathBench {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        ensure!(self.rounds > 0, "--rounds must be at least 1");
        let has_ebpf = match weir_lab::enter_with_bpf() {
            Err(LabError::NeedsRoot) => {
                eprintln!("note: eBPF is not measured, because it needs root");
                weir_lab::enter()?;
                false
            }
            entered => entered.map(|()| true)?,
        };
        let report = self.measure(has_ebpf)?;
        match self.output {
            Output::Json => writeln!(out, "{:#}", report.json())?,
            Output::Text => {
                for (_, table) in report.tables() {
                    writeln!(out, "{table}")?;
                }
            }
        }
        if self.write_docs { docs::write(&report) } else { Ok(()) }
    }

    fn wants(&self, measurement: Measurement) -> bool {
        self.only.is_none_or(|only| only == measurement)
    }

    fn measure(&self, has_ebpf: bool) -> Result<DatapathReport> {
        let mut report = DatapathReport::default();
        if self.wants(Measurement::Packets) {
            let effort = Effort::new(self.rounds, self.quick, Measured::Rulesets);
            report.packets = packets::measure(effort)?;
        }
        if self.wants(Measurement::Objects) {
            report.objects = objects::count(self.quick)?;
        }
        if self.wants(Measurement::Control) {
            report.control = control::measure(self.rounds, self.quick)?;
        }
        if self.wants(Measurement::Policies) {
            report.policies = policies::measure(self.rounds, self.quick)?;
        }
        if self.wants(Measurement::Ebpf) && has_ebpf {
            let effort = Effort::new(self.rounds, self.quick, Measured::Ebpf);
            report.ebpf = EbpfReport {
                packets: packets::measure(effort)?,
                changes: control::measure_ebpf(self.rounds, self.quick)?,
                floods: flood::measure(self.rounds)?,
            };
        }
        Ok(report)
    }
}
