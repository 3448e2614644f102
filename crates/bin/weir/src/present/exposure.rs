//! What is open to pods and namespaces that do not exist yet.

use std::io::{self, Write};

use serde::Serialize;
use weir_model::{Direction, Verdict};
use weir_reach::{Exposure, NewPodNamespaces, phrase, spell};

use super::{
    style::{BAD, FAINT, SOME, STRONG},
    table::{self, Cell},
};

/// Writes a line for each entry, ingress first.
pub(crate) fn write(out: &mut dyn Write, exposures: &[Exposure]) -> io::Result<()> {
    writeln!(out, "open to pods and namespaces that do not exist yet")?;
    let rows: Vec<Vec<Cell>> = exposures
        .iter()
        .map(|exposure| {
            let arrow = match exposure.direction {
                Direction::Ingress => "←",
                Direction::Egress => "→",
            };
            let (peers, ports) = match (&exposure.peers, exposure.verdict) {
                (None, _) => (Cell::new("none", FAINT), Cell::from("")),
                (Some(peers), Verdict::Allow) => {
                    (Cell::from(peers.to_string()), Cell::new(ports_of(exposure), SOME))
                }
                (Some(peers), Verdict::Deny) => {
                    let text = format!("closed: {}", ports_of(exposure));
                    (Cell::from(peers.to_string()), Cell::new(text, BAD))
                }
            };
            vec![Cell::new(exposure.pods.join(", "), STRONG), Cell::new(arrow, FAINT), peers, ports]
        })
        .collect();
    table::write_list(out, 2, &rows)
}

/// The ports of an entry, as text.
pub(super) fn ports_of(exposure: &Exposure) -> String {
    let mut words: Vec<String> = exposure.port_names.iter().map(|n| format!("\"{n}\"")).collect();
    if !exposure.ports.is_empty() {
        words.insert(0, phrase(&exposure.ports));
    }
    words.join(", ")
}

/// The entries as JSON.
#[derive(Serialize)]
pub(crate) struct ExposureOutput {
    exposures: Vec<ExposureJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExposureJson {
    pods: Vec<String>,
    direction: String,
    /// Missing if nothing is open to any new pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<PeersJson>,
    verdict: String,
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    port_names: Vec<String>,
}

/// New pods, by selectors. The selector `*` matches everything.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeersJson {
    text: String,
    pod_selector: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace_selector: Option<String>,
}

/// The entries, as data.
pub(crate) fn to_json(exposures: &[Exposure]) -> ExposureOutput {
    let peers = |exposure: &Exposure| {
        exposure.peers.as_ref().map(|peers| {
            let (namespace, namespace_selector) = match &peers.namespaces {
                NewPodNamespaces::Named(name) => (Some(name.to_string()), None),
                NewPodNamespaces::Matching(selector) => (None, Some(selector.to_string())),
            };
            let (text, pod_selector) = (peers.to_string(), peers.pods.to_string());
            PeersJson { text, pod_selector, namespace, namespace_selector }
        })
    };
    let entry = |exposure: &Exposure| ExposureJson {
        pods: exposure.pods.clone(),
        direction: exposure.direction.to_string(),
        peers: peers(exposure),
        verdict: exposure.verdict.to_string(),
        ports: spell(&exposure.ports),
        port_names: exposure.port_names.iter().map(ToString::to_string).collect(),
    };
    ExposureOutput { exposures: exposures.iter().map(entry).collect() }
}
