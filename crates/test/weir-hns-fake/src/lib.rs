//! A fake of Windows' host network service (HNS), for tests only.
//!
//! ```text
//!  tests on Linux ──────────────► HnsService ◄── its state: a JSON value
//!  tests under Wine ─► computenetwork.dll ─► Store: the same value in a file that tests edit
//! ```
//!
//! It implements the documented and known behaviour of HNS: `Update` replaces all policies of an
//! endpoint, HNS normalizes policies that it returns, and it rejects invalid requests with its own error
//! codes. Tests inject faults: errors, hangs, and endpoints that vanish during a call.

#[cfg(windows)]
mod exports;
mod service;
mod store;

pub use service::{Fault, HnsService};
pub use store::Store;
