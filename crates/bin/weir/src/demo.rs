use std::{
    io::Write,
    iter,
    net::{IpAddr, Ipv4Addr},
};

use clap::Args;
use weir_api::Reader;
use weir_engine::{Explanation, Locality};
use weir_model::{Change, Flow, Object, Pod, Policy, Protocol, Verdict, World};

use crate::{
    exit::Exit,
    failure::Failure,
    kernel::{self, Kernel},
    platform, present,
};

/// Show what network policies do, with real connections on this machine
///
/// Builds a small shop of pods, each a network namespace, loads one policy after the other into the kernel, and tries every
/// connection each time. Nothing outside these namespaces is touched, and nothing is left behind. This needs root, or a
/// kernel that lets everyone make user namespaces, and the program `nft`. Exit status 1 if the kernel does anything else
/// than the rules say.
#[derive(Args)]
#[command(after_help = "Example:\n  weir demo")]
pub(crate) struct Demo {}

/// The pods.
const SHOP: &str = include_str!("../../../../examples/demo/shop.yaml");

/// The policies, in the order in which they come into force: each file one, with what it is for in its first lines.
const STEPS: [&str; 6] = [
    include_str!("../../../../examples/demo/1-default-deny.yaml"),
    include_str!("../../../../examples/demo/2-web.yaml"),
    include_str!("../../../../examples/demo/3-api.yaml"),
    include_str!("../../../../examples/demo/4-db.yaml"),
    include_str!("../../../../examples/demo/5-egress.yaml"),
    include_str!("../../../../examples/demo/6-quarantine.yaml"),
];

/// Someone outside the cluster.
const INTERNET: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

impl Demo {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        kernel::enter()?;
        let mut world: World = read(SHOP)?.into_iter().collect();
        let steps: Vec<Step> = STEPS.into_iter().map(Step::read).collect::<Result<_, _>>()?;
        let ends = ends(&world);
        let flows = flows(&ends);
        present::demo::opening(out, &world, flows.len())?;
        // Each part is shown as soon as there is something to see.
        out.flush()?;
        let kernel = Kernel::build(&world, &flows)?;
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
        if let Some(answer) = rounds.last().and_then(Round::refused) {
            let reported = kernel.reported(answer.explanation.flow)?;
            present::demo::dropped(out, &ends, answer, reported.as_deref())?;
        }
        drop(kernel);
        present::demo::closing(out, &rounds)?;
        Ok(Exit::when(rounds.iter().all(|round| round.wrong().next().is_none())))
    }
}

/// A policy that comes into force.
pub(crate) struct Step {
    /// What it is for.
    pub(crate) purpose: String,
    /// The lines that say what it does.
    pub(crate) lines: Vec<&'static str>,
    /// What they mean.
    pub(crate) policy: Policy,
}

impl Step {
    fn read(text: &'static str) -> Result<Self, Failure> {
        let comment = |line: &'static str| line.strip_prefix("# ");
        let purpose: Vec<&str> = text.lines().map_while(comment).collect();
        let lines = text.lines().skip_while(|line| *line != "spec:").skip(1).collect();
        let policy = read(text)?.into_iter().find_map(|object| match object {
            // Whoever reads its name has just seen it, and may not have the file.
            Object::Policy(policy) => Some(Policy { location: None, ..policy }),
            _ => None,
        });
        match policy {
            Some(policy) => Ok(Step { purpose: purpose.join(" "), lines, policy }),
            None => Err(broken("a step without a policy")),
        }
    }
}

/// Who connects, and where it can be reached.
pub(crate) struct End {
    /// Its namespace; empty for who is outside.
    pub(crate) namespace: String,
    /// Its name there.
    pub(crate) name: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// The protocol of its port.
    pub(crate) protocol: Protocol,
    /// Its port.
    pub(crate) port: u16,
}

/// Every end: who is outside, then the pods in the order in which they were written.
fn ends(world: &World) -> Vec<End> {
    let mut pods: Vec<&Pod> = world.pods.values().collect();
    pods.sort_by_key(|pod| pod.location.as_ref().map(|location| location.line));
    let pod = |pod: &Pod| {
        let port = pod.ports.first()?;
        Some(End {
            namespace: pod.id.namespace.to_string(),
            name: pod.id.name.to_string(),
            address: *pod.addresses.first()?,
            protocol: port.protocol,
            port: port.port,
        })
    };
    let outside = End {
        namespace: String::new(),
        name: "internet".to_owned(),
        address: INTERNET,
        protocol: Protocol::Tcp,
        port: 443,
    };
    [outside].into_iter().chain(pods.into_iter().filter_map(pod)).collect()
}

/// Every connection between two of the ends.
fn flows(ends: &[End]) -> Vec<Flow> {
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from.address, to)));
    pairs
        .filter(|(from, to)| *from != to.address)
        .map(|(from, to)| Flow { from, to: to.address, protocol: to.protocol, port: to.port })
        .collect()
}

/// What became of all connections while some policies were in force.
pub(crate) struct Round {
    /// The connections, row by row.
    pub(crate) answers: Vec<Answer>,
}

/// What became of one connection.
pub(crate) struct Answer {
    /// What the kernel did, before the last policy came into force.
    pub(crate) before: Option<Verdict>,
    /// What the kernel did.
    pub(crate) real: Verdict,
    /// What the rules say, and why.
    pub(crate) explanation: Explanation,
}

impl Round {
    /// Lays the kernel's answers beside what the rules of the world say.
    fn new(world: &World, flows: &[Flow], last: Option<&Round>, real: &[Verdict]) -> Self {
        let program = weir_engine::compile(world, Locality::Everywhere);
        let before = |at: usize| Some(last?.answers.get(at)?.real);
        let answer = |(at, (flow, &real)): (usize, (&Flow, &Verdict))| Answer {
            before: before(at),
            real,
            explanation: weir_engine::explain(&program, flow),
        };
        Round { answers: flows.iter().zip(real).enumerate().map(answer).collect() }
    }

    /// The answers that are not what they were.
    pub(crate) fn changed(&self, to: Verdict) -> impl Iterator<Item = &Answer> {
        self.answers
            .iter()
            .filter(move |answer| answer.real == to && answer.before.is_some_and(|was| was != to))
    }

    /// A connection that the kernel refused.
    fn refused(&self) -> Option<&Answer> {
        self.answers.iter().find(|answer| answer.real == Verdict::Deny)
    }

    /// The answers that are not what the rules say.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|answer| answer.is_wrong())
    }
}

impl Answer {
    /// Whether it is not what the rules say.
    pub(crate) fn is_wrong(&self) -> bool {
        self.real != self.explanation.verdict
    }
}

/// The objects of a manifest that nothing is wrong with.
fn read(text: &str) -> Result<Vec<Object>, Failure> {
    let mut reader = Reader::new();
    reader.read("demo".into(), text.as_bytes());
    let manifests = reader.finish();
    match manifests.findings.first() {
        None => Ok(manifests.objects),
        Some(finding) => Err(broken(&finding.message)),
    }
}

fn broken(what: &str) -> Failure {
    Failure::new(format!("the demo has a mistake in it: {what}"), "please report this")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// The shop with its first policies, and all connections.
    fn shop(policies: usize) -> (World, Vec<End>, Vec<Flow>) {
        let mut world: World = read(SHOP).unwrap().into_iter().collect();
        for step in &STEPS[..policies] {
            world.apply(Change::Put(Object::Policy(Step::read(step).unwrap().policy)));
        }
        let ends = ends(&world);
        let flows = flows(&ends);
        (world, ends, flows)
    }

    #[test]
    fn every_step_says_what_it_is_for_and_changes_something() {
        let mut last: Option<Round> = None;
        for policies in 0..=STEPS.len() {
            let (world, ends, flows) = shop(policies);
            assert_eq!((ends.len(), flows.len()), (6, 30));
            let says: Vec<Verdict> =
                flows.iter().map(|flow| weir_oracle::verdict(&world, flow)).collect();
            let round = Round::new(&world, &flows, last.as_ref(), &says);
            assert_eq!(round.wrong().count(), 0);
            let changed =
                round.changed(Verdict::Allow).count() + round.changed(Verdict::Deny).count();
            assert_eq!(changed == 0, policies == 0, "step {policies}");
            last = Some(round);
        }
        for step in STEPS {
            let step = Step::read(step).unwrap();
            assert!(!step.purpose.is_empty() && !step.lines.is_empty(), "{}", step.policy.id);
        }
    }

    #[test]
    fn a_kernel_that_does_something_else_is_not_believed() {
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
        let told: Vec<&str> = lines.take_while(|line| !line.starts_with("Next")).collect();
        expect![[r#"
               16 of 30 connections pass
               1 not as the rules say:
                 internet → shop/web 8080/TCP: the kernel says allow, the rules deny

            30 real connections tried, 1 not as the rules say; nothing is left behind.
            That is a mistake in weir, or a kernel without nftables; please report it.
        "#]]
        .assert_eq(&told.join("\n"));
    }
}
