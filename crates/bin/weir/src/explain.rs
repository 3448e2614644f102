mod backends;

use std::io::Write;

use clap::{Args, ValueEnum};
use weir_kube::ClusterKinds;
use weir_model::IpFamily;
use weir_reach::PortQuery;
use weir_view::explain::{Clusters, Question, check_network};
use weir_view::flow_end::{ROUTE_KINDS, kind_in};

use crate::{
    clusters::ClustersArgs,
    exit::Exit,
    failure::Failure,
    flow_end::{self, FlowEnd, unread_services},
    ingress::{self, IngressArgs},
    names,
    observe::agent_address,
    present::{self, Format, Schema},
    service,
    source::{self, SourceArgs},
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
    #[arg(long, value_name = "ADDRESS", conflicts_with = "clusters", value_parser = agent_address)]
    agent: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl ExplainCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let kinds = kinds([&self.from, &self.to]);
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
            let pods = self.ingress.controllers().pods(route, self.source.namespace(), &loaded)?;
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
            && let Some(service) =
                service::at_node_port(&loaded.world, address, self.question().port()?)
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
        let flow = self.question().flow(&loaded, &from, &to)?;
        let explained = self.question().explain(&loaded, &state, [&from, &to], flow);
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

    /// The question about the two named ends.
    fn question(&self) -> Question<'_> {
        Question {
            from: &self.from,
            to: &self.to,
            port: self.port.as_ref(),
            family: self.ip_family.map(IpFamily::from),
            pod_cidrs: self.source.pod_network.cidrs(),
            clusters: if self.clusters.is_empty() { Clusters::One } else { Clusters::Several },
        }
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

/// The kinds of objects that are needed to find the ends that these texts name.
fn kinds(texts: [&str; 2]) -> ClusterKinds {
    // An address may be that of a Service.
    let may_be_service = |text: &str| {
        weir_api::address(text).is_some() || kind_in(text).as_deref() == Some("service")
    };
    let needs_routes = |text: &str| {
        let kind = kind_in(text);
        text == flow_end::INGRESS || kind.is_some_and(|kind| ROUTE_KINDS.contains(&kind.as_str()))
    };
    if texts.into_iter().any(needs_routes) {
        ClusterKinds::DestinationsAndRoutes
    } else if texts.into_iter().any(may_be_service) {
        ClusterKinds::Destinations
    } else {
        ClusterKinds::Policies
    }
}
