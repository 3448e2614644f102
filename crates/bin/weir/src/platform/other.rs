//! A system without a datapath. Commands that only read work here.

use crate::{
    datapath::{DatapathKind, LiveComparison, PacketFilter, RunAgent},
    dump::DumpCommand,
    exit::Exit,
    failure::Failure,
    kernel::UNAVAILABLE,
};

/// The datapath of an agent that names none.
pub(crate) const DEFAULT: DatapathKind = DatapathKind::Nftables;

/// Lists the addresses of this machine.
pub(crate) const MACHINE_ADDRESSES: Option<weir_agent::MachineAddresses> = None;

pub(crate) const NFTABLES: PacketFilter = UNAVAILABLE;
pub(crate) const IPTABLES: PacketFilter = UNAVAILABLE;
pub(crate) const EBPF: PacketFilter = UNAVAILABLE;
pub(crate) const HCN: Option<RunAgent> = None;
pub(crate) const HCN_LIVE: LiveComparison = UNAVAILABLE.live;

/// Fails: only Linux has eBPF.
pub(crate) fn dump(_: &DumpCommand, _: &mut dyn std::io::Write) -> anyhow::Result<Exit> {
    let hint = "run it on a Linux node whose agent has `--datapath ebpf`";
    Err(Failure::new("this system has no eBPF", hint).into())
}
