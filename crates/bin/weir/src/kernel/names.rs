//! Domain names of a policy test: a resolver outside answers the questions of pods, and the node
//! learns their addresses from its answers, as an agent does.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use anyhow::Context;
use weir_datapath::{Datapath, Ledger, Outcome};
use weir_engine::Engine;
use weir_lab::{Lab, LabError, Resolver};
use weir_model::{
    Action, Block, Change, Flow, IpFamily, Key, Object, Peer, Policy, PolicyId, PolicyKind,
    PolicyRule, PortMatch, PortRange, PortSpec, Protocol, Scope, Selector, Spec, Subject, Tier,
    Who, World,
};
use weir_names::{
    DnsScope, KnownNames,
    message::{A, AAAA, Message, Record, Value, parse},
};
use weir_netfilter::DnsWatch;

/// The port of resolvers.
const DNS: u16 = 53;
/// The time to live of answers, in seconds.
const TTL: u32 = 300;
/// The time for a packet to pass, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The resolvers of a lab, one for each family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolvers([IpAddr; 2]);

impl Resolvers {
    /// Addresses that neither the world nor a flow has.
    pub(super) fn outside(world: &World, flows: &[Flow]) -> Self {
        let pods = world.pods.values().flat_map(|pod| &pod.addresses);
        let nodes = world.nodes.values().flat_map(|node| &node.addresses);
        let names = world.domains.values().flatten();
        let ends = flows.iter().flat_map(|flow| [flow.from, flow.to]);
        let taken: BTreeSet<IpAddr> = pods.chain(nodes).chain(names).copied().chain(ends).collect();
        let is_free = |address: &IpAddr| !taken.contains(address);
        let v4 = |last: u32| IpAddr::from(Ipv4Addr::from(0xc000_0200 + last));
        let v6 =
            |last: u32| IpAddr::from(Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(last)));
        let first = u32::from(DNS);
        Resolvers([
            (first..256).map(v4).find(is_free).unwrap_or(v4(first)),
            (first..0x1_0000).map(v6).find(is_free).unwrap_or(v6(first)),
        ])
    }

    fn of(self, pod: IpAddr) -> SocketAddr {
        let [v4, v6] = self.0;
        SocketAddr::new(if pod.is_ipv4() { v4 } else { v6 }, DNS)
    }

    /// The policy that lets every pod ask, before all others. Its name sorts first.
    pub(super) fn policy(self) -> Change {
        let kind = PolicyKind::AdminNetworkPolicy;
        let id = PolicyId { kind, namespace: "".into(), name: "".into() };
        let peer = |address| Peer { index: 0, line: 0, who: Who::Block(Block::host(address)) };
        let port =
            |protocol| PortSpec { line: 0, ports: PortMatch::Range(PortRange::one(protocol, DNS)) };
        let rule = PolicyRule {
            index: 0,
            name: None,
            line: 0,
            action: Action::Allow,
            peers: Some(self.0.map(peer).to_vec()),
            ports: Some([Protocol::Udp, Protocol::Tcp].map(port).to_vec()),
        };
        let everything = Selector::everything;
        let subject = Subject { scope: Scope::Matching(everything()), pods: everything() };
        let tier = Tier::Admin { priority: 0 };
        let spec = Arc::new(Spec { tier, subject, ingress: None, egress: Some(vec![rule]) });
        Change::Put(Object::Policy(Policy { id, location: None, spec, staged: false }))
    }
}

/// Whether a change gives addresses to a name.
pub(super) fn is_name(change: &Change) -> bool {
    matches!(change, Change::Put(Object::Domain(..)) | Change::Remove(Key::Domain(_)))
}

/// Lets every pod of a node that has a rule about a name ask for all names of the world, and puts
/// the addresses in the answers in force before the pod gets them. The node observes DNS as long as
/// the result exists.
pub(super) fn learn<D: Datapath>(
    lab: &Lab,
    node: &str,
    world: &World,
    resolvers: Resolvers,
    (engine, ledger): (&mut Engine, &mut Ledger<D>),
) -> anyhow::Result<Option<DnsWatch>> {
    let mut scope = DnsScope::from_program(ledger.program());
    scope.resolvers = resolvers.0.into();
    if scope.pods.is_empty() {
        return Ok(None);
    }
    let domains = world.domains.clone();
    let answers = Arc::new(move |bytes: &[u8]| {
        let question = parse(bytes);
        let answer = |question: &Message| {
            let name = &question.question.name;
            let all = domains.get(name).into_iter().flatten();
            let wanted = all.filter(|address| kind_of(**address) == question.question.kind);
            let records = wanted.map(|address| {
                let value = Value::Address(*address);
                Record { owner: name.clone(), ttl: TTL, value }
            });
            question.answer(records.collect()).encode()
        };
        question.iter().map(answer).collect()
    });
    let needed: BTreeSet<SocketAddr> = scope.pods.iter().map(|pod| resolvers.of(*pod)).collect();
    let _running = needed
        .into_iter()
        .map(|at| Resolver::start(lab, at, answers.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let (sender, held) = mpsc::channel();
    let start = || DnsWatch::start(move |answer| _ = sender.send(answer));
    let mut watch = lab.on_node(node, start)?.context("cannot observe DNS")?;
    watch.watch(&scope).context("cannot observe DNS")?;
    let mut known = KnownNames::default();
    let mut id = 0;
    for pod in &scope.pods {
        for (name, addresses) in world.domains.iter().filter(|(name, _)| scope.has_name(name)) {
            for family in IpFamily::BOTH {
                if !addresses.iter().any(|address| IpFamily::from(*address) == family) {
                    continue;
                }
                id += 1;
                let kind = if family == IpFamily::V4 { A } else { AAAA };
                let question = Message::question(id, name, kind);
                let failed = || format!("{pod} cannot resolve {name}");
                let asked = ask(lab, *pod, resolvers.of(*pod), &question)?;
                let socket = asked.with_context(failed)?;
                let answer = held.recv_timeout(ANSWER_TIMEOUT);
                let answer =
                    answer.with_context(|| format!("the answer about {name} was not observed"))?;
                for answer in &answer.answers {
                    let learned = known.learn(answer, Instant::now());
                    ledger.add_delta(engine.apply(learned.changes));
                    if let Outcome::Failed { error, .. } = ledger.apply_pending() {
                        return Err(error).context("cannot apply the addresses of a name");
                    }
                }
                drop(answer);
                socket.recv(&mut [0; 512]).with_context(failed)?;
            }
        }
    }
    Ok(Some(watch))
}

/// Sends a question of a pod.
fn ask(
    lab: &Lab,
    pod: IpAddr,
    resolver: SocketAddr,
    question: &Message,
) -> Result<io::Result<UdpSocket>, LabError> {
    lab.at(pod, || {
        let socket = UdpSocket::bind(SocketAddr::new(pod, 0))?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.send_to(&question.encode(), resolver)?;
        Ok(socket)
    })
}

/// The type of records with this address.
fn kind_of(address: IpAddr) -> u16 {
    if address.is_ipv4() { A } else { AAAA }
}
