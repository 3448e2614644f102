use std::{collections::BTreeSet, io::Write, net::IpAddr};

use clap::{Args, ValueEnum};
use weir_engine::{Explanation, Reason, Remedy, Side};
use weir_model::{
    Direction, Finding, Flow, IpFamily, Name, ObjectRef, Pod, PodId, Program, ServiceId, Severity,
    Verdict, World,
};
use weir_reach::{PortQuery, ReachState};

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::Failure,
    flow_end::{FlowEnd, unread_services},
    present::{
        self, Format, Schema,
        explanation_view::{Context, ExplanationView},
        service_view::{BackendView, ServiceView},
    },
    service::{self, ServiceTarget, Sources},
    source::{self, Loaded, SourceArgs},
    why,
};

/// Explain why a connection is allowed or denied
///
/// Prints for each direction the policies that isolate the pod and the rule that decides, with file
/// and line. For a denied connection it also prints the rules that nearly match and the smallest
/// policy that would allow it. Exit status 1 if the connection is denied.
///
/// A connection to a Service is evaluated for each backend, and denied if any of these is denied.
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
    /// The destination, in the same forms, or a Service, as in `namespace/svc/name`
    #[arg(long, value_name = "END")]
    to: String,
    /// The destination port: a number or the name of a container port; for a Service, its own port
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
        let kinds = FlowEnd::kinds([&self.from, &self.to]);
        let loaded = self.source.load_clusters_with(&self.clusters, kinds)?;
        let end = |text| FlowEnd::find(text, self.source.namespace(), &loaded);
        let (from, mut to) = (end(&self.from)?, end(&self.to)?);
        for end in [&from, &to] {
            check_network(end, &loaded)?;
        }
        if let FlowEnd::Service(id) = &from {
            let hint = "a Service opens no connections: name the pods that do";
            return Err(Failure::new(format!("Service {id} cannot be a source"), hint).into());
        }
        if let FlowEnd::Address(address) = to
            && let Some(service) = service::at_node_port(&loaded.world, address, &self.port)
        {
            to = FlowEnd::Service(service.id.clone());
        }
        let state = source::compile(loaded.world.clone());
        if let FlowEnd::Service(id) = &to {
            return self.explain_service(out, &loaded, &state, &from, id);
        }
        let flow = self.flow(&loaded, &from, &to)?;
        let explained = self.explain(&loaded, &state, [&from, &to], flow);
        let mut view = explained.view(&loaded, [&from, &to]);
        let addresses = [&from, &to].into_iter().any(|end| matches!(end, FlowEnd::Address(_)));
        if let (true, Some(unread)) = (addresses, unread_services(&loaded)) {
            view.notes.push(unread.message.clone());
        }
        match self.output.structured() {
            Some(form) => present::value(out, form, Schema::Explain, &view)?,
            None => present::explanation::write(out, &explained.explanation, &view)?,
        }
        Ok(explained.explanation.verdict.into())
    }

    /// Explains the connections to all backends of a Service: each with its verdict, and one of
    /// them, a denied one if there is any, in full.
    fn explain_service(
        &self,
        out: &mut dyn Write,
        loaded: &Loaded,
        state: &ReachState,
        from: &FlowEnd,
        id: &ServiceId,
    ) -> anyhow::Result<Exit> {
        let service = service::find(&loaded.world, id)?;
        let mut target = ServiceTarget::find(&loaded.world, service, &self.port)?;
        let sources = Sources::find(&loaded.world, from, service);
        target.notes.extend(sources.note.clone());
        let attempts = self.attempts(loaded, &target, &sources)?;
        let reaches_itself = attempts.iter().any(|attempt| attempt.flow.from == attempt.flow.to);
        let has_admin_policies =
            loaded.world.policies.keys().any(|policy| !policy.kind.is_namespaced());
        if reaches_itself && has_admin_policies {
            target.notes.push(format!(
                "{from} is a backend itself: through the Service, admin policies apply to that \
                 connection, and this evaluation does not include them"
            ));
        }
        let verdicts: Vec<Verdict> =
            attempts.iter().map(|attempt| state.program.verdict(&attempt.flow)).collect();
        let verdict = verdicts.iter().copied().max().unwrap_or(Verdict::Deny);
        let shown = verdicts.iter().position(|own| *own == verdict).unwrap_or_default();
        let Attempt { from, to, flow } = &attempts[shown];
        let explained = self.explain(loaded, state, [from, to], *flow);
        let mut view = explained.view(loaded, [from, to]);
        let backends = attempts.iter().map(|attempt| {
            let explanation = weir_engine::explain(&state.program, &attempt.flow);
            BackendView::new(&attempt.from, &attempt.to, &explanation)
        });
        view.service = Some(ServiceView::new(&target, &self.from, backends.collect()));
        match self.output.structured() {
            Some(form) => present::value(out, form, Schema::Explain, &view)?,
            None => present::explanation::write(out, &explained.explanation, &view)?,
        }
        Ok(verdict.into())
    }

    /// The connections that one connection to a Service can become.
    fn attempts(
        &self,
        loaded: &Loaded,
        target: &ServiceTarget<'_>,
        sources: &Sources,
    ) -> Result<Vec<Attempt>, Failure> {
        let family = self.ip_family.map(IpFamily::from);
        let (mut attempts, mut failure) = (Vec::new(), None);
        for backend in &target.backends {
            let to = match &backend.pod {
                Some(pod) => FlowEnd::Pod(pod.clone(), 1),
                None => FlowEnd::Address(backend.addresses[0]),
            };
            check_network(&to, loaded)?;
            for from in &sources.ends {
                check_network(from, loaded)?;
                let sources = (&*from.to_string(), from.addresses(loaded));
                let targets = (&*to.to_string(), backend.addresses.clone());
                match addresses(sources, targets, family) {
                    Ok((source, address)) => {
                        let (protocol, port) = (target.port.protocol, backend.port);
                        let flow = Flow { from: source, to: address, protocol, port };
                        attempts.push(Attempt { from: from.clone(), to: to.clone(), flow });
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        match failure {
            Some(failure) if attempts.is_empty() => Err(failure),
            _ => Ok(attempts),
        }
    }

    /// Explains one connection.
    fn explain(
        &self,
        loaded: &Loaded,
        state: &ReachState,
        [from, to]: [&FlowEnd; 2],
        flow: Flow,
    ) -> Explained {
        let mut notes: Vec<String> =
            [from, to].into_iter().filter_map(|end| note(end, loaded)).collect();
        notes.extend(network_notes([from, to], loaded));
        let explanation = weir_engine::explain(&state.program, &flow);
        notes.extend(self.source.pod_network.notes(state, &loaded.synthetic, &flow));
        for (end, address) in [(from, flow.from), (to, flow.to)] {
            notes.extend(claim_note(end.pod(loaded), address, &loaded.world));
        }
        notes.extend(other_family(loaded, &state.program, &explanation, [from, to]));
        let mut remedy = weir_engine::remedy(&loaded.world, &explanation);
        if let (Remedy::Add(policies), false) = (&mut remedy, self.clusters.is_empty()) {
            for policy in policies {
                let (cluster, local) = weir_clusterset::localized(policy);
                let cluster = cluster.unwrap_or_default();
                notes.push(format!("apply {} in cluster {cluster}", local.id));
                *policy = local;
            }
        }
        Explained { explanation, remedy, notes }
    }

    /// The connection to explain.
    fn flow(&self, loaded: &Loaded, from: &FlowEnd, to: &FlowEnd) -> Result<Flow, Failure> {
        if self.port.is_any() {
            let hint = "give a number or a name; `weir matrix --port any` evaluates all ports";
            return Err(Failure::new("a connection has one port", hint));
        }
        let family = self.ip_family.map(IpFamily::from);
        let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
        let (from_address, to_address) =
            addresses((&self.from, sources), (&self.to, targets), family)?;
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

/// The explanation of one connection.
struct Explained {
    explanation: Explanation,
    remedy: Remedy,
    notes: Vec<String>,
}

impl Explained {
    fn view(&self, loaded: &Loaded, ends: [&FlowEnd; 2]) -> ExplanationView {
        let policy_findings = findings_of_denying_policies(loaded, &self.explanation);
        let notes = self.notes.clone();
        let context = Context { ends, loaded, policy_findings, notes };
        ExplanationView::new(&self.explanation, &self.remedy, context)
    }
}

/// A connection that a connection to a Service can become.
struct Attempt {
    from: FlowEnd,
    to: FlowEnd,
    flow: Flow,
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

/// Fails for a pod that is not on the cluster network: policies may apply to its connections, but
/// weir does not know the network.
fn check_network(end: &FlowEnd, loaded: &Loaded) -> Result<(), Failure> {
    let Some(pod) = end.pod(loaded) else { return Ok(()) };
    let networks = loaded.attachments.get(&pod.id);
    let Some(network) = networks.and_then(|networks| networks.primary.as_ref()) else {
        return Ok(());
    };
    let what = format!(
        "weir does not judge the connections of {}: {network} replaces its cluster network",
        pod.id
    );
    Err(Failure::new(what, "look at the configuration of that network"))
}

/// Remarks about the secondary networks of both ends, or else of one.
fn network_notes(ends: [&FlowEnd; 2], loaded: &Loaded) -> Vec<String> {
    let networks = ends.map(|end| {
        let pod = end.pod(loaded)?;
        Some((&pod.id, &loaded.attachments.get(&pod.id)?.secondary))
    });
    let note = |(id, names): (&PodId, &BTreeSet<Name>)| {
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        format!(
            "{id} also has the network {}; weir judges only the cluster network",
            names.join(", ")
        )
    };
    networks.into_iter().flatten().map(note).collect()
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
    (from_text, sources): (&str, Vec<IpAddr>),
    (to_text, targets): (&str, Vec<IpAddr>),
    family: Option<IpFamily>,
) -> Result<(IpAddr, IpAddr), Failure> {
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
