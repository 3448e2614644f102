use crate::{Context, OnDisable, memcached, workload};

/// A controller, and how it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The NetworkPolicy that a Memcached asks for.
    Memcached(OnDisable),
}

impl Controller {
    /// The names of all.
    pub const NAMES: [&str; 1] = [memcached::NAME];

    /// Its name, as `--enable` takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Controller::Memcached(_) => memcached::NAME,
        }
    }

    /// Works until the context says that it is time to finish.
    pub(crate) async fn run(self, context: Context) {
        match self {
            Controller::Memcached(on_disable) => {
                workload::keep(&context, &memcached::workload(on_disable)).await;
            }
        }
    }
}
