//! Learns the addresses of domain names from the DNS answers that pods receive.
//!
//! ```text
//!   packet ──► DnsObserver ──► DnsAnswer ──► KnownNames ──► Change ──► engine
//!              questions that    name,        addresses,
//!              pods asked        addresses    until when
//! ```
//!
//! An answer counts only if a pod in scope asked exactly this question, with this transaction id,
//! from this port, at a trusted resolver, within the last seconds. The first answer consumes the
//! question.
//!
//! *Invariant*: parsing accepts any bytes. A malformed, truncated or unexpected message teaches
//! nothing.
//!
//! *Invariant*: memory is bounded by the number of pods in scope, whatever they send.

mod answer;
mod former;
mod held;
mod known;
pub mod message;
mod observer;
mod questions;
mod scope;
mod stream;

pub use answer::DnsAnswer;
pub use former::{former_record, parse_former};
pub use held::HeldAnswer;
pub use known::{KnownNames, Learned, MAX_ADDRESSES, MAX_ADDRESSES_PER_NAME, MAX_TTL, MIN_TTL};
pub use observer::{DnsObserver, DnsPacket, Handling, LocalHook, Segment};
pub use scope::DnsScope;
