//! Which connections a change ends, and which it leaves alone.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use rustix::net;
use weir_netfilter::Conntrack;

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, TrialCluster, address, policy},
    judged::{API, DB, LOCKED, WEB},
    node,
    raw::Raw,
};

/// `db` allows no ingress, and all egress.
const CLOSED: &str = "podSelector: {matchLabels: {app: db}}";

/// A message of a protocol, which its header starts with.
fn message(number: u8, text: &str) -> Vec<u8> {
    let header: &[u8] = match number {
        // GRE, version 0.
        47 => &[0, 0, 8, 0],
        // ESP: an index and a number.
        50 => &[0, 0, 1, 0, 0, 0, 0, 1],
        _ => &[],
    };
    [header, text.as_bytes()].concat()
}

/// Protocols without ports: GRE, ESP and one that the kernel does not know.
pub(crate) fn other_protocols<B: Backend>(backend: B) {
    for number in [47, 50, 253] {
        for at in [0, 1] {
            let mut cluster = TrialCluster::with(backend, &[]);
            let client = Raw::open(&cluster, number, [WEB[at], DB[at]]);
            let server = Raw::open(&cluster, number, [DB[at], WEB[at]]);
            let exchange = |from: &Raw, to: &Raw, text: &str, timeout| {
                from.send(&message(number, text));
                to.receives(text.as_bytes(), timeout)
            };
            assert!(exchange(&client, &server, "one", ARRIVAL_TIMEOUT), "{number}: open");
            assert!(exchange(&server, &client, "two", ARRIVAL_TIMEOUT), "{number}: answer");
            cluster.put(&policy("tight", CLOSED));
            let cut = cluster.cut()[0];
            assert!(cut >= 1 || !backend.counts_terminated(), "{number}: cut");
            assert!(!exchange(&server, &client, "three", DROP_TIMEOUT), "{number}: reversed");
            assert!(!exchange(&client, &server, "four", DROP_TIMEOUT), "{number}: closed");
        }
    }
}

/// A ping that goes on under one id.
pub(crate) fn ping<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let client = Raw::open(&cluster, 1, [WEB[0], DB[0]]);
    let echo = |sequence: u8| {
        let mut packet = vec![8, 0, 0, 0, 0x12, 0x34, 0, sequence];
        let sum: u32 = packet.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let answered = |sequence: u8, timeout| {
        client.send(&echo(sequence));
        client.receives(&[0x12, 0x34, 0, sequence], timeout)
    };
    assert!(answered(1, ARRIVAL_TIMEOUT));
    cluster.put(&policy("tight", CLOSED));
    cluster.cut();
    assert!(!answered(2, DROP_TIMEOUT));
}

/// A new pod does not inherit what the old owner of its address had begun.
pub(crate) fn a_reused_address<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let bind = |at: &str, port| {
        let bind = || UdpSocket::bind(SocketAddr::new(address(at), port)).unwrap();
        let socket = cluster.lab.at(address(at), bind).unwrap();
        socket.set_read_timeout(Some(DROP_TIMEOUT)).unwrap();
        socket
    };
    let (old, peer) = (bind(DB[0], 5000), bind(API[0], 6000));
    let (to_old, to_peer) = (old.local_addr().unwrap(), peer.local_addr().unwrap());
    let mut buffer = [0; 8];
    old.send_to(b"1", to_peer).unwrap();
    assert!(peer.recv(&mut buffer).is_ok());
    peer.send_to(b"2", to_old).unwrap();
    assert!(old.recv(&mut buffer).is_ok());
    // The pod `db` is deleted, and `new` gets its address. It allows no ingress.
    cluster.put(&policy("tight", "podSelector: {matchLabels: {app: new}}"));
    cluster.remove_pod("shop", "db");
    cluster.change(
        "pods: [{namespace: shop, name: new, labels: {app: new}, ips: [10.0.0.3], node: n1}]",
    );
    cluster.cut();
    peer.send_to(b"3", to_old).unwrap();
    assert!(old.recv(&mut buffer).is_err(), "the flow goes on");
}

/// The node's own connections, from an address that its Node object does not have.
pub(crate) fn connections_of_the_node<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    node::does(&cluster.lab, "ip address add 10.77.0.1/32 dev lo");
    let there = SocketAddr::new(address(DB[0]), 80);
    let listener = cluster.lab.at(there.ip(), || TcpListener::bind(there).unwrap()).unwrap();
    let connect = || {
        let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
        let socket = net::socket(family, kind, None).unwrap();
        net::bind(&socket, &SocketAddr::new(address("10.77.0.1"), 0)).unwrap();
        net::connect(&socket, &there).unwrap();
        TcpStream::from(socket)
    };
    // The pod needs a route to the address.
    let mut client = cluster.lab.on_node("n1", connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    cluster.put(&policy("tight", LOCKED));
    cluster.assert_cut([0, 0], "the node's connection stays");
    client.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
    server.write_all(b"!").unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 1);
}

/// Peers that use one UDP port at both ends, as gossip does: one direction is forbidden, and the
/// other one stays allowed.
pub(crate) fn the_same_port_at_both_ends<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let bind = |at: &str| {
        let bind = || UdpSocket::bind(SocketAddr::new(address(at), 7000)).unwrap();
        let socket = cluster.lab.at(address(at), bind).unwrap();
        socket.set_read_timeout(Some(DROP_TIMEOUT)).unwrap();
        socket
    };
    let (web, db) = (bind(WEB[0]), bind(DB[0]));
    let (to_web, to_db) = (web.local_addr().unwrap(), db.local_addr().unwrap());
    let mut buffer = [0; 8];
    web.send_to(b"1", to_db).unwrap();
    assert!(db.recv(&mut buffer).is_ok());
    cluster.put(&policy("tight", CLOSED));
    cluster.assert_cut([1, 0], "connections that are cut");
    web.send_to(b"2", to_db).unwrap();
    assert!(db.recv(&mut buffer).is_err(), "closed");
    db.send_to(b"3", to_web).unwrap();
    assert!(web.recv(&mut buffer).is_ok(), "allowed in the other direction");
}

/// Connects to `db` from a port of a client.
fn connect_to_db<B: Backend>(cluster: &TrialCluster<B>) -> [TcpStream; 2] {
    let there = SocketAddr::new(address(DB[0]), 80);
    let listener = cluster.lab.at(there.ip(), || TcpListener::bind(there).unwrap()).unwrap();
    let connect = || {
        let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
        let socket = net::socket(family, kind, None).unwrap();
        net::bind(&socket, &SocketAddr::new(address(API[0]), 40_000)).unwrap();
        net::connect(&socket, &there).unwrap();
        TcpStream::from(socket)
    };
    let client = cluster.lab.at(address(API[0]), connect).unwrap();
    let ends = [client, listener.accept().unwrap().0];
    ends.iter().for_each(|end| end.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap());
    ends
}

/// Makes conntrack on the node `n1` lose all connections.
fn lose_connections<B: Backend>(cluster: &TrialCluster<B>) {
    let mut conntrack = cluster.lab.on_node("n1", || Conntrack::open().unwrap()).unwrap();
    let mut all = Vec::new();
    conntrack.list(|connection| all.push(connection)).unwrap();
    all.iter().for_each(|connection| conntrack.delete(connection).unwrap());
}

/// An allowed connection that conntrack lost, and picked up when the server sent first.
pub(crate) fn a_connection_that_was_picked_up<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let [mut client, mut server] = connect_to_db(&cluster);
    lose_connections(&cluster);
    server.write_all(b"1").unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 1);
    // `db` allows ingress from all, and no egress.
    let db = "podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]";
    cluster.put(&policy("tight", db));
    cluster.assert_cut([0, 0], "connections that are cut");
    client.write_all(b"2").unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
    server.write_all(b"3").unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 1);
}

/// A connection that becomes forbidden. A client that made conntrack pick it up gains nothing.
pub(crate) fn a_picked_up_connection_of_a_client<B: Backend>(backend: B) {
    let mut cluster = TrialCluster::with(backend, &[]);
    let [mut client, mut server] = connect_to_db(&cluster);
    lose_connections(&cluster);
    client.write_all(b"1").unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
    cluster.put(&policy("tight", CLOSED));
    cluster.assert_cut([1, 0], "connections that are cut");
}

/// The helper that expects FTP data connections.
const FTP_HELPER: &str = "
table inet helper {
 ct helper ftp { type \"ftp\" protocol tcp; }
 chain prerouting { type filter hook prerouting priority 0; tcp dport 21 ct helper set \"ftp\"; }
}";

/// A data connection that no rule allows, and that a helper expects because of an allowed FTP
/// connection.
pub(crate) fn an_expected_connection<B: Backend>(backend: B) {
    // `api` allows no ingress, so that only the helper lets the data connection pass.
    let api = "podSelector: {matchLabels: {app: api}}";
    let mut cluster = TrialCluster::with(backend, &[policy("api", api)]);
    node::run(&cluster.lab, "nft", &["-f", "-"], FTP_HELPER);
    let (client, server) = (address(API[0]), address(DB[0]));
    let listen = |at, port| {
        let listen = || TcpListener::bind(SocketAddr::new(at, port)).unwrap();
        cluster.lab.at(at, listen).unwrap()
    };
    let connect = |from, to, port| {
        let there = SocketAddr::new(to, port);
        let connect = || TcpStream::connect_timeout(&there, ARRIVAL_TIMEOUT).unwrap();
        cluster.lab.at(from, connect).unwrap()
    };
    let (control_listener, data_listener) = (listen(server, 21), listen(client, 5555));
    let mut control = connect(client, server, 21);
    let (mut server_control, _) = control_listener.accept().unwrap();
    // The kernel parses lines after the first one. Port 5555 is 21 * 256 + 179.
    for line in ["USER api\r\n", "PORT 10,0,0,1,21,179\r\n"] {
        control.write_all(line.as_bytes()).unwrap();
        server_control.read_exact(&mut vec![0; line.len()]).unwrap();
    }
    let mut server_data = connect(server, client, 5555);
    let (mut data, _) = data_listener.accept().unwrap();
    data.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
    let mut goes_on = |what: &str| {
        server_data.write_all(b"!").unwrap();
        assert_eq!(data.read(&mut [0; 8]).unwrap(), 1, "{what}");
    };
    goes_on("expected");
    // Another policy allows something else.
    cluster.put(&policy("api", &format!("{api}, ingress: [{{ports: [{{port: 80}}]}}]")));
    cluster.assert_cut([0, 0], "connections that are cut");
    goes_on("after the change");
    // The control connection becomes forbidden: both end.
    cluster.put(&policy("db", CLOSED));
    cluster.assert_cut([2, 0], "connections that are cut");
    data.set_read_timeout(Some(DROP_TIMEOUT)).unwrap();
    server_data.write_all(b"!").unwrap();
    assert!(data.read(&mut [0; 8]).is_err(), "it ends with its master");
}
