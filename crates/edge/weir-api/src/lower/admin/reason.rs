//! The words in which an API server rejects an object by a CEL rule of the definitions of
//! network-policy-api. weir rejects the same objects, and repeats these words.

/// The first port of a range is not below the last one.
pub(crate) const RANGE: &str = "Start port must be less than End port";
/// A network is not in CIDR notation (v1alpha2 and v1beta1).
pub(crate) const CIDR: &str = "Invalid CIDR format provided";
/// A network has the separators of both families, or of none (v1alpha1).
pub(crate) const CIDR_V1ALPHA1: &str = "CIDR must be either an IPv4 or IPv6 address. IPv4 address embedded in IPv6 addresses are not supported";
/// A rule has named ports, and peers that are not pods.
pub(crate) const NAMED_PORTS: &str = "networks/nodes/domainNames peer cannot be set with namedPorts since there are no namedPorts for networks/nodes/domainNames";
/// The same of a BaselineAdminNetworkPolicy, which has no domain names.
pub(crate) const NAMED_PORTS_BASELINE: &str = "networks/nodes peer cannot be set with namedPorts since there are no namedPorts for networks/nodes";
/// A BaselineAdminNetworkPolicy has another name than `default`.
pub(crate) const BASELINE_NAME: &str = "Only one baseline admin network policy with metadata.name=\"default\" can be created in the cluster";
