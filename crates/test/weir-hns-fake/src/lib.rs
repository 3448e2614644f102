//! A stand-in for Windows' host network service: tests only.
//!
//! ```text
//!  tests on Linux ──────────────► Service ◄── its state: a JSON value
//!  tests under Wine ─► computenetwork.dll ─► Store: the same value in a file, which tests on the Linux side read and edit
//! ```
//!
//! It does what is documented and known of HNS: `Update` replaces all policies of an endpoint, what is read back is not word by
//! word what was written, and bad requests are refused with HNS's own codes. And it fails as it is told to: errors, hangs, endpoints
//! that vanish in the middle of a call.

#[cfg(windows)]
mod exports;
mod service;
mod store;

pub use service::{Fault, Service};
pub use store::Store;
