use weir_kube::Access;

use crate::{
    Context, clusterset, hpp, memcached,
    workload::{self, Workload},
};

/// A controller, and how it is to be.
#[derive(Clone, Debug)]
pub enum Controller {
    /// The NetworkPolicy that each object of a kind asks for, as a Memcached does.
    Workload(Workload),
    /// Host protection policies of Cisco ACI.
    Hpp(hpp::Settings),
    /// ClusterSetNetworkPolicies, through a broker.
    ClusterSet(Box<clusterset::Settings>),
}

impl Controller {
    /// The names of all, as `--enable` takes them.
    pub const NAMES: &[&str] = &[clusterset::NAME, hpp::NAME, memcached::NAME];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Workload(workload) => workload.name,
            Controller::Hpp(_) => hpp::NAME,
            Controller::ClusterSet(_) => clusterset::NAME,
        }
    }

    /// A second API server that it needs.
    pub(crate) fn broker(&self) -> Option<&Access> {
        match self {
            Controller::ClusterSet(settings) => Some(&settings.broker),
            Controller::Workload(_) | Controller::Hpp(_) => None,
        }
    }

    /// Works until the context says that it is time to finish.
    pub(crate) async fn run(self, context: Context) {
        match self {
            Controller::Workload(workload) => workload::keep(&context, &workload).await,
            Controller::Hpp(settings) => hpp::keep(&context, &settings).await,
            Controller::ClusterSet(settings) => clusterset::keep(&context, &settings).await,
        }
    }
}
