//! Policy tests for recommended policies.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use serde_json::{Value, json};
use weir_model::{Flow, PortMatch, Protocol, Verdict};
use weir_recommend::{ObservedEnd, ObservedFlow, WorkloadPods};

use super::{Outcome, connections};
use crate::{present::yaml, source::Loaded};

/// The most probes for connections that must be denied, per workload.
const MAX_DENIED: usize = 3;

/// An address outside every cluster.
const OUTSIDE: [u8; 4] = [192, 0, 2, 250];

/// The tests: recorded flows pass, and some other connections are denied.
pub(super) fn text(
    manifests: Vec<PathBuf>,
    loaded: &Loaded,
    workloads: &[WorkloadPods],
    outcome: &Outcome,
) -> String {
    let allowed: Vec<Value> = outcome
        .recording
        .flows
        .iter()
        .filter(|flow| !outcome.is_broken(workloads, flow))
        .map(|flow| probe(loaded, workloads, flow, Verdict::Allow))
        .collect();
    let denied = denied(loaded, workloads, outcome);
    let manifests: Vec<String> =
        manifests.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let case = |name: &str, probes: &[Value]| {
        yaml::text(&json!({"name": name, "manifests": manifests, "probes": probes}))
    };
    let mut cases = Vec::new();
    for (name, probes) in [
        ("recorded flows are allowed", &allowed),
        ("connections that were never recorded are denied", &denied),
    ] {
        if !probes.is_empty() {
            cases.push(case(name, probes));
        }
    }
    cases.join("---\n")
}

/// Connections to the ports of each workload, from workloads that do not use them.
fn denied(loaded: &Loaded, workloads: &[WorkloadPods], outcome: &Outcome) -> Vec<Value> {
    let state = &outcome.state;
    let is_denied = |flow: &ObservedFlow| {
        let all: Vec<Flow> = connections(&state.world, workloads, flow);
        !all.is_empty() && all.iter().all(|one| state.program.verdict(one) == Verdict::Deny)
    };
    let mut probes = Vec::new();
    for policy in &outcome.recommendation.policies {
        let target = workloads.iter().find(|one| policy.workloads.contains(&one.name));
        let Some(target) = target.and_then(|one| one.pods.first()) else { continue };
        let ports = policy.ingress.iter().flat_map(|rule| rule.rule.ports.iter().flatten());
        let port = ports.into_iter().find_map(|port| match &port.ports {
            PortMatch::Range(range) => Some((range.protocol, range.first)),
            PortMatch::Named { .. } => None,
        });
        let (protocol, port) = port.unwrap_or((Protocol::Tcp, 80));
        let others = workloads.iter().filter_map(|one| one.pods.first().cloned());
        let ends = others.map(ObservedEnd::Pod).chain([ObservedEnd::Address(OUTSIDE.into())]);
        let flows = ends.map(|from| ObservedFlow {
            from,
            to: ObservedEnd::Pod(target.clone()),
            protocol,
            port,
            evidence: super::no_evidence(),
        });
        let denied = flows.filter(is_denied).take(MAX_DENIED);
        probes.extend(denied.map(|flow| probe(loaded, workloads, &flow, Verdict::Deny)));
    }
    probes
}

fn probe(
    loaded: &Loaded,
    workloads: &[WorkloadPods],
    flow: &ObservedFlow,
    expect: Verdict,
) -> Value {
    let end = |end: &ObservedEnd| match end {
        ObservedEnd::Address(address) => json!({"ip": address.to_string()}),
        ObservedEnd::Pod(id) => {
            let workload = workloads.iter().find(|one| one.pods.contains(id));
            match workload.filter(|one| loaded.workloads.contains_key(&*one.name)) {
                Some(workload) => json!({"workload": &*workload.name}),
                None => json!({"pod": id.to_string()}),
            }
        }
    };
    json!({
        "from": end(&flow.from),
        "to": end(&flow.to),
        "port": flow.port,
        "protocol": flow.protocol.to_string(),
        "expect": expect.to_string(),
    })
}

impl Outcome {
    fn is_broken(&self, workloads: &[WorkloadPods], flow: &ObservedFlow) -> bool {
        let mut all = connections(&self.state.world, workloads, flow).into_iter();
        all.any(|one| self.state.program.verdict(&one) == Verdict::Deny)
    }
}

/// A path without these files: the path itself, or the parts of a folder that do not have them.
pub(super) fn without(path: &Path, files: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    if files.contains(path) {
        return Vec::new();
    }
    let found = weir_source::case_files(&[path.to_owned()]).unwrap_or_default();
    if !found.iter().any(|file| files.contains(file)) {
        return if found.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names: BTreeSet<_> = entries.map(|entry| entry.file_name()).collect();
    let is_hidden = |name: &&std::ffi::OsString| name.as_encoded_bytes().starts_with(b".");
    let parts = names.iter().filter(|name| !is_hidden(name)).map(|name| path.join(name));
    let parts = parts.filter(|part| part.is_dir() || weir_source::is_manifest(part));
    parts.flat_map(|part| without(&part, files)).collect()
}

/// The path as seen from a folder, if both are relative to the working directory.
pub(super) fn relative(path: &Path, folder: &Path) -> PathBuf {
    let is_plain = |path: &Path| {
        path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    };
    if !is_plain(path) || !is_plain(folder) {
        return std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    }
    let parts = |path: &Path| -> Vec<PathBuf> {
        let normal = path.components().filter(|part| matches!(part, Component::Normal(_)));
        normal.map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let (path, folder) = (parts(path), parts(folder));
    let shared = path.iter().zip(&folder).take_while(|(one, other)| one == other).count();
    let up = folder[shared..].iter().map(|_| PathBuf::from(".."));
    let relative: PathBuf = up.chain(path[shared..].iter().cloned()).collect();
    if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_to_the_folder_of_the_tests() {
        let relative = |path: &str, folder: &str| {
            super::relative(Path::new(path), Path::new(folder)).to_string_lossy().into_owned()
        };
        assert_eq!(relative("apps", ""), "apps");
        assert_eq!(relative("shop/apps", "shop"), "apps");
        assert_eq!(relative("./shop", "tests/shop"), "../../shop");
        assert_eq!(relative(".", "shop"), "..");
        assert_eq!(relative("/apps", "shop"), "/apps");
    }
}
