//! `weir recommend`: policies from observed flows and from manifests.

mod declared;
mod outcome;
mod recording;
mod test_file;
mod workloads;

use std::{
    fs,
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use weir_kube::ClusterKinds;
use weir_model::{Flow, Name, PodId, PolicyId, PolicyKind, World};
use weir_reach::Comparison;
use weir_recommend::{
    Evidence, EvidenceKind, ObservedEnd, ObservedFlow, Recommendation, Request, WorkloadPods,
};
use weir_source::manifests::ManifestInput;

pub(crate) use self::outcome::Outcome;
use self::recording::Recording;
use crate::{
    diff::PolicyDiff,
    exit::Exit,
    failure::Failure,
    ingress::IngressArgs,
    observe::{ClusterAgents, ObserveFilter},
    present::{self, Format, Schema, progress::Progress},
    source::{self, Loaded, SourceArgs},
};

/// Derive least-privilege NetworkPolicies from observed flows and from manifests
///
/// Prints one NetworkPolicy for each workload. It allows the recorded connections and DNS, and
/// nothing else. A comment above each rule names the evidence for it. Policies select workloads by
/// labels that a rollout does not change.
///
/// Without manifests and recordings, it reads the objects of the cluster, and the flows that its agents
/// stored since they started. It then runs `weir flows` and `weir drops` in the pods of the agents, which
/// needs `create` on pods/exec in their namespace. A note names each node that does not answer.
///
/// With --from-manifests, the policies also allow the connections that the input declares: to
/// Services that containers name in `env`, `command` and `args`, from ingress controllers to the
/// backends of Ingresses and Gateway routes, and from outside to Services of type LoadBalancer and
/// NodePort. Values from ConfigMaps and Secrets are not read.
///
/// The policies are meant to replace the NetworkPolicies of their namespaces. Before it prints them,
/// weir tests every recorded flow against them, together with the policies of the other tiers and
/// namespaces, and lists the flows that would be denied. Exit status 1 if there are any.
///
/// The policies deny connections that agents did not record. With `--datapath ebpf`, connections that
/// the kernel does not track are missing if they began before the agent, and in audit mode if policies
/// deny them.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir recommend -f examples/shop/manifests --flows examples/shop/flows.jsonl\n  weir recommend -f examples/shop/manifests --flows examples/shop/flows.jsonl --diff\n  weir recommend -f examples/shop/manifests/apps -f examples/shop/services.yaml \\\n    -f examples/shop/ingress.yaml --from-manifests\n  weir recommend --flows flows.jsonl -n shop --write policies.yaml --tests tests.yaml\n\nFrom the flows that the agents of a cluster stored:\n  weir recommend -n shop"
)]
pub(crate) struct RecommendCommand {
    #[command(flatten)]
    source: SourceArgs,
    /// Recorded flows, one JSON record per line, or `-` for standard input [repeatable]
    #[arg(long, value_name = "FILE")]
    flows: Vec<PathBuf>,
    /// Recorded drops, as `weir drops -o json` prints them. Only packets that passed in audit mode
    /// count [repeatable]
    #[arg(long, value_name = "FILE")]
    drops: Vec<PathBuf>,
    /// Also allow the connections that the manifests, or the objects of the cluster, declare
    #[arg(long)]
    from_manifests: bool,
    /// For the flows of a cluster: the namespace of its agents
    #[arg(long, value_name = "NAME", default_value = "weir-system")]
    agent_namespace: String,
    #[command(flatten)]
    ingress: IngressArgs,
    /// Also recommend policies for kube-system, kube-public and kube-node-lease
    #[arg(long, conflicts_with = "namespace")]
    system_namespaces: bool,
    /// Show which connections the policies open and close, instead of the policies
    #[arg(long)]
    diff: bool,
    /// Write the policies to a file instead of standard output
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write policy tests for the policies to a file
    #[arg(long, value_name = "FILE", requires = "write")]
    tests: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// The namespaces of the cluster itself.
const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

impl RecommendCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        if self.asks_agents() && !self.source.reads_cluster() {
            let hint = "record some with `weir flows -o json`, and give the file with --flows; or \
                        derive policies from manifests alone with --from-manifests";
            return Err(Failure::new("there are no observed flows", hint).into());
        }
        let kinds = match self.from_manifests {
            true => ClusterKinds::DeclaredConnections,
            false => ClusterKinds::DestinationsAndRoutes,
        };
        let loaded = self.source.load_complete(kinds)?;
        let workloads = workloads::of(&loaded);
        let mut recording = self.record(&loaded)?;
        if self.from_manifests {
            let declared = declared::find(&loaded, &self.ingress, self.source.namespace())?;
            recording.add_declared(declared);
        }
        self.check_usable(&recording)?;
        let is_in_scope = |namespace: &str| self.is_in_scope(namespace);
        let recommendation = weir_recommend::recommend(&Request {
            world: &loaded.world,
            workloads: &workloads,
            flows: &recording.flows,
            is_in_scope: &is_in_scope,
        });
        let outcome = self.outcome(&loaded, &workloads, recording, recommendation);
        outcome.print_notes();
        let tests = match &self.tests {
            Some(path) => Some((path, self.test_file(path, &loaded, &workloads, &outcome)?)),
            None => None,
        };
        if let Some(path) = &self.write {
            write_file(path, &present::recommendation::text(&outcome))?;
        }
        if let Some((path, text)) = &tests {
            write_file(path, text)?;
        }
        match self.output.structured() {
            _ if self.diff => self.write_diff(out, &loaded, &outcome)?,
            Some(form) => {
                let view = present::recommendation::RecommendationView::from(&outcome);
                present::value(out, form, Schema::Recommend, &view)?;
            }
            None if self.write.is_some() => (),
            None => out.write_all(present::recommendation::text(&outcome).as_bytes())?,
        }
        outcome.print_broken();
        Ok(Exit::when(outcome.broken.is_empty()))
    }

    /// Whether the agents of the cluster report the flows, because the arguments name nothing else to
    /// derive policies from.
    fn asks_agents(&self) -> bool {
        self.flows.is_empty() && self.drops.is_empty() && !self.from_manifests
    }

    fn is_in_scope(&self, namespace: &str) -> bool {
        match self.source.namespace() {
            Some(only) => namespace == only,
            None => self.system_namespaces || !SYSTEM_NAMESPACES.contains(&namespace),
        }
    }

    /// Whether the recommended policies replace a policy.
    fn is_replaced(&self, id: &PolicyId) -> bool {
        id.kind == PolicyKind::NetworkPolicy && self.is_in_scope(&id.namespace)
    }

    /// Fails if no record is evidence for a policy. Otherwise the policies would deny everything
    /// except DNS.
    fn check_usable(&self, recording: &Recording) -> Result<(), Failure> {
        let is_evidence = |end: &ObservedEnd| match end {
            ObservedEnd::Pod(id) => self.is_in_scope(&id.namespace),
            ObservedEnd::Address(_) => false,
        };
        let mut flows = recording.flows.iter();
        if flows.any(|flow| is_evidence(&flow.from) || is_evidence(&flow.to)) {
            return Ok(());
        }
        outcome::print_notes(recording.notes());
        if self.asks_agents() {
            let what = "the agents report no usable flow of a pod for which to recommend a policy";
            let hint = "wait until the pods have connected, and check that -n, --context and \
                        --agent-namespace select the right pods and agents";
            return Err(Failure::new(what, hint));
        }
        if self.flows.is_empty() && self.drops.is_empty() {
            let what =
                "the manifests declare no connection of a pod for which to recommend a policy";
            let hint = "give the manifests of Services and Ingresses too, or record flows with `weir \
                        flows -o json`";
            return Err(Failure::new(what, hint));
        }
        let what = "the recording has no usable flow of a pod for which to recommend a policy";
        let hint = "record flows of these pods with `weir flows -o json`, and check that -f, -n or \
                    --context select the cluster and the namespace of the recording";
        Err(Failure::new(what, hint))
    }

    /// Reads the recordings, or the flows of the agents.
    fn record(&self, loaded: &Loaded) -> anyhow::Result<Recording> {
        let mut recording = recording::Reader::new(loaded);
        if self.asks_agents() {
            let agents = ClusterAgents::new(self.source.access(), &self.agent_namespace)?;
            let filter = ObserveFilter::in_namespace(self.source.namespace());
            recording.read_agents(&agents, &filter)?;
        }
        for path in &self.flows {
            let bytes = source::read_file(path)?;
            recording.read_flows(&input_name(path), &bytes)?;
        }
        for path in &self.drops {
            let bytes = source::read_file(path)?;
            recording.read_drops(&input_name(path), &bytes)?;
        }
        Ok(recording.finish())
    }

    /// Tests the recorded flows against the recommended policies.
    fn outcome(
        &self,
        loaded: &Loaded,
        workloads: &[WorkloadPods],
        recording: Recording,
        recommendation: Recommendation,
    ) -> Outcome {
        let mut world = loaded.world.clone();
        world.policies.retain(|id, _| !self.is_replaced(id));
        for policy in &recommendation.policies {
            world.policies.insert(policy.id.clone(), policy.policy());
        }
        let left = loaded.world.policies.keys();
        let superseded: Vec<PolicyId> =
            left.filter(|id| !world.policies.contains_key(id)).cloned().collect();
        let state = source::compile(world);
        let broken = outcome::broken(&state, workloads, &recording.flows);
        Outcome { recommendation, recording, superseded, state, broken }
    }

    fn write_diff(
        &self,
        out: &mut dyn Write,
        loaded: &Loaded,
        outcome: &Outcome,
    ) -> anyhow::Result<()> {
        let before = source::compile(loaded.world.clone());
        let mut progress = Progress::new("comparing");
        let changes = Comparison::new(&before, &outcome.state)
            .changes(&loaded.owners, |done, all| progress.report(done, all));
        drop(progress);
        let diff = PolicyDiff::from_changes(changes);
        match self.output.structured() {
            Some(form) => present::value(out, form, Schema::Diff, &diff.output()),
            None => Ok(present::diff::write(out, &diff)?),
        }
    }

    /// The policy tests, with paths relative to the folder of their file.
    fn test_file(
        &self,
        path: &Path,
        loaded: &Loaded,
        workloads: &[WorkloadPods],
        outcome: &Outcome,
    ) -> anyhow::Result<String> {
        let kept = self.kept_manifests(loaded)?;
        let manifests = kept.iter().chain(&self.write);
        let folder = path.parent().unwrap_or(Path::new(""));
        let manifests = manifests.map(|manifest| test_file::relative(manifest, folder)).collect();
        Ok(test_file::text(manifests, loaded, workloads, outcome))
    }

    /// The files and folders of the input without the replaced policies. Fails if a file has such a
    /// policy and other objects.
    fn kept_manifests(&self, loaded: &Loaded) -> anyhow::Result<Vec<PathBuf>> {
        let paths = self.source.paths();
        if paths.iter().any(|path| path.as_os_str() == "-") {
            let hint = "write the manifests to a file, and give it with -f";
            return Err(Failure::new("policy tests cannot read standard input", hint).into());
        }
        let mut world = loaded.world.clone();
        let replaced: Vec<_> =
            world.policies.extract_if(.., |id, _| self.is_replaced(id)).collect();
        if paths.is_empty() || replaced.is_empty() {
            return Ok(paths.to_vec());
        }
        let locations = replaced.iter().filter_map(|(_, policy)| policy.location.as_ref());
        let files = locations.map(|location| PathBuf::from(&*location.file));
        let files = files.chain(self.tests.clone()).collect();
        let kept: Vec<PathBuf> =
            paths.iter().flat_map(|path| test_file::without(path, &files)).collect();
        let input = ManifestInput { paths: &kept, ..ManifestInput::default() };
        let remaining = source::load_manifests(input)
            .and_then(|remaining| Ok(self.source.pod_network.cidrs().apply(remaining)?));
        if remaining.is_ok_and(|remaining| remaining.world == world) {
            return Ok(kept);
        }
        let names: Vec<String> = replaced.iter().map(|(id, _)| id.to_string()).collect();
        let what = format!(
            "the tests would read policies that the recommended ones replace: {}",
            names.join(", ")
        );
        let hint = "move these policies to files of their own, or give -f a folder without them";
        Err(Failure::new(what, hint).into())
    }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = |error: io::Error| {
        let hint = "give a file in a folder that exists and that you may write to";
        Failure::new(format!("cannot write {}: {error}", path.display()), hint)
    };
    Ok(fs::write(path, text).map_err(failed)?)
}

/// An address, and the pod that has it.
type Addressed = (IpAddr, Option<PodId>);

/// The addresses of an end: those of all pods of the workload.
fn addresses(world: &World, workloads: &[WorkloadPods], end: &ObservedEnd) -> Vec<Addressed> {
    let id = match end {
        ObservedEnd::Address(address) => return vec![(*address, None)],
        ObservedEnd::Pod(id) => id,
    };
    let own = std::slice::from_ref(id);
    let pods = workloads.iter().find(|one| one.pods.contains(id)).map_or(own, |one| &one.pods);
    let pods = pods.iter().filter_map(|id| world.pods.get(id)).filter(|pod| !pod.finished);
    pods.flat_map(|pod| pod.addresses.iter().map(|address| (*address, Some(pod.id.clone()))))
        .collect()
}

/// The connections that an observed flow stands for: between all pods of both workloads, up to a
/// limit, without those of a pod to itself.
fn connections(world: &World, workloads: &[WorkloadPods], observed: &ObservedFlow) -> Vec<Flow> {
    const MAX_CONNECTIONS: usize = 400;
    let from = addresses(world, workloads, &observed.from);
    let to = addresses(world, workloads, &observed.to);
    let mut flows = Vec::new();
    for ((from, source), (to, target)) in
        from.iter().flat_map(|from| to.iter().map(move |to| (from, to)))
    {
        let is_one_pod = source.is_some() && source == target;
        if from.is_ipv4() == to.is_ipv4() && !is_one_pod {
            let ObservedFlow { protocol, port, .. } = *observed;
            flows.push(Flow { from: *from, to: *to, protocol, port });
        }
        if flows.len() == MAX_CONNECTIONS {
            break;
        }
    }
    flows
}

/// The name of a recording, for messages.
fn input_name(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => path.display().to_string(),
    }
}

/// The name of the workload of an end, or its address.
fn end_name(workloads: &[WorkloadPods], end: &ObservedEnd) -> Name {
    match end {
        ObservedEnd::Address(address) => address.to_string().into(),
        ObservedEnd::Pod(id) => {
            let workload = workloads.iter().find(|one| one.pods.contains(id));
            workload.map_or_else(|| id.to_string().into(), |one| one.name.clone())
        }
    }
}

/// Evidence for a connection that only a test uses.
fn no_evidence() -> Evidence {
    Evidence {
        kind: EvidenceKind::Manifest,
        what: "".into(),
        connections: 0,
        last_seen: None,
        location: None,
    }
}
