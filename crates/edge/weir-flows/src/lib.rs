//! Flows of a node: their aggregation, and the record that all outputs share.
//!
//! ```text
//!  agent ── Observation ──► FlowTable ── FlowRecord ──► /flows, flow log, `weir flows -o json`
//! ```
//!
//! A flow record is one JSON line. docs/reference/schemas/flow.json is its schema.
//!
//! *Invariant*: the crate does no I/O of its own and compiles on every platform.
//!
//! *Invariant*: the limits of a table bound its memory, whatever pods send.

#[cfg(test)]
mod example;
mod line;
mod otlp;
mod page;
mod record;
mod table;
mod uses;

pub use line::{MAX_LINE_BYTES, RecordError, read_records, write_record};
pub use otlp::otlp_logs;
pub use page::{FlowsPage, PoliciesPage};
pub use record::{
    DecidingRule, FlowRecord, FlowVerdict, RecordEnd, RuleDirection, RuleEffect, SCHEMA, Sampling,
    SamplingSource,
};
pub use table::{
    Completeness, Decision, FlowKey, FlowLimits, FlowPeer, FlowTable, FlowsSince, Observation,
    Traffic, WorkloadName,
};
pub use uses::{RuleUse, RuleUses};
