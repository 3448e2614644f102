//! Where there is no Linux kernel to ask.

use std::convert::Infallible;

use weir_model::{Flow, Verdict, World};

use crate::{failure::Failure, filter::Filter};

/// Fails: there are no network namespaces here.
pub(crate) fn enter() -> Result<(), Failure> {
    Err(Failure::new(
        "this needs the network namespaces and the packet filters of Linux",
        "run it on Linux; `weir test` without `--datapath` works everywhere",
    ))
}

/// A cluster that cannot be built here.
pub(crate) struct Kernel(Infallible);

impl Kernel {
    pub(crate) fn build(_: &World, _: &[Flow]) -> Result<Self, Failure> {
        match enter() {
            Ok(()) => Err(Failure::new("there is no kernel to ask", "run it on Linux")),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn enforce(&self, _: &World, _: Filter) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(crate) fn probe(&self, _: &[Flow]) -> Result<Vec<Verdict>, Failure> {
        match self.0 {}
    }

    pub(crate) fn reported(&self, _: Flow) -> Result<Option<String>, Failure> {
        match self.0 {}
    }
}

/// Fails: there is no kernel to ask.
pub(crate) fn verdicts(_: &World, _: &[Flow], _: Filter) -> Result<Vec<Verdict>, Failure> {
    enter().map(|()| Vec::new())
}
