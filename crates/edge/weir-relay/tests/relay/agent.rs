//! The source of an agent, and what it has reported.

use std::{
    net::SocketAddr,
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use weir_kube::{Access, ClusterKinds, ClusterWatch, RelayOptions, RelayTimes};
use weir_model::{Change, Key, World};
use weir_runtime::SourceEvent;

use crate::{
    api::Api,
    process::{Files, access, policy},
};

/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent's source.
pub(crate) struct Agent {
    _watch: ClusterWatch,
    events: Receiver<SourceEvent>,
    pub(crate) world: World,
    pub(crate) removed: Vec<Key>,
    pub(crate) is_in_sync: bool,
    pub(crate) server: String,
    /// The codes of the findings that keep input out.
    pub(crate) unread: Vec<&'static str>,
}

impl Agent {
    /// Starts the source of a node, with relays at these addresses and with this token.
    pub(crate) fn start(
        api: &Api,
        files: &Files,
        node: &str,
        token: &str,
        relays: &[SocketAddr],
        patience: Duration,
    ) -> Self {
        let relays = relays.iter().map(|address| {
            let (token, ca) = (files.token(token), files.path("tls.crt"));
            let url = format!("https://{address}");
            (url.clone(), Access::direct(&url, &token, Some(&ca)))
        });
        let relays = RelayOptions {
            node: node.into(),
            relays: relays.collect(),
            times: RelayTimes {
                patience,
                probe_interval: Duration::from_millis(300),
                ..RelayTimes::default()
            },
        };
        let (send, events) = channel();
        let (access, kinds) = (access(api, files), ClusterKinds::Policies);
        let send = move |event| send.send(event).is_ok();
        let watch =
            ClusterWatch::start_with_relays(access, policy(), kinds, Some(relays), send).unwrap();
        Agent {
            _watch: watch,
            events,
            world: World::default(),
            removed: Vec::new(),
            is_in_sync: false,
            server: String::new(),
            unread: Vec::new(),
        }
    }

    /// Receives events until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Agent) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            let rest = TIMEOUT.checked_sub(start.elapsed()).unwrap_or_default();
            let event = self.events.recv_timeout(rest);
            let event = event.unwrap_or_else(|_| panic!("not in time: {what}\n{:#?}", self.world));
            self.receive(event);
        }
    }

    /// Receives events for some time.
    pub(crate) fn linger(&mut self, time: Duration) {
        let start = Instant::now();
        while let Some(rest) = time.checked_sub(start.elapsed()) {
            if let Ok(event) = self.events.recv_timeout(rest) {
                self.receive(event);
            }
        }
    }

    fn receive(&mut self, event: SourceEvent) {
        for change in event.changes {
            if let Change::Remove(key) = &change {
                self.removed.push(key.clone());
            }
            self.world.apply(change);
        }
        self.is_in_sync = event.in_sync;
        self.unread = event.unread.iter().map(|finding| finding.code).collect();
        if let Some(server) = event.server {
            self.server = server.to_string();
        }
    }

    /// The names of the pods that it knows.
    pub(crate) fn pods(&self) -> Vec<&str> {
        self.world.pods.keys().map(|id| &*id.name).collect()
    }
}
