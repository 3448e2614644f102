//! The explanation of one connection.

use serde_json::Value;
use weir_reach::PortQuery;

use super::{PageOptions, snapshot::Snapshot};
use crate::{
    explain::{Question, check_network},
    failure::Failure,
    flow_end::FlowEnd,
    ingress::{self, IngressControllers},
    pod_cidrs::PodCidrs,
    schema::Schema,
};

/// The explanation, as `weir explain -o json` writes it.
pub(super) fn explain(
    snapshot: &Snapshot,
    options: &PageOptions,
    [from_text, to_text]: [&str; 2],
    port: &str,
) -> Result<Value, Failure> {
    let Snapshot { loaded, state, lint, .. } = snapshot;
    let hint = "give a number with a protocol, as in 8080/TCP";
    let port: PortQuery = port.parse().map_err(|error: String| Failure::new(error, hint))?;
    let namespace = options.namespace.as_deref();
    let find = |text| FlowEnd::find(text, namespace, loaded);
    let (mut from, to) = (find(from_text)?, find(to_text)?);
    if matches!(from, FlowEnd::Ingress | FlowEnd::Route(_)) {
        let controllers = IngressControllers(&options.ingress_controllers);
        let pods = controllers.pods(from.route(loaded), namespace, loaded)?;
        from = FlowEnd::Pod(pods.first().ok_or_else(ingress::unknown_pods)?.clone(), 1);
    }
    for end in [&from, &to] {
        if !matches!(end, FlowEnd::Pod(..) | FlowEnd::Address(_)) {
            let hint = "name a pod, a workload or an address; the command `weir explain` also \
                        evaluates Services and routes";
            return Err(Failure::new(format!("{end} has no address of its own"), hint));
        }
        check_network(end, loaded)?;
    }
    let question = Question {
        from: from_text,
        to: to_text,
        port: Some(&port),
        family: None,
        pod_cidrs: PodCidrs(&options.pod_cidrs),
        clusters: options.clusters,
    };
    let flow = question.flow(loaded, &from, &to)?;
    let explained = question.explain(loaded, state, [&from, &to], flow);
    let view = explained.view_with(loaded, [&from, &to], || lint.clone());
    Ok(Schema::Explain.tag_value(&view))
}
