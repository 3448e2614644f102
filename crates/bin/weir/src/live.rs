//! `weir test --live`: probes between the pods of a cluster.

mod exec;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use weir_api::CaseObjects;
use weir_kube::{Access, AdminClient, ClusterKinds, PodRun, PodRunError, PodRunner};
use weir_model::{Flow, Pod, PodId, Verdict, World};

use self::exec::ExecRunner;
use crate::{
    connect::{Target, verdict_of},
    failure::Failure,
    probe, source,
};

/// A termination message has at most 4 KiB, and a command line far more than these targets.
const MAX_TARGETS: usize = 1000;

/// The options for probes in a cluster.
#[derive(Args)]
pub(crate) struct LiveTestArgs {
    /// Try the probes between the pods of a running cluster, from ephemeral containers or with --exec
    #[arg(long)]
    live: bool,
    /// The kubeconfig of the cluster
    #[arg(long, value_name = "PATH", requires = "live")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", requires = "live")]
    context: Option<String>,
    /// The image of weir, which the nodes can pull
    #[arg(long, value_name = "IMAGE", requires = "live", default_value = concat!("localhost/weir:", env!("CARGO_PKG_VERSION")))]
    probe_image: String,
    /// Try the probes in a container of each pod that sends, as `kubectl exec` would, instead of an
    /// ephemeral container. It needs `sh`, and `nc` or `bash` and `timeout`; only TCP
    #[arg(long, requires = "live", conflicts_with = "probe_image")]
    exec: bool,
}

impl LiveTestArgs {
    /// Reads the cluster, if it was asked for.
    pub(crate) fn connect(&self) -> anyhow::Result<Option<LiveCluster>> {
        if !self.live {
            return Ok(None);
        }
        let access = Access::new(self.kubeconfig.as_deref(), self.context.as_deref());
        let instead = "leave out --live";
        let loaded =
            source::complete(source::load_cluster(&access, ClusterKinds::Destinations, instead)?)?;
        let objects = probe::targets(&loaded);
        let runner = if self.exec {
            Runner::Exec(ExecRunner { client: AdminClient::new(access)? })
        } else {
            Runner::Ephemeral(PodRunner::new(access, &self.probe_image)?)
        };
        Ok(Some(LiveCluster { runner, objects }))
    }
}

/// How connections are made from a pod.
enum Runner {
    /// By an ephemeral container.
    Ephemeral(PodRunner),
    /// By programs of its own container.
    Exec(ExecRunner),
}

/// The verdict of a flow, or why it could not be tried.
type ProbeAnswer = Result<Verdict, String>;

/// The flows that one pod sends.
struct PodProbes {
    id: PodId,
    /// The indexes of the flows.
    probes: Vec<usize>,
}

/// A cluster with running pods.
pub(crate) struct LiveCluster {
    runner: Runner,
    /// Its objects.
    pub(crate) objects: CaseObjects,
}

impl LiveCluster {
    /// Tries all flows, those of different pods concurrently. Returns in order the verdict, or why a
    /// flow could not be tried.
    pub(crate) fn probe(&self, world: &World, flows: &[Flow]) -> Result<Vec<ProbeAnswer>, Failure> {
        let mut verdicts: Vec<ProbeAnswer> = flows
            .iter()
            .map(|flow| {
                Err(format!("no pod has the address {}, so no container can send", flow.from))
            })
            .collect();
        let mut by_pod: BTreeMap<PodId, Vec<usize>> = BTreeMap::new();
        for (at, flow) in flows.iter().enumerate() {
            if let Some(pod) = sender(world, flow) {
                by_pod.entry(pod.id.clone()).or_default().push(at);
            }
        }
        let pods = by_pod.into_iter().map(|(id, probes)| PodProbes { id, probes });
        let pods: Vec<PodProbes> = pods.collect();
        if let Some(pod) = pods.iter().find(|pod| pod.probes.len() > MAX_TARGETS) {
            let what = format!("more than {MAX_TARGETS} probes from {}", pod.id);
            return Err(Failure::new(what, "split the test"));
        }
        let tried = match &self.runner {
            Runner::Ephemeral(runner) => probe_with_containers(runner, &pods, flows)?,
            Runner::Exec(runner) => runner.probe(&pods, flows)?,
        };
        for (pod, results) in pods.iter().zip(tried) {
            for (at, result) in pod.probes.iter().zip(results) {
                verdicts[*at] = result;
            }
        }
        Ok(verdicts)
    }
}

/// Tries the flows of all pods with ephemeral containers. Returns the answers for each pod in order.
fn probe_with_containers(
    runner: &PodRunner,
    pods: &[PodProbes],
    flows: &[Flow],
) -> Result<Vec<Vec<ProbeAnswer>>, Failure> {
    let runs: Vec<PodRun> = pods.iter().map(|pod| command(&pod.id, &pod.probes, flows)).collect();
    let name = format!("weir-test-{:x}", since_epoch());
    let results = pods.iter().zip(runner.run(&name, &runs)).map(|(pod, result)| {
        let letters = result.map_err(failed)?;
        let letters = letters.chars().chain(std::iter::repeat('u'));
        let verdicts = pod.probes.iter().zip(letters).map(|(at, letter)| {
            let protocol = flows[*at].protocol;
            let unknown = || format!("the node of {} cannot send {protocol} packets", pod.id);
            verdict_of(letter).ok_or_else(unknown)
        });
        Ok(verdicts.collect())
    });
    results.collect()
}

/// The running pod that sends the packets of a flow.
fn sender<'w>(world: &'w World, flow: &Flow) -> Option<&'w Pod> {
    world.pods.values().find(|pod| pod.addresses.contains(&flow.from))
}

/// The program that tries the flows of a pod.
fn command(pod: &PodId, probes: &[usize], flows: &[Flow]) -> PodRun {
    let targets = probes.iter().map(|at| {
        let Flow { to, protocol, port, .. } = flows[*at];
        Target::new(protocol, to, port).to_string()
    });
    let words = ["connect", "--write=/dev/termination-log"].map(str::to_owned);
    PodRun {
        namespace: pod.namespace.to_string(),
        pod: pod.name.to_string(),
        arguments: words.into_iter().chain(targets).collect(),
    }
}

/// A number for the name of containers: a pod cannot have two of the same name.
fn since_epoch() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis())
}

fn failed(error: PodRunError) -> Failure {
    let hint = match &error {
        PodRunError::Api(api) => format!(
            "--live needs Kubernetes 1.23 or later, and permission to patch \
             pods/ephemeralcontainers, or --exec; {}",
            api.hint()
        ),
        PodRunError::Failed { .. } => {
            "name an image of weir that the nodes can pull with --probe-image, or use --exec"
                .to_owned()
        }
        PodRunError::TimedOut { .. } => "look at the pod with `kubectl describe pod`".to_owned(),
    };
    Failure::new(error, hint)
}
