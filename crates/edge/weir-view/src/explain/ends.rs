//! Facts and remarks about the two ends of a connection.

use std::net::IpAddr;

use weir_engine::Explanation;
use weir_model::{Flow, IpFamily, Pod, Program, World};

use crate::{failure::Failure, flow_end::FlowEnd, loaded::Loaded, other_networks, why};

/// A remark about an end, if one is needed.
pub(super) fn note(end: &FlowEnd, loaded: &Loaded) -> Option<String> {
    let pod = end.pod(loaded)?;
    let id = &pod.id;
    match end {
        _ if pod.host_network => Some(format!(
            "{id} uses the network of its node: policies treat it as a node, not as a pod"
        )),
        FlowEnd::Pod(_, count @ 2..) => {
            Some(format!("{id} is one of {count} pods of its workload"))
        }
        _ => None,
    }
}

/// Fails for a pod that is not on the cluster network.
pub fn check_network(end: &FlowEnd, loaded: &Loaded) -> Result<(), Failure> {
    end.pod(loaded).map_or(Ok(()), |pod| other_networks::check(&pod.id, &loaded.attachments))
}

/// Remarks about the secondary networks of both ends, or else of one.
pub(super) fn network_notes(ends: [&FlowEnd; 2], loaded: &Loaded) -> Vec<String> {
    let pods = ends.into_iter().filter_map(|end| end.pod(loaded));
    pods.filter_map(|pod| other_networks::note(&pod.id, &loaded.attachments)).collect()
}

/// A remark that several pods hold the address of an end, or another one than its pod.
pub(super) fn claim_note(pod: Option<&Pod>, address: IpAddr, world: &World) -> Option<String> {
    match (pod, &world.holders(address)[..]) {
        (_, [first, second, ..]) => Some(format!(
            "{address} is contested: {} and {} have it; a rule allows it only if it selects both",
            first.id, second.id
        )),
        (Some(pod), [owner]) if owner.id != pod.id && !pod.host_network => Some(format!(
            "{} is being deleted and does not own {address} any more: {} has it",
            pod.id, owner.id
        )),
        _ => None,
    }
}

/// The addresses of a connection: those of the requested family, or else of the family of the first
/// destination address that both ends share.
pub fn addresses(
    (from_text, sources): (&str, Vec<IpAddr>),
    (to_text, targets): (&str, Vec<IpAddr>),
    family: Option<IpFamily>,
) -> Result<(IpAddr, IpAddr), Failure> {
    for (text, list) in [(from_text, &sources), (to_text, &targets)] {
        if list.is_empty() {
            let hint = "a pod needs an address to connect; it may still be starting";
            return Err(Failure::new(format!("{text} has no address"), hint));
        }
        if let Some(family) = family.filter(|family| family.first_in(list).is_none()) {
            let hint = "leave out --ip-family, or use the other family";
            return Err(Failure::new(format!("{text} has no {family} address"), hint));
        }
    }
    let has_family = |to: &&IpAddr| family.is_none_or(|family| IpFamily::from(**to) == family);
    let pair = |to: &IpAddr| Some((IpFamily::from(*to).first_in(&sources)?, *to));
    targets.iter().filter(has_family).find_map(pair).ok_or_else(|| {
        let hint = "one end has only IPv4 and the other only IPv6; use addresses of one family";
        Failure::new(format!("{from_text} and {to_text} share no address family"), hint)
    })
}

/// The verdict over the other family, if both ends have addresses of it too.
pub(super) fn other_family(
    loaded: &Loaded,
    program: &Program,
    explanation: &Explanation,
    [from, to]: [&FlowEnd; 2],
) -> Option<String> {
    let flow = explanation.flow;
    let used = IpFamily::from(flow.to);
    let other = IpFamily::BOTH.into_iter().find(|family| *family != used)?;
    let address = |end: &FlowEnd| other.first_in(&end.addresses(loaded));
    let also = Flow { from: address(from)?, to: address(to)?, ..flow };
    let verdict = program.verdict(&also);
    let verdict_text = why::past(verdict);
    Some(if verdict == explanation.verdict {
        format!("evaluated for {used}; {other} is {verdict_text} too")
    } else {
        format!("evaluated for {used}; {other} is {verdict_text}: see `--ip-family {other}`")
    })
}
