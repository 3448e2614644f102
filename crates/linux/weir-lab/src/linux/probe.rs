use std::{collections::BTreeSet, sync::PoisonError, time::Duration};

use rustix::process::{Resource, getrlimit};
use weir_model::{Flow, Protocol, Verdict};

use super::{
    lab::Lab,
    namespace::on_new_thread,
    round::{self, Attempt},
};
use crate::{LabError, plan};

/// The source ports of probes. They are used in turn, so that no connection is mistaken for an
/// older one.
const PORTS: std::ops::Range<u16> = 10_000..60_000;

/// The machine counts as slow if an answer takes more than this fraction of the timeout.
const PROMPT_FRACTION: u32 = 4;

/// The factors of the timeout for further attempts on a slow machine.
const RETRY_FACTORS: [u32; 3] = [3, 10, 30];

pub(super) fn probe(
    lab: &Lab,
    flows: &[Flow],
    timeout: Duration,
) -> Result<Vec<Verdict>, LabError> {
    flows.iter().try_for_each(plan::check)?;
    on_new_thread(|| {
        let mut port = lab.next_port.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verdicts = Vec::with_capacity(flows.len());
        for flows in flows.chunks(max_concurrent_flows()) {
            verdicts.extend(decide(lab, flows, timeout, &mut port)?);
        }
        Ok(verdicts)
    })
}

/// Accepts a denial if all answers were prompt. Otherwise the machine may be too slow, and the
/// denied flows are probed again with a longer timeout.
fn decide(
    lab: &Lab,
    flows: &[Flow],
    timeout: Duration,
    port: &mut u16,
) -> Result<Vec<Verdict>, LabError> {
    let (mut verdicts, mut is_prompt) = attempt(lab, flows, timeout, port)?;
    for factor in RETRY_FACTORS {
        let denied: Vec<usize> =
            (0..flows.len()).filter(|&number| verdicts[number] == Verdict::Deny).collect();
        if denied.is_empty() || is_prompt {
            break;
        }
        let again: Vec<Flow> = denied.iter().map(|&number| flows[number]).collect();
        let (second, was_prompt) = attempt(lab, &again, timeout * factor, port)?;
        denied.into_iter().zip(second).for_each(|(number, verdict)| verdicts[number] = verdict);
        is_prompt = was_prompt;
    }
    Ok(verdicts)
}

/// Probes once. The flag is whether all answers were prompt. A control probe, which no filter
/// sees because it never leaves the outside, always takes part.
fn attempt(
    lab: &Lab,
    flows: &[Flow],
    timeout: Duration,
    port: &mut u16,
) -> Result<(Vec<Verdict>, bool), LabError> {
    let spare = lab.plan.spare;
    let control = Flow { from: spare, to: spare, protocol: Protocol::Udp, port: 9 };
    let busy: BTreeSet<u16> = flows.iter().map(|flow| flow.port).collect();
    let attempts: Vec<Attempt> = flows
        .iter()
        .copied()
        .chain([control])
        .map(|flow| Attempt { flow, port: next(port, &busy) })
        .collect();
    let mut answers = round::run(lab, &attempts, timeout)?;
    let control = answers.pop().flatten();
    let slowest = answers.iter().flatten().copied().chain(control).max();
    let prompt =
        control.is_some() && slowest.is_some_and(|slowest| slowest * PROMPT_FRACTION <= timeout);
    let verdict = |answer: Option<Duration>| answer.map_or(Verdict::Deny, |_| Verdict::Allow);
    Ok((answers.into_iter().map(verdict).collect(), prompt))
}

/// The next source port that is not the destination port of any flow.
pub(super) fn next(port: &mut u16, busy: &BTreeSet<u16>) -> u16 {
    loop {
        *port = if PORTS.contains(&(*port + 1)) { *port + 1 } else { PORTS.start };
        if !busy.contains(port) {
            return *port;
        }
    }
}

/// The number of flows to probe concurrently. Each flow needs two files, and half of the limit
/// stays free.
fn max_concurrent_flows() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(16, 4096)
}
