//! The explanation of one connection.

use serde_json::Value;
use weir_reach::PortQuery;

use super::{UiInput, snapshot::Snapshot};
use crate::{
    explain::{Clusters, Question, check_network},
    failure::Failure,
    flow_end::FlowEnd,
    ingress,
    present::Schema,
};

/// The explanation, as `weir explain -o json` writes it.
pub(super) fn explain(
    snapshot: &Snapshot,
    input: &UiInput,
    [from_text, to_text]: [&str; 2],
    port: &str,
) -> anyhow::Result<Value> {
    let Snapshot { loaded, state, lint, .. } = snapshot;
    let hint = "give a number with a protocol, as in 8080/TCP";
    let port: PortQuery = port.parse().map_err(|error: String| Failure::new(error, hint))?;
    let namespace = input.source.namespace();
    let find = |text| FlowEnd::find(text, namespace, loaded);
    let (mut from, to) = (find(from_text)?, find(to_text)?);
    if matches!(from, FlowEnd::Ingress | FlowEnd::Route(_)) {
        let pods = input.ingress.pods(from.route(loaded), namespace, loaded)?;
        from = FlowEnd::Pod(pods.first().ok_or_else(ingress::unknown_pods)?.clone(), 1);
    }
    for end in [&from, &to] {
        if !matches!(end, FlowEnd::Pod(..) | FlowEnd::Address(_)) {
            let hint = "name a pod, a workload or an address; the command `weir explain` also \
                        evaluates Services and routes";
            return Err(Failure::new(format!("{end} has no address of its own"), hint).into());
        }
        check_network(end, loaded)?;
    }
    let is_one = input.clusters.is_empty();
    let question = Question {
        from: from_text,
        to: to_text,
        port: Some(&port),
        family: None,
        pod_network: &input.source.pod_network,
        clusters: if is_one { Clusters::One } else { Clusters::Several },
    };
    let flow = question.flow(loaded, &from, &to)?;
    let explained = question.explain(loaded, state, [&from, &to], flow);
    let view = explained.view_with(loaded, [&from, &to], || lint.clone());
    Ok(Schema::Explain.tag_value(&view))
}
