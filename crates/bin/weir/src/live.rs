//! `weir test --live`: probes between the pods of a cluster, from ephemeral containers.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use weir_kube::{Access, ClusterKinds, PodRun, PodRunError, PodRunner};
use weir_model::{Flow, Object, Pod, PodId, Verdict, World};

use crate::{
    connect::{Target, verdict_of},
    failure::Failure,
    probe::{self, Workloads},
    source,
};

/// A termination message has at most 4 KiB, and a command line far more than these targets.
const MAX_TARGETS: usize = 1000;

/// The options for probes in a cluster.
#[derive(Args)]
pub(crate) struct LiveTestArgs {
    /// Try the probes between the pods of a running cluster, from ephemeral containers
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
            source::load_cluster(&access, ClusterKinds::Destinations, instead)?.complete()?;
        let (objects, workloads) = probe::targets(&loaded);
        let runner = PodRunner::new(access, &self.probe_image)?;
        Ok(Some(LiveCluster { runner, objects, workloads }))
    }
}

/// A cluster with running pods.
pub(crate) struct LiveCluster {
    runner: PodRunner,
    /// Its objects.
    pub(crate) objects: Vec<Object>,
    /// The pods of its workloads.
    pub(crate) workloads: Workloads,
}

impl LiveCluster {
    /// Tries all flows, those of different pods concurrently. Returns in order the verdict, or why a
    /// flow could not be tried.
    pub(crate) fn probe(
        &self,
        world: &World,
        flows: &[Flow],
    ) -> Result<Vec<Result<Verdict, String>>, Failure> {
        let mut verdicts: Vec<Result<Verdict, String>> = flows
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
        let by_pod: Vec<(PodId, Vec<usize>)> = by_pod.into_iter().collect();
        if let Some((pod, _)) = by_pod.iter().find(|(_, probes)| probes.len() > MAX_TARGETS) {
            let what = format!("more than {MAX_TARGETS} probes from {pod}");
            return Err(Failure::new(what, "split the test"));
        }
        let runs: Vec<PodRun> =
            by_pod.iter().map(|(pod, probes)| command(pod, probes, flows)).collect();
        let name = format!("weir-test-{:x}", since_epoch());
        for ((pod, probes), result) in by_pod.iter().zip(self.runner.run(&name, &runs)) {
            let letters = result.map_err(failed)?;
            for (at, letter) in probes.iter().zip(letters.chars().chain(std::iter::repeat('u'))) {
                let unknown =
                    || format!("the node of {pod} cannot send {} packets", flows[*at].protocol);
                verdicts[*at] = verdict_of(letter).ok_or_else(unknown);
            }
        }
        Ok(verdicts)
    }
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
            "--live needs Kubernetes 1.23 or later, and permission to patch pods/ephemeralcontainers; {}",
            api.hint()
        ),
        PodRunError::Failed { .. } => {
            "name an image of weir that the nodes can pull with --probe-image".to_owned()
        }
        PodRunError::TimedOut { .. } => "look at the pod with `kubectl describe pod`".to_owned(),
    };
    Failure::new(error, hint)
}
