//! The maps of the fast lane.

use std::{collections::BTreeSet, net::IpAddr};

use super::address::check;

/// The value of an address in the fast lane: a check of the address, and the index of its link.
pub fn lane_value(address: IpAddr, link: u32) -> u64 {
    u64::from(check(address)) << 32 | u64::from(link)
}

/// The settings of the fast lane: UDP datagrams that go the normal way, because tunnels of the node
/// would receive them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSettings {
    /// Whether all datagrams go the normal way.
    pub is_without_udp: bool,
    /// Otherwise those to these ports; 0 is not used.
    pub ports: [u16; LaneSettings::PORTS],
}

impl LaneSettings {
    pub(crate) const BYTES: u32 = 16;
    /// The number of ports.
    pub const PORTS: usize = 6;
    pub(crate) const WITHOUT_UDP: i32 = 1;
    pub(crate) const FIRST_PORT: i16 = 4;

    /// The settings for the ports of tunnels. Without room for all of them, no datagram takes the
    /// fast lane.
    pub fn for_tunnels(tunnels: &BTreeSet<u16>) -> Self {
        let is_without_udp = tunnels.len() > Self::PORTS;
        let mut settings = LaneSettings { is_without_udp, ..LaneSettings::default() };
        for (port, tunnel) in settings.ports.iter_mut().zip(tunnels) {
            *port = *tunnel;
        }
        settings
    }

    /// The settings with these bytes; `None` if they are too few.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let flags = i32::from_ne_bytes(*bytes.first_chunk()?);
        let is_without_udp = flags & Self::WITHOUT_UDP != 0;
        let mut settings = LaneSettings { is_without_udp, ..LaneSettings::default() };
        let ports = bytes.get(Self::FIRST_PORT as usize..)?.chunks_exact(2);
        for (port, bytes) in settings.ports.iter_mut().zip(ports) {
            *port = u16::from_be_bytes(bytes.try_into().ok()?);
        }
        Some(settings)
    }

    /// The value in the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = if self.is_without_udp { Self::WITHOUT_UDP } else { 0 };
        let ports = self.ports.iter().flat_map(|port| port.to_be_bytes());
        flags.to_ne_bytes().into_iter().chain(ports).collect()
    }
}
