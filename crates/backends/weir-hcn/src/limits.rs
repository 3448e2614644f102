use weir_model::{PortRange, Ports, Protocol};

use crate::acl_ports::{AclPorts, AclProtocol};

/// Bounds for the ACLs of one endpoint.
#[derive(Clone, Debug)]
pub struct AclLimits {
    /// The maximum number of addresses, or of ports, in a list. Microsoft documents 4000 addresses.
    pub list_length: usize,
    /// The number of port ranges up to which each has its own ACL.
    pub separate_ports: usize,
    /// The number of addresses with which port ranges have their own ACLs. Each of them repeats
    /// the addresses.
    pub separate_addresses: usize,
    /// The maximum number of addresses in all ACLs of a direction, counted once per ACL. ACLs have
    /// no exceptions: one except of an IPv6 block can need 127 networks.
    pub addresses: usize,
    /// The maximum number of clauses, addresses and ports of the rules that replace Pass rules.
    pub admin_size: usize,
}

impl Default for AclLimits {
    fn default() -> Self {
        AclLimits {
            list_length: 4000,
            separate_ports: 8,
            separate_addresses: 1000,
            addresses: 200_000,
            admin_size: 200_000,
        }
    }
}

impl AclLimits {
    /// The ports of the clauses of a rule with this number of peer addresses: one for each range,
    /// or one for each protocol if that would repeat too many addresses.
    pub(crate) fn port_lists(&self, ports: &Ports, addresses: usize) -> Vec<AclPorts> {
        let Some(list) = ports.list() else { return vec![AclPorts::Any] };
        let known = |range: &PortRange| {
            AclProtocol::new(range.protocol).map(|protocol| (protocol, (range.first, range.last)))
        };
        if list.len() <= self.separate_ports && addresses <= self.separate_addresses {
            let ranges = list.iter().filter_map(known);
            return ranges
                .map(|(protocol, (first, last))| AclPorts::range(protocol, first, last))
                .collect();
        }
        let of_protocol = |protocol: Protocol| {
            let own = list.iter().filter(|range| range.protocol == protocol);
            let ranges: Vec<(u16, u16)> = own.filter_map(known).map(|(_, range)| range).collect();
            let protocol = AclProtocol::new(protocol).filter(|_| !ranges.is_empty())?;
            Some(AclPorts::Of(protocol, ranges.into()))
        };
        Protocol::ALL.into_iter().filter_map(of_protocol).collect()
    }
}
