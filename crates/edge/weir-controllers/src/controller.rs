use weir_kube::Access;

use crate::{
    ControllerContext, clusterset, hpp,
    workload::{self, Workload},
};

/// A controller and its settings.
#[derive(Clone, Debug)]
pub enum Controller {
    /// One NetworkPolicy for each object of a kind, such as a Memcached.
    Workload(Workload),
    /// Host protection policies for Cisco ACI.
    Hpp(hpp::HppSettings),
    /// ClusterSetNetworkPolicies, through a broker.
    ClusterSet(Box<clusterset::ClusterSetSettings>),
}

impl Controller {
    /// The name of the controller.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Workload(workload) => workload.name,
            Controller::Hpp(_) => hpp::NAME,
            Controller::ClusterSet(_) => clusterset::NAME,
        }
    }

    /// The broker, if the controller uses one.
    pub(crate) fn broker(&self) -> Option<&Access> {
        match self {
            Controller::ClusterSet(settings) => Some(&settings.broker),
            Controller::Workload(_) | Controller::Hpp(_) => None,
        }
    }

    /// Runs until the context is stopped.
    pub(crate) async fn run(self, context: ControllerContext) {
        match self {
            Controller::Workload(workload) => workload::run(&context, &workload).await,
            Controller::Hpp(settings) => hpp::run(&context, &settings).await,
            Controller::ClusterSet(settings) => clusterset::run(&context, &settings).await,
        }
    }
}
