use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use crate::{
    DnsAnswer, DnsScope,
    message::{self, Message},
    questions::{AskedQuestion, Matched, QuestionKey, Questions, Transport},
    stream::{Progress, Streams, Toward},
};

/// The port of resolvers.
const DNS: u16 = 53;

/// A packet from or to port 53.
#[derive(Clone, Copy, Debug)]
pub struct DnsPacket<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The fields of a TCP header; none for UDP.
    pub segment: Option<Segment>,
    /// The content after the UDP or TCP header.
    pub payload: &'a [u8],
    /// Whether the node itself receives or sends the packet, outside of all pods.
    pub local: Option<LocalHook>,
    /// The index of the link that the packet arrived at; none if the node sends it.
    pub link: Option<u32>,
}

/// Where the node itself handles a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalHook {
    /// It receives the packet.
    Input,
    /// It sends the packet, or IPVS forwards it.
    Output,
}

/// The fields of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sequence number.
    pub number: u32,
    /// Whether the segment opens the connection.
    pub syn: bool,
    /// Whether it acknowledges data.
    pub ack: bool,
    /// Whether it aborts the connection.
    pub reset: bool,
}

/// What to do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handling {
    /// It teaches nothing: deliver it.
    Deliver,
    /// Deliver it when these answers are in force. A packet that repeats an earlier one has none,
    /// and waits until all earlier answers are in force.
    Hold(Vec<DnsAnswer>),
    /// Drop it, so that TCP sends it again after the segments before it.
    Drop,
}

/// Matches the answers that pods receive with the questions that they asked.
#[derive(Debug, Default)]
pub struct DnsObserver {
    questions: Questions,
    streams: Streams,
}

impl DnsObserver {
    /// Observes a packet.
    pub fn observe(&mut self, packet: &DnsPacket<'_>, scope: &DnsScope, now: Instant) -> Handling {
        let (pod, resolver, toward) = match (packet.from.port(), packet.to.port()) {
            (_, DNS) if scope.pods.contains(&packet.from.ip()) => {
                (packet.from, packet.to, Toward::Resolver)
            }
            (DNS, _) if scope.pods.contains(&packet.to.ip()) => {
                (packet.to, packet.from, Toward::Pod)
            }
            _ => return Handling::Deliver,
        };
        // IPVS forwards packets of pods at the output hook, so a question there proves nothing.
        let is_local = match toward {
            Toward::Resolver => packet.local == Some(LocalHook::Input),
            Toward::Pod => packet.local == Some(LocalHook::Output),
        };
        if !is_local && !scope.trusts(resolver.ip()) {
            return Handling::Deliver;
        }
        let transport = if packet.segment.is_some() { Transport::Tcp } else { Transport::Udp };
        let progress = match packet.segment {
            None => {
                let messages = vec![packet.payload.to_vec()];
                Progress::InOrder { messages, is_repeated: false }
            }
            Some(segment) => {
                self.streams.observe(pod, resolver, toward, segment, packet.payload, now)
            }
        };
        let Progress::InOrder { messages, mut is_repeated } = progress else {
            return Handling::Drop;
        };
        is_repeated &= toward == Toward::Pod;
        let mut answers = Vec::new();
        for message in messages.iter().filter_map(|bytes| message::parse(bytes)) {
            let key = QuestionKey { pod, resolver, transport, id: message.id };
            match (toward, message.is_response) {
                (Toward::Resolver, false) => self.ask(key, message, packet.link, scope, now),
                (Toward::Pod, true) => match self.questions.answer(&key, now) {
                    Matched::Open(asked) => {
                        answers.extend(learn(pod.ip(), &asked, &message, packet.link, scope));
                    }
                    Matched::Answered => is_repeated = true,
                    Matched::Unknown => (),
                },
                _ => (),
            }
        }
        // The first packet may wait until its addresses are in force, so its repetition waits, too.
        if answers.is_empty() && !is_repeated { Handling::Deliver } else { Handling::Hold(answers) }
    }

    fn ask(
        &mut self,
        key: QuestionKey,
        message: Message,
        link: Option<u32>,
        scope: &DnsScope,
        now: Instant,
    ) {
        let question = message.question;
        if question.is_about_addresses() && scope.has_name(&question.name) {
            self.questions.ask(key, AskedQuestion { question, link }, now);
        } else {
            // An answer to this question must not count as one to an earlier question.
            self.questions.forget(&key);
        }
    }
}

/// The addresses that the first answer to a question gives.
fn learn(
    pod: IpAddr,
    asked: &AskedQuestion,
    message: &Message,
    link: Option<u32>,
    scope: &DnsScope,
) -> Option<DnsAnswer> {
    let AskedQuestion { question: asked, link: link_of_pod } = asked;
    // The pod that asks knows everything that an answer must have, but its packets arrive at its own
    // link.
    (link != *link_of_pod).then_some(())?;
    let is_wanted = message.is_success && message.question == *asked;
    (is_wanted && scope.has_name(&asked.name)).then_some(())?;
    DnsAnswer::from_message(pod, asked, message)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
mod tests;
