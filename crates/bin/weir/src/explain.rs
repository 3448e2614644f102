mod backends;
mod ends;

use std::{collections::BTreeSet, io::Write};

use clap::{Args, ValueEnum};
use weir_engine::{Explanation, Reason, Remedy, Side};
use weir_model::{Direction, Finding, Flow, IpFamily, ObjectRef, Severity, Verdict};
use weir_reach::{PortQuery, ReachState};

use self::ends::{addresses, check_network, claim_note, network_notes, note, other_family};

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::Failure,
    flow_end::{FlowEnd, unread_services},
    ingress::{self, IngressArgs},
    names,
    present::{
        self, Format, Schema,
        explanation_view::{Context, ExplanationView},
    },
    service,
    source::{self, Loaded, SourceArgs},
};

/// Explain why a connection is allowed or denied
///
/// Prints for each direction the policies that isolate the pod and the rule that decides, with file
/// and line. For a denied connection it also prints the rules that nearly match and the smallest
/// policy that would allow it. Exit status 1 if the connection is denied.
///
/// A connection to a Service is evaluated for each backend, and denied if any of these is denied.
/// The same holds for an Ingress or a Gateway route, from the pods that serve it.
///
/// Rules about domain names match the addresses that the agent of `--agent` has learned. Without it,
/// they match nothing.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir explain -f examples/shop/manifests --from shop/web --to shop/db --port 5432\n  weir explain -f examples/shop/manifests --from 203.0.113.7 --to shop/deployment/web --port http"
)]
pub(crate) struct ExplainCommand {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    #[command(flatten)]
    ingress: IngressArgs,
    /// The source: `namespace/pod`, `pod` with -n, an address, `namespace/deployment/name`, or
    /// `ingress` for the ingress controller
    #[arg(long, value_name = "END")]
    from: String,
    /// The destination, in the same forms, or a Service, an Ingress or a Gateway route, as in
    /// `namespace/svc/name`, `namespace/ingress/name` or `namespace/httproute/name`
    #[arg(long, value_name = "END")]
    to: String,
    /// The destination port: a number or the name of a container port; for a Service, its own port.
    /// A route needs none
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: Option<PortQuery>,
    /// The IP family, if both ends have addresses of both families
    #[arg(long, value_name = "FAMILY", value_enum, ignore_case = true)]
    ip_family: Option<FamilyArg>,
    /// The HTTP address of a node's agent, whose addresses of domain names count
    #[arg(long, value_name = "ADDRESS", conflicts_with = "clusters")]
    agent: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl ExplainCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let kinds = FlowEnd::kinds([&self.from, &self.to]);
        let names = self.agent.as_deref().map(names::request).transpose()?;
        let loaded = match &names {
            Some(names) => self.source.load_with_names(kinds, names)?,
            None => self.source.load_clusters(&self.clusters, kinds)?,
        };
        let end = |text| FlowEnd::find(text, self.source.namespace(), &loaded);
        let (mut from, mut to) = (end(&self.from)?, end(&self.to)?);
        let mut source_note = None;
        if matches!(from, FlowEnd::Ingress | FlowEnd::Route(_)) {
            let route = from.route(&loaded);
            let pods = self.ingress.pods(route, self.source.namespace(), &loaded)?;
            let first = pods.first().ok_or_else(ingress::unknown_pods)?;
            if pods.len() > 1 {
                source_note = Some(format!("{from} stands for {}", ingress::listed(&pods)));
            }
            from = FlowEnd::Pod(first.clone(), 1);
        }
        for end in [&from, &to] {
            check_network(end, &loaded)?;
        }
        if let FlowEnd::Service(id) = &from {
            let hint = "a Service opens no connections: name the pods that do";
            return Err(Failure::new(format!("Service {id} cannot be a source"), hint).into());
        }
        if to == FlowEnd::Ingress {
            let hint = "name an Ingress, as in `namespace/ingress/name`, or the controller's pods";
            return Err(Failure::new("`ingress` is a source of connections", hint).into());
        }
        if let FlowEnd::Address(address) = to
            && let Some(service) = service::at_node_port(&loaded.world, address, self.port()?)
        {
            to = FlowEnd::Service(service.id.clone());
        }
        let state = source::compile(loaded.world.clone());
        if let Some(route) = to.route(&loaded) {
            return self.explain_route(out, &loaded, &state, &from, route);
        }
        if let FlowEnd::Service(id) = &to {
            return self.explain_service(out, &loaded, &state, &from, id);
        }
        let flow = self.flow(&loaded, &from, &to)?;
        let explained = self.explain(&loaded, &state, [&from, &to], flow);
        let mut view = explained.view(&loaded, [&from, &to]);
        view.notes.splice(..0, source_note);
        let names = names.iter().flat_map(|names| names.notes(flow.to));
        view.notes.extend(names);
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

    /// The port, which only routes do not need.
    fn port(&self) -> Result<&PortQuery, Failure> {
        self.port.as_ref().ok_or_else(|| {
            let hint = "give it with --port; only a route needs none";
            Failure::new("the destination port is missing", hint)
        })
    }

    /// The connection to explain.
    fn flow(&self, loaded: &Loaded, from: &FlowEnd, to: &FlowEnd) -> Result<Flow, Failure> {
        let port = self.port()?;
        if port.is_any() {
            let hint = "give a number or a name; `weir matrix --port any` evaluates all ports";
            return Err(Failure::new("a connection has one port", hint));
        }
        let family = self.ip_family.map(IpFamily::from);
        let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
        let (from_address, to_address) =
            addresses((&self.from, sources), (&self.to, targets), family)?;
        let mut ports = port.at(to.pod(loaded));
        ports.sort();
        ports.dedup();
        if ports.len() > 1 {
            let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let hint = if ports.windows(2).all(|pair| pair[0].protocol != pair[1].protocol) {
                format!("add the protocol: `--port {port}/{}`", ports[1].protocol)
            } else {
                format!("give the number: `--port {}`", list[0])
            };
            let what = format!("{} has several ports named {port}: {}", self.to, list.join(", "));
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
            return Err(Failure::new(format!("{} has no port {port}", self.to), hint));
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
