//! Listing and deleting tracked connections.

use std::{
    collections::BTreeSet,
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use libtest_mimic::Trial;
use weir_lab::Lab;
use weir_model::{
    Protocol::{Tcp, Udp},
    Verdict,
};
use weir_netfilter::{Connection, Conntrack, Tuple};
use weir_netlink::{Body, Header, MessageWriter, NetlinkProtocol, Socket, kind};

use crate::node::{A, A6, B, B6, REPLY_TIMEOUT, address, flow, load, node, trial};

/// Longer than a packet takes that is not dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("connections_are_listed_as_policies_see_them", connections_are_listed),
        trial("only_the_given_connection_is_deleted", only_the_given_one),
        trial("a_connection_with_another_id_stays", another_id_stays),
        trial("rules_apply_again_after_a_deletion", rules_apply_again),
        trial("a_flow_names_the_backend_of_a_service", backend_of_a_service),
        trial("connections_in_zones_are_deleted", zones),
        trial("a_hundred_thousand_connections_are_listed", a_hundred_thousand),
    ]
}

/// Makes the node track connections and drop nothing.
const TRACK: &str = "ct state new accept";

fn list(lab: &Lab) -> Vec<Connection> {
    let mut found = Vec::new();
    let mut conntrack = lab.on_node("node", || Conntrack::open().unwrap()).unwrap();
    conntrack.list(|connection| found.push(connection)).unwrap();
    found
}

fn delete(lab: &Lab, connection: &Connection) {
    let mut conntrack = lab.on_node("node", || Conntrack::open().unwrap()).unwrap();
    conntrack.delete(connection).unwrap();
}

/// The connection as policies see it.
fn as_flow(connection: &Connection) -> Option<weir_model::Flow> {
    let ((from, to), (protocol, port)) = (connection.ends(), connection.port()?);
    Some(weir_model::Flow { from, to, protocol, port })
}

fn ports(lab: &Lab) -> BTreeSet<u16> {
    list(lab).iter().filter_map(|connection| Some(connection.port()?.1)).collect()
}

fn connections_are_listed() {
    let lab = node(TRACK);
    assert_eq!(list(&lab), []);
    let flows = [flow(A, B, Tcp, 80), flow(B6, A6, Tcp, 81), flow(A6, B6, Udp, 53)];
    let _open = flows.map(|flow| lab.converse(flow, REPLY_TIMEOUT).unwrap());
    assert_eq!(lab.ping(address(A), address(B), REPLY_TIMEOUT).unwrap(), Verdict::Allow);
    let listed = list(&lab);
    assert_eq!(listed.iter().filter_map(as_flow).collect::<BTreeSet<_>>(), flows.into());
    // Policies cannot name ICMP.
    assert!(listed.iter().any(|connection| connection.protocol == 1));
    let with_ports = listed.into_iter().filter(|connection| connection.port().is_some());
    for Connection { original, reply, zone, .. } in with_ports {
        let Tuple { source, destination, source_port, destination_port } = original;
        let back = Tuple {
            source: destination,
            destination: source,
            source_port: destination_port,
            destination_port: source_port,
        };
        assert_eq!((reply, zone), (back, 0));
        assert!(source_port >= 10_000);
    }
}

fn only_the_given_one() {
    let lab = node(TRACK);
    let _open = [80, 81].map(|port| lab.converse(flow(A, B, Tcp, port), REPLY_TIMEOUT).unwrap());
    let listed = list(&lab);
    let one = listed.iter().find(|connection| connection.port() == Some((Tcp, 81))).unwrap();
    assert_eq!(ports(&lab), [80, 81].into());
    delete(&lab, one);
    assert_eq!(ports(&lab), [80].into());
    delete(&lab, one);
    assert_eq!(ports(&lab), [80].into());
}

fn another_id_stays() {
    let lab = node(TRACK);
    let _open = lab.converse(flow(A6, B6, Udp, 53), REPLY_TIMEOUT).unwrap();
    let [connection] = list(&lab)[..] else { panic!("expected one connection") };
    let mut other = connection;
    other.id ^= 1;
    delete(&lab, &other);
    assert_eq!(list(&lab), [connection]);
    delete(&lab, &connection);
    assert_eq!(list(&lab), []);
}

fn rules_apply_again() {
    let lab = node("ct state established accept; tcp dport { 80, 81 } accept; drop");
    let [mut kept, mut cut] =
        [80, 81].map(|port| lab.converse(flow(A, B, Tcp, port), REPLY_TIMEOUT).unwrap());
    load(
        &lab,
        "flush chain inet test f; add rule inet test f ct state established accept; add rule inet test f drop",
    );
    assert_eq!(cut.exchange(REPLY_TIMEOUT).unwrap(), Verdict::Allow);
    let listed = list(&lab);
    delete(&lab, listed.iter().find(|connection| connection.port() == Some((Tcp, 81))).unwrap());
    assert_eq!(cut.exchange(DROP_TIMEOUT).unwrap(), Verdict::Deny);
    assert_eq!(kept.exchange(REPLY_TIMEOUT).unwrap(), Verdict::Allow);
}

/// A service with a virtual address and another port. Its backend sees the node as the client.
fn backend_of_a_service() {
    let lab = node(TRACK);
    load(
        &lab,
        "table ip nat {
             chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 80 dnat to 10.0.0.2:8080; }
             chain post { type nat hook postrouting priority 100; ip daddr 10.0.0.2 snat to 192.168.0.1; }
         }",
    );
    let there = SocketAddr::new(address(B), 8080);
    let listener = lab.at(address(B), || TcpListener::bind(there).unwrap()).unwrap();
    let service = SocketAddr::new(address("10.96.0.1"), 80);
    let connect = || TcpStream::connect_timeout(&service, REPLY_TIMEOUT).unwrap();
    let mut client = lab.at(address(A), connect).unwrap();
    let (server, seen) = listener.accept().unwrap();
    assert_eq!(seen.ip(), address("192.168.0.1"));
    let [connection] = list(&lab)[..] else { panic!("expected one connection") };
    assert_eq!(as_flow(&connection), Some(flow(A, B, Tcp, 8080)));
    assert_eq!(connection.original.destination, service.ip());
    delete(&lab, &connection);
    assert_eq!(list(&lab), []);
    drop(server);
    client.set_read_timeout(Some(DROP_TIMEOUT)).unwrap();
    assert!(client.read(&mut [0]).is_err(), "the FIN is no longer translated");
}

fn zones() {
    for zone in ["ct zone set 5", "ct original zone set 5"] {
        let lab = node(TRACK);
        load(
            &lab,
            &format!(
                "table inet zones {{ chain pre {{ type filter hook prerouting priority -300; {zone}; }}; }}"
            ),
        );
        let _open =
            [80, 81].map(|port| lab.converse(flow(A, B, Tcp, port), REPLY_TIMEOUT).unwrap());
        let listed = list(&lab);
        assert_eq!(listed.iter().map(|one| one.zone).collect::<Vec<_>>(), [5, 5], "{zone}");
        delete(&lab, &listed[0]);
        assert_eq!(list(&lab), [listed[1]], "{zone}");
    }
}

fn a_hundred_thousand() {
    const CONNECTIONS: u32 = 100_000;
    let lab = node(TRACK);
    let made = lab.on_node("node", || create(CONNECTIONS)).unwrap();
    let mut conntrack = lab.on_node("node", || Conntrack::open().unwrap()).unwrap();
    let mut seen = BTreeSet::new();
    conntrack.list(|connection| seen.extend(as_flow(&connection))).unwrap();
    assert_eq!(seen, made);
}

/// Creates synthetic connections in the kernel.
fn create(count: u32) -> BTreeSet<weir_model::Flow> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter).unwrap();
    let mut writer = MessageWriter::default();
    let mut made = BTreeSet::new();
    for number in 0..count {
        let from = IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 + number));
        let flow = weir_model::Flow { from, to: address(B), protocol: Udp, port: 53 };
        // Stays below the default limit of the send buffer.
        let last = (number + 1).is_multiple_of(1000);
        let ack = if last { kind::ACK } else { 0 };
        let flags = kind::REQUEST | kind::CREATE | kind::EXCL | ack;
        let header = Header { kind: 0x100, flags, sequence: 0 };
        writer
            .message(header, |message| {
                message.fixed(&[2, 0, 0, 0]);
                tuple(message, 1, (flow.from, 1000), (flow.to, 53));
                tuple(message, 2, (flow.to, 53), (flow.from, 1000));
                message.be_u32(7, 600);
            })
            .unwrap();
        if last {
            socket.request(writer.bytes()).unwrap();
            writer.clear();
        }
        made.insert(flow);
    }
    made
}

fn tuple(message: &mut Body<'_>, kind: u16, from: (IpAddr, u16), to: (IpAddr, u16)) {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("not here"),
    };
    message.nest(kind, |tuple| {
        tuple.nest(1, |ip| _ = ip.bytes(1, &octets(from.0)).bytes(2, &octets(to.0)));
        tuple.nest(2, |transport| _ = transport.u8(1, 17).be_u16(2, from.1).be_u16(3, to.1));
    });
}
