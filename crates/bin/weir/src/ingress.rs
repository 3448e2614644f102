//! The pods of ingress controllers, on the command line.

use clap::Args;
use weir_view::ingress::IngressControllers;
pub(crate) use weir_view::ingress::{RouteSources, RouteTargets, listed, name, unknown_pods};

/// The pods of ingress controllers.
#[derive(Args, Clone)]
pub(crate) struct IngressArgs {
    /// The pods of the ingress controller or gateway: `namespace/pod` or
    /// `namespace/deployment/name` [repeatable] [default: found by the labels of common controllers]
    #[arg(long = "ingress-controller", value_name = "PODS")]
    controllers: Vec<String>,
}

impl IngressArgs {
    /// The given pods.
    pub(crate) fn controllers(&self) -> IngressControllers<'_> {
        IngressControllers(&self.controllers)
    }
}
