//! `weir datapath dump`: the objects of the eBPF datapath in the kernel.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};

use crate::{exit::Exit, platform};

/// Inspect the datapath of this node
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir datapath dump\n  weir datapath dump --connections\n  weir datapath dump -o json"
)]
pub(crate) struct DatapathCommand {
    #[command(subcommand)]
    command: DatapathSubcommand,
}

#[derive(Subcommand)]
enum DatapathSubcommand {
    Dump(DumpCommand),
}

/// Show the eBPF programs, links and maps of this node, and the content of the maps
///
/// The output is read from the kernel: the links with their hooks and priorities, the programs, the
/// maps with the number of their elements, the denied packets, and each element in words. Nothing is
/// written, and no other program is needed. Run it as root in the network namespace of the node.
///
/// The rules of the other datapaths are in their own programs: `nft list table inet weir`,
/// `iptables-save` and `ipset save`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir datapath dump\n  weir datapath dump --connections\n  weir datapath dump -o json"
)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has eBPF"))]
pub(crate) struct DumpCommand {
    /// Also list the connections that passed
    #[arg(long)]
    pub(crate) connections: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: DumpFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DumpFormat {
    /// Human-readable text
    Text,
    /// For programs
    Json,
}

impl DatapathCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        match &self.command {
            DatapathSubcommand::Dump(dump) => platform::dump(dump, out),
        }
    }
}
