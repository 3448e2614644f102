use std::fmt;

use crate::DnsAnswer;

/// Answers in a packet that waits until their addresses are in force. Dropping the value delivers
/// the packet.
pub struct HeldAnswer {
    /// The answers. A packet of a TCP connection can contain several. A packet that repeats an
    /// earlier one has none, and waits for the addresses of that one.
    pub answers: Vec<DnsAnswer>,
    deliver: Option<Box<dyn FnOnce() + Send>>,
}

impl HeldAnswer {
    /// Holds a packet that `deliver` sends on.
    pub fn new(answers: Vec<DnsAnswer>, deliver: impl FnOnce() + Send + 'static) -> Self {
        HeldAnswer { answers, deliver: Some(Box::new(deliver)) }
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        if let Some(deliver) = self.deliver.take() {
            deliver();
        }
    }
}

impl fmt::Debug for HeldAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldAnswer").field(&self.answers).finish()
    }
}
