//! Protocols other than TCP, UDP and SCTP.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::Duration,
};

use rustix::net;
use weir_datapath::Mode;
use weir_lab::Wiring;
use weir_model::{Protocol, Verdict};

use crate::{
    Backend,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, TrialCluster, address, flow, policy, world},
    judged::{API, DB, FAR, LOCKED, OTHER_NODE, OUTSIDE, WEB, pings, probes},
    node,
};

use Verdict::{Allow, Deny};

pub(crate) fn echo_needs_a_rule_without_ports<B: Backend>(backend: B) {
    let cluster = TrialCluster::with(backend, &[
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}}, ingress: [
            {from: [{podSelector: {matchLabels: {app: api}}}]},
            {from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 1, endPort: 65535}, {protocol: UDP}, {protocol: SCTP}]},
            {from: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: '2001:db8::/32'}}]}]",
        ),
        policy("web", "podSelector: {matchLabels: {app: web}}, ingress: [{}]"),
        policy("api", "podSelector: {matchLabels: {app: api}}, ingress: [{ports: [{port: 80}]}]"),
    ]);
    pings(&cluster, API, DB, Allow);
    probes(&cluster, WEB, DB, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, FAR, DB, Deny);
    pings(&cluster, OUTSIDE, DB, Allow);
    pings(&cluster, OTHER_NODE, DB, Deny);
    pings(&cluster, FAR, WEB, Allow);
    pings(&cluster, FAR, API, Deny);
    pings(&cluster, DB, FAR, Allow);
}

pub(crate) fn echo_on_the_way_out<B: Backend>(backend: B) {
    let cluster = TrialCluster::with(
        backend,
        &[policy(
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [
        {to: [{podSelector: {matchLabels: {app: far}}}]},
        {to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}]}]",
        )],
    );
    pings(&cluster, WEB, FAR, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, WEB, OUTSIDE, Deny);
    pings(&cluster, DB, WEB, Allow);
}

/// There are so many rules that they have to be merged.
pub(crate) fn echo_among_many<B: Backend>(backend: B) {
    let labels = ["api", "web", "far"].map(str::to_owned).into_iter();
    let labels = labels.chain((0..40).map(|number| format!("other-{number}")));
    let rule = |app: String| {
        let ports = if app == "far" { "" } else { ", ports: [{port: 80}]" };
        let app = if app == "web" { "[web, far]".into() } else { format!("[{app}, some]") };
        format!(
            "{{from: [{{podSelector: {{matchExpressions: [{{key: app, operator: In, values: {app}}}]}}}}]{ports}}}"
        )
    };
    let rules: Vec<String> = labels.map(rule).collect();
    let spec = format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{}]", rules.join(","));
    let world = world(&format!("{PODS}policies:\n{}", policy("db", &spec)));
    let cluster = TrialCluster::new(backend, &world, Wiring::Routed, Mode::Enforce);
    pings(&cluster, FAR, DB, Allow);
    pings(&cluster, WEB, DB, Deny);
    pings(&cluster, OUTSIDE, DB, Deny);
    cluster.probe(&[(flow(WEB[0], DB[0], Protocol::Tcp, 80), Allow)]);
}

pub(crate) fn admin_rules<B: Backend>(backend: B) {
    let policies = [policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{}]")].concat();
    let pods = |app: &str| {
        format!("pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}")
    };
    let admin = format!(
        "adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha1
  kind: AdminNetworkPolicy
  metadata: {{name: first}}
  spec:
    priority: 1
    subject: {{{}}}
    ingress:
    - {{action: Deny, from: [{{{}}}]}}
    - {{action: Deny, from: [{{{}}}], ports: [{{portNumber: {{protocol: TCP, port: 80}}}}]}}",
        pods("db"),
        pods("api"),
        pods("web"),
    );
    let world = world(&format!("{PODS}policies:\n{policies}{admin}"));
    let cluster = TrialCluster::new(backend, &world, Wiring::Routed, Mode::Enforce);
    pings(&cluster, API, DB, Deny);
    cluster.probe(&[(flow(WEB[0], DB[0], Protocol::Tcp, 80), Deny)]);
    pings(&cluster, WEB, DB, Allow);
}

/// Neighbour discovery passes between neighbours only, because its messages can carry any data.
pub(crate) fn neighbour_discovery<B: Backend>(backend: B) {
    for wiring in [Wiring::Routed, Wiring::Bridged] {
        let mut cluster = TrialCluster::new(backend, &world(PODS), wiring, Mode::Enforce);
        let counting = format!("ip6 saddr {} ip6 daddr {} counter", API[1], OUTSIDE[1]);
        node::run(
            &cluster.lab,
            "nft",
            &["-f", "-"],
            &format!(
                "table ip6 seen {{ chain seen {{ type filter hook postrouting priority 0; {counting}; }}; }}"
            ),
        );
        let seen = || node::does(&cluster.lab, "nft list table ip6 seen");
        call_neighbours(&cluster, API[1], OUTSIDE[1]);
        assert!(seen().contains("counter packets 5 "), "{}", seen());
        cluster.put(&policy("all", LOCKED));
        call_neighbours(&cluster, API[1], OUTSIDE[1]);
        let seen = node::does(&cluster.lab, "nft list table ip6 seen");
        assert!(seen.contains("counter packets 5 "), "{wiring:?}: {seen}");
    }
}

/// Sends one message of every type of neighbour discovery.
fn call_neighbours<B: Backend>(cluster: &TrialCluster<B>, from: &str, to: &str) {
    let (from, to) = (address(from), address(to));
    let send = || {
        let (family, kind) = (net::AddressFamily::INET6, net::SocketType::RAW);
        let socket = net::socket(family, kind, Some(net::ipproto::ICMPV6)).unwrap();
        net::sockopt::set_ipv6_unicast_hops(&socket, Some(255)).unwrap();
        net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
        for kind in 133..=137 {
            let message = [kind, 0, 0, 0, 0, 0, 0, 0, b'?'];
            let to = SocketAddr::new(to, 0);
            net::sendto(&socket, &message, net::SendFlags::empty(), &to).unwrap();
        }
    };
    cluster.lab.at(from, send).unwrap();
}

/// `db` allows `api` over UDP only. ICMP errors pass back although nothing else does.
pub(crate) fn port_unreachable<B: Backend>(backend: B) {
    let cluster = TrialCluster::with(backend, &[
        policy("all", LOCKED),
        policy(
            "db",
            "podSelector: {matchLabels: {app: db}},
            ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: UDP}]}]",
        ),
        policy(
            "out",
            "podSelector: {matchExpressions: [{key: app, operator: In, values: [api, web]}]}, policyTypes: [Egress],
            egress: [{to: [{podSelector: {}}], ports: [{protocol: UDP}]}]",
        ),
    ]);
    let said_nothing = |kind| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&kind);
    for (api, (web, db)) in API.into_iter().zip(WEB.into_iter().zip(DB)) {
        assert_eq!(
            knock(&cluster, api, db, ARRIVAL_TIMEOUT),
            ErrorKind::ConnectionRefused,
            "{api}"
        );
        let met = knock(&cluster, web, db, DROP_TIMEOUT);
        assert!(said_nothing(met), "{web}: {met}");
        assert_eq!(cluster.lab.ping(address(db), address(api), DROP_TIMEOUT).unwrap(), Deny);
    }
}

/// The error that a datagram to a closed port gets.
fn knock<B: Backend>(
    cluster: &TrialCluster<B>,
    from: &str,
    to: &str,
    timeout: Duration,
) -> ErrorKind {
    let (from, to) = (address(from), address(to));
    let socket =
        cluster.lab.at(from, || UdpSocket::bind(SocketAddr::new(from, 0))).unwrap().unwrap();
    socket.connect(SocketAddr::new(to, 9999)).unwrap();
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket.send(b"?").unwrap();
    loop {
        match socket.recv(&mut [0; 8]).unwrap_err().kind() {
            // A signal interrupted the call; keep waiting.
            ErrorKind::Interrupted => (),
            met => return met,
        }
    }
}

/// `web` may reach only `far`, over TCP. The last link has a small MTU, which only its node can report.
pub(crate) fn packet_too_big<B: Backend>(backend: B) {
    let cluster = TrialCluster::with(
        backend,
        &[
            policy("all", LOCKED),
            policy(
                "far",
                "podSelector: {matchLabels: {app: far}}, ingress: [{ports: [{port: 80}]}]",
            ),
            policy(
                "web",
                "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress],
            egress: [{to: [{podSelector: {matchLabels: {app: far}}}], ports: [{port: 80}]}]",
            ),
        ],
    );
    let route = cluster.lab.on_node("n2", || ip(&["route", "get", FAR[0]])).unwrap();
    let link = route.split(' ').skip_while(|word| *word != "dev").nth(1).unwrap();
    cluster.lab.on_node("n2", || ip(&["link", "set", link, "mtu", "1300"])).unwrap();
    for (web, far) in WEB.into_iter().zip(FAR) {
        carry(&cluster, address(web), address(far));
        let route = cluster.lab.at(address(web), || ip(&["route", "get", far])).unwrap();
        assert!(route.contains(" mtu 1300 "), "{route}");
        cluster.ping(OTHER_NODE[usize::from(web.contains(':'))], web, Deny);
    }
}

/// Sends much data over TCP.
#[track_caller]
fn carry<B: Backend>(cluster: &TrialCluster<B>, from: IpAddr, to: IpAddr) {
    let port = SocketAddr::new(to, 80);
    let listener = cluster.lab.at(to, || TcpListener::bind(port)).unwrap().unwrap();
    let mut near = cluster.lab.at(from, || TcpStream::connect(port)).unwrap().unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_write_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
    far.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
    let much = vec![7; 500_000];
    let mut received = vec![0; much.len()];
    thread::scope(|scope| {
        scope.spawn(|| near.write_all(&much).unwrap());
        far.read_exact(&mut received).unwrap();
    });
}

fn ip(arguments: &[&str]) -> String {
    let output =
        Command::new("ip").args(arguments).output().expect("the `ip` program is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
