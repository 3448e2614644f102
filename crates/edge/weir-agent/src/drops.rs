//! Dropped packets: their pods, their policies, and the ring of the last ones.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use tokio::sync::watch;
use weir_datapath::{DropCause, Dropped, Mode};
use weir_engine::Engine;
use weir_model::{
    Action, Direction, Flow, PodId, PolicyId, Ports, Program, Protocol, Rule, Section, Verdict,
};
use weir_runtime::time::rfc3339;

/// The number of drops that the ring keeps.
const CAPACITY: usize = 1000;
/// Protocols without ports, which policies cannot name.
const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ICMPV6: u8 = 58;

/// A dropped packet with its pods and policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drop {
    /// The sequence number, from 1.
    pub(crate) number: u64,
    time: String,
    direction: String,
    from: String,
    from_pod: Option<String>,
    from_port: Option<u16>,
    to: String,
    to_pod: Option<String>,
    to_port: Option<u16>,
    protocol: String,
    /// The policies that isolate the pod, the one whose rule denied, or another reason.
    policies: Vec<String>,
}

impl Drop {
    /// Looks up the pods and the policies of a packet. A packet with a forged source address
    /// comes from the pod `sender`, if that is known.
    pub(crate) fn new(
        packet: &Dropped,
        sender: Option<PodId>,
        engine: &Engine,
        program: &Program,
    ) -> Self {
        let pod = |address| {
            let local = program.owner(address).map(|(id, _)| id.clone());
            local.or_else(|| engine.owner(address)).map(|id: PodId| id.to_string())
        };
        Drop {
            number: 0,
            time: rfc3339(packet.time),
            direction: packet.cause.to_string(),
            from: packet.from.to_string(),
            from_pod: match packet.cause {
                DropCause::SpoofedSource => sender.map(|pod| pod.to_string()),
                _ => pod(packet.from),
            },
            from_port: packet.ports.map(|(from, _)| from),
            to: packet.to.to_string(),
            to_pod: pod(packet.to),
            to_port: packet.ports.map(|(_, to)| to),
            protocol: protocol_name(packet.protocol),
            policies: match packet.cause.reason() {
                Some(reason) => vec![reason.to_owned()],
                None => blame(packet, program).iter().map(ToString::to_string).collect(),
            },
        }
    }

    /// The policies, for a label.
    pub(crate) fn policies(&self) -> String {
        self.policies.join(", ")
    }

    /// The direction, for a label.
    pub(crate) fn direction(&self) -> &str {
        &self.direction
    }

    /// Logs the drop.
    pub(crate) fn log(&self, mode: Mode) {
        let what = match mode {
            Mode::Enforce => "dropped",
            Mode::Audit => "would be dropped",
        };
        let Drop { direction, from, to, protocol, .. } = self;
        tracing::info!(
            direction,
            from,
            from_pod = self.from_pod,
            from_port = self.from_port,
            to,
            to_pod = self.to_pod,
            to_port = self.to_port,
            protocol,
            policies = self.policies(),
            "{what}"
        );
    }
}

/// The name of a protocol number, or the number.
fn protocol_name(number: u8) -> String {
    match (Protocol::from_number(number), number) {
        (Some(protocol), _) => protocol.to_string(),
        (None, IPPROTO_ICMP) => "ICMP".into(),
        (None, IPPROTO_ICMPV6) => "ICMPv6".into(),
        (None, other) => other.to_string(),
    }
}

/// The policies a packet was dropped for, as far as the rules are still those it met.
fn blame(packet: &Dropped, program: &Program) -> Vec<PolicyId> {
    match packet.cause {
        DropCause::Rules(direction) => deniers(packet, direction, program),
        DropCause::SpoofedSource | DropCause::Encapsulation => Vec::new(),
        DropCause::Answer => {
            let denies = |direction: &Direction| {
                packet.flow().is_some_and(|flow| program.side(&flow, *direction) == Verdict::Deny)
            };
            let both = Direction::BOTH.into_iter().filter(denies);
            both.flat_map(|direction| deniers(packet, direction, program)).collect()
        }
    }
}

/// The policies that deny the connection of a packet to a pod, or from it.
fn deniers(packet: &Dropped, direction: Direction, program: &Program) -> Vec<PolicyId> {
    let flow = packet.flow();
    // Without ports, only rules about every port can have been meant.
    let (from, to) = packet.ends();
    let some_flow = Flow { from, to, protocol: Protocol::Tcp, port: 0 };
    let matches = |rule: &&Rule| match &flow {
        Some(flow) => program.matches(rule, flow),
        None => rule.ports == Ports::Any && program.matches_peer(rule, &some_flow),
    };
    let (here, _) = some_flow.ends(direction);
    let Some((_, endpoint)) = program.owner(here) else { return Vec::new() };
    let chain = endpoint.rules.chain(direction);
    let denier = |sections: &[std::sync::Arc<Section>]| {
        let decides =
            |section: &&std::sync::Arc<Section>| section.rules.iter().any(|r| matches(&r));
        let section = sections.iter().find(decides)?;
        let rule = section.rules.iter().find(matches)?;
        (rule.action == Action::Deny).then(|| vec![section.policy.clone()])
    };
    if let Some(denier) = denier(&chain.admin) {
        return denier;
    }
    match &chain.isolation {
        Some(sections) => sections.iter().map(|section| section.policy.clone()).collect(),
        None => denier(&chain.baseline).unwrap_or_default(),
    }
}

/// The last drops, numbered.
#[derive(Debug)]
pub(crate) struct Ring {
    kept: Mutex<VecDeque<Drop>>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

/// The body of `/drops`.
#[derive(Debug, Serialize)]
pub(crate) struct DropsPage {
    /// Oldest first.
    pub(crate) drops: Vec<Drop>,
    /// The sequence number for the next request.
    pub(crate) last: u64,
    /// How many drops the ring had to discard since the requested number.
    pub(crate) missed: u64,
    /// Why the datapath does not report dropped packets.
    #[serde(rename = "dropsUnavailable")]
    pub(crate) drops_unavailable: Option<String>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Ring { kept: Mutex::default(), last: watch::Sender::new(0) }
    }

    /// Adds drops and numbers them.
    pub(crate) fn extend(&self, drops: impl IntoIterator<Item = Drop>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = *self.last.borrow();
        for drop in drops {
            last += 1;
            if kept.len() == CAPACITY {
                kept.pop_front();
            }
            kept.push_back(Drop { number: last, ..drop });
        }
        std::mem::drop(kept);
        self.last.send_replace(last);
    }

    /// The drops after a number. A number from the future belongs to an earlier agent: all drops
    /// are new.
    pub(crate) fn after(&self, number: u64) -> DropsPage {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *self.last.borrow();
        let number = if number > last { 0 } else { number };
        let drops: Vec<Drop> = kept.iter().filter(|drop| drop.number > number).cloned().collect();
        let missed = match number {
            0 => 0,
            number => (last - number).saturating_sub(drops.len() as u64),
        };
        DropsPage { drops, last, missed, drops_unavailable: None }
    }

    /// Notifies of each new sequence number.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::UNIX_EPOCH};

    use weir_engine::Locality;
    use weir_model::World;

    use super::*;

    const MANIFESTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: shop}, spec: {nodeName: n2}, status: {podIP: 10.0.0.2}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop}, spec: {podSelector: {}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin}, spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 22}}]}]}}
";

    fn engine() -> (Engine, Program) {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("test".into(), MANIFESTS.as_bytes());
        let world: World = reader.finish().objects.into_iter().collect();
        let mut engine = Engine::new(Locality::Node("n1".into()));
        let mut program = Program::default();
        program.apply(engine.apply(world.changes()));
        (engine, program)
    }

    fn packet(protocol: u8, ports: Option<(u16, u16)>) -> Dropped {
        let (from, to) = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 1]));
        Dropped {
            time: UNIX_EPOCH,
            cause: DropCause::Rules(Direction::Ingress),
            from,
            to,
            protocol,
            ports,
            link: None,
        }
    }

    #[test]
    fn a_drop_names_the_pods_and_the_policies() {
        let (engine, program) = engine();
        let drop = Drop::new(&packet(6, Some((40000, 80))), None, &engine, &program);
        assert_eq!(drop.from_pod.as_deref(), Some("shop/far"), "also a pod of another node");
        assert_eq!(drop.to_pod.as_deref(), Some("shop/web"));
        assert_eq!(drop.policies, ["NetworkPolicy shop/closed", "NetworkPolicy shop/web"]);
        let drop = Drop::new(&packet(6, Some((40000, 22))), None, &engine, &program);
        assert_eq!(drop.policies, ["AdminNetworkPolicy admin"]);
        let drop = Drop::new(&packet(1, None), None, &engine, &program);
        assert_eq!((drop.protocol.as_str(), drop.policies.len()), ("ICMP", 2));
    }

    #[test]
    fn an_answer_names_the_policies_that_end_the_connection() {
        let (engine, program) = engine();
        let opening = packet(6, Some((40000, 22)));
        let answer = Dropped {
            cause: DropCause::Answer,
            from: opening.to,
            to: opening.from,
            ports: Some((22, 40000)),
            ..opening
        };
        let drop = Drop::new(&answer, None, &engine, &program);
        assert_eq!(drop.direction, "answer");
        assert_eq!(drop.from_pod.as_deref(), Some("shop/web"));
        assert_eq!(drop.policies, ["AdminNetworkPolicy admin"]);
    }

    #[test]
    fn the_ring_keeps_the_last_drops_and_counts_the_others() {
        let (engine, program) = engine();
        let drop = Drop::new(&packet(6, Some((40000, 80))), None, &engine, &program);
        let ring = Ring::new();
        ring.extend(vec![drop.clone(); 10]);
        assert_eq!(ring.after(0).drops.len(), 10);
        let page = ring.after(7);
        assert_eq!((page.drops.len(), page.last, page.missed), (3, 10, 0));
        ring.extend(vec![drop; CAPACITY + 5]);
        let page = ring.after(10);
        assert_eq!((page.drops.len(), page.missed), (CAPACITY, 5));
        assert_eq!(ring.after(1_000_000).drops.len(), CAPACITY, "the agent was restarted");
    }
}
