//! Broadcast and multicast between pods on the bridge of their node.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use rustix::net::{self, sockopt};
use weir_datapath::Mode;
use weir_lab::Wiring;

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, policy, world},
    judged::{API, DB, WEB},
};

/// The destinations that a pod can send to without any capability.
const GROUPS: [&str; 5] = ["255.255.255.255", "224.0.0.1", "239.7.7.7", "ff02::1", "ff05::77"];
const PORT: u16 = 7070;

/// `db` allows ingress from `api` only.
const ONLY_API: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// Whether a datagram from one pod to a group arrives at another pod.
fn arrives<B: Backend>(
    cluster: &TrialCluster<B>,
    from: [&str; 2],
    to: [&str; 2],
    group: &str,
    (source, port): (u16, u16),
    timeout: Duration,
) -> bool {
    let group = address(group);
    let at = usize::from(group.is_ipv6());
    let any = address(["0.0.0.0", "::"][at]);
    let listen = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::new(any, port))?;
        socket.set_read_timeout(Some(timeout))?;
        match group {
            std::net::IpAddr::V4(group) if group.is_multicast() => {
                let own = address(to[0]).to_string().parse().unwrap();
                socket.join_multicast_v4(&group, &own)?;
            }
            std::net::IpAddr::V6(group) => socket.join_multicast_v6(&group, interface()?)?,
            std::net::IpAddr::V4(_) => (),
        }
        Ok(socket)
    };
    // A process that another thread forks can hold the closed socket of the last call open.
    let begun = Instant::now();
    let listener = loop {
        match cluster.lab.at(address(to[at]), listen).unwrap() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && begun.elapsed() < ARRIVAL_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            listener => break listener.unwrap(),
        }
    };
    let send = || -> io::Result<()> {
        let socket = UdpSocket::bind(SocketAddr::new(address(from[at]), source))?;
        socket.set_broadcast(true)?;
        if at == 1 {
            let index = interface()?;
            sockopt::set_ipv6_multicast_hops(&socket, 8)?;
            let scoped = std::net::SocketAddrV6::new(v6(group), port, 0, index);
            socket.send_to(b"!", scoped)?;
        } else {
            sockopt::set_ip_multicast_ttl(&socket, 8)?;
            net::sendto(&socket, b"!", net::SendFlags::empty(), &SocketAddr::new(group, port))?;
        }
        Ok(())
    };
    cluster.lab.at(address(from[at]), send).unwrap().unwrap();
    let mut buffer = [0; 8];
    loop {
        match listener.recv_from(&mut buffer) {
            Ok((_, sender)) if sender.ip() == address(from[at]) => return true,
            Ok(_) => (),
            Err(_) => return false,
        }
    }
}

fn v6(address: std::net::IpAddr) -> Ipv6Addr {
    match address {
        std::net::IpAddr::V6(address) => address,
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
    }
}

/// The index of the pod's only interface besides the loopback.
fn interface() -> io::Result<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
    let name = names.map(str::trim).find(|name| *name != "lo");
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None)?;
    Ok(net::netdevice::name_to_index(&socket, name.unwrap_or("eth0"))?)
}

/// No packet to a group arrives at an isolated pod, except for packets that the link needs.
pub(crate) fn isolated_pods_hear_no_group<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::new(backend, &world(PODS), Wiring::Bridged, Mode::Enforce);
    let ports = (PORT, PORT);
    for group in GROUPS {
        assert!(arrives(&cluster, WEB, DB, group, ports, ARRIVAL_TIMEOUT), "{group}, open");
    }
    cluster.put(&policy("db", ONLY_API));
    for group in GROUPS {
        assert!(!arrives(&cluster, WEB, DB, group, ports, DROP_TIMEOUT), "{group}, isolated");
    }
    let dhcp = |group, ports| arrives(&cluster, WEB, DB, group, ports, ARRIVAL_TIMEOUT);
    assert!(dhcp("255.255.255.255", (68, 67)), "DHCP");
    assert!(dhcp("ff02::1:2", (546, 547)), "DHCPv6");
    cluster.remove("db");
    for group in GROUPS {
        assert!(arrives(&cluster, API, DB, group, ports, ARRIVAL_TIMEOUT), "{group}, open again");
    }
}
