use std::net::IpAddr;

use weir_cni_protocol::Attachment;

use crate::error::{CniError, ENVIRONMENT};

/// Looks up an environment variable of a call.
pub(crate) type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// An interface of a container, and its pod.
#[derive(Debug)]
pub(crate) struct Interface {
    container: String,
    interface: String,
    /// The namespace of the pod.
    namespace: Option<String>,
    /// The name of the pod.
    name: Option<String>,
    /// The uid of the pod.
    uid: Option<String>,
}

impl Interface {
    /// Reads the interface from the environment.
    pub(crate) fn from_environment(variable: Variable<'_>) -> Result<Interface, CniError> {
        let arguments = variable("CNI_ARGS").unwrap_or_default();
        let argument = |key: &str| {
            let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(one, _)| *one == key).map(|(_, value)| value);
            values.next().filter(|value| !value.is_empty()).map(str::to_owned)
        };
        Ok(Interface {
            container: required("CNI_CONTAINERID", variable)?,
            interface: required("CNI_IFNAME", variable)?,
            namespace: argument("K8S_POD_NAMESPACE"),
            name: argument("K8S_POD_NAME"),
            uid: argument("K8S_POD_UID"),
        })
    }

    /// Whether the container belongs to a pod.
    pub(crate) fn is_pod(&self) -> bool {
        self.namespace.is_some() && self.name.is_some()
    }

    /// The attachment of this interface to a network, with its addresses and the host's
    /// interfaces.
    pub(crate) fn attachment(
        self,
        network: &str,
        addresses: Vec<IpAddr>,
        links: Vec<String>,
    ) -> Attachment {
        let Interface { container, interface, namespace, name, uid } = self;
        Attachment {
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid,
            container,
            interface,
            network: network.to_owned(),
            addresses,
            links,
        }
    }
}

/// A required environment variable.
pub(crate) fn required(name: &str, variable: Variable<'_>) -> Result<String, CniError> {
    let value = variable(name).filter(|value| !value.is_empty());
    let details = "container runtimes set it";
    value.ok_or_else(|| CniError::new(ENVIRONMENT, format!("{name} is missing"), details))
}
