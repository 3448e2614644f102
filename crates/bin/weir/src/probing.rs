//! How the probes of `weir test` are tried, and what their answers mean.

use weir_model::{Flow, Verdict};
use weir_reach::ReachState;

use crate::{
    datapath::{Probed, Testing},
    live::LiveCluster,
    why,
};

/// How the probes of a test are tried.
#[derive(Clone, Copy)]
pub(crate) enum Prober<'a> {
    /// By a datapath on this machine.
    Datapath(Testing),
    /// By containers in a cluster.
    Live(&'a LiveCluster),
}

/// The answer to one probe.
pub(crate) enum Answer {
    /// Of a datapath.
    Datapath(Probed),
    /// Of a cluster, or why the probe could not be tried there.
    Live(Result<Verdict, String>),
}

impl Answer {
    /// The answer, if a datapath gave it.
    pub(crate) fn of_datapath(self) -> Option<Probed> {
        match self {
            Answer::Datapath(probed) => Some(probed),
            Answer::Live(_) => None,
        }
    }
}

/// The answers of a datapath.
pub(crate) fn answers(all: Vec<impl Into<Probed>>) -> Vec<Answer> {
    all.into_iter().map(|one| Answer::Datapath(one.into())).collect()
}

/// Why a connection in a cluster has its verdict. The cluster may not enforce its policies, or not yet.
pub(crate) fn why_live(state: &ReachState, flow: &Flow, verdict: Verdict) -> String {
    let compiled = state.program.verdict(flow);
    let why = why::line(&weir_engine::explain(&state.program, flow));
    if compiled == verdict {
        return why;
    }
    let done = match verdict {
        Verdict::Allow => "packets pass",
        Verdict::Deny => "no packet arrives",
    };
    format!("{done}, although the policies of the cluster {compiled} the connection: {why}")
}

/// The verdict of the datapath and its reason. A third value reports a bug: the compiled rules, the
/// oracle and the datapath disagree. Without an answer of the datapath, the compiled rules decide.
pub(crate) fn judge(
    state: &ReachState,
    flow: &Flow,
    probed: Option<Probed>,
) -> (Verdict, String, Option<String>) {
    let compiled = state.program.verdict(flow);
    let oracle = weir_oracle::verdict(&state.world, flow);
    let Probed { verdict: real, shortfall } = probed.unwrap_or(compiled.into());
    let shortfall = shortfall.filter(|_| real == Verdict::Deny && compiled == Verdict::Allow);
    let differs = compiled != oracle || (compiled != real && shortfall.is_none());
    let bug = differs.then(|| {
        format!(
            "bug in weir, please report it: for {flow} the compiled rules {compiled}, the oracle {oracle}, the datapath {real}"
        )
    });
    let why = match shortfall {
        Some(shortfall) => {
            format!("allowed by policy, but the datapath cannot express it: {shortfall}")
        }
        None => why::line(&weir_engine::explain(&state.program, flow)),
    };
    (real, why, bug)
}
