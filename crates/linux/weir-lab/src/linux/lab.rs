use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use weir_model::{Flow, Protocol, Verdict};

use super::{
    conversation::Conversation,
    namespace::{Namespace, apart},
    ping::ping,
    probe,
    raise::{lead_here, raise},
};
use crate::{
    LabError, Layout,
    plan::{self, Plan, Spot},
};

/// A running cluster of network namespaces. Dropping it is its end.
#[derive(Debug)]
pub struct Lab {
    pub(super) plan: Plan,
    pub(super) outside: Namespace,
    pub(super) nodes: Vec<Namespace>,
    pub(super) pods: Vec<Namespace>,
    /// Where the next probe comes from. Probes take turns by holding it.
    pub(super) next_port: Mutex<u16>,
}

impl Lab {
    /// Builds what the layout says. Needs the rights that [`crate::enter`] gets.
    pub fn build(layout: &Layout) -> Result<Lab, LabError> {
        let plan = Plan::new(layout)?;
        apart(|| raise(plan))
    }

    /// Takes in a pod that somebody else has joined to a node: from now on the addresses are in this namespace, and the outside
    /// knows the way. Whichever pod had one of them before no longer has it. An address stays on the node that it is on.
    pub fn adopt(
        &mut self,
        node: &str,
        addresses: &[IpAddr],
        namespace: OwnedFd,
    ) -> Result<(), LabError> {
        let node = self.plan.node(node).ok_or_else(|| LabError::NoNode(node.to_owned()))?;
        let new = self.plan.adopt(node, addresses)?;
        self.pods.push(namespace.into());
        self.inside(Spot::Outside, || lead_here(node, &new))?
    }

    /// Runs something on a thread that lives in the node's namespace, the agent's place, and returns what it gives.
    ///
    /// Programs started there are there too. Beware of `/proc/net` and `/sys`: the first is about the process, not the thread
    /// (`/proc/thread-self/net` is right), the second about the namespace it was mounted in. `/proc/sys/net` is right.
    pub fn on_node<T: Send>(
        &self,
        node: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        let node = self.plan.node(node).ok_or_else(|| LabError::NoNode(node.to_owned()))?;
        self.inside(Spot::Node(node), work)
    }

    /// Runs something on a thread that lives where the address does: in a pod, on a node or outside.
    pub fn at<T: Send>(
        &self,
        address: IpAddr,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        self.inside(self.plan.spot(address), work)
    }

    /// Tries all flows at once, for real; the answers in order.
    ///
    /// `Allow`: a connection or request from exactly the one end was answered by exactly the other. `Deny`: nothing came back
    /// within the patience. A tenth of a second is enough: if the machine was too slow for silence to mean anything, those
    /// that were denied are tried again for longer.
    pub fn probe(&self, flows: &[Flow], patience: Duration) -> Result<Vec<Verdict>, LabError> {
        probe::probe(self, flows, patience)
    }

    /// Sends an echo request, of ICMP or ICMPv6. The far end's kernel answers it.
    ///
    /// `Allow`: the answer came. `Deny`: nothing came back within the patience, which is tried once.
    pub fn ping(&self, from: IpAddr, to: IpAddr, patience: Duration) -> Result<Verdict, LabError> {
        let failed = |source| LabError::Ping { from, to, source };
        if let Some(why) = plan::obstacle(from, to) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let id = self.fresh_port(0);
        let answered = self.at(from, || ping(from, to, id, patience))?;
        let verdict = |answered| if answered { Verdict::Allow } else { Verdict::Deny };
        answered.map(verdict).map_err(|errno| failed(errno.into()))
    }

    /// Opens a flow and keeps it open, over TCP or UDP: to see what becomes of it when the rules change.
    pub fn converse(&self, flow: Flow, patience: Duration) -> Result<Conversation, LabError> {
        plan::check(&flow)?;
        if flow.protocol == Protocol::Sctp {
            let why = "the lab knows only the first two packets of SCTP";
            return Err(LabError::Impossible { flow, why });
        }
        let port = self.fresh_port(flow.port);
        apart(|| Conversation::open(self, flow, port, patience))
    }

    /// A port that nothing came from lately, other than the one.
    fn fresh_port(&self, other: u16) -> u16 {
        let mut port = self.next_port.lock().unwrap_or_else(PoisonError::into_inner);
        probe::next(&mut port, &BTreeSet::from([other]))
    }

    pub(super) fn namespace(&self, spot: Spot) -> &Namespace {
        match spot {
            Spot::Outside => &self.outside,
            Spot::Node(node) => &self.nodes[node],
            Spot::Pod(pod) => &self.pods[pod],
        }
    }

    fn inside<T: Send>(&self, spot: Spot, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        apart(|| {
            self.namespace(spot).enter()?;
            Ok(work())
        })
    }
}
