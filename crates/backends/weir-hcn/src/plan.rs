use std::{fmt, net::IpAddr};

use weir_model::PodId;

use crate::Acl;

/// The changes to make, endpoint by endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcnPlan {
    /// The steps. Each changes one endpoint, or does nothing if the endpoint is already up to date.
    pub steps: Vec<Step>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Set our ACLs on the endpoint of a pod. The endpoint is found by address when the step runs.
    Put {
        /// The pod.
        pod: PodId,
        /// The addresses of the pod.
        addresses: Vec<IpAddr>,
        /// The ACLs. Empty if the pod allows every connection.
        acls: Vec<Acl>,
    },
    /// Remove our ACLs from an endpoint that no selected pod uses.
    Clear {
        /// The id of the endpoint.
        endpoint: String,
    },
}

impl weir_datapath::Plan for HcnPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for HcnPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Put { pod, addresses, acls } => {
                    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                    writeln!(f, "{pod} at {}: {} rules", addresses.join(", "), acls.len())?;
                    acls.iter().try_for_each(|acl| writeln!(f, "  {acl}"))?;
                }
                Step::Clear { endpoint } => writeln!(f, "endpoint {endpoint}: no rules")?,
            }
        }
        Ok(())
    }
}
