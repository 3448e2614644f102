//! Agents that follow a cluster through relays, over TLS.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod agent;
mod api;
mod certificate;
mod liar;
mod lies;
mod process;
mod tests;
