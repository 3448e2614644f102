//! The loaded fast lane, for administrators.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::LaneNames;
use crate::{
    kernel::Kernel,
    layout::{LaneSettings, MapId},
};

/// The fast lane of a network namespace.
#[derive(Debug)]
pub struct LoadedLane {
    /// The programs at links of the node.
    pub links: Vec<LoadedLaneLink>,
    /// The addresses in the lane, with the indexes of their links.
    pub addresses: Vec<(IpAddr, u32)>,
    /// The UDP ports of tunnels, to which datagrams go the normal way; `None` if all datagrams do.
    pub tunnels: Option<Vec<u16>>,
}

/// A program at a link of the node.
#[derive(Debug)]
pub struct LoadedLaneLink {
    /// The name: family and index of the link.
    pub name: String,
    /// The number in the kernel.
    pub id: u32,
    /// The number of the program in the kernel.
    pub program: u32,
    /// The index of the link; 0 if it is gone.
    pub index: u32,
}

impl LoadedLane {
    /// Reads the lane; `None` if there is none.
    pub(crate) fn read(kernel: &Kernel) -> io::Result<Option<Self>> {
        let names = LaneNames::new(kernel);
        let maps = names.existing_maps();
        if maps.is_empty() {
            return Ok(None);
        }
        let mut addresses = Vec::new();
        for (id, map) in maps.iter().filter(|(id, _)| **id != MapId::LaneSettings) {
            for (key, value) in map.elements()?.iter() {
                let address = match id {
                    MapId::Lane(weir_model::IpFamily::V4) => {
                        <[u8; 4]>::try_from(key).map(|key| Ipv4Addr::from(key).into())
                    }
                    _ => <[u8; 16]>::try_from(key).map(|key| Ipv6Addr::from(key).into()),
                };
                let link = value.first_chunk::<8>().map(|value| u64::from_ne_bytes(*value) as u32);
                addresses.extend(address.ok().zip(link));
            }
        }
        addresses.sort_unstable();
        let settings = maps.get(&MapId::LaneSettings).map(|map| map.lookup(&[0; 4])).transpose()?;
        let settings = settings.flatten().and_then(|bytes| LaneSettings::from_bytes(&bytes));
        let used = |settings: &LaneSettings| settings.ports.into_iter().filter(|port| *port != 0);
        let tunnels = settings.filter(|settings| !settings.is_without_udp);
        let tunnels = tunnels.map(|settings| used(&settings).collect());
        let links = names.links()?.into_iter().map(|link| LoadedLaneLink {
            name: link.name,
            id: link.id,
            program: link.program,
            index: link.index,
        });
        Ok(Some(LoadedLane { links: links.collect(), addresses, tunnels }))
    }
}

impl fmt::Display for LoadedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nfast lane")?;
        for LoadedLaneLink { name, id, program, index } in &self.links {
            writeln!(f, "  {name}: id {id}, program {program}, interface {index}")?;
        }
        for (address, link) in &self.addresses {
            writeln!(f, "  address {address}: interface {link}")?;
        }
        match &self.tunnels {
            None => writeln!(f, "  UDP goes the normal way"),
            Some(ports) if ports.is_empty() => Ok(()),
            Some(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                writeln!(f, "  UDP to ports {} goes the normal way", ports.join(", "))
            }
        }
    }
}
