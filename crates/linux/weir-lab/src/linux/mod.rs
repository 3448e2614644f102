//! The lab on Linux.

mod build;
mod client;
mod conversation;
mod lab;
mod namespace;
mod ping;
mod privileges;
mod probe;
mod resolver;
mod round;
mod rtnetlink;
mod sctp;
mod server;
mod socket;
mod wait;

pub use conversation::Conversation;
pub use lab::Lab;
pub use privileges::{enter, enter_with_bpf, separate_bpf};
pub use resolver::{Answers, Resolver};
