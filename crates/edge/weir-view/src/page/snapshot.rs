//! Everything that the page shows, computed when the input is read.

use std::collections::BTreeMap;

use weir_model::{Finding, PodId};
use weir_reach::{MatrixQuery, ReachState, WorkloadEnd, WorkloadMatrix};

use super::PageOptions;
use crate::{
    failure::Failure,
    ingress::{IngressControllers, RouteSources},
    loaded::{self, Loaded},
    other_networks,
    pod_cidrs::PodCidrs,
    suppression::{SuppressedFinding, suppress},
};

/// The input, compiled.
pub(super) struct Snapshot {
    pub(super) loaded: Loaded,
    pub(super) state: ReachState,
    /// The state without the pods that are not judged; `None` if all are.
    judged: Option<ReachState>,
    pub(super) matrix: WorkloadMatrix,
    pub(super) places: Places,
    /// The row of each workload and of each pod, by name.
    pub(super) rows: BTreeMap<String, usize>,
    /// The lint findings about the world.
    pub(super) lint: Vec<Finding>,
    /// All findings that `weir lint` reports.
    pub(super) findings: Vec<Finding>,
    pub(super) suppressed: Vec<SuppressedFinding>,
    /// Remarks about the sources `ingress`.
    pub(super) notes: Vec<String>,
}

impl Snapshot {
    /// Compiles the input.
    pub(super) fn new(
        loaded: Loaded,
        options: &PageOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<Self, Failure> {
        let namespace = options.namespace.as_deref();
        let selected = |id: &PodId| namespace.is_none_or(|name| *id.namespace == *name);
        let controllers = IngressControllers(&options.ingress_controllers);
        let RouteSources { sources, notes } = controllers.sources(namespace, &loaded, selected)?;
        let state = loaded::compile(loaded.world.clone());
        let has_unjudged = loaded.attachments.values().any(|one| one.primary.is_some());
        let judged = has_unjudged
            .then(|| loaded::compile(other_networks::judged(&state.world, &loaded.attachments)));
        let query = MatrixQuery {
            state: &state,
            ports: &[],
            declared: &loaded.declared,
            owners: &loaded.owners,
            attachments: &loaded.attachments,
            sources: &sources,
        };
        let matrix = query.evaluate_workloads(selected, progress);
        let places = Places::new(&matrix.ends);
        let mut rows = BTreeMap::new();
        for (at, end) in matrix.ends.iter().enumerate() {
            rows.extend(end.pods.iter().map(|pod| (pod.to_string(), at)));
            rows.entry(end.name.clone()).or_insert(at);
        }
        let lint = loaded.lint();
        let mut findings = PodCidrs(&options.pod_cidrs).findings(&state, &loaded.synthetic);
        findings.extend(lint.iter().chain(&loaded.findings).cloned());
        findings.sort();
        findings.dedup();
        let (findings, suppressed) =
            suppress(findings, &loaded.ignores, &options.ignore, options.today);
        Ok(Snapshot {
            loaded,
            state,
            judged,
            matrix,
            places,
            rows,
            lint,
            findings,
            suppressed,
            notes,
        })
    }

    /// The state whose connections are judged.
    pub(super) fn judged(&self) -> &ReachState {
        self.judged.as_ref().unwrap_or(&self.state)
    }
}

/// The namespaces of the rows. All that is outside, and each named source, is a place of its own.
pub(super) struct Places {
    /// The names.
    pub(super) names: Vec<String>,
    /// The rows of each place.
    pub(super) ends: Vec<Vec<usize>>,
    /// The place of each row.
    pub(super) of_end: Vec<usize>,
}

impl Places {
    fn new(ends: &[WorkloadEnd]) -> Self {
        let mut places = Places { names: Vec::new(), ends: Vec::new(), of_end: Vec::new() };
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, end) in ends.iter().enumerate() {
            let name = end.pods.first().map_or(end.name.as_str(), |pod| &*pod.namespace);
            // A namespace can have the name of a source.
            let key = if end.pods.is_empty() { None } else { Some(name) };
            let next = places.names.len();
            let place = key.map_or(next, |key| *known.entry(key).or_insert(next));
            if place == next {
                places.names.push(name.to_owned());
                places.ends.push(Vec::new());
            }
            places.ends[place].push(at);
            places.of_end.push(place);
        }
        places
    }
}
