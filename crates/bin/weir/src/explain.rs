use std::{collections::BTreeSet, io::Write, net::IpAddr};

use clap::{Args, ValueEnum};
use weir_engine::{Explanation, Locality, Reason, Remedy, Side};
use weir_model::{Direction, Finding, Flow, IpFamily, ObjectRef, Pod, Program, Severity, Verdict};
use weir_reach::PortQuery;

use crate::{
    clusters::Clusters,
    end::End,
    exit::Exit,
    failure::Failure,
    present::{
        self, Format,
        story::{Beside, Story},
    },
    source::{Loaded, Source},
    why,
};

/// Explain why a connection is allowed or denied
///
/// For each direction: the policies that isolate the pod and the rule that decided, with file and line. If it is denied,
/// also the rules that nearly matched and the smallest policy that would allow it. Exit status 1 if it is denied.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir explain -f examples/shop/manifests --from shop/web --to shop/db --port 5432\n  weir explain -f examples/shop/manifests --from 203.0.113.7 --to shop/deployment/web --port http"
)]
pub(crate) struct Explain {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    clusters: Clusters,
    /// Who connects: `namespace/pod`, `pod` with -n, an address, or `namespace/deployment/name`
    #[arg(long, value_name = "END")]
    from: String,
    /// To whom, likewise
    #[arg(long, value_name = "END")]
    to: String,
    /// The port at the destination: a number or the name of a container port
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: PortQuery,
    /// The family to connect over, if both ends have addresses of both
    #[arg(long, value_name = "FAMILY", value_enum, ignore_case = true)]
    ip_family: Option<FamilyArg>,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Explain {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load_clusters(&self.clusters)?;
        let end = |text| End::find(text, self.source.namespace(), &loaded);
        let (from, to) = (end(&self.from)?, end(&self.to)?);
        let flow = self.flow(&loaded, &from, &to)?;
        let mut notes: Vec<String> =
            [&from, &to].into_iter().filter_map(|end| note(end, &loaded)).collect();
        let program = weir_engine::compile(&loaded.world, Locality::Everywhere);
        let explanation = weir_engine::explain(&program, &flow);
        for (end, address) in [(&from, flow.from), (&to, flow.to)] {
            notes.extend(end.pod(&loaded).and_then(|pod| not_its_own(pod, address, &program)));
        }
        notes.extend(other_family(&loaded, &program, &explanation, [&from, &to]));
        let mut remedy = weir_engine::remedy(&loaded.world, &explanation);
        if let (Remedy::Add(policies), false) = (&mut remedy, self.clusters.is_empty()) {
            for policy in policies {
                let (cluster, local) = weir_clusterset::localized(policy);
                let cluster = cluster.unwrap_or_default();
                notes.push(format!("{} belongs into cluster {cluster}", local.id));
                *policy = local;
            }
        }
        let odd = odd(&loaded, &explanation);
        let beside = Beside { ends: [&from, &to], loaded: &loaded, odd, notes };
        let story = Story::new(&explanation, &remedy, beside);
        match self.output.structured() {
            Some(form) => present::value(out, form, &story)?,
            None => present::explanation::write(out, &explanation, &story)?,
        }
        Ok(explanation.verdict.into())
    }

    /// The connection that was asked about.
    fn flow(&self, loaded: &Loaded, from: &End, to: &End) -> Result<Flow, Failure> {
        let family = self.ip_family.map(IpFamily::from);
        let (from_address, to_address) =
            addresses(loaded, (&self.from, from), (&self.to, to), family)?;
        let mut ports = self.port.at(to.pod(loaded));
        ports.sort();
        ports.dedup();
        if ports.len() > 1 {
            let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let hint = match ports.windows(2).all(|pair| pair[0].protocol != pair[1].protocol) {
                true => format!("say which: `--port {}/{}`", self.port, ports[1].protocol),
                false => format!("give the number: `--port {}`", list[0]),
            };
            let what = format!("{} has several ports {}: {}", self.to, self.port, list.join(", "));
            return Err(Failure::new(what, hint));
        }
        let Some(port) = ports.first() else {
            let names: Vec<&str> = to
                .pod(loaded)
                .map(|pod| pod.ports.iter().map(|port| &*port.name).collect())
                .unwrap_or_default();
            let hint = match names.is_empty() {
                true if to.pod(loaded).is_none() => {
                    "ports of an address have no names: name the pod, or give a number".to_owned()
                }
                true => "give the port as a number".to_owned(),
                false => format!("its ports are named {}; or give a number", names.join(", ")),
            };
            return Err(Failure::new(format!("{} has no port {}", self.to, self.port), hint));
        };
        Ok(Flow { from: from_address, to: to_address, protocol: port.protocol, port: port.first })
    }
}

/// What is special about an end.
fn note(end: &End, loaded: &Loaded) -> Option<String> {
    let pod = end.pod(loaded)?;
    let id = &pod.id;
    match end {
        _ if pod.host_network => {
            Some(format!("{id} has the network of its node: to policies it is a node, not a pod"))
        }
        End::Pod(_, many @ 2..) => Some(format!("{id} is one of {many} pods of its workload")),
        _ => None,
    }
}

/// That another pod has the address: of several that claim one, the youngest owns it.
fn not_its_own(pod: &Pod, address: IpAddr, program: &Program) -> Option<String> {
    let (owner, _) = program.owner(address).filter(|(owner, _)| **owner != pod.id)?;
    let id = &pod.id;
    Some(format!(
        "{id} does not own {address}: {owner} claims it too, and is younger or of the same age"
    ))
}

/// A family, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FamilyArg {
    /// IPv4
    #[value(name = "IPv4")]
    V4,
    /// IPv6
    #[value(name = "IPv6")]
    V6,
}

impl From<FamilyArg> for IpFamily {
    fn from(family: FamilyArg) -> Self {
        match family {
            FamilyArg::V4 => IpFamily::V4,
            FamilyArg::V6 => IpFamily::V6,
        }
    }
}

/// The addresses the two would use: of the family that was asked for, or else of that of the destination's first address
/// that they share.
fn addresses(
    loaded: &Loaded,
    (from_text, from): (&str, &End),
    (to_text, to): (&str, &End),
    family: Option<IpFamily>,
) -> Result<(IpAddr, IpAddr), Failure> {
    let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
    for (text, list) in [(from_text, &sources), (to_text, &targets)] {
        if list.is_empty() {
            let hint = "a pod without an address cannot connect; is it still starting?";
            return Err(Failure::new(format!("{text} has no address"), hint));
        }
        if let Some(family) = family.filter(|family| family.first_in(list).is_none()) {
            let hint = "leave out --ip-family, or ask for the other one";
            return Err(Failure::new(format!("{text} has no {family} address"), hint));
        }
    }
    let wanted = |to: &&IpAddr| family.is_none_or(|family| IpFamily::from(**to) == family);
    let pair = |to: &IpAddr| Some((IpFamily::from(*to).first_in(&sources)?, *to));
    targets.iter().filter(wanted).find_map(pair).ok_or_else(|| {
        let hint = "one is IPv4 and the other IPv6; give addresses of one family";
        Failure::new(format!("{from_text} and {to_text} share no address family"), hint)
    })
}

/// What is to be said about the other family, if both ends have addresses of it too.
fn other_family(
    loaded: &Loaded,
    program: &Program,
    explanation: &Explanation,
    [from, to]: [&End; 2],
) -> Option<String> {
    let flow = explanation.flow;
    let asked = IpFamily::from(flow.to);
    let other = IpFamily::BOTH.into_iter().find(|family| *family != asked)?;
    let address = |end: &End| other.first_in(&end.addresses(loaded));
    let also = Flow { from: address(from)?, to: address(to)?, ..flow };
    let verdict = program.verdict(&also);
    Some(match verdict == explanation.verdict {
        true => format!("asked over {asked}; over {other} it is {} too", why::past(verdict)),
        false => format!(
            "asked over {asked}; over {other} it is {}: see `--ip-family {other}`",
            why::past(verdict)
        ),
    })
}

/// What is probably wrong with the policies that refuse the connection, where they do.
fn odd(loaded: &Loaded, explanation: &Explanation) -> Vec<Finding> {
    let mut refusing: BTreeSet<(ObjectRef, Direction)> = BTreeSet::new();
    for direction in Direction::BOTH {
        let Side::Judged(judgement) = explanation.side(direction) else { continue };
        match &judgement.reason {
            _ if judgement.verdict == Verdict::Allow => (),
            Reason::Admin(cited) | Reason::Baseline(cited) => {
                refusing.insert((ObjectRef::from(&cited.section.policy), direction));
            }
            Reason::Isolated | Reason::Allowed(_) | Reason::Default => {
                let policies = judgement.isolating.iter();
                refusing
                    .extend(policies.map(|section| (ObjectRef::from(&section.policy), direction)));
            }
        }
    }
    let mut findings = match refusing.is_empty() {
        true => Vec::new(),
        false => loaded.lint(),
    };
    let is_of = |finding: &Finding, direction: Direction| {
        finding.field.starts_with(&format!("spec.{direction}"))
    };
    findings.retain(|finding| {
        let [ingress, egress] = Direction::BOTH.map(|direction| is_of(finding, direction));
        finding.severity > Severity::Info
            && refusing.iter().any(|(policy, direction)| {
                let elsewhere = match direction {
                    Direction::Ingress => egress,
                    Direction::Egress => ingress,
                };
                finding.object.as_ref() == Some(policy) && !elsewhere
            })
    });
    findings
}
