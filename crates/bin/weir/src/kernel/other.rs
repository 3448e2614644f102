//! A system without network namespaces: every command that needs them fails.

use std::{convert::Infallible, env};

use weir_model::{Flow, Name, Verdict, World};

use crate::{
    datapath::{LiveComparison, PacketFilter},
    failure::Failure,
};

/// A packet filter of Linux, on another system.
pub(crate) const UNAVAILABLE: PacketFilter = PacketFilter {
    agent: None,
    enter,
    enforce: KernelLab::enforce_on,
    live: LiveComparison::Unsupported {
        reason: "does not run on this system",
        hint: "run it on the node; on a Windows node, leave out `--datapath`",
    },
    check: |_| Err(Failure::new("this system has no packet filter", "run it on a Linux node")),
};

/// Fails.
pub(crate) fn enter() -> Result<(), Failure> {
    Err(unsupported())
}

fn unsupported() -> Failure {
    Failure::new(
        format!("weir cannot try real connections on {}", env::consts::OS),
        "use `weir test` without `--datapath`, or with `--datapath hcn` for the ACLs of Windows nodes: both evaluate rules without connections",
    )
}

/// A lab, which cannot be built here.
pub(crate) struct KernelLab(Infallible);

impl KernelLab {
    pub(crate) fn build(_: &World, _: &[Flow]) -> Result<Self, Failure> {
        Err(unsupported())
    }

    pub(crate) fn enforce(&self, _: &World, _: PacketFilter) -> Result<(), Failure> {
        match self.0 {}
    }

    fn enforce_on(&self, _: &Name, _: &World) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(crate) fn probe(&self, _: &[Flow]) -> Result<Vec<Verdict>, Failure> {
        match self.0 {}
    }

    pub(crate) fn reported(&self, _: Flow) -> Result<Option<String>, Failure> {
        match self.0 {}
    }
}

/// Fails.
pub(crate) fn verdicts(_: &World, _: &[Flow], _: PacketFilter) -> Result<Vec<Verdict>, Failure> {
    Err(unsupported())
}
