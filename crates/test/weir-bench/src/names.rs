//! Domain names: the cost of a DNS answer that waits until its addresses are in force.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use weir_datapath::{Established, Ledger, Mode};
use weir_engine::{Engine, Locality};
use weir_lab::{Lab, Layout, Resolver};
use weir_model::{Change, World};
use weir_names::{
    DnsAnswer, DnsScope, HeldAnswer, KnownNames, MAX_ADDRESSES,
    message::{A, Message, Record, Value, parse},
};
use weir_netfilter::DnsWatch;
use weir_nft::Nft;

use crate::measure::{process_cpu, resident};

/// Measures a node with one pod and a rule about `*.example.com`, with `--datapath nftables`.
#[derive(Args, Debug)]
pub(crate) struct NamesBench {
    /// Questions in each round.
    #[arg(long, default_value_t = 2000)]
    questions: u32,
}

const CASE: &str = "
namespaces: [{name: shop}]
nodes: [{name: n1, ips: [192.168.0.1]}]
pods: [{namespace: shop, name: web, ips: [10.0.0.1], node: n1}]
adminPolicies:
- apiVersion: policy.networking.k8s.io/v1alpha2
  kind: ClusterNetworkPolicy
  metadata: {name: names}
  spec:
    tier: Admin
    priority: 10
    subject: {namespaces: {}}
    egress:
    - {action: Accept, to: [{networks: [192.0.2.53/32]}]}
    - {action: Accept, to: [{domainNames: ['*.example.com']}]}
    - {action: Deny, to: [{networks: [0.0.0.0/0]}]}
dns: {unrelated.example.net: [203.0.113.1]}
probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]
";

const TIMEOUT: Duration = Duration::from_secs(20);

impl NamesBench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        weir_lab::enter()?;
        let case = weir_api::cases("case.yaml".into(), CASE.as_bytes()).pop();
        let world: World = case.context("a case")?.objects.into_iter().collect();
        let lab = Lab::build(&Layout::from_world(&world, &[]))?;
        let datapath = lab.on_node("n1", || Nft::open(Mode::Enforce))??;
        let mut engine = Engine::new(Locality::Node("n1".into()));
        let mut ledger = Ledger::new(datapath, Established::Keep);
        ledger.add_delta(engine.apply(world.changes()));
        ledger.set_in_sync();
        ledger.apply_pending();
        let resolver: SocketAddr = "192.0.2.53:53".parse()?;
        let _resolver = Resolver::start(&lab, resolver, Arc::new(|bytes: &[u8]| answers(bytes)))?;
        let pod: IpAddr = "10.0.0.1".parse()?;
        let socket = lab.at(pod, || UdpSocket::bind((pod, 0)))??;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let ask = |number: u32| -> Result<()> {
            let id = u16::try_from(number % 60_000)?;
            let question = Message::question(id, &format!("n{number}.example.com"), A);
            socket.send_to(&question.encode(), resolver)?;
            socket.recv(&mut [0; 512])?;
            Ok(())
        };
        let round = |first: u32| -> Result<[f64; 2]> {
            let (cpu, start) = (process_cpu(), Instant::now());
            (first..first + self.questions).try_for_each(ask)?;
            let micros = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(self.questions);
            Ok([micros(start.elapsed()), micros(process_cpu() - cpu)])
        };
        round(0)?;
        let without = round(0)?;

        let (sender, held) = mpsc::channel::<HeldAnswer>();
        let start = || DnsWatch::start(move |answer| _ = sender.send(answer));
        let mut watch = lab.on_node("n1", start)??;
        let mut scope = DnsScope::from_program(ledger.program());
        scope.resolvers = [resolver.ip()].into();
        watch.watch(&scope)?;
        let (new, known) = thread::scope(|threads| -> Result<_> {
            let work = threads.spawn(move || {
                let mut known = KnownNames::default();
                for answer in held {
                    let now = Instant::now();
                    let learn = |one: &DnsAnswer| known.learn(one, now).changes;
                    let changes: Vec<Change> = answer.answers.iter().flat_map(learn).collect();
                    if !changes.is_empty() {
                        ledger.add_delta(engine.apply(changes));
                        ledger.apply_pending();
                    }
                }
                known.iter().count()
            });
            let rounds = (round(0), round(0));
            // Ends the thread of the watch, and with it the sender.
            drop(watch);
            let learned = work.join().map_err(|_| anyhow::anyhow!("the loop panicked"))?;
            ensure!(learned == self.questions as usize, "{learned} addresses were learned");
            Ok((rounds.0?, rounds.1?))
        })?;
        writeln!(out, "DNS question and answer, one after the other; µs each, both ends included")?;
        writeln!(out, "{:32} {:>9} {:>9}", "", "elapsed", "CPU")?;
        for (what, [elapsed, cpu]) in
            [("not observed", without), ("observed, address known", known), ("new address", new)]
        {
            writeln!(out, "{what:32} {elapsed:9.0} {cpu:9.0}")?;
        }
        let before = resident()?;
        let mut full = KnownNames::default();
        for number in 0..u32::try_from(MAX_ADDRESSES)? {
            let addresses = [(address(number), Duration::from_secs(300))].into();
            let name = format!("n{number}.example.com").into();
            full.learn(&DnsAnswer { pod, name, addresses }, Instant::now());
        }
        let bytes = resident()?.saturating_sub(before);
        writeln!(out, "{} addresses: {} KiB", full.iter().count(), bytes >> 10)?;
        Ok(())
    }
}

/// The address of a name with this number.
fn address(number: u32) -> IpAddr {
    (0x6446_0000 + number).to_be_bytes().into()
}

fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let answer = |question: Message| {
        let owner = question.question.name.clone();
        let number = owner.split('.').next()?.strip_prefix('n')?.parse().ok()?;
        let value = Value::Address(address(number));
        Some(question.answer(vec![Record { owner, ttl: 300, value }]).encode())
    };
    parse(bytes).and_then(answer).into_iter().collect()
}
