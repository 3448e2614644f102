use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use super::{
    lab::Lab,
    namespace::{Namespace, set},
    wire::{BRIDGE, Ends, Family, LOOPBACK, Route, RouteKind, UPLINK, Wire},
};
use crate::{LabError, Wiring, plan::Plan};

/// The index of the first link that leads down, to a node or to a pod.
const DOWNLINKS: u32 = 1000;

/// The address of every bridge, for IPv6. No pod can have it.
const GATEWAY6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// How long the kernel may take for what it does in its own time: some microseconds, unless the machine is very busy.
const KERNEL_PATIENCE: Duration = Duration::from_secs(10);

/// Builds what is planned, from a thread that may be moved about.
pub(super) fn raise(plan: Plan) -> Result<Lab, LabError> {
    let (outside, sky) = router()?;
    for family in Family::BOTH {
        sky.route(&Route { to: None, family, via: None, link: LOOPBACK, kind: RouteKind::Local })?;
    }
    let bridged = plan.wiring != Wiring::Routed;
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    for (number, node) in plan.nodes.iter().enumerate() {
        let (namespace, wire) = router()?;
        let down = downlink(number);
        if bridged {
            bridge(&wire, &plan)?;
        }
        sky.join(down, &format!("n{number}"), &namespace, Ends::Alone)?;
        uplink(&wire, &node.addresses)?;
        lead_out(&wire, [None, None])?;
        lead_to(&sky, &node.addresses, down, RouteKind::UnicastFirst)?;
        nodes.push((namespace, wire));
    }
    let mut pods = Vec::with_capacity(plan.pods.len());
    for (number, pod) in plan.pods.iter().enumerate() {
        let (namespace, wire) = host()?;
        let down = downlink(number);
        let (_, above) = &nodes[pod.node];
        let name = format!("p{number}");
        if bridged {
            above.join(down, &name, &namespace, Ends::Bridged)?;
            uplink(&wire, &pod.addresses)?;
            lead_to(&wire, &[plan.gateway], UPLINK, RouteKind::Unicast)?;
            lead_out(&wire, [Some(plan.gateway), Some(GATEWAY6)])?;
            lead_to(above, &pod.addresses, BRIDGE, RouteKind::Unicast)?;
        } else {
            above.join(down, &name, &namespace, Ends::Alone)?;
            uplink(&wire, &pod.addresses)?;
            lead_out(&wire, [None, None])?;
            lead_to(above, &pod.addresses, down, RouteKind::Unicast)?;
        }
        lead_to(&sky, &pod.addresses, downlink(pod.node), RouteKind::UnicastFirst)?;
        pods.push((namespace, wire));
    }
    if bridged {
        introduce(&plan, &pods)?;
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

/// Tells the outside, whose namespace this thread is in, which node addresses are on.
pub(super) fn lead_here(node: usize, addresses: &[IpAddr]) -> Result<(), LabError> {
    lead_to(&Wire::open()?, addresses, downlink(node), RouteKind::UnicastFirst)
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

/// Gives a node, whose namespace this thread is in, a bridge for its pods.
fn bridge(wire: &Wire, plan: &Plan) -> Result<(), LabError> {
    wire.bridge()?;
    wire.up(BRIDGE)?;
    wire.address(BRIDGE, plan.gateway)?;
    wire.address(BRIDGE, GATEWAY6)?;
    let seen = if plan.wiring == Wiring::Bridged { "1" } else { "0" };
    set("bridge/bridge-nf-call-iptables", seen)?;
    set("bridge/bridge-nf-call-ip6tables", seen)
}

/// Tells the pods of each bridge that the others are on it.
fn introduce(plan: &Plan, pods: &[(Namespace, Wire)]) -> Result<(), LabError> {
    for (number, (pod, (_, wire))) in plan.pods.iter().zip(pods).enumerate() {
        for (other, neighbour) in plan.pods.iter().enumerate() {
            if other != number && neighbour.node == pod.node {
                lead_to(wire, &neighbour.addresses, UPLINK, RouteKind::Unicast)?;
            }
        }
    }
    Ok(())
}

fn downlink(number: usize) -> u32 {
    DOWNLINKS + number as u32
}

/// Brings `eth0` up, with the addresses of who lives there.
fn uplink(wire: &Wire, addresses: &[IpAddr]) -> Result<(), LabError> {
    wire.up(UPLINK)?;
    addresses.iter().try_for_each(|&address| wire.address(UPLINK, address))
}

/// Has everything else behind `eth0`, or behind the gateways there, one for each family.
fn lead_out(wire: &Wire, gateways: [Option<IpAddr>; 2]) -> Result<(), LabError> {
    Family::BOTH.into_iter().zip(gateways).try_for_each(|(family, via)| {
        wire.route(&Route { to: None, family, via, link: UPLINK, kind: RouteKind::Unicast })
    })
}

fn lead_to(wire: &Wire, addresses: &[IpAddr], link: u32, kind: RouteKind) -> Result<(), LabError> {
    addresses.iter().try_for_each(|&to| {
        wire.route(&Route { to: Some(to), family: Family::of(to), via: None, link, kind })
    })
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
