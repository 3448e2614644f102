use std::{collections::BTreeSet, io::Write, net::IpAddr};

use clap::Args;
use weir_engine::{Explanation, Locality, Side};
use weir_model::{Direction, Finding, Flow, Severity, Verdict};

use crate::{
    end::End,
    exit::Exit,
    failure::Failure,
    port::PortArg,
    present::{
        self, Format,
        story::{Beside, Story},
    },
    reach::Family,
    source::{Loaded, Source},
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
    /// Who connects: `namespace/pod`, `pod` with -n, an address, or `namespace/deployment/name`
    #[arg(long, value_name = "END")]
    from: String,
    /// To whom, likewise
    #[arg(long, value_name = "END")]
    to: String,
    /// The port at the destination: a number or the name of a container port
    #[arg(long, value_name = "PORT[/PROTOCOL]")]
    port: PortArg,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Explain {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let loaded = self.source.load_complete()?;
        let end = |text| End::find(text, self.source.namespace(), &loaded);
        let (from, to) = (end(&self.from)?, end(&self.to)?);
        let flow = self.flow(&loaded, &from, &to)?;
        let notes = [&from, &to].into_iter().filter_map(|end| note(end, &loaded)).collect();
        let program = weir_engine::compile(&loaded.world, Locality::Everywhere);
        let explanation = weir_engine::explain(&program, &flow);
        let remedy = weir_engine::remedy(&loaded.world, &explanation);
        let odd = odd(&loaded, &explanation);
        let (read, made_up) = (&loaded.findings, &loaded.made_up);
        let beside = Beside { ends: [&from, &to], read, odd, notes, made_up };
        let story = Story::new(&explanation, &remedy, beside);
        match self.output.structured() {
            Some(form) => present::value(out, form, &story)?,
            None => present::explanation::write(out, &explanation, &story)?,
        }
        Ok(explanation.verdict.into())
    }

    /// The connection that was asked about.
    fn flow(&self, loaded: &Loaded, from: &End, to: &End) -> Result<Flow, Failure> {
        let (from_address, to_address) = addresses(loaded, (&self.from, from), (&self.to, to))?;
        let ports = self.port.at(to.pod(loaded));
        let Some(port) = ports.first() else {
            let names: Vec<&str> = to
                .pod(loaded)
                .map(|pod| pod.ports.iter().map(|port| &*port.name).collect())
                .unwrap_or_default();
            let hint = match names.is_empty() {
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
        _ if pod.finished => {
            Some(format!("{id} has run to its end: its address is no longer its own"))
        }
        _ if pod.host_network => {
            Some(format!("{id} has the network of its node: to policies it is a node, not a pod"))
        }
        End::Pod(_, many @ 2..) => Some(format!("{id} is one of {many} pods of its workload")),
        _ => None,
    }
}

/// The addresses the two would use: of the family of the destination's first address, or else of one they share.
fn addresses(
    loaded: &Loaded,
    (from_text, from): (&str, &End),
    (to_text, to): (&str, &End),
) -> Result<(IpAddr, IpAddr), Failure> {
    let (sources, targets) = (from.addresses(loaded), to.addresses(loaded));
    for (text, list) in [(from_text, &sources), (to_text, &targets)] {
        if list.is_empty() {
            let hint = "a pod without an address cannot connect; is it still starting?";
            return Err(Failure::new(format!("{text} has no address"), hint));
        }
    }
    let pair = |to: &IpAddr| Some((Family::of(*to).pick(&sources)?, *to));
    targets.iter().find_map(pair).ok_or_else(|| {
        let hint = "one is IPv4 and the other IPv6; give addresses of one family";
        Failure::new(format!("{from_text} and {to_text} share no address family"), hint)
    })
}

/// What is probably wrong with the policies that refuse the connection.
fn odd(loaded: &Loaded, explanation: &Explanation) -> Vec<Finding> {
    let refusing: BTreeSet<String> = Direction::BOTH
        .into_iter()
        .filter_map(|direction| match explanation.side(direction) {
            Side::Judged(judgement) if judgement.verdict == Verdict::Deny => Some(judgement),
            _ => None,
        })
        .flat_map(|judgement| &judgement.isolating)
        .map(|section| section.policy.to_string())
        .collect();
    let mut findings = match refusing.is_empty() {
        true => Vec::new(),
        false => loaded.lint(),
    };
    findings.retain(|f| f.severity > Severity::Info && refusing.contains(&f.object));
    findings
}
