//! Rules about domain names, with real resolvers and real packets.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use weir_api::ManifestReader;
use weir_lab::{Answers, Conversation, Lab, Layout, Resolver};
use weir_model::{Flow, Protocol, Verdict, World};
use weir_names::message::{A, AAAA, Message, Record, Value, parse};

use crate::{
    filter::Filter,
    node::{Agent, HTTP, Node},
    schema,
};

const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.0.0.2}
";

/// A policy that allows some names, and otherwise only DNS.
const POLICY: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}
  egress:
  - action: Accept
    to: [{networks: [192.0.2.0/24]}]
    protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]
  - {action: Accept, to: [{domainNames: [api.example.com, '*.wild.example.com']}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}
";

const WEB: &str = "10.0.0.1";
const WEB6: &str = "fd00::1";
/// The resolver that the agent trusts, and one that it does not.
const RESOLVER: &str = "192.0.2.53";
const OTHER_RESOLVER: &str = "192.0.2.54";
/// The port of datagrams that are counted.
const PORT: u16 = 4433;
/// The time for an expected datagram to arrive, on a busy machine.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A node with an agent, a resolver, and a server that collects the datagrams that arrive outside.
struct Names {
    node: Node,
    agent: Agent,
    arrived: Arc<Mutex<BTreeSet<String>>>,
    is_stopping: Arc<AtomicBool>,
    next_id: AtomicU16,
}

impl Names {
    fn new(filter: Filter) -> Self {
        Names::with(filter, &[])
    }

    /// A node whose agent has more options.
    fn with(filter: Filter, more: &[&str]) -> Self {
        let mut reader = ManifestReader::new();
        reader.read_file("pods.yaml".into(), PODS.as_bytes());
        let world: World = reader.finish().objects.into_iter().collect();
        let lab = Lab::build(&Layout::from_world(&world, &[])).unwrap();
        let node = Node::of(filter, lab);
        node.write("pods.yaml", PODS);
        node.write("policy.yaml", POLICY);
        let agent = node.started(&[&["--resolver", RESOLVER][..], more].concat());
        let (arrived, is_stopping) = (Arc::default(), Arc::default());
        let names = Names { node, agent, arrived, is_stopping, next_id: AtomicU16::new(1) };
        names.collect();
        names.observed();
        names
    }

    /// Waits until the agent observes DNS.
    fn observed(&self) {
        let table = || self.node.run("nft", &["list", "table", "inet", "weir-names"]);
        self.node.until("the agent observes DNS", || table().status.success());
    }

    /// Collects datagrams outside, of both families.
    fn collect(&self) {
        let bind = || UdpSocket::bind(("::", PORT)).unwrap();
        let outside = "203.0.113.1".parse().unwrap();
        let socket = self.node.lab.at(outside, bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (arrived, is_stopping) = (self.arrived.clone(), self.is_stopping.clone());
        thread::spawn(move || {
            let mut buffer = [0; 300];
            while !is_stopping.load(Ordering::Relaxed) {
                if let Ok((length, _)) = socket.recv_from(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    arrived.lock().unwrap().insert(text);
                }
            }
        });
    }

    fn resolver(&self, at: &str, answers: Arc<Answers>) -> Resolver {
        let at = SocketAddr::new(at.parse().unwrap(), 53);
        Resolver::start(&self.node.lab, at, answers).unwrap()
    }

    fn question(&self, name: &str, kind: u16) -> Message {
        Message::question(self.next_id.fetch_add(1, Ordering::Relaxed), name, kind)
    }

    /// Sends a question over UDP from the pod `web` and returns the socket.
    fn ask(&self, question: &Message, resolver: &str) -> UdpSocket {
        let bind = || UdpSocket::bind((WEB, 0)).unwrap();
        let socket = self.node.lab.at(WEB.parse().unwrap(), bind).unwrap();
        socket.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
        socket.send_to(&question.encode(), (resolver, 53)).unwrap();
        socket
    }

    /// Asks the resolver and waits for the answer.
    fn resolve(&self, name: &str, kind: u16) -> Message {
        let question = self.question(name, kind);
        let answer = receive(&self.ask(&question, RESOLVER));
        assert_eq!((answer.id, &answer.question), (question.id, &question.question));
        answer
    }

    /// The same over TCP.
    fn resolve_by_tcp(&self, name: &str, kind: u16) -> Message {
        let question = self.question(name, kind).encode();
        let connect = || TcpStream::connect((RESOLVER, 53)).unwrap();
        let mut stream = self.node.lab.at(WEB.parse().unwrap(), connect).unwrap();
        stream.set_read_timeout(Some(ARRIVAL_TIMEOUT)).unwrap();
        stream.write_all(&(question.len() as u16).to_be_bytes()).unwrap();
        // The question takes two segments.
        let (first, second) = question.split_at(20);
        stream.write_all(first).unwrap();
        thread::sleep(Duration::from_millis(20));
        stream.write_all(second).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).unwrap();
        parse(&answer).unwrap()
    }

    /// Sends one datagram from the pod `web`.
    fn send(&self, to: &str, text: &str) {
        let from: IpAddr = if to.contains(':') { WEB6 } else { WEB }.parse().unwrap();
        let socket = self.node.lab.at(from, || UdpSocket::bind((from, 0)).unwrap()).unwrap();
        // A denied datagram can be an error.
        _ = socket.send_to(text.as_bytes(), SocketAddr::new(to.parse().unwrap(), PORT));
    }

    /// Whether a datagram arrives. Only for datagrams that must.
    #[track_caller]
    fn assert_arrives(&self, text: &str) {
        self.node.until(&format!("{text} arrives"), || self.has_arrived(text));
    }

    fn has_arrived(&self, text: &str) -> bool {
        self.arrived.lock().unwrap().contains(text)
    }

    /// Sends one datagram to an address that is allowed, after which all earlier ones have arrived.
    #[track_caller]
    fn flush(&self, allowed: &str, text: &str) {
        self.send(allowed, text);
        self.assert_arrives(text);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}

fn receive(socket: &UdpSocket) -> Message {
    let mut buffer = [0; 65_535];
    let length = socket.recv(&mut buffer).expect("an answer");
    parse(&buffer[..length]).expect("a message")
}

fn address(owner: &str, ttl: u32, address: &str) -> Record {
    Record { owner: owner.into(), ttl, value: Value::Address(address.parse().unwrap()) }
}

fn alias(owner: &str, target: &str) -> Record {
    Record { owner: owner.into(), ttl: 300, value: Value::Alias(target.into()) }
}

/// The records that an honest resolver returns.
fn honest(question: &Message) -> Vec<Record> {
    match (&*question.question.name, question.question.kind) {
        ("api.example.com", A) => vec![address("api.example.com", 300, "198.51.100.1")],
        ("api.example.com", AAAA) => vec![address("api.example.com", 300, "2001:db8::1")],
        ("a.wild.example.com", A) => vec![
            alias("a.wild.example.com", "edge.cdn.example.net"),
            alias("edge.cdn.example.net", "e7.cdn.example.net"),
            address("e7.cdn.example.net", 20, "198.51.100.7"),
        ],
        ("x.y.wild.example.com", A) => vec![address("x.y.wild.example.com", 1, "198.51.100.8")],
        ("wild.example.com", A) => vec![address("wild.example.com", 300, "198.51.100.9")],
        ("other.example.com", A) => vec![address("other.example.com", 300, "198.51.100.10")],
        _ => Vec::new(),
    }
}

fn honest_answers() -> Arc<Answers> {
    Arc::new(|bytes: &[u8]| {
        let question = parse(bytes);
        question.iter().map(|question| question.answer(honest(question)).encode()).collect()
    })
}

pub(crate) fn answers_open(filter: Filter) {
    let names = Names::with(filter, &["--denied", "reject", "--reject-to", "10.0.0.0/8"]);
    let _resolver = names.resolver(RESOLVER, honest_answers());
    names.send("198.51.100.1", "before any answer");
    names.resolve("api.example.com", A);
    names.flush("198.51.100.1", "A");
    assert!(!names.has_arrived("before any answer"));
    names.resolve("api.example.com", AAAA);
    names.flush("2001:db8::1", "AAAA");
    names.resolve("a.wild.example.com", A);
    names.flush("198.51.100.7", "aliases");
    names.resolve_by_tcp("x.y.wild.example.com", A);
    names.flush("198.51.100.8", "TCP");

    // Other names, other addresses and other pods.
    names.resolve("wild.example.com", A);
    names.send("198.51.100.9", "the parent of a wildcard");
    names.resolve("other.example.com", A);
    names.send("198.51.100.10", "another name");
    names.send("198.51.100.2", "another address");
    names.flush("198.51.100.1", "A again");
    for text in ["the parent of a wildcard", "another name", "another address"] {
        assert!(!names.has_arrived(text), "{text}");
    }

    let list = || String::from_utf8(names.node.weir(&["names"]).stdout).unwrap();
    names.node.until("the names are listed", || list().contains("x.y.wild.example.com"));
    let text = list();
    for words in ["api.example.com", "198.51.100.1", "2001:db8::1", "198.51.100.8"] {
        assert!(text.contains(words), "{text}");
    }
    let json = names.node.weir(&["names", "198.51.100.7", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    schema::check(&json);
    assert_eq!(json["names"][0]["name"], "a.wild.example.com");
    let unknown = names.node.weir(&["names", "198.51.100.2"]);
    assert_eq!(unknown.status.code(), Some(1));

    // The commands that evaluate rules use the names and the options of the agent.
    let folder = names.node.path().to_str().unwrap();
    let live = ["render", "--live", "-f", folder, "--node", "n1", "--datapath", filter.datapath()];
    let live = names.node.weir(&live);
    let difference = String::from_utf8_lossy(&live.stdout).into_owned();
    assert_eq!((live.status.code(), difference.trim()), (Some(0), "no difference"));
    let explain = |more: &[&str]| {
        let all = ["explain", "-f", folder, "--from", "shop/web", "--to", "198.51.100.7"];
        let output = names.node.weir(&[&all[..], &["--port", "443"], more].concat());
        let texts = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (output.status.code(), texts)
    };
    let (code, [text, notes]) = explain(&["--agent", HTTP]);
    assert_eq!(code, Some(0), "{text}{notes}");
    assert!(text.contains("198.51.100.7 stands for a.wild.example.com until 20"), "{text}");
    assert!(!notes.contains("has no addresses"), "{notes}");
    let (code, [text, notes]) = explain(&[]);
    assert_eq!(code, Some(1), "{text}{notes}");
    assert!(notes.contains("weir has no addresses of api.example.com here"), "{notes}");

    // Without the rule, the name is closed and DNS is no longer observed.
    names.node.write("policy.yaml", &POLICY.replace("api.example.com", "no.example.com"));
    names.node.until("the name is closed", || {
        names.node.get("/names").is_some_and(|(_, names)| !names.contains("198.51.100.1"))
    });
    names.send("198.51.100.1", "without the rule");
    names.flush("198.51.100.7", "with the rule");
    assert!(!names.has_arrived("without the rule"));
    std::fs::remove_file(names.node.path().join("policy.yaml")).unwrap();
    let table = || names.node.run("nft", &["list", "table", "inet", "weir-names"]);
    names.node.until("the table is gone", || !table().status.success());
}

/// The number of first connections.
const CONNECTIONS: usize = 500;
const CLIENTS: usize = 4;

pub(crate) fn first_connections(filter: Filter) {
    let names = Names::new(filter);
    let host = |number: usize| format!("100.70.{}.{}", number / 250, number % 250 + 1);
    let answers = move |bytes: &[u8]| {
        let Some(question) = parse(bytes) else { return Vec::new() };
        let name = question.question.name.clone();
        let number = name.split('.').next().and_then(|label| label[1..].parse().ok());
        let Some(number) = number else { return Vec::new() };
        vec![question.answer(vec![address(&name, 5, &host(number))]).encode()]
    };
    let _resolver = names.resolver(RESOLVER, Arc::new(answers));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let names = &names;
            scope.spawn(move || {
                for number in (client..CONNECTIONS).step_by(CLIENTS) {
                    // An address that no answer has given yet, and never will.
                    names.send(&format!("100.71.{client}.{}", number % 250), "not given");
                    names.resolve(&format!("n{number}.wild.example.com"), A);
                    names.send(&host(number), &format!("connection {number}"));
                }
            });
        }
    });
    for number in 0..CONNECTIONS {
        names.assert_arrives(&format!("connection {number}"));
    }
    assert!(!names.has_arrived("not given"));
    assert_eq!(names.arrived.lock().unwrap().len(), CONNECTIONS);
}

/// A way to lie about `api.example.com`: the datagrams that answer a question.
type Lie = (&'static str, fn(&Message) -> Vec<Vec<u8>>);

/// The address of the lies.
const EVIL: &str = "203.0.113.66";

fn evil(question: &Message) -> Message {
    question.answer(vec![address("api.example.com", 300, EVIL)])
}

fn all_lies() -> Vec<Lie> {
    vec![
        ("wrong id", |question| {
            vec![Message { id: question.id.wrapping_add(1), ..evil(question) }.encode()]
        }),
        ("wrong name in the question", |question| {
            let mut answer = evil(question);
            answer.question.name = "www.example.com".into();
            vec![answer.encode()]
        }),
        ("wrong type in the question", |question| {
            let mut answer = evil(question);
            answer.question.kind = AAAA;
            vec![answer.encode()]
        }),
        ("a second answer", |question| {
            vec![question.answer(Vec::new()).encode(), evil(question).encode()]
        }),
        ("truncated by its flag", |question| {
            let mut bytes = evil(question).encode();
            bytes[2] |= 0x02;
            vec![bytes]
        }),
        ("truncated in a record", |question| {
            let mut bytes = evil(question).encode();
            bytes.truncate(bytes.len() - 1);
            vec![bytes]
        }),
        ("a time to live that is too long", |question| {
            vec![question.answer(vec![address("api.example.com", u32::MAX, EVIL)]).encode()]
        }),
        ("thousands of addresses", |question| {
            let host = |number: u32| format!("203.0.{}.{}", 113 + number / 200, number % 200 + 1);
            let records = (0..1500).map(|number| address("api.example.com", 300, &host(number)));
            vec![question.answer(records.collect()).encode()]
        }),
        ("an alias of another name", |question| {
            let records = vec![
                alias("www.example.com", "evil.example.net"),
                address("evil.example.net", 300, EVIL),
            ];
            vec![question.answer(records).encode()]
        }),
        ("two different aliases", |question| {
            let records = vec![
                alias("api.example.com", "good.example.net"),
                alias("api.example.com", "evil.example.net"),
                address("evil.example.net", 300, EVIL),
            ];
            vec![question.answer(records).encode()]
        }),
        ("a loop of aliases", |question| {
            let records = vec![
                alias("api.example.com", "evil.example.net"),
                alias("evil.example.net", "api.example.com"),
                address("evil.example.net", 300, EVIL),
            ];
            vec![question.answer(records).encode()]
        }),
        ("a failure", |question| vec![Message { is_success: false, ..evil(question) }.encode()]),
        ("a question instead of an answer", |question| {
            vec![Message { is_response: false, ..evil(question) }.encode()]
        }),
        ("an address that never leaves a machine", |question| {
            let records = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"];
            let records = records.map(|special| address("api.example.com", 300, special));
            vec![question.answer(records.to_vec()).encode()]
        }),
        ("an address of the other family", |question| {
            vec![question.answer(vec![address("api.example.com", 300, "2001:db8::66")]).encode()]
        }),
        ("a record of another class", |question| {
            let mut bytes = evil(question).encode();
            // Class and time to live come before the length and the four bytes of the address.
            let class = bytes.len() - 4 - 2 - 4 - 1;
            bytes[class] = 3;
            vec![bytes]
        }),
    ]
}

/// The resolver answers the first question too late: when it gets the second one.
const LATE: &str = "late.wild.example.com";
const AFTER_LATE: &str = "later.wild.example.com";
/// An answer that arrives this long after its question is late.
const LATE_AFTER: Duration = Duration::from_secs(11);

pub(crate) fn lies(filter: Filter) {
    let names = Names::new(filter);
    let lie: Arc<Mutex<Option<Lie>>> = Arc::default();
    let current = lie.clone();
    let late: Mutex<Option<Message>> = Mutex::default();
    let liar = move |bytes: &[u8]| {
        let Some(question) = parse(bytes) else { return Vec::new() };
        match &*question.question.name {
            LATE => {
                let answer = question.answer(vec![address(LATE, 300, EVIL)]);
                *late.lock().unwrap() = Some(answer);
                return Vec::new();
            }
            AFTER_LATE => return late.lock().unwrap().iter().map(Message::encode).collect(),
            _ => (),
        }
        match *current.lock().unwrap() {
            Some((_, answers)) => answers(&question),
            None => vec![question.answer(honest(&question)).encode()],
        }
    };
    let _resolver = names.resolver(RESOLVER, Arc::new(liar));
    let evil_only = |question: &Message| vec![evil(question).encode()];
    let answers = move |bytes: &[u8]| parse(bytes).iter().flat_map(evil_only).collect();
    let _other = names.resolver(OTHER_RESOLVER, Arc::new(answers));

    let late = names.question(LATE, A);
    let late_socket = names.ask(&late, RESOLVER);
    // When a later question has its answer, the agent has observed this one.
    names.resolve("x.y.wild.example.com", A);
    let asked = Instant::now();
    for lie_now in all_lies() {
        *lie.lock().unwrap() = Some(lie_now);
        let question = names.question("api.example.com", A);
        let socket = names.ask(&question, RESOLVER);
        // The pod gets every answer. The honest one to the next question comes after them.
        let mut buffer = [0; 65_535];
        socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{}: {error}", lie_now.0));
        *lie.lock().unwrap() = None;
        names.resolve("x.y.wild.example.com", A);
        names.send(EVIL, lie_now.0);
    }
    thread::sleep(LATE_AFTER.saturating_sub(asked.elapsed()));
    let after = names.question(AFTER_LATE, A).encode();
    late_socket.send_to(&after, (RESOLVER, 53)).unwrap();
    assert_eq!(receive(&late_socket).id, late.id);
    names.send(EVIL, "late");
    // A resolver that the agent does not trust.
    receive(&names.ask(&names.question("api.example.com", A), OTHER_RESOLVER));
    names.send(EVIL, "another resolver");
    names.flush("198.51.100.8", "the truth");
    let arrived = names.arrived.lock().unwrap().clone();
    assert_eq!(arrived, BTreeSet::from(["the truth".to_owned()]));
    let (_, listed) = names.node.get("/names").unwrap();
    assert!(!listed.contains("203.0.") && !listed.contains("api.example.com"), "{listed}");
}

pub(crate) fn restart(filter: Filter) {
    let mut names = Names::new(filter);
    let _resolver = names.resolver(RESOLVER, honest_answers());
    names.resolve("api.example.com", A);
    names.node.until("the name is recorded", || {
        names.node.get("/names").is_some_and(|(_, names)| names.contains("198.51.100.1"))
    });
    names.agent.kill();
    names.flush("198.51.100.1", "without an agent");
    // DNS works without an agent, and opens nothing.
    names.resolve("a.wild.example.com", A);
    names.send("198.51.100.7", "an answer without an agent");
    names.agent = names.node.started(&["--resolver", RESOLVER]);
    names.flush("198.51.100.1", "with the next agent");
    assert!(!names.has_arrived("an answer without an agent"));
    names.node.until("the name is listed", || {
        names.node.get("/names").is_some_and(|(_, names)| names.contains("api.example.com"))
    });
    names.observed();
    names.resolve("a.wild.example.com", A);
    names.flush("198.51.100.7", "an answer with an agent");
}

/// The time after which a packet counts as lost.
const DROP_TIMEOUT: Duration = Duration::from_millis(300);

impl Names {
    /// Opens a connection of the pod `web`.
    fn converse(&self, to: &str) -> Conversation {
        let (from, to) = (WEB.parse().unwrap(), to.parse().unwrap());
        let flow = Flow { from, to, protocol: Protocol::Tcp, port: 443 };
        self.node.lab.converse(flow, ARRIVAL_TIMEOUT).unwrap()
    }

    /// The journal of the agent.
    fn journal(&self, filter: Filter) -> String {
        let command = match filter.datapath() {
            "nftables" | "ebpf" => ["nft", "list", "table", "inet", "weir-journal"].as_slice(),
            _ => &["ipset", "save", "weir-journal"],
        };
        let output = self.node.run(command[0], &command[1..]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Writes the journal as if all names had expired.
    fn expire_journal(&self, filter: Filter) {
        let journal = self.journal(filter);
        let mut words = journal.split('=');
        let mut expired = words.next().unwrap().to_owned();
        for word in words {
            let rest = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
            let time = if rest == word { "" } else { "1000000000" };
            expired.push_str(&format!("={time}{rest}"));
        }
        let file = self.node.path().with_extension("journal");
        std::fs::write(&file, expired).unwrap();
        let load = match filter.datapath() {
            "nftables" | "ebpf" => "nft delete table inet weir-journal && nft -f $0",
            _ => "ipset destroy weir-journal && ipset restore -f $0",
        };
        let output = self.node.run("sh", &["-ec", load, file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

pub(crate) fn expired_connections(filter: Filter) {
    let mut names = Names::new(filter);
    let _resolver = names.resolver(RESOLVER, honest_answers());
    names.resolve("api.example.com", A);
    let mut talk = names.converse("198.51.100.1");
    let continues = |talk: &mut Conversation, why: &str| {
        assert_eq!(talk.exchange(ARRIVAL_TIMEOUT).unwrap(), Verdict::Allow, "{why}");
    };
    // The address expires while no agent runs; then it has expired before the agent ends.
    for record in ["name api.example.com", "former api.example.com"] {
        names.node.write("policy.yaml", POLICY);
        names.node.until("the name with a wildcard is observed", || {
            names.resolve("a.wild.example.com", A);
            let listed = names.node.get("/names");
            listed.is_some_and(|(_, listed)| listed.contains("a.wild.example.com"))
        });
        let mut other = names.converse("198.51.100.7");
        continues(&mut other, "the name has the address");
        names.node.until(record, || names.journal(filter).contains(record));
        names.agent.kill();
        names.expire_journal(filter);
        continues(&mut talk, "without an agent");
        // The next agent ends the connections to names without a rule.
        names.node.write("policy.yaml", &POLICY.replace("*.wild.", "*.other."));
        names.agent = names.node.started(&["--resolver", RESOLVER]);
        names.node.until("a connection without a rule ends", || {
            other.exchange(DROP_TIMEOUT).is_ok_and(|verdict| verdict == Verdict::Deny)
        });
        continues(&mut talk, record);
        names.observed();
        names.node.until("the address has left its name", || {
            names.journal(filter).contains("former api.example.com")
        });
        names.send("198.51.100.1", "a new connection");
        names.resolve("api.example.com", AAAA);
        names.flush("2001:db8::1", record);
        assert!(!names.has_arrived("a new connection"), "{record}");
    }
}
