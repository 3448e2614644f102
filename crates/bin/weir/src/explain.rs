use std::{collections::BTreeSet, io::Write, net::IpAddr};

use clap::{Args, ValueEnum};
use weir_engine::{Explanation, Reason, Remedy, Side};
use weir_model::{
    Direction, Finding, Flow, IpFamily, ObjectRef, Pod, Program, Severity, Verdict, World,
};
use weir_reach::PortQuery;

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::Failure,
    flow_end::FlowEnd,
    present::{
        self, Format, Schema,
        explanation_view::{Context, ExplanationView},
    },
    source::{self, Loaded, SourceArgs},
    why,
};

/// Explain why a connection is allowed or denied
///
/// Prints for each direction the policies that isolate the pod and the rule that decides, with file
/// and line. For a denied connection it also prints the rules that nearly match and the smallest
/// policy that would allow it. Exit status 1 if the connection is denied.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir explain -f examples/shop/manifests --from shop/web --to shop/db --port 5432\n  weir explain -f examples/shop/manifests --from 203.0.113.7 --to shop/deployment/web --port http"
)]
pub(crate) struct ExplainCommand {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    /// The source: `namespace/pod`, `pod` with -n, an address, or `namespace/deployment/name`
    #[arg(long, value_name = "END")]
    from: String,
    /// The destination, in the same forms
    #[arg(long, value_name = "END")]
    to: String,
    /// The destination port: a number or the name of a container port
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: PortQuery,
    /// The IP family, if both ends have addresses of both families
    #[arg(long, value_name = "FAMILY", value_enum, ignore_case = true)]
    ip_family: Option<FamilyArg>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl ExplainCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load_clusters(&self.clusters)?;
        let end = |text| FlowEnd::find(text, self.source.namespace(), &loaded);
        let (from, to) = (end(&self.from)?, end(&self.to)?);
        let flow = self.flow(&loaded, &from, &to)?;
        let mut notes: Vec<String> =
            [&from, &to].into_iter().filter_map(|end| note(end, &loaded)).collect();
        let state = source::compile(loaded.world.clone());
        let explanation = weir_engine::explain(&state.program, &flow);
        notes.extend(self.source.pod_network.notes(&state, &loaded.synthetic, &flow));
        for (end, address) in [(&from, flow.from), (&to, flow.to)] {
            notes.extend(claim_note(end.pod(&loaded), address, &loaded.world));
        }
        notes.extend(other_family(&loaded, &state.program, &explanation, [&from, &to]));
        let mut remedy = weir_engine::remedy(&loaded.world, &explanation);
        if let (Remedy::Add(policies), false) = (&mut remedy, self.clusters.is_empty()) {
            for policy in policies {
                let (cluster, local) = weir_clusterset::localized(policy);
                let cluster = cluster.unwrap_or_default();
                notes.push(format!("apply {} in cluster {cluster}", local.id));
                *policy = local;
            }
        }
        let policy_findings = findings_of_denying_policies(&loaded, &explanation);
        let context = Context { ends: [&from, &to], loaded: &loaded, policy_findings, notes };
        let view = ExplanationView::new(&explanation, &remedy, context);
        match self.output.structured() {
            Some(form) => present::value(out, form, Schema::Explain, &view)?,
            None => present::explanation::write(out, &explanation, &view)?,
        }
        Ok(explanation.verdict.into())
    }

    /// The connection to explain.
    fn flow(&self, loaded: &Loaded, from: &FlowEnd, to: &FlowEnd) -> Result<Flow, Failure> {
        if self.port.is_any() {
            let hint = "give a number or a name; `weir matrix --port any` evaluates all ports";
            return Err(Failure::new("a connection has one port", hint));
        }
        let family = self.ip_family.map(IpFamily::from);
        let (from_address, to_address) =
            addresses(loaded, (&self.from, from), (&self.to, to), family)?;
        let mut ports = self.port.at(to.pod(loaded));
        ports.sort();
        ports.dedup();
        if ports.len() > 1 {
            let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let hint = if ports.windows(2).all(|pair| pair[0].protocol != pair[1].protocol) {
                format!("add the protocol: `--port {}/{}`", self.port, ports[1].protocol)
            } else {
                format!("give the number: `--port {}`", list[0])
            };
            let what =
                format!("{} has several ports named {}: {}", self.to, self.port, list.join(", "));
            return Err(Failure::new(what, hint));
        }
        let Some(port) = ports.first() else {
            let names: Vec<&str> = to
                .pod(loaded)
                .map(|pod| pod.ports.iter().map(|port| &*port.name).collect())
                .unwrap_or_default();
            let hint = if !names.is_empty() {
                format!("its named ports are {}; a number works too", names.join(", "))
            } else if to.pod(loaded).is_some() {
                "give the port as a number".to_owned()
            } else {
                "the ports of an address have no names: name the pod, or give a number".to_owned()
            };
            return Err(Failure::new(format!("{} has no port {}", self.to, self.port), hint));
        };
        Ok(Flow { from: from_address, to: to_address, protocol: port.protocol, port: port.first })
    }
}

/// A remark about an end, if one is needed.
fn note(end: &FlowEnd, loaded: &Loaded) -> Option<String> {
    let pod = end.pod(loaded)?;
    let id = &pod.id;
    match end {
        _ if pod.host_network => Some(format!(
            "{id} uses the network of its node: policies treat it as a node, not as a pod"
        )),
        FlowEnd::Pod(_, count @ 2..) => {
            Some(format!("{id} is one of {count} pods of its workload"))
        }
        _ => None,
    }
}

/// A remark that several pods hold the address of an end, or another one than its pod.
fn claim_note(pod: Option<&Pod>, address: IpAddr, world: &World) -> Option<String> {
    match (pod, &world.holders(address)[..]) {
        (_, [first, second, ..]) => Some(format!(
            "{address} is contested: {} and {} have it; a rule allows it only if it selects both",
            first.id, second.id
        )),
        (Some(pod), [owner]) if owner.id != pod.id && !pod.host_network => Some(format!(
            "{} is being deleted and does not own {address} any more: {} has it",
            pod.id, owner.id
        )),
        _ => None,
    }
}

/// An IP family, as the API writes it.
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

/// The addresses of a connection: those of the requested family, or else of the family of the first
/// destination address that both ends share.
fn addresses(
    loaded: &Loaded,
    (from_text, from): (&str, &FlowEnd),
    (to_text, to): (&str, &FlowEnd),
    family: Option<IpFamily>,
) -> Result<(IpAddr, IpAddr), Failure> {
    let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
    for (text, list) in [(from_text, &sources), (to_text, &targets)] {
        if list.is_empty() {
            let hint = "a pod needs an address to connect; it may still be starting";
            return Err(Failure::new(format!("{text} has no address"), hint));
        }
        if let Some(family) = family.filter(|family| family.first_in(list).is_none()) {
            let hint = "leave out --ip-family, or use the other family";
            return Err(Failure::new(format!("{text} has no {family} address"), hint));
        }
    }
    let has_family = |to: &&IpAddr| family.is_none_or(|family| IpFamily::from(**to) == family);
    let pair = |to: &IpAddr| Some((IpFamily::from(*to).first_in(&sources)?, *to));
    targets.iter().filter(has_family).find_map(pair).ok_or_else(|| {
        let hint = "one end has only IPv4 and the other only IPv6; use addresses of one family";
        Failure::new(format!("{from_text} and {to_text} share no address family"), hint)
    })
}

/// The verdict over the other family, if both ends have addresses of it too.
fn other_family(
    loaded: &Loaded,
    program: &Program,
    explanation: &Explanation,
    [from, to]: [&FlowEnd; 2],
) -> Option<String> {
    let flow = explanation.flow;
    let used = IpFamily::from(flow.to);
    let other = IpFamily::BOTH.into_iter().find(|family| *family != used)?;
    let address = |end: &FlowEnd| other.first_in(&end.addresses(loaded));
    let also = Flow { from: address(from)?, to: address(to)?, ..flow };
    let verdict = program.verdict(&also);
    let verdict_text = why::past(verdict);
    Some(if verdict == explanation.verdict {
        format!("evaluated for {used}; {other} is {verdict_text} too")
    } else {
        format!("evaluated for {used}; {other} is {verdict_text}: see `--ip-family {other}`")
    })
}

/// The findings about the policies that deny the connection, in the direction in which they deny
/// it.
fn findings_of_denying_policies(loaded: &Loaded, explanation: &Explanation) -> Vec<Finding> {
    let mut denying: BTreeSet<(ObjectRef, Direction)> = BTreeSet::new();
    for direction in Direction::BOTH {
        let Side::Judged(judgement) = explanation.side(direction) else { continue };
        match &judgement.reason {
            _ if judgement.verdict == Verdict::Allow => (),
            Reason::Admin(cited) | Reason::Baseline(cited) => {
                denying.insert((ObjectRef::from(&cited.section.policy), direction));
            }
            Reason::Isolated | Reason::Contested | Reason::Allowed(_) | Reason::Default => {
                let policies = judgement.isolating.iter();
                denying
                    .extend(policies.map(|section| (ObjectRef::from(&section.policy), direction)));
            }
        }
    }
    if denying.is_empty() {
        return Vec::new();
    }
    let mut findings = loaded.lint();
    let is_about = |finding: &Finding, direction: Direction| {
        finding.field.starts_with(&format!("spec.{direction}"))
    };
    findings.retain(|finding| {
        let [ingress, egress] = Direction::BOTH.map(|direction| is_about(finding, direction));
        finding.severity > Severity::Info
            && denying.iter().any(|(policy, direction)| {
                let is_other_direction = match direction {
                    Direction::Ingress => egress,
                    Direction::Egress => ingress,
                };
                finding.object.as_ref() == Some(policy) && !is_other_direction
            })
    });
    findings
}
