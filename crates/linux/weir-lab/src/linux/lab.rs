use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use weir_model::{Flow, Verdict};

use super::{
    build::{add_routes_to_node, build, pod_link},
    conversation::Conversation,
    namespace::{NetNamespace, on_new_thread},
    ping::ping,
    probe,
};
use crate::{
    LabError, Layout,
    plan::{self, LabNamespace, LabPlan},
};

/// A running cluster of network namespaces. Dropping it removes them.
#[derive(Debug)]
pub struct Lab {
    pub(super) plan: LabPlan,
    pub(super) outside: NetNamespace,
    pub(super) nodes: Vec<NetNamespace>,
    pub(super) pods: Vec<NetNamespace>,
    /// The source port of the next probe. Probes hold the lock, so they run one after the other.
    pub(super) next_port: Mutex<u16>,
}

impl Lab {
    /// Builds the layout. Needs the privileges that [`crate::enter`] gets.
    pub fn build(layout: &Layout) -> Result<Lab, LabError> {
        let plan = LabPlan::new(layout)?;
        on_new_thread(|| build(plan))
    }

    /// Adds a pod that another program attached to a node. From now on its addresses belong to this
    /// namespace, and the outside routes to them. A pod that had one of them loses it. An address
    /// cannot move to another node.
    pub fn adopt(
        &mut self,
        node: &str,
        addresses: &[IpAddr],
        namespace: OwnedFd,
    ) -> Result<(), LabError> {
        let node = self.plan.node(node).ok_or_else(|| LabError::NoNode(node.to_owned()))?;
        let new = self.plan.adopt(node, addresses)?;
        self.pods.push(namespace.into());
        self.inside(LabNamespace::Outside, || add_routes_to_node(node, &new))?
    }

    /// Runs a function on a thread in the node's namespace, where the agent runs, and returns its
    /// result.
    ///
    /// Child processes run there too. `/proc/net` refers to the process, not to the thread; use
    /// `/proc/thread-self/net`. `/sys` refers to the namespace in which it was mounted.
    /// `/proc/sys/net` is correct.
    pub fn on_node<T: Send>(
        &self,
        node: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        let node = self.plan.node(node).ok_or_else(|| LabError::NoNode(node.to_owned()))?;
        self.inside(LabNamespace::Node(node), work)
    }

    /// Runs a function on a thread in the namespace that owns the address: a pod, a node or the
    /// outside.
    pub fn at<T: Send>(
        &self,
        address: IpAddr,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        self.inside(self.plan.namespace_of(address), work)
    }

    /// The name of a node's link to the pod that owns the address.
    pub fn link_to(&self, address: IpAddr) -> Option<String> {
        match self.plan.namespace_of(address) {
            LabNamespace::Pod(number) => Some(pod_link(number)),
            LabNamespace::Node(_) | LabNamespace::Outside => None,
        }
    }

    /// Probes all flows concurrently with real packets, and returns the verdicts in order.
    ///
    /// `Allow` if the far end answered a connection or request from the near end. `Deny` if nothing
    /// arrived before the timeout. A timeout of 100 ms is enough: if the machine was too slow for
    /// it, the denied flows are probed again with a longer timeout.
    pub fn probe(&self, flows: &[Flow], timeout: Duration) -> Result<Vec<Verdict>, LabError> {
        probe::probe(self, flows, timeout)
    }

    /// Sends an ICMP or ICMPv6 echo request. The kernel of the far end answers it.
    ///
    /// `Allow` if the answer arrived, `Deny` if nothing arrived before the timeout. There is no
    /// second attempt.
    pub fn ping(&self, from: IpAddr, to: IpAddr, timeout: Duration) -> Result<Verdict, LabError> {
        let failed = |source| LabError::Ping { from, to, source };
        if let Some(why) = plan::obstacle(from, to) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let id = self.fresh_port(0);
        let answered = self.at(from, || ping(from, to, id, timeout))?;
        let verdict = |answered| if answered { Verdict::Allow } else { Verdict::Deny };
        answered.map(verdict).map_err(|errno| failed(errno.into()))
    }

    /// Opens a flow and keeps it open, to test rule changes during a connection. An SCTP association
    /// needs a kernel without SCTP, which does not interfere.
    pub fn converse(&self, flow: Flow, timeout: Duration) -> Result<Conversation, LabError> {
        plan::check(&flow)?;
        let port = self.fresh_port(flow.port);
        on_new_thread(|| Conversation::open(self, flow, port, timeout))
    }

    /// A source port that was not used recently, other than `other`.
    fn fresh_port(&self, other: u16) -> u16 {
        let mut port = self.next_port.lock().unwrap_or_else(PoisonError::into_inner);
        probe::next(&mut port, &BTreeSet::from([other]))
    }

    pub(super) fn namespace(&self, namespace: LabNamespace) -> &NetNamespace {
        match namespace {
            LabNamespace::Outside => &self.outside,
            LabNamespace::Node(node) => &self.nodes[node],
            LabNamespace::Pod(pod) => &self.pods[pod],
        }
    }

    fn inside<T: Send>(
        &self,
        namespace: LabNamespace,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        on_new_thread(|| {
            self.namespace(namespace).enter()?;
            Ok(work())
        })
    }
}
