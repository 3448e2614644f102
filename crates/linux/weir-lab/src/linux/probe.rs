use std::{collections::BTreeSet, sync::PoisonError, time::Duration};

use rustix::process::{Resource, getrlimit};
use weir_model::{Flow, Protocol, Verdict};

use super::{
    lab::Lab,
    namespace::apart,
    round::{self, Attempt},
};
use crate::{LabError, plan};

/// The ports that probes come from. Each is used once before any is used again, so that no connection is taken for an older one.
const PORTS: std::ops::Range<u16> = 10_000..60_000;

/// How much of the patience an answer may take before the machine counts as slow.
const PROMPT: u32 = 4;

/// How much more patience there is with a slow machine.
const SECOND_CHANCE: u32 = 3;

pub(super) fn probe(
    lab: &Lab,
    flows: &[Flow],
    patience: Duration,
) -> Result<Vec<Verdict>, LabError> {
    flows.iter().try_for_each(plan::check)?;
    apart(|| {
        let mut port = lab.next_port.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verdicts = Vec::with_capacity(flows.len());
        for flows in flows.chunks(at_once()) {
            verdicts.extend(decide(lab, flows, patience, &mut port)?);
        }
        Ok(verdicts)
    })
}

/// A denial counts if everything else was answered promptly. Otherwise it may have been the machine, and there is a second try.
fn decide(
    lab: &Lab,
    flows: &[Flow],
    patience: Duration,
    port: &mut u16,
) -> Result<Vec<Verdict>, LabError> {
    let (mut verdicts, prompt) = attempt(lab, flows, patience, port)?;
    let denied: Vec<usize> =
        (0..flows.len()).filter(|&number| verdicts[number] == Verdict::Deny).collect();
    if !denied.is_empty() && !prompt {
        let again: Vec<Flow> = denied.iter().map(|&number| flows[number]).collect();
        let (second, _) = attempt(lab, &again, patience * SECOND_CHANCE, port)?;
        denied.into_iter().zip(second).for_each(|(number, verdict)| verdicts[number] = verdict);
    }
    Ok(verdicts)
}

/// One try, and whether all that was answered was answered promptly: if nothing else, then the last probe, that
/// nobody filters because it never leaves the outside.
fn attempt(
    lab: &Lab,
    flows: &[Flow],
    patience: Duration,
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
    let mut answers = round::run(lab, &attempts, patience)?;
    let control = answers.pop().flatten();
    let slowest = answers.iter().flatten().copied().chain(control).max();
    let prompt = control.is_some() && slowest.is_some_and(|slowest| slowest * PROMPT <= patience);
    let verdict = |answer: Option<Duration>| answer.map_or(Verdict::Deny, |_| Verdict::Allow);
    Ok((answers.into_iter().map(verdict).collect(), prompt))
}

/// A port that no probe is to come to.
pub(super) fn next(port: &mut u16, busy: &BTreeSet<u16>) -> u16 {
    loop {
        *port = if PORTS.contains(&(*port + 1)) { *port + 1 } else { PORTS.start };
        if !busy.contains(port) {
            return *port;
        }
    }
}

/// How many flows fit into the files that this process may have open: two for each, and as many for everything else.
fn at_once() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(16, 4096)
}
