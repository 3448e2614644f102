//! The lab as Linux builds it.

mod client;
mod conversation;
mod lab;
mod namespace;
mod ping;
mod probe;
mod raise;
mod rights;
mod round;
mod sctp;
mod server;
mod socket;
mod wait;
mod wire;

pub use conversation::Conversation;
pub use lab::Lab;
pub use rights::enter;
