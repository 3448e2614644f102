//! The eBPF datapath with the guard and the journal of nftables.
//!
//! eBPF programs evaluate the policies. The checks of source addresses and tunnels, and the records
//! for the next agent, are in nftables. A backend knows no other one, so they meet here.

use std::collections::BTreeSet;

use weir_datapath::{
    ApplyError, Datapath, Drift, EnforceGuard, Established, Journal, Mode, TerminateFlows,
};
use weir_ebpf::{Ebpf, EbpfPlanner, Installed, MapPlan};
use weir_netfilter::BlockedReply;
use weir_nft::Nft;

/// eBPF programs for policies, and nftables for the guard.
pub(super) struct GuardedEbpf {
    policies: Ebpf,
    guard: Nft,
}

impl GuardedEbpf {
    pub(super) fn open(mode: Mode) -> Result<Self, ApplyError> {
        Ok(GuardedEbpf { policies: Ebpf::open(mode)?, guard: Nft::open(mode)? })
    }

    pub(super) fn with_blocked_replies(self, replies: BTreeSet<BlockedReply>) -> Self {
        GuardedEbpf { policies: self.policies.with_blocked_replies(replies), ..self }
    }

    pub(super) fn with_established(self, established: Established) -> Self {
        GuardedEbpf { policies: self.policies.with_established(established), ..self }
    }
}

impl Datapath for GuardedEbpf {
    type Planner = EbpfPlanner;

    fn planner(&self) -> EbpfPlanner {
        self.policies.planner()
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        self.policies.installed()
    }

    fn apply(&mut self, plan: &MapPlan) -> Result<(), ApplyError> {
        self.policies.apply(plan)
    }

    fn drift(&mut self, planner: &EbpfPlanner) -> Result<Drift, ApplyError> {
        self.policies.drift(planner)
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        self.policies.remove()?;
        self.guard.remove()
    }

    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        let mut denied = self.policies.denied()?;
        denied.extend(self.guard.denied()?);
        Ok(denied)
    }

    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<EbpfPlanner>> {
        self.policies.flows()
    }

    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        self.guard.guard()
    }

    fn journal(&mut self) -> Option<&mut dyn Journal> {
        self.guard.journal()
    }
}
