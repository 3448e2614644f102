//! The effect of a change, as data.

use std::collections::BTreeSet;

use serde::Serialize;
use weir_model::{Finding, IpFamily, Pod, PodId, PortRange, Verdict, World};
use weir_reach::{Connection, ConnectionChange, spell};

use crate::{findings, loaded::Loaded};

/// The effect of a change.
pub struct PolicyDiff {
    /// The changed connections, openings first.
    pub changes: Vec<ConnectionChange>,
    /// The pods that only the new side has.
    pub added: PodsOfOneSide,
    /// The pods that only the old side has.
    pub removed: PodsOfOneSide,
    /// The pods that are not on the cluster network.
    pub not_judged: NotJudged,
    /// The findings from reading both sides.
    pub findings: Vec<Finding>,
}

impl PolicyDiff {
    /// A change of policies alone.
    pub fn from_changes(changes: Vec<ConnectionChange>) -> Self {
        let (added, removed) = (PodsOfOneSide::default(), PodsOfOneSide::default());
        PolicyDiff {
            changes,
            added,
            removed,
            not_judged: NotJudged::default(),
            findings: Vec::new(),
        }
    }

    /// The same effect, with the findings from reading both sides.
    pub fn with_findings(self, findings: Vec<Finding>) -> Self {
        PolicyDiff { findings, ..self }
    }

    /// The diff for programs.
    pub fn output(&self) -> impl Serialize {
        DiffOutput::from(self)
    }

    /// Whether no connection is opened or closed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.added.is_closed()
            && self.removed.is_closed()
            && !self.not_judged.is_changed
    }
}

/// The pods that are not on the cluster network, on any side. Their connections are not compared.
#[derive(Default)]
pub struct NotJudged {
    /// The pods.
    pub pods: BTreeSet<PodId>,
    /// Whether such a pod, or its network, differs between the sides.
    is_changed: bool,
}

impl NotJudged {
    /// The pods of both sides.
    pub fn new(old: &Loaded, new: &Loaded) -> Self {
        let primary = |side: &Loaded, id: &PodId| side.attachments.get(id)?.primary.clone();
        let ids = old.attachments.keys().chain(new.attachments.keys());
        let is_on_another = |id: &&PodId| [old, new].iter().any(|side| primary(side, id).is_some());
        let pods: BTreeSet<PodId> = ids.filter(is_on_another).cloned().collect();
        let is_changed = pods.iter().any(|id| primary(old, id) != primary(new, id));
        NotJudged { pods, is_changed }
    }
}

/// The pods that only one side has.
#[derive(Default)]
pub struct PodsOfOneSide {
    /// The pods with an address of their own.
    pub pods: BTreeSet<PodId>,
    /// The pods in the network of their node. Policies apply to the node and not to them.
    pub host_network: BTreeSet<PodId>,
    /// The open connections from and to the pods, on the side that has them.
    pub connections: Vec<Connection>,
}

impl PodsOfOneSide {
    /// The pods of a world that another world does not have, without their connections.
    pub fn new(world: &World, other: &World) -> Self {
        let only_here = |is_there: fn(&Pod) -> bool| -> BTreeSet<PodId> {
            let here = world.pods.values().filter(|pod| is_there(pod));
            let here = here.filter(|pod| !other.pods.get(&pod.id).is_some_and(is_there));
            here.map(|pod| pod.id.clone()).collect()
        };
        PodsOfOneSide {
            pods: only_here(|pod| !pod.own_addresses().is_empty()),
            host_network: only_here(|pod| !pod.node_addresses().is_empty()),
            connections: Vec::new(),
        }
    }

    /// Whether the pods have no connections. Policies never close those of host network pods.
    fn is_closed(&self) -> bool {
        self.connections.is_empty() && self.host_network.is_empty()
    }
}

/// The effect of a change as JSON.
#[derive(Serialize)]
pub struct DiffOutput<'a> {
    opened: Vec<Entry<'a>>,
    closed: Vec<Entry<'a>>,
    added: AddedOutput<'a>,
    removed: RemovedOutput<'a>,
    #[serde(rename = "notJudged", skip_serializing_if = "Vec::is_empty")]
    not_judged: Vec<String>,
    findings: Vec<findings::FindingJson>,
}

#[derive(Serialize)]
struct AddedOutput<'a> {
    #[serde(flatten)]
    pods: PodsOutput,
    opened: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct RemovedOutput<'a> {
    #[serde(flatten)]
    pods: PodsOutput,
    closed: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodsOutput {
    pods: Vec<String>,
    host_network_pods: Vec<String>,
}

impl From<&PodsOfOneSide> for PodsOutput {
    fn from(side: &PodsOfOneSide) -> Self {
        let names = |pods: &BTreeSet<PodId>| pods.iter().map(PodId::to_string).collect();
        PodsOutput { pods: names(&side.pods), host_network_pods: names(&side.host_network) }
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    from: &'a [String],
    to: &'a [String],
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
}

impl<'a> Entry<'a> {
    fn new(
        from: &'a [String],
        to: &'a [String],
        ports: &[PortRange],
        family: Option<IpFamily>,
    ) -> Self {
        Entry { from, to, ports: spell(ports), family: family.map(|family| family.to_string()) }
    }
}

impl<'a> From<&'a PolicyDiff> for DiffOutput<'a> {
    fn from(diff: &'a PolicyDiff) -> Self {
        let changed = |verdict| {
            let some = diff.changes.iter().filter(move |change| change.now == verdict);
            some.map(|c| Entry::new(&c.from, &c.to, &c.ports, c.family)).collect()
        };
        let connections = |side: &'a PodsOfOneSide| {
            let all = side.connections.iter();
            all.map(|c| Entry::new(&c.from, &c.to, &c.ports, c.family)).collect()
        };
        let PolicyDiff { added, removed, .. } = diff;
        DiffOutput {
            opened: changed(Verdict::Allow),
            closed: changed(Verdict::Deny),
            added: AddedOutput { pods: added.into(), opened: connections(added) },
            removed: RemovedOutput { pods: removed.into(), closed: connections(removed) },
            not_judged: diff.not_judged.pods.iter().map(PodId::to_string).collect(),
            findings: findings::to_json(&diff.findings),
        }
    }
}
