//! A system without a datapath. Commands that only read work here.

use crate::{
    datapath::{DatapathKind, LiveComparison, PacketFilter, RunAgent},
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
