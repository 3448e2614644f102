//! Frames that links receive, for the programs of the fast lane.

use std::net::IpAddr;

use weir_ebpf::{
    layout::{LaneSettings, MapId, address_key, lane_value},
    program::context,
};

use super::{Maps, Packet, Run};

/// A packet that a link receives.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) packet: Packet,
    pub(crate) link: u32,
    pub(crate) packet_type: u32,
    pub(crate) vlan: u32,
}

/// The length of the Ethernet header.
const ETHERNET: usize = 14;

impl Run<'_> {
    /// Runs the program of the fast lane on a frame, on a node with these links.
    pub(crate) fn lane_verdict(&mut self, frame: &Frame, links: &[u32]) -> i32 {
        self.links = links.to_vec();
        let bytes = [&[0; ETHERNET][..], &frame.packet.bytes].concat();
        self.packet = (self.region(bytes) >> 32) as usize;
        let mut context_bytes = vec![0xaa; context::DATA_END as usize + 4];
        let protocol: [u8; 2] = match frame.packet.bytes.first().map(|byte| byte >> 4) {
            Some(6) => [0x86, 0xdd],
            _ => [0x08, 0x00],
        };
        for (member, value) in [
            (context::PACKET_TYPE, frame.packet_type),
            (context::PROTOCOL, u16::from_ne_bytes(protocol).into()),
            (context::VLAN, frame.vlan),
            (context::LINK, frame.link),
        ] {
            let member = member as usize;
            context_bytes[member..member + 4].copy_from_slice(&value.to_le_bytes());
        }
        self.registers[1] = self.region(context_bytes);
        self.frame = Some((self.registers[1] >> 32) as usize);
        self.run() as i32
    }

    /// What the kernel loads instead of the members of the context that are addresses.
    pub(super) fn load_context(&self, address: u64) -> Option<u64> {
        let (region, offset) = Self::place(address);
        let start = (self.packet as u64) << 32;
        match i16::try_from(offset).ok()? {
            _ if self.frame != Some(region) => None,
            context::DATA => Some(start),
            context::DATA_END => Some(start + self.regions[self.packet].len() as u64),
            _ => None,
        }
    }
}

impl Maps {
    /// Adds an address to the fast lane.
    pub(crate) fn add_to_lane(&mut self, address: IpAddr, link: u32) {
        let value = lane_value(address, link).to_ne_bytes().to_vec();
        self.0.entry(MapId::Lane(address.into())).or_default().insert(address_key(address), value);
    }

    /// Changes the settings of the fast lane.
    pub(crate) fn set_lane(&mut self, settings: &LaneSettings) {
        let (key, value) = (vec![0; 4], settings.to_bytes());
        self.0.entry(MapId::LaneSettings).or_default().insert(key, value);
    }
}
