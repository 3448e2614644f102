//! Dropped packets with their pods and their policies.
//!
//! *Invariant*: a drop takes up a bounded number of bytes, however many policies select its pod.

mod ring;

use std::sync::Arc;

use serde::Serialize;
use weir_datapath::{DropCause, Dropped, Mode};
use weir_engine::Engine;
use weir_model::{
    Action, Direction, Flow, PodId, Ports, Program, Protocol, Rule, Section, Verdict,
};
use weir_runtime::time::rfc3339;

use crate::policy_names::PolicyNames;

pub(crate) use ring::{DropsPage, Ring};

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
    /// The domain names of the destination, each with the time until when it stands for it.
    to_names: Vec<String>,
    protocol: String,
    /// The first of the policies that isolate the pod, the one whose rule denied, or another reason.
    policies: Vec<String>,
    /// The number of the other policies that isolate the pod.
    more_policies: usize,
    /// Whether the packet passed nevertheless, because the agent runs in audit mode.
    pub(crate) passed: bool,
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
        let PolicyNames { policies, more_policies } = blame(packet, program);
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
            to_names: Vec::new(),
            protocol: protocol_name(packet.protocol),
            policies: match packet.cause.reason() {
                Some(reason) => vec![reason.to_owned()],
                None => policies.iter().map(ToString::to_string).collect(),
            },
            more_policies,
            passed: false,
        }
    }

    /// Leaves out the source port, for a report about several connections.
    pub(crate) fn without_source_port(self) -> Self {
        Drop { from_port: None, ..self }
    }

    /// Adds the domain names of the destination.
    pub(crate) fn with_names(self, to_names: Vec<String>) -> Self {
        Drop { to_names, ..self }
    }

    /// The policies, for a label.
    pub(crate) fn policies(&self) -> String {
        match self.more_policies {
            0 => self.policies.join(", "),
            more => format!("{} and {more} more", self.policies.join(", ")),
        }
    }

    /// The memory that the drop takes up.
    fn bytes(&self) -> usize {
        let Drop { time, direction, from, from_pod, to, to_pod, to_names, .. } = self;
        let Drop { protocol, policies, .. } = self;
        let texts = [time, direction, from, to, protocol].into_iter();
        let texts = texts.chain(from_pod).chain(to_pod).chain(to_names).chain(policies);
        size_of::<Drop>() + texts.map(|text| size_of::<String>() + text.len()).sum::<usize>()
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
            to_names = self.to_names.join(", "),
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
fn blame(packet: &Dropped, program: &Program) -> PolicyNames {
    match packet.cause {
        DropCause::Rules(direction) => deniers(packet, direction, program),
        DropCause::SpoofedSource | DropCause::Encapsulation => PolicyNames::default(),
        DropCause::Answer => {
            let denies = |direction: &Direction| {
                packet.flow().is_some_and(|flow| program.side(&flow, *direction) == Verdict::Deny)
            };
            let both = Direction::BOTH.into_iter().filter(denies);
            let both = both.map(|direction| deniers(packet, direction, program));
            both.fold(PolicyNames::default(), PolicyNames::join)
        }
    }
}

/// The policies that deny the connection of a packet to a pod, or from it.
fn deniers(packet: &Dropped, direction: Direction, program: &Program) -> PolicyNames {
    let flow = packet.flow();
    // Without ports, only rules about every port can have been meant.
    let (from, to) = packet.ends();
    let some_flow = Flow { from, to, protocol: Protocol::Tcp, port: 0 };
    let matches = |rule: &&Rule| match &flow {
        Some(flow) => program.matches(rule, flow),
        None => rule.ports == Ports::Any && program.matches_peer(rule, &some_flow),
    };
    let (here, _) = some_flow.ends(direction);
    let Some((_, endpoint)) = program.owner(here) else { return PolicyNames::default() };
    let chain = endpoint.rules.chain(direction);
    let denier = |sections: &[Arc<Section>]| {
        let decides = |section: &&Arc<Section>| section.rules.iter().any(|r| matches(&r));
        let section = sections.iter().find(decides)?;
        let rule = section.rules.iter().find(matches)?;
        (rule.action == Action::Deny).then(|| [&section.policy].into_iter().collect())
    };
    if let Some(denier) = denier(&chain.admin) {
        return denier;
    }
    match &chain.isolation {
        Some(sections) => sections.iter().map(|section| &section.policy).collect(),
        None => denier(&chain.baseline).unwrap_or_default(),
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

    pub(super) fn engine() -> (Engine, Program) {
        engine_of(MANIFESTS)
    }

    fn engine_of(manifests: &str) -> (Engine, Program) {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("test".into(), manifests.as_bytes());
        let world: World = reader.finish().objects.into_iter().collect();
        let mut engine = Engine::new(Locality::Node("n1".into()));
        let mut program = Program::default();
        program.apply(engine.apply(world.changes()));
        (engine, program)
    }

    pub(super) fn packet(protocol: u8, ports: Option<(u16, u16)>) -> Dropped {
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
    fn a_drop_names_three_policies_and_counts_the_others() {
        let policy = |number: u32| {
            let name = format!("{number:04}{}", "x".repeat(200));
            format!(
                "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, spec: {{podSelector: {{}}}}}}\n"
            )
        };
        let manifests = MANIFESTS.to_owned() + &(0..4000).map(policy).collect::<String>();
        let (engine, program) = engine_of(&manifests);
        let opening = packet(6, Some((40000, 80)));
        let drop = Drop::new(&opening, None, &engine, &program);
        assert_eq!((drop.policies.len(), drop.more_policies), (3, 3999));
        assert!(drop.policies().ends_with(" and 3999 more"), "{}", drop.policies());
        let answer = Dropped {
            cause: DropCause::Answer,
            from: opening.to,
            to: opening.from,
            ports: Some((80, 40000)),
            ..opening
        };
        let drop = Drop::new(&answer, None, &engine, &program);
        assert_eq!((drop.policies.len(), drop.more_policies), (3, 3999));
    }
}
