//! `weir flows`, `weir top` and `weir bundle`, and the agents that they ask.

mod filter;
mod flows;
mod local;

pub(crate) use self::{
    filter::{ObserveFilter, VerdictArg},
    flows::FlowsCommand,
};
