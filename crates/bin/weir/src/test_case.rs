//! The evaluation of one policy test.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_api::{Case, Probe, ProbeEnd, ProbePort};
use weir_model::{
    Attachments, Finding, Flow, Location, Name, PodId, Protocol, Severity, Verdict, World,
};
use weir_reach::ReachState;

use crate::{
    datapath::Testing,
    failure::Failure,
    kernel, other_networks,
    pod_network::PodCidrs,
    present::{self, explanation_view::InputFacts},
    probe::{self, ProbeContext, ProbeFlow, ProbeFlows},
    probing::{Answer, Prober, answers, judge, why_live},
    source,
    test::{CaseResult, ConnectionResult, ProbeResult},
    why,
};

/// Evaluates every probe of a case.
pub(crate) fn evaluate(mut case: Case, prober: Prober<'_>, pod_cidrs: PodCidrs<'_>) -> CaseResult {
    let mut error = None;
    if !case.manifests.is_empty() {
        match source::manifests_of(&case) {
            Ok(manifests) => {
                error = manifests.missing().next().map(describe);
                case.join(manifests);
            }
            Err(cause) => error = Some(format!("{}: {cause:#}", case.location)),
        }
    }
    let Case { name, location, objects, probes, findings, synthetic, workloads, unjudged, .. } =
        case;
    let mut error = error.or_else(|| first_error(&findings));
    let mut world: World = objects.into_iter().collect();
    let synthetic = pod_cidrs.readdress(&mut world, synthetic).unwrap_or_else(|failure| {
        error = error.take().or_else(|| Some(failure.to_string()));
        BTreeSet::new()
    });
    let state = source::compile(world);
    let context = ProbeContext { world: &state.world, workloads: &workloads, unjudged: &unjudged };
    let flows: Vec<Result<ProbeFlows, Failure>> =
        probes.iter().map(|probe| probe::flows(probe, context)).collect();
    let known: Vec<Flow> =
        flows.iter().flatten().flat_map(|probe| &probe.flows).map(|one| one.flow).collect();
    // The pods of a broken case may not exist.
    let is_tried = error.is_none();
    let probed = match prober {
        Prober::Datapath(Testing::InMemory(probe)) => probe(&state, &known).map(answers),
        Prober::Datapath(Testing::InKernel(filter)) if is_tried => {
            kernel::verdicts(&state.world, &known, filter).map(answers)
        }
        Prober::Live(live) if is_tried => live
            .probe(&state.world, &known)
            .map(|verdicts| verdicts.into_iter().map(Answer::Live).collect()),
        _ => Ok(Vec::new()),
    };
    let (probed, failure) = match probed {
        Ok(probed) => (probed, None),
        Err(cause) => (Vec::new(), Some(format!("{location}: {:#}", anyhow::Error::from(cause)))),
    };
    let error = error.or(failure);
    let evaluation = Evaluation {
        state: &state,
        synthetic: &synthetic,
        unjudged: &unjudged,
        pod_cidrs,
        file: location.file.clone(),
    };
    let (mut probed, mut found) = (probed.into_iter(), None);
    let results: Vec<ProbeResult> = probes
        .into_iter()
        .zip(flows)
        .map(|(probe, flows)| evaluation.result(probe, flows, &mut probed, &mut found))
        .collect();
    let error = error.or(found);
    CaseResult { name, probes: results, error, location, findings }
}

/// The input for the results of a case.
struct Evaluation<'a> {
    state: &'a ReachState,
    synthetic: &'a BTreeSet<IpAddr>,
    unjudged: &'a BTreeMap<PodId, Attachments>,
    pod_cidrs: PodCidrs<'a>,
    file: Name,
}

impl Evaluation<'_> {
    /// The result of a probe. The first problem of the case that it reveals is kept in `error`.
    fn result(
        &self,
        probe: Probe,
        flows: Result<ProbeFlows, Failure>,
        probed: &mut impl Iterator<Item = Answer>,
        error: &mut Option<String>,
    ) -> ProbeResult {
        let location = Location { file: self.file.clone(), line: probe.line };
        let port_name = match &probe.port {
            ProbePort::Name(name) => Some(name.to_string()),
            ProbePort::Number(_) => None,
        };
        let number = match probe.port {
            ProbePort::Number(number) => number,
            ProbePort::Name(_) => 0,
        };
        let mut result = ProbeResult {
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            port: number,
            port_name,
            protocol: probe.protocol.unwrap_or(Protocol::Tcp).to_string(),
            expect: probe.expect.to_string(),
            // A probe that cannot be tried fails.
            verdict: Verdict::Deny.to_string(),
            why: String::new(),
            connections: Vec::new(),
            assumptions: Vec::new(),
            detail: String::new(),
            location,
            passed: false,
            tried: false,
            family: probe.family.map(|family| family.to_string()),
            note: probe.note,
        };
        let ProbeFlows { port, flows } = match flows {
            Ok(flows) => flows,
            Err(problem) => {
                result.why = problem.sentence();
                error.get_or_insert(format!("{}: {}", result.location, result.why));
                return result;
            }
        };
        (result.port, result.protocol) = (port.first, port.protocol.to_string());
        let mut judged = Vec::with_capacity(flows.len());
        let mut untried = None;
        for ProbeFlow { from, to, flow } in flows {
            let (verdict, why) = match probed.next() {
                Some(Answer::Live(Ok(verdict))) => (verdict, why_live(self.state, &flow, verdict)),
                Some(Answer::Live(Err(problem))) => {
                    untried = untried.or(Some(problem));
                    continue;
                }
                other => {
                    let probed = other.and_then(Answer::of_datapath);
                    let (verdict, why, bug) = judge(self.state, &flow, probed);
                    *error = error.take().or(bug);
                    (verdict, why)
                }
            };
            let notes = self.pod_cidrs.notes(self.state, self.synthetic, &flow);
            for note in notes.into_iter().chain(self.network_notes([&from, &to])) {
                if !result.assumptions.contains(&note) {
                    result.assumptions.push(note);
                }
            }
            judged.push((ConnectionResult::new(&from, &to, &flow, verdict, why), flow));
        }
        if let Some(problem) = untried {
            result.why = problem;
            return result;
        }
        let is_expected = |one: &&(ConnectionResult, Flow)| one.0.decision == probe.expect;
        let failing = judged.iter().find(|one| !is_expected(one));
        result.tried = true;
        result.passed = failing.is_none();
        let Some((shown, flow)) = failing.or(judged.first()) else { return result };
        result.verdict = shown.verdict.clone();
        result.why = shown.why.clone();
        if !result.passed && self.state.program.verdict(flow) == shown.decision {
            let facts = InputFacts {
                world: &self.state.world,
                synthetic: self.synthetic,
                generated_for: &BTreeMap::new(),
            };
            let explanation = weir_engine::explain(&self.state.program, flow);
            result.detail =
                present::explanation::deciding_sides(&explanation, facts).unwrap_or_default();
            for (name, addresses) in &self.state.world.domains {
                if addresses.contains(&flow.to) {
                    result.detail.push_str(&format!("{} stands for {name}\n", flow.to));
                }
            }
        }
        if judged.len() > 1 {
            let ConnectionResult { from, to, port, .. } = shown;
            let part = match judged.iter().filter(|one| one.0.decision == shown.decision).count() {
                all if all == judged.len() => format!("all {all}"),
                some => format!("{some} of {}", judged.len()),
            };
            let verb = why::past(shown.decision);
            result.why =
                format!("{part} connections are {verb}; {from} → {to} {port}: {}", shown.why);
            result.connections = judged.into_iter().map(|(connection, _)| connection).collect();
        }
        result
    }

    /// Remarks about secondary networks of the pods of a connection.
    fn network_notes(&self, ends: [&ProbeEnd; 2]) -> Vec<String> {
        let note = |end: &ProbeEnd| match end {
            ProbeEnd::Pod(id) => other_networks::note(id, self.unjudged),
            _ => None,
        };
        ends.into_iter().filter_map(note).collect()
    }
}

/// Describes the first finding that is an error, and the number of others.
fn first_error(findings: &[Finding]) -> Option<String> {
    let mut errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let first = describe(errors.next()?);
    Some(match errors.count() {
        0 => first,
        others => format!("{first}, and {others} more"),
    })
}

fn describe(finding: &Finding) -> String {
    let location =
        finding.location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
    let object = finding.object.as_ref().map(|object| format!("{object} ")).unwrap_or_default();
    let field = match &*finding.field {
        "" => String::new(),
        field => format!("{field}: "),
    };
    format!("{location}{object}{field}{}", finding.message)
}
