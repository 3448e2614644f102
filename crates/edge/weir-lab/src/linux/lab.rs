use std::{
    io,
    net::IpAddr,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use weir_model::{Flow, Verdict};

use super::{
    namespace::{Namespace, apart, set},
    probe,
    wire::{Family, LOOPBACK, Route, RouteKind, UPLINK, Wire},
};
use crate::{
    LabError, Layout,
    plan::{Plan, Spot},
};

/// The index of the first link that leads down, to a node or to a pod.
const DOWNLINKS: u32 = 1000;

/// How long the kernel may take for what it does in its own time: some microseconds, unless the machine is very busy.
const KERNEL_PATIENCE: Duration = Duration::from_secs(10);

/// A running cluster of network namespaces. Dropping it is its end.
#[derive(Debug)]
pub struct Lab {
    pub(super) plan: Plan,
    outside: Namespace,
    nodes: Vec<Namespace>,
    pods: Vec<Namespace>,
    /// Where the next probe comes from. Probes take turns by holding it.
    pub(super) next_port: Mutex<u16>,
}

impl Lab {
    /// Builds what the layout says. Needs the rights that [`crate::enter`] gets.
    pub fn build(layout: &Layout) -> Result<Lab, LabError> {
        let plan = Plan::new(layout)?;
        apart(|| raise(plan))
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

fn raise(plan: Plan) -> Result<Lab, LabError> {
    let (outside, sky) = router()?;
    for family in Family::BOTH {
        sky.route(&Route { to: None, family, link: LOOPBACK, kind: RouteKind::Local })?;
    }
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    for (number, node) in plan.nodes.iter().enumerate() {
        let (namespace, wire) = router()?;
        let down = downlink(number);
        sky.join(down, &format!("n{number}"), &namespace)?;
        uplink(&wire, &node.addresses)?;
        lead_to(&sky, &node.addresses, down, RouteKind::UnicastFirst)?;
        nodes.push((namespace, wire));
    }
    let mut pods = Vec::with_capacity(plan.pods.len());
    for (number, pod) in plan.pods.iter().enumerate() {
        let (namespace, wire) = host()?;
        let down = downlink(number);
        let (_, above) = &nodes[pod.node];
        above.join(down, &format!("p{number}"), &namespace)?;
        uplink(&wire, &pod.addresses)?;
        lead_to(above, &pod.addresses, down, RouteKind::Unicast)?;
        lead_to(&sky, &pod.addresses, downlink(pod.node), RouteKind::UnicastFirst)?;
        pods.push((namespace, wire));
    }

    for (number, (node, (_, wire))) in plan.nodes.iter().zip(&nodes).enumerate() {
        wait_for(&sky, downlink(number), wire, &node.addresses)?;
    }
    for (number, (pod, (_, wire))) in plan.pods.iter().zip(&pods).enumerate() {
        wait_for(&nodes[pod.node].1, downlink(number), wire, &pod.addresses)?;
    }
    let keep =
        |made: Vec<(Namespace, Wire)>| made.into_iter().map(|(namespace, _)| namespace).collect();
    Ok(Lab { plan, outside, nodes: keep(nodes), pods: keep(pods), next_port: Mutex::new(0) })
}

/// A new namespace with nothing but itself.
fn host() -> Result<(Namespace, Wire), LabError> {
    let namespace = Namespace::create()?;
    // No link-local addresses: without them nothing is sent that nobody asked for.
    set("ipv6/conf/default/addr_gen_mode", "1")?;
    let wire = Wire::open()?;
    wire.up(LOOPBACK)?;
    Ok((namespace, wire))
}

/// A new namespace that passes packets on, whatever their source.
fn router() -> Result<(Namespace, Wire), LabError> {
    let made = host()?;
    set("ipv4/ip_forward", "1")?;
    set("ipv6/conf/all/forwarding", "1")?;
    set("ipv4/conf/all/rp_filter", "0")?;
    set("ipv4/conf/default/rp_filter", "0")?;
    Ok(made)
}

fn downlink(number: usize) -> u32 {
    DOWNLINKS + number as u32
}

/// Brings `eth0` up, with the addresses of who lives there and everything else behind it.
fn uplink(wire: &Wire, addresses: &[IpAddr]) -> Result<(), LabError> {
    wire.up(UPLINK)?;
    addresses.iter().try_for_each(|&address| wire.address(UPLINK, address))?;
    Family::BOTH.into_iter().try_for_each(|family| {
        wire.route(&Route { to: None, family, link: UPLINK, kind: RouteKind::Unicast })
    })
}

fn lead_to(wire: &Wire, addresses: &[IpAddr], link: u32, kind: RouteKind) -> Result<(), LabError> {
    addresses
        .iter()
        .try_for_each(|&to| wire.route(&Route { to: Some(to), family: Family::of(to), link, kind }))
}

/// Waits for what the kernel does in its own time: it tells the end of a link that was up first of the other one, and puts
/// addresses of IPv6 to use.
fn wait_for(above: &Wire, link: u32, below: &Wire, addresses: &[IpAddr]) -> Result<(), LabError> {
    wait_until(|| above.is_running(link), || format!("get link {link} to run"))?;
    addresses.iter().try_for_each(|&address| {
        wait_until(|| below.is_local(address), || format!("get {address} into use"))
    })
}

fn wait_until(
    done: impl Fn() -> Result<bool, LabError>,
    what: impl Fn() -> String,
) -> Result<(), LabError> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > KERNEL_PATIENCE {
            return Err(LabError::Link { what: what(), source: io::ErrorKind::TimedOut.into() });
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
