use std::net::IpAddr;

use weir_cni_protocol::Attachment;

use crate::error::{CniError, ENVIRONMENT};

/// The environment of a call.
pub(crate) type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// Which pod, and which interface of it.
#[derive(Debug)]
pub(crate) struct Attached {
    container: String,
    interface: String,
    /// Namespace, name and uid, as Kubernetes tells the runtime.
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

impl Attached {
    /// Who the call is about.
    pub(crate) fn read(variable: Variable<'_>) -> Result<Attached, CniError> {
        let arguments = variable("CNI_ARGS").unwrap_or_default();
        let argument = |key: &str| {
            let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(one, _)| *one == key).map(|(_, value)| value);
            values.next().filter(|value| !value.is_empty()).map(str::to_owned)
        };
        Ok(Attached {
            container: needed("CNI_CONTAINERID", variable)?,
            interface: needed("CNI_IFNAME", variable)?,
            namespace: argument("K8S_POD_NAMESPACE"),
            name: argument("K8S_POD_NAME"),
            uid: argument("K8S_POD_UID"),
        })
    }

    /// Whether it is a pod at all.
    pub(crate) fn is_pod(&self) -> bool {
        self.namespace.is_some() && self.name.is_some()
    }

    /// The attachment with these addresses to a network.
    pub(crate) fn attachment(self, network: &str, addresses: Vec<IpAddr>) -> Attachment {
        let Attached { container, interface, namespace, name, uid } = self;
        Attachment {
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid,
            container,
            interface,
            network: network.to_owned(),
            addresses,
        }
    }
}

/// A variable that must be there.
pub(crate) fn needed(name: &str, variable: Variable<'_>) -> Result<String, CniError> {
    let value = variable(name).filter(|value| !value.is_empty());
    value.ok_or_else(|| CniError::new(ENVIRONMENT, format!("{name} is missing"), "runtimes set it"))
}
