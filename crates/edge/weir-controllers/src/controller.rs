use weir_kube::Access;

use crate::{
    ControllerContext, clusterset, conditions, hpp,
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
    /// Conditions of admin policies: where they are in force.
    Conditions(conditions::ConditionsSettings),
}

impl Controller {
    /// The name of the controller.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Workload(workload) => workload.name,
            Controller::Hpp(_) => hpp::NAME,
            Controller::ClusterSet(_) => clusterset::NAME,
            Controller::Conditions(_) => conditions::NAME,
        }
    }

    /// The broker, if the controller uses one.
    pub(crate) fn broker(&self) -> Option<&Access> {
        match self {
            Controller::ClusterSet(settings) => Some(&settings.broker),
            Controller::Workload(_) | Controller::Hpp(_) | Controller::Conditions(_) => None,
        }
    }

    /// Runs until the context is stopped.
    pub(crate) async fn run(self, context: ControllerContext) {
        match self {
            Controller::Workload(workload) => workload::run(&context, &workload).await,
            Controller::Hpp(settings) => hpp::run(&context, &settings).await,
            Controller::ClusterSet(settings) => clusterset::run(&context, &settings).await,
            Controller::Conditions(settings) => conditions::run(&context, &settings).await,
        }
    }
}
