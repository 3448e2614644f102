use crate::{
    Context, hpp, memcached,
    workload::{self, Workload},
};

/// A controller, and how it is to be.
#[derive(Clone, Debug)]
pub enum Controller {
    /// The NetworkPolicy that each object of a kind asks for, as a Memcached does.
    Workload(Workload),
    /// Host protection policies of Cisco ACI.
    Hpp(hpp::Settings),
}

impl Controller {
    /// The names of all, as `--enable` takes them.
    pub const NAMES: &[&str] = &[memcached::NAME, hpp::NAME];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Workload(workload) => workload.name,
            Controller::Hpp(_) => hpp::NAME,
        }
    }

    /// Works until the context says that it is time to finish.
    pub(crate) async fn run(self, context: Context) {
        match self {
            Controller::Workload(workload) => workload::keep(&context, &workload).await,
            Controller::Hpp(settings) => hpp::keep(&context, &settings).await,
        }
    }
}
