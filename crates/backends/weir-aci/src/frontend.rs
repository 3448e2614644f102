use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{IpFamily, Name, Protocol};

use crate::peer::PodProfile;

/// One port of a Service at its addresses of one family. A node balances connections to it over the
/// backends, after opflex-agent has judged them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontend {
    pub(crate) port: FrontendPort,
    /// The addresses of the Service.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The backends of the family, by their properties.
    pub(crate) backends: BTreeMap<BackendClass, BTreeSet<IpAddr>>,
}

/// The family, protocol and number of a Service's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FrontendPort {
    pub(crate) family: IpFamily,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

/// The properties by which rules can distinguish backends, other than their addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackendClass {
    /// The port of the backend.
    pub(crate) port: u16,
    /// The namespace and the profile of the pod that holds the address, if it is a pod's.
    pub(crate) pod: Option<(Name, PodProfile)>,
}
