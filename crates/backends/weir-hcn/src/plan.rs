use std::{fmt, net::IpAddr};

use weir_model::PodId;

use crate::Acl;

/// What is to be done, endpoint by endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps. Each is one change of one endpoint, or none if it is so already.
    pub steps: Vec<Step>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The endpoint of a pod, whichever has its addresses then, has exactly these rules of ours.
    Put {
        /// The pod.
        pod: PodId,
        /// Its addresses.
        addresses: Vec<IpAddr>,
        /// The rules; none if every connection passes.
        acls: Vec<Acl>,
    },
    /// An endpoint that no pod with rules has any more has none of ours.
    Clear {
        /// Which one.
        endpoint: String,
    },
}

impl weir_datapath::Plan for Plan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Plan {
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
