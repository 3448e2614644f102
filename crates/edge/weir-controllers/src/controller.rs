use crate::{
    Context, memcached,
    workload::{self, Workload},
};

/// A controller, and how it is to be.
#[derive(Clone, Debug)]
pub enum Controller {
    /// The NetworkPolicy that each object of a kind asks for, as a Memcached does.
    Workload(Workload),
}

impl Controller {
    /// The names of all, as `--enable` takes them.
    pub const NAMES: &[&str] = &[memcached::NAME];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Workload(workload) => workload.name,
        }
    }

    /// Works until the context says that it is time to finish.
    pub(crate) async fn run(self, context: Context) {
        match self {
            Controller::Workload(workload) => workload::keep(&context, &workload).await,
        }
    }
}
