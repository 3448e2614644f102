//! Observes DNS packets with a packet queue of the kernel.

use std::sync::mpsc::SyncSender;

use weir_names::DnsScope;
use weir_netfilter::{DnsWatch, DnsWatchError};

use crate::{AgentEvent, agent::WatchDns};

/// Opens the queue as soon as a rule mentions a name, and closes it when none does.
pub(crate) struct QueuedDns {
    events: SyncSender<AgentEvent>,
    watch: Option<DnsWatch>,
}

impl QueuedDns {
    /// Sends answers as events.
    pub(crate) fn new(events: SyncSender<AgentEvent>) -> Self {
        QueuedDns { events, watch: None }
    }

    fn try_watch(&mut self, scope: &DnsScope) -> Result<(), DnsWatchError> {
        if scope.pods.is_empty() {
            self.watch = None;
            return Ok(());
        }
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => {
                let events = self.events.clone();
                // Without a loop, the value is dropped, and that delivers the answer.
                let send = move |held| _ = events.send(AgentEvent::Answer(held));
                none.insert(DnsWatch::start(send)?)
            }
        };
        watch.watch(scope)
    }
}

impl WatchDns for QueuedDns {
    fn watch(&mut self, scope: &DnsScope) -> Result<(), String> {
        self.try_watch(scope).map_err(|error| {
            let mut line = error.to_string();
            let mut next = std::error::Error::source(&error);
            while let Some(cause) = next {
                line.push_str(&format!(": {cause}"));
                next = cause.source();
            }
            line
        })
    }
}
