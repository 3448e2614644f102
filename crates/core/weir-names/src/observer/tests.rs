use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use proptest::prelude::*;
use weir_model::DomainPattern;

use super::*;
use crate::message::{A, AAAA, Record, Value};

const POD: &str = "10.0.0.1:40000";
const RESOLVER: &str = "192.0.2.53:53";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn scope() -> DnsScope {
    DnsScope {
        pods: [at(POD).ip()].into(),
        patterns: [
            DomainPattern::Exact("api.example.com".into()),
            DomainPattern::Under("wild.example.com".into()),
        ]
        .into(),
        resolvers: [at(RESOLVER).ip()].into(),
        resolver_networks: Vec::new(),
    }
}

fn packet<'a>(from: &str, to: &str, payload: &'a [u8]) -> DnsPacket<'a> {
    // The links of the pod, and of the way to the resolver.
    let link = Some(if at(from).ip() == at(POD).ip() { 1 } else { 2 });
    DnsPacket { from: at(from), to: at(to), segment: None, payload, local: None, link }
}

fn answer(question: &Message) -> Message {
    let value = Value::Address([198, 51, 100, 1].into());
    let record = Record { owner: question.question.name.clone(), ttl: 300, value };
    question.answer(vec![record])
}

/// The observer, its scope, and its clock.
struct Bench {
    observer: DnsObserver,
    scope: DnsScope,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Bench { observer: DnsObserver::default(), scope: scope(), now: Instant::now() }
    }

    fn send(&mut self, from: &str, to: &str, message: &Message) -> Handling {
        let bytes = message.encode();
        self.observer.observe(&packet(from, to, &bytes), &self.scope, self.now)
    }

    fn segment(&mut self, toward: Toward, segment: Segment, payload: &[u8]) -> Handling {
        let (from, to) = match toward {
            Toward::Resolver => (POD, RESOLVER),
            Toward::Pod => (RESOLVER, POD),
        };
        let packet = DnsPacket { segment: Some(segment), ..packet(from, to, payload) };
        self.observer.observe(&packet, &self.scope, self.now)
    }

    /// Whether an answer to this question counts.
    fn is_held(&mut self, question: &Message) -> bool {
        let handling = self.send(RESOLVER, POD, &answer(question));
        matches!(handling, Handling::Hold(answers) if !answers.is_empty())
    }
}

fn question(name: &str) -> Message {
    Message::question(7, name, A)
}

#[test]
fn an_answer_is_held_once() {
    let mut bench = Bench::new();
    let question = question("API.example.com");
    assert_eq!(bench.send(POD, RESOLVER, &question), Handling::Deliver);
    let Handling::Hold(answers) = bench.send(RESOLVER, POD, &answer(&question)) else {
        panic!("the answer is not held");
    };
    assert_eq!((&*answers[0].name, answers[0].pod), ("api.example.com", at(POD).ip()));
    let address = IpAddr::from([198, 51, 100, 1]);
    assert_eq!(answers[0].addresses, [(address, Duration::from_secs(300))].into());
    // A second answer teaches nothing, but waits until the addresses of the first are in force.
    let second = bench.send(RESOLVER, POD, &answer(&question));
    assert_eq!(second, Handling::Hold(Vec::new()));
    bench.now += Duration::from_secs(11);
    assert_eq!(bench.send(RESOLVER, POD, &answer(&question)), Handling::Deliver);
}

#[test]
fn wildcards_match_names_below_and_nothing_else() {
    let mut bench = Bench::new();
    let names =
        [("a.wild.example.com", true), ("a.b.wild.example.com", true), ("wild.example.com", false)];
    let more = [("awild.example.com", false), ("wild.example.com.net", false)];
    for (name, is_held) in names.into_iter().chain(more) {
        bench.send(POD, RESOLVER, &question(name));
        assert_eq!(bench.is_held(&question(name)), is_held, "{name}");
    }
}

#[test]
fn a_late_answer_teaches_nothing() {
    let mut bench = Bench::new();
    let question = question("api.example.com");
    bench.send(POD, RESOLVER, &question);
    bench.now += Duration::from_secs(11);
    assert!(!bench.is_held(&question));
}

#[test]
fn an_answer_must_match_its_question() {
    let asked = question("api.example.com");
    let other_id = Message { id: 8, ..asked.clone() };
    let mut other_type = asked.clone();
    other_type.question.kind = AAAA;
    for other in [other_id, question("a.wild.example.com"), other_type] {
        let mut bench = Bench::new();
        bench.send(POD, RESOLVER, &asked);
        assert!(!bench.is_held(&other), "{other:?}");
    }
    for (from, to) in [
        ("192.0.2.54:53", POD),
        ("192.0.2.53:54", POD),
        (RESOLVER, "10.0.0.1:40001"),
        (RESOLVER, "10.0.0.2:40000"),
    ] {
        let mut bench = Bench::new();
        bench.send(POD, RESOLVER, &asked);
        assert_eq!(bench.send(from, to, &answer(&asked)), Handling::Deliver, "{from} {to}");
    }
}

#[test]
fn only_trusted_resolvers_and_those_of_the_node_count() {
    let mut bench = Bench::new();
    let question = question("api.example.com");
    let other = "192.0.2.54:53";
    bench.send(POD, other, &question);
    assert_eq!(bench.send(other, POD, &answer(&question)), Handling::Deliver);
    let (input, output) = (Some(LocalHook::Input), Some(LocalHook::Output));
    for (asked, answered, is_held) in [
        (input, output, true),
        // IPVS forwards packets of pods at the output hook.
        (output, output, false),
        (input, input, false),
        (output, input, false),
    ] {
        let (question_bytes, answer_bytes) = (question.encode(), answer(&question).encode());
        let asked = DnsPacket { local: asked, ..packet(POD, other, &question_bytes) };
        bench.observer.observe(&asked, &bench.scope, bench.now);
        let answered = DnsPacket { local: answered, ..packet(other, POD, &answer_bytes) };
        let handling = bench.observer.observe(&answered, &bench.scope, bench.now);
        let has_answers = matches!(handling, Handling::Hold(answers) if !answers.is_empty());
        assert_eq!(has_answers, is_held);
    }
    let network = "192.0.2.0/24".parse().unwrap();
    bench.scope.resolver_networks.push(weir_model::Block::new(network, []));
    bench.send(POD, other, &question);
    assert!(matches!(bench.send(other, POD, &answer(&question)), Handling::Hold(_)));
}

#[test]
fn a_pod_cannot_answer_its_own_question() {
    let mut bench = Bench::new();
    let question = question("api.example.com");
    bench.send(POD, RESOLVER, &question);
    let bytes = answer(&question).encode();
    // The packet has the address of the resolver, but it arrives at the link of the pod.
    let forged = DnsPacket { link: Some(1), ..packet(RESOLVER, POD, &bytes) };
    let handling = bench.observer.observe(&forged, &bench.scope, bench.now);
    assert_eq!(handling, Handling::Deliver);
}

#[test]
fn a_reused_id_counts_for_the_later_question_only() {
    let mut bench = Bench::new();
    let question = question("api.example.com");
    bench.send(POD, RESOLVER, &question);
    bench.send(POD, RESOLVER, &Message::question(7, "unrelated.example.com", A));
    assert!(!bench.is_held(&question));
}

#[test]
fn a_pod_cannot_fill_the_memory_with_questions() {
    let mut bench = Bench::new();
    for id in 0..5000 {
        bench.send(POD, RESOLVER, &Message::question(id, "api.example.com", A));
    }
    assert!(bench.is_held(&Message::question(0, "api.example.com", A)));
    assert!(!bench.is_held(&Message::question(4999, "api.example.com", A)));
    bench.now += Duration::from_secs(11);
    bench.send(POD, RESOLVER, &Message::question(1, "api.example.com", A));
    assert!(bench.is_held(&Message::question(1, "api.example.com", A)));
}

const PLAIN: Segment = Segment { number: 0, syn: false, ack: true, reset: false };

/// Opens a connection whose numbers are about to wrap around.
fn connected() -> (Bench, [u32; 2]) {
    let mut bench = Bench::new();
    let numbers = [u32::MAX - 3, u32::MAX - 20];
    let syn = Segment { number: numbers[0], syn: true, ack: false, reset: false };
    bench.segment(Toward::Resolver, syn, b"");
    let accepted = Segment { number: numbers[1], ack: true, ..syn };
    bench.segment(Toward::Pod, accepted, b"");
    (bench, numbers.map(|number| number.wrapping_add(1)))
}

fn framed(message: &Message) -> Vec<u8> {
    let bytes = message.encode();
    [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
}

#[test]
fn messages_of_a_connection_are_put_together() {
    let (mut bench, [mut number, reply]) = connected();
    let question = question("api.example.com");
    for part in framed(&question).chunks(7) {
        bench.segment(Toward::Resolver, Segment { number, ..PLAIN }, part);
        number = number.wrapping_add(part.len() as u32);
    }
    let bytes = framed(&answer(&question));
    let (first, second) = bytes.split_at(30);
    let after = Segment { number: reply.wrapping_add(30), ..PLAIN };
    let early = bench.segment(Toward::Pod, after, second);
    assert_eq!(early, Handling::Drop, "the first segment is missing");
    let begin = Segment { number: reply, ..PLAIN };
    assert_eq!(bench.segment(Toward::Pod, begin, first), Handling::Deliver);
    let waits = Handling::Hold(Vec::new());
    assert_eq!(bench.segment(Toward::Pod, begin, first), waits, "sent again");
    let held = bench.segment(Toward::Pod, after, second);
    assert!(matches!(held, Handling::Hold(answers) if !answers.is_empty()));
    // While the answer waits, the resolver gets no acknowledgement and sends its segments again, also
    // together with a part of the next message.
    assert_eq!(bench.segment(Toward::Pod, after, second), waits);
    let more = [second, &[0, 40, 1, 2, 3]].concat();
    assert_eq!(bench.segment(Toward::Pod, after, &more), waits);
    let next = Segment { number: reply.wrapping_add(bytes.len() as u32 + 5), ..PLAIN };
    assert_eq!(bench.segment(Toward::Pod, next, &[4]), Handling::Deliver);
}

#[test]
fn a_new_connection_takes_the_place_of_an_idle_one() {
    let (mut bench, _) = connected();
    let question = question("api.example.com");
    for port in 50_000..50_020 {
        let pod = format!("10.0.0.1:{port}");
        let syn = Segment { syn: true, ack: false, ..PLAIN };
        let plain = Segment { number: 1, ..PLAIN };
        let (asked, answered) = (framed(&question), framed(&answer(&question)));
        let segments: [(&str, &str, Segment, &[u8]); 4] = [
            (&pod, RESOLVER, syn, b""),
            (RESOLVER, &pod, Segment { ack: true, ..syn }, b""),
            (&pod, RESOLVER, plain, &asked),
            (RESOLVER, &pod, plain, &answered),
        ];
        let mut last = Handling::Deliver;
        for (from, to, segment, payload) in segments {
            let packet = DnsPacket { segment: Some(segment), ..packet(from, to, payload) };
            last = bench.observer.observe(&packet, &bench.scope, bench.now);
        }
        assert!(matches!(last, Handling::Hold(_)), "{port}");
        bench.now += Duration::from_millis(10);
    }
}

#[test]
fn a_connection_from_before_the_observer_passes_unobserved() {
    let mut bench = Bench::new();
    let bytes = framed(&question("api.example.com"));
    assert_eq!(bench.segment(Toward::Resolver, PLAIN, &bytes), Handling::Deliver);
    let bytes = framed(&answer(&question("api.example.com")));
    assert_eq!(bench.segment(Toward::Pod, PLAIN, &bytes), Handling::Deliver);
}

#[test]
fn a_question_that_is_too_long_ends_the_observation_of_its_connection() {
    let (mut bench, [number, _]) = connected();
    let long = [&5000_u16.to_be_bytes()[..], &[0; 1000]].concat();
    assert_eq!(
        bench.segment(Toward::Resolver, Segment { number, ..PLAIN }, &long),
        Handling::Deliver
    );
    let later = Segment { number: number.wrapping_add(90_000), ..PLAIN };
    assert_eq!(bench.segment(Toward::Resolver, later, &long), Handling::Deliver);
}

proptest! {
    #[test]
    fn any_segments_can_be_observed(
        segments in proptest::collection::vec(
            (any::<bool>(), -40_i32..40, 0..8_u8, proptest::collection::vec(any::<u8>(), 0..60)),
            0..60,
        ),
    ) {
        let (mut bench, numbers) = connected();
        for (is_answer, shift, flags, payload) in segments {
            let toward = if is_answer { Toward::Pod } else { Toward::Resolver };
            let number = numbers[usize::from(is_answer)].wrapping_add_signed(shift);
            let [syn, ack, reset] = [1, 2, 4].map(|bit| flags & bit != 0);
            bench.segment(toward, Segment { number, syn, ack, reset }, &payload);
        }
    }
}
