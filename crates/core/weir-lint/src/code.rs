//! The codes, as documented in `docs/reference/lint.md`.

pub(crate) const BLOCK_COVERS_PODS: &str = "block-covers-pods";
pub(crate) const DUPLICATE_ADDRESS: &str = "duplicate-address";
pub(crate) const DUPLICATE_POLICY: &str = "duplicate-policy";
pub(crate) const HOST_NETWORK_PEER: &str = "host-network-peer";
pub(crate) const HOST_NETWORK_SUBJECT: &str = "host-network-subject";
pub(crate) const MOOT_POLICY: &str = "moot-policy";
pub(crate) const NEVER_MATCHES: &str = "never-matches";
pub(crate) const NODE_LOCAL_DNS: &str = "node-local-dns";
pub(crate) const NO_DNS: &str = "no-dns";
pub(crate) const NO_DNS_TCP: &str = "no-dns-tcp";
pub(crate) const NO_PODS: &str = "no-pods";
pub(crate) const ONE_FAMILY_BLOCK: &str = "one-family-block";
pub(crate) const OVERLAPPING_PORTS: &str = "overlapping-ports";
pub(crate) const PEER_MATCHES_NOTHING: &str = "peer-matches-nothing";
pub(crate) const PORT_PROTOCOL: &str = "port-protocol";
pub(crate) const REDUNDANT_PEER: &str = "redundant-peer";
pub(crate) const REDUNDANT_RULE: &str = "redundant-rule";
pub(crate) const RESERVED_LABEL: &str = "reserved-label";
pub(crate) const SAME_PRIORITY: &str = "same-priority";
pub(crate) const SELECTS_NOTHING: &str = "selects-nothing";
pub(crate) const SHADOWED: &str = "shadowed";
pub(crate) const SPLIT_PEER: &str = "split-peer";
pub(crate) const UNDECLARED_PORT: &str = "undeclared-port";
pub(crate) const UNKNOWN_NAMESPACE: &str = "unknown-namespace";
pub(crate) const UNKNOWN_NAMESPACE_LABEL: &str = "unknown-namespace-label";
pub(crate) const UNKNOWN_PORT_NAME: &str = "unknown-port-name";
pub(crate) const UNSELECTED_POD: &str = "unselected-pod";
pub(crate) const WORLD_OPEN: &str = "world-open";

/// Every code that [`crate::lint`] and [`crate::unselected`] can report, sorted.
pub const CODES: &[&str] = &[
    BLOCK_COVERS_PODS,
    DUPLICATE_ADDRESS,
    DUPLICATE_POLICY,
    HOST_NETWORK_PEER,
    HOST_NETWORK_SUBJECT,
    MOOT_POLICY,
    NEVER_MATCHES,
    NO_DNS,
    NO_DNS_TCP,
    NO_PODS,
    NODE_LOCAL_DNS,
    ONE_FAMILY_BLOCK,
    OVERLAPPING_PORTS,
    PEER_MATCHES_NOTHING,
    PORT_PROTOCOL,
    REDUNDANT_PEER,
    REDUNDANT_RULE,
    RESERVED_LABEL,
    SAME_PRIORITY,
    SELECTS_NOTHING,
    SHADOWED,
    SPLIT_PEER,
    UNDECLARED_PORT,
    UNKNOWN_NAMESPACE,
    UNKNOWN_NAMESPACE_LABEL,
    UNKNOWN_PORT_NAME,
    UNSELECTED_POD,
    WORLD_OPEN,
];
