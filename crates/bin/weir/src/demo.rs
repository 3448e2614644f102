use std::{
    io::Write,
    iter,
    net::{IpAddr, Ipv4Addr},
};

use clap::Args;
use weir_api::ManifestReader;
use weir_engine::{Explanation, Locality};
use weir_model::{Change, Flow, Object, Pod, Policy, Protocol, Verdict, World};

use crate::{
    exit::Exit,
    failure::Failure,
    kernel::{self, KernelLab},
    platform, present,
};

/// Show the effect of network policies with real connections on this machine
///
/// Builds a small cluster in which each pod is a network namespace, applies one policy after the
/// other to the kernel, and tries every connection after each one. The demo touches nothing outside
/// these namespaces and removes them at the end. It needs root or unprivileged user namespaces.
/// Exit status 1 if the kernel decides differently from the compiled rules.
#[derive(Args)]
#[command(after_help = "Example:\n  weir demo")]
pub(crate) struct DemoCommand {}

/// The pods.
const SHOP: &str = include_str!("../../../../examples/demo/shop.yaml");

/// The policies, in the order in which they are applied. The first comment of each file states its
/// purpose.
const STEPS: [&str; 6] = [
    include_str!("../../../../examples/demo/1-default-deny.yaml"),
    include_str!("../../../../examples/demo/2-web.yaml"),
    include_str!("../../../../examples/demo/3-api.yaml"),
    include_str!("../../../../examples/demo/4-db.yaml"),
    include_str!("../../../../examples/demo/5-egress.yaml"),
    include_str!("../../../../examples/demo/6-quarantine.yaml"),
];

/// An address outside the cluster.
const INTERNET: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

impl DemoCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        kernel::enter()?;
        let mut world: World = parse_objects(SHOP)?.into_iter().collect();
        let steps: Vec<Step> = STEPS.into_iter().map(Step::parse).collect::<Result<_, _>>()?;
        let ends = ends(&world);
        let flows = flows(&ends);
        present::demo::opening(out, &world, flows.len())?;
        // Show each part as soon as it is complete.
        out.flush()?;
        let kernel = KernelLab::build(&world, &flows)?;
        let mut rounds: Vec<Round> = Vec::with_capacity(1 + steps.len());
        for (number, step) in iter::once(None).chain(steps.iter().map(Some)).enumerate() {
            if let Some(step) = step {
                present::demo::step(out, number, step)?;
                out.flush()?;
                world.apply(Change::Put(Object::Policy(step.policy.clone())));
            }
            kernel.enforce(&world, platform::NFTABLES)?;
            let round = Round::new(&world, &flows, rounds.last(), &kernel.probe(&flows)?);
            present::demo::round(out, &ends, &round)?;
            rounds.push(round);
        }
        if let Some(result) = rounds.last().and_then(Round::denied) {
            let reported = kernel.reported(result.explanation.flow)?;
            present::demo::dropped(out, &ends, result, reported.as_deref())?;
        }
        if let Some(last) = rounds.last() {
            present::demo::summary(out, &ends, last, steps.len())?;
        }
        drop(kernel);
        present::demo::closing(out, &rounds)?;
        Ok(Exit::when(rounds.iter().all(|round| round.wrong().next().is_none())))
    }
}

/// One step: a policy to apply.
pub(crate) struct Step {
    /// Its purpose.
    pub(crate) purpose: String,
    /// The lines of its spec.
    pub(crate) lines: Vec<&'static str>,
    /// The policy itself.
    pub(crate) policy: Policy,
}

impl Step {
    fn parse(text: &'static str) -> Result<Self, Failure> {
        let comment = |line: &'static str| line.strip_prefix("# ");
        let purpose: Vec<&str> = text.lines().map_while(comment).collect();
        let lines = text.lines().skip_while(|line| *line != "spec:").skip(1).collect();
        let policy = parse_objects(text)?.into_iter().find_map(|object| match object {
            // The demo has just printed the policy, and the user may not have the file.
            Object::Policy(policy) => Some(Policy { location: None, ..policy }),
            _ => None,
        });
        match policy {
            Some(policy) => Ok(Step { purpose: purpose.join(" "), lines, policy }),
            None => Err(broken("a step without a policy")),
        }
    }
}

/// A pod or an outside address, with the port that it serves.
pub(crate) struct Participant {
    /// Its namespace; empty for the outside address.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// The protocol of its port.
    pub(crate) protocol: Protocol,
    /// Its port.
    pub(crate) port: u16,
}

/// All participants: the outside address first, then the pods in the order of the manifest.
fn ends(world: &World) -> Vec<Participant> {
    let mut pods: Vec<&Pod> = world.pods.values().collect();
    pods.sort_by_key(|pod| pod.location.as_ref().map(|location| location.line));
    let pod = |pod: &Pod| {
        let port = pod.ports.first()?;
        Some(Participant {
            namespace: pod.id.namespace.to_string(),
            name: pod.id.name.to_string(),
            address: *pod.addresses.first()?,
            protocol: port.protocol,
            port: port.port,
        })
    };
    let outside = Participant {
        namespace: String::new(),
        name: "internet".to_owned(),
        address: INTERNET,
        protocol: Protocol::Tcp,
        port: 443,
    };
    [outside].into_iter().chain(pods.into_iter().filter_map(pod)).collect()
}

/// Every connection between two participants.
fn flows(ends: &[Participant]) -> Vec<Flow> {
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from.address, to)));
    pairs
        .filter(|(from, to)| *from != to.address)
        .map(|(from, to)| Flow { from, to: to.address, protocol: to.protocol, port: to.port })
        .collect()
}

/// The results of all connections under some policies.
pub(crate) struct Round {
    /// The connections, row by row.
    pub(crate) results: Vec<ProbeResult>,
}

/// The result of one connection.
pub(crate) struct ProbeResult {
    /// The verdict of the kernel in the previous round.
    pub(crate) before: Option<Verdict>,
    /// The verdict of the kernel.
    pub(crate) real: Verdict,
    /// The verdict of the compiled rules, with its reason.
    pub(crate) explanation: Explanation,
}

impl Round {
    /// Pairs the verdicts of the kernel with those of the compiled rules.
    fn new(world: &World, flows: &[Flow], last: Option<&Round>, real: &[Verdict]) -> Self {
        let program = weir_engine::compile(world, Locality::Everywhere);
        let before = |at: usize| Some(last?.results.get(at)?.real);
        let result = |(at, (flow, &real)): (usize, (&Flow, &Verdict))| ProbeResult {
            before: before(at),
            real,
            explanation: weir_engine::explain(&program, flow),
        };
        Round { results: flows.iter().zip(real).enumerate().map(result).collect() }
    }

    /// The connections whose verdict changed to `to`.
    pub(crate) fn changed(&self, to: Verdict) -> impl Iterator<Item = &ProbeResult> {
        self.results
            .iter()
            .filter(move |result| result.real == to && result.before.is_some_and(|was| was != to))
    }

    /// A connection that the kernel denied.
    fn denied(&self) -> Option<&ProbeResult> {
        self.results.iter().find(|result| result.real == Verdict::Deny)
    }

    /// The connections whose verdict differs from the compiled rules.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = &ProbeResult> {
        self.results.iter().filter(|result| result.is_wrong())
    }
}

impl ProbeResult {
    /// Whether the kernel and the compiled rules differ.
    pub(crate) fn is_wrong(&self) -> bool {
        self.real != self.explanation.verdict
    }
}

/// The objects of a manifest without findings.
fn parse_objects(text: &str) -> Result<Vec<Object>, Failure> {
    let mut reader = ManifestReader::new();
    reader.read_file("demo".into(), text.as_bytes());
    let manifests = reader.finish();
    match manifests.findings.first() {
        None => Ok(manifests.objects.into_iter().collect()),
        Some(finding) => Err(broken(&finding.message)),
    }
}

fn broken(what: &str) -> Failure {
    Failure::new(
        format!("the manifests of the demo are invalid: {what}"),
        "this is a bug; please report it with the manifests",
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// The shop with its first policies, and all connections.
    fn shop(policies: usize) -> (World, Vec<Participant>, Vec<Flow>) {
        let mut world: World = parse_objects(SHOP).unwrap().into_iter().collect();
        for step in &STEPS[..policies] {
            world.apply(Change::Put(Object::Policy(Step::parse(step).unwrap().policy)));
        }
        let ends = ends(&world);
        let flows = flows(&ends);
        (world, ends, flows)
    }

    #[test]
    fn every_step_has_a_purpose_and_changes_a_verdict() {
        let mut last: Option<Round> = None;
        for policies in 0..=STEPS.len() {
            let (world, ends, flows) = shop(policies);
            assert_eq!((ends.len(), flows.len()), (6, 30));
            let expected: Vec<Verdict> =
                flows.iter().map(|flow| weir_oracle::verdict(&world, flow)).collect();
            let round = Round::new(&world, &flows, last.as_ref(), &expected);
            assert_eq!(round.wrong().count(), 0);
            let changed =
                round.changed(Verdict::Allow).count() + round.changed(Verdict::Deny).count();
            assert_eq!(changed == 0, policies == 0, "step {policies}");
            last = Some(round);
        }
        for step in STEPS {
            let step = Step::parse(step).unwrap();
            assert!(!step.purpose.is_empty() && !step.lines.is_empty(), "{}", step.policy.id);
        }
    }

    #[test]
    fn a_wrong_verdict_of_the_kernel_is_reported() {
        let (world, ends, flows) = shop(1);
        let mut real: Vec<Verdict> =
            flows.iter().map(|flow| weir_oracle::verdict(&world, flow)).collect();
        real[0] = Verdict::Allow;
        let round = Round::new(&world, &flows, None, &real);
        assert_eq!(round.wrong().count(), 1);
        let mut out = Vec::new();
        present::demo::round(&mut out, &ends, &round).unwrap();
        present::demo::closing(&mut out, &[round]).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        let lines = text.lines().skip_while(|line| !line.contains("30 connections"));
        let shown: Vec<&str> = lines.take_while(|line| !line.starts_with("Try")).collect();
        expect![[r#"
               16 of 30 connections pass
               1 verdict differs from the compiled rules:
                 internet → shop/web 8080/TCP: the kernel allows it, the rules deny it

            30 real connections tried, 1 verdict differs from the compiled rules.
            This is a bug in weir, or a kernel without nftables; please report it.
        "#]]
        .assert_eq(&shown.join("\n"));
    }
}
