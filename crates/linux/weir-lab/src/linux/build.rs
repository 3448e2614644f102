use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use weir_model::IpFamily;

use super::{
    lab::Lab,
    namespace::{NetNamespace, set},
    rtnetlink::{BRIDGE, Ends, LOOPBACK, Route, RouteKind, Rtnetlink, UPLINK},
};
use crate::{LabError, Wiring, plan::LabPlan};

/// The index of the first link to a node or to a pod.
const DOWNLINKS: u32 = 1000;

/// The IPv6 address of every bridge. No pod can have it.
const GATEWAY6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// The timeout for asynchronous work of the kernel, which takes microseconds unless the machine is
/// busy.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds the plan. The calling thread must be free to change its namespace.
pub(super) fn build(plan: LabPlan) -> Result<Lab, LabError> {
    let (outside, sky) = router()?;
    for family in IpFamily::BOTH {
        sky.route(&Route { to: None, family, via: None, link: LOOPBACK, kind: RouteKind::Local })?;
    }
    let bridged = plan.wiring != Wiring::Routed;
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    for (number, node) in plan.nodes.iter().enumerate() {
        let (namespace, rtnetlink) = router()?;
        let down = downlink(number);
        if bridged {
            bridge(&rtnetlink, &plan)?;
        }
        sky.join(down, &format!("n{number}"), &namespace, Ends::Alone)?;
        uplink(&rtnetlink, &node.addresses)?;
        add_default_routes(&rtnetlink, [None, None])?;
        add_routes(&sky, &node.addresses, down, RouteKind::UnicastFirst)?;
        nodes.push((namespace, rtnetlink));
    }
    let mut pods = Vec::with_capacity(plan.pods.len());
    for (number, pod) in plan.pods.iter().enumerate() {
        let (namespace, rtnetlink) = host()?;
        let down = downlink(number);
        let (_, above) = &nodes[pod.node];
        let name = pod_link(number);
        if bridged {
            above.join(down, &name, &namespace, Ends::Bridged)?;
            uplink(&rtnetlink, &pod.addresses)?;
            add_routes(&rtnetlink, &[plan.gateway], UPLINK, RouteKind::Unicast)?;
            add_default_routes(&rtnetlink, [Some(plan.gateway), Some(GATEWAY6)])?;
            add_routes(above, &pod.addresses, BRIDGE, RouteKind::Unicast)?;
        } else {
            above.join(down, &name, &namespace, Ends::Alone)?;
            uplink(&rtnetlink, &pod.addresses)?;
            add_default_routes(&rtnetlink, [None, None])?;
            add_routes(above, &pod.addresses, down, RouteKind::Unicast)?;
        }
        add_routes(&sky, &pod.addresses, downlink(pod.node), RouteKind::UnicastFirst)?;
        pods.push((namespace, rtnetlink));
    }
    if bridged {
        add_routes_between_pods(&plan, &pods)?;
    }

    for (number, (node, (_, rtnetlink))) in plan.nodes.iter().zip(&nodes).enumerate() {
        wait_for(&sky, downlink(number), rtnetlink, &node.addresses)?;
    }
    for (number, (pod, (_, rtnetlink))) in plan.pods.iter().zip(&pods).enumerate() {
        wait_for(&nodes[pod.node].1, downlink(number), rtnetlink, &pod.addresses)?;
    }
    let keep = |made: Vec<(NetNamespace, Rtnetlink)>| {
        made.into_iter().map(|(namespace, _)| namespace).collect()
    };
    Ok(Lab { plan, outside, nodes: keep(nodes), pods: keep(pods), next_port: Mutex::new(0) })
}

/// Adds routes to a node's addresses. The current namespace of this thread must be the outside.
pub(super) fn add_routes_to_node(node: usize, addresses: &[IpAddr]) -> Result<(), LabError> {
    add_routes(&Rtnetlink::open()?, addresses, downlink(node), RouteKind::UnicastFirst)
}

/// A new namespace with only a loopback link.
fn host() -> Result<(NetNamespace, Rtnetlink), LabError> {
    let namespace = NetNamespace::create()?;
    // Without link-local addresses, the kernel sends no unsolicited packets.
    set("ipv6/conf/default/addr_gen_mode", "1")?;
    let rtnetlink = Rtnetlink::open()?;
    rtnetlink.up(LOOPBACK)?;
    Ok((namespace, rtnetlink))
}

/// A new namespace that forwards packets from any source.
fn router() -> Result<(NetNamespace, Rtnetlink), LabError> {
    let made = host()?;
    set("ipv4/ip_forward", "1")?;
    set("ipv6/conf/all/forwarding", "1")?;
    set("ipv4/conf/all/rp_filter", "0")?;
    set("ipv4/conf/default/rp_filter", "0")?;
    Ok(made)
}

/// Creates the bridge of a node. The current namespace of this thread must be the node.
fn bridge(rtnetlink: &Rtnetlink, plan: &LabPlan) -> Result<(), LabError> {
    rtnetlink.bridge()?;
    rtnetlink.up(BRIDGE)?;
    rtnetlink.address(BRIDGE, plan.gateway)?;
    rtnetlink.address(BRIDGE, GATEWAY6)?;
    let seen = if plan.wiring == Wiring::Bridged { "1" } else { "0" };
    set("bridge/bridge-nf-call-iptables", seen)?;
    set("bridge/bridge-nf-call-ip6tables", seen)
}

/// Adds direct routes between the pods of each bridge.
fn add_routes_between_pods(
    plan: &LabPlan,
    pods: &[(NetNamespace, Rtnetlink)],
) -> Result<(), LabError> {
    for (number, (pod, (_, rtnetlink))) in plan.pods.iter().zip(pods).enumerate() {
        for (other, neighbour) in plan.pods.iter().enumerate() {
            if other != number && neighbour.node == pod.node {
                add_routes(rtnetlink, &neighbour.addresses, UPLINK, RouteKind::Unicast)?;
            }
        }
    }
    Ok(())
}

/// The name of the link from a node to a pod.
pub(super) fn pod_link(number: usize) -> String {
    format!("p{number}")
}

fn downlink(number: usize) -> u32 {
    DOWNLINKS + number as u32
}

/// Brings `eth0` up with the addresses of the namespace.
fn uplink(rtnetlink: &Rtnetlink, addresses: &[IpAddr]) -> Result<(), LabError> {
    rtnetlink.up(UPLINK)?;
    addresses.iter().try_for_each(|&address| rtnetlink.address(UPLINK, address))
}

/// Adds the default routes through `eth0`, or through the gateways, one per family.
fn add_default_routes(
    rtnetlink: &Rtnetlink,
    gateways: [Option<IpAddr>; 2],
) -> Result<(), LabError> {
    IpFamily::BOTH.into_iter().zip(gateways).try_for_each(|(family, via)| {
        rtnetlink.route(&Route { to: None, family, via, link: UPLINK, kind: RouteKind::Unicast })
    })
}

fn add_routes(
    rtnetlink: &Rtnetlink,
    addresses: &[IpAddr],
    link: u32,
    kind: RouteKind,
) -> Result<(), LabError> {
    addresses.iter().try_for_each(|&to| {
        rtnetlink.route(&Route { to: Some(to), family: to.into(), via: None, link, kind })
    })
}

/// Waits for asynchronous work of the kernel: it must notice that both ends of a link are up, and
/// activate IPv6 addresses.
fn wait_for(
    above: &Rtnetlink,
    link: u32,
    below: &Rtnetlink,
    addresses: &[IpAddr],
) -> Result<(), LabError> {
    wait_until(|| above.is_running(link), || format!("bring link {link} into the running state"))?;
    addresses.iter().try_for_each(|&address| {
        wait_until(|| below.is_local(address), || format!("activate address {address}"))
    })
}

fn wait_until(
    done: impl Fn() -> Result<bool, LabError>,
    what: impl Fn() -> String,
) -> Result<(), LabError> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > KERNEL_TIMEOUT {
            return Err(LabError::Link { what: what(), source: io::ErrorKind::TimedOut.into() });
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
