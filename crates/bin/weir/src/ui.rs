//! The web page: loads the input, and serves or exports a page about it.

mod drops;
mod flows;
mod live;
mod recorded;
mod session;

use std::{io::Write, path::PathBuf, sync::Arc};

use clap::Args;
use weir_web::Server;

use crate::{
    clusters::ClustersArgs, exit::Exit, failure::Failure, ingress::IngressArgs,
    observe::agent_address, source::SourceArgs,
};
use session::Session;

/// Show the policies and their effect on a web page
///
/// Serves a page on 127.0.0.1 until it is interrupted: a map and a matrix of the workloads, the
/// reason for the verdict of every connection, the policies with their findings, and the effect of
/// a change before it is applied. The printed address contains a token, which gives access. The page
/// loads nothing from other servers, and changes nothing in the cluster.
///
/// With --flows, it also shows which of the allowed connections were used. A recording without manifests
/// and without a cluster shows the observed connections only. With --live, it shows the
/// flows and the dropped packets of the agents as they arrive. It then runs `weir flows` and `weir
/// drops` in the pods of the agents, which needs `create` on pods/exec in their namespace.
///
/// With --export, it writes the page with all of its data into a folder instead. It reads standard
/// input to its end first.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir ui -f examples/shop/manifests\n  weir ui -f examples/shop/manifests --export page\n  weir ui --flows flows.jsonl\n  weir ui --live"
)]
pub(crate) struct UiCommand {
    #[command(flatten)]
    input: UiInput,
    /// The port on 127.0.0.1 [default: any free port]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Write a page that needs no server into this folder, and exit
    #[arg(long, value_name = "DIR", conflicts_with_all = ["port", "live"])]
    export: Option<PathBuf>,
}

/// The input of the page.
#[derive(Args, Clone)]
struct UiInput {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    #[command(flatten)]
    ingress: IngressArgs,
    /// Observed flows: a file of `weir flows -o json`, or `-` for standard input. The policies come from
    /// manifests, or from the cluster of --context or --kubeconfig
    #[arg(long, value_name = "PATH")]
    flows: Option<PathBuf>,
    /// Show the flows and the dropped packets of all agents of the cluster as they arrive
    #[arg(long, conflicts_with_all = ["flows", "clusters"])]
    live: bool,
    /// With --live: only the agent at this HTTP address, such as 127.0.0.1:9640
    #[arg(long, value_name = "ADDRESS", requires = "live", value_parser = agent_address)]
    agent: Option<String>,
    /// With --live: the namespace of the agents
    #[arg(long, value_name = "NAME", default_value = "weir-system")]
    agent_namespace: String,
}

/// What happens to the page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A server shows it, and flows can follow.
    Serve,
    /// It is written once, with all flows.
    Export,
}

impl UiCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let purpose = if self.export.is_some() { Purpose::Export } else { Purpose::Serve };
        let session = Session::load(self.input.clone(), purpose)?;
        if let Some(folder) = &self.export {
            weir_web::export(folder, &session, &session.content().requests())?;
            writeln!(out, "{}", folder.join("index.html").display())?;
            return Ok(Exit::Yes);
        }
        let server = Server::bind(self.port).map_err(|error| {
            Failure::new(error, "choose another port with --port, or none for any free port")
        })?;
        writeln!(out, "{}", server.url())?;
        out.flush()?;
        server.run(Arc::new(session))?;
        Ok(Exit::Yes)
    }
}
