//! The explanation of one connection.

mod ends;
mod question;

pub use ends::{addresses, check_network};
pub use question::{Clusters, Explained, Question};
