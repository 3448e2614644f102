//! The lab as Linux builds it.

mod client;
mod lab;
mod namespace;
mod probe;
mod rights;
mod round;
mod sctp;
mod server;
mod socket;
mod wire;

pub use lab::Lab;
pub use rights::enter;
