//! The pages of the agent at an address.

use std::{thread, time::Duration};

use serde::de::DeserializeOwned;
use weir_flows::{FlowsPage, PoliciesPage};

use crate::{drops::fetch, failure::Failure, present::plain::Plain, status};

/// The time that the agent may wait for new flows before it answers, in seconds.
pub(crate) const POLL_SECONDS: u64 = 20;
/// The shortest time between two requests for new flows. The agent unites the changes meanwhile.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The agent at an address.
pub(crate) struct LocalAgent<'a>(pub(crate) &'a str);

impl LocalAgent<'_> {
    /// Visits all pages of flows. Returns the last one.
    pub(crate) fn flows(
        &self,
        mut visit: impl FnMut(&FlowsPage) -> anyhow::Result<()>,
    ) -> anyhow::Result<FlowsPage> {
        let mut page = self.page(0, 0)?;
        loop {
            visit(&page)?;
            if !page.more {
                return Ok(page);
            }
            page = self.page(page.last, 0)?;
        }
    }

    /// Waits for flows that change after a number, also while the agent restarts.
    pub(crate) fn wait(&self, last: u64) -> FlowsPage {
        let mut is_reported = false;
        loop {
            thread::sleep(POLL_INTERVAL);
            match self.page(last, POLL_SECONDS) {
                Ok(page) => return page,
                Err(error) if !is_reported => {
                    anstream::eprintln!("{}; waiting for it", Plain(error));
                    is_reported = true;
                }
                Err(_) => (),
            }
        }
    }

    /// Which policies and rules were used.
    pub(crate) fn policies(&self) -> anyhow::Result<PoliciesPage> {
        self.request("/policies", 0)
    }

    /// The flows that changed after a number. The agent waits for one, for at most this many seconds.
    pub(crate) fn page(&self, after: u64, wait: u64) -> anyhow::Result<FlowsPage> {
        self.request(&format!("/flows?after={after}&wait={wait}"), wait)
    }

    fn request<T: DeserializeOwned>(&self, path: &str, wait: u64) -> anyhow::Result<T> {
        let LocalAgent(agent) = self;
        let body = fetch(agent, path, wait).map_err(|error| {
            if status::is_opflex(agent) {
                let what = format!("the agent at {agent} writes files for opflex-agent");
                return Failure::new(what, "weir does not observe the connections of its pods");
            }
            let hint = "start `weir agent` on this node, give its address with `--agent`, or use \
                `--all-nodes` for the agents of a cluster";
            Failure::new(format!("no agent answers at {agent}: {error:#}"), hint)
        })?;
        serde_json::from_str(&body).map_err(|_| {
            let what = format!("the server at {agent} is not a weir agent of this release");
            Failure::new(what, "check the address in `--agent`").into()
        })
    }
}
