use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_model::IpFamily;

use super::address_key;

/// The end of a connection.
pub(super) type End = (IpAddr, u16);

/// A connection that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEntry {
    /// The end that began it.
    pub client: End,
    /// The other end.
    pub server: End,
    /// The number of the protocol.
    pub protocol: u8,
    /// The epoch in which the rules last allowed it.
    pub epoch: u32,
    /// When its last packet passed, in units of [`TickClock`](crate::program::TickClock).
    pub time: u64,
    /// Whether the rules have denied it since.
    pub is_cut: bool,
}

impl FlowEntry {
    /// The bit of the time that marks a cut connection.
    pub(crate) const CUT_BIT: i32 = 63;

    /// The connection with this key and value; `None` if they are too short.
    pub fn from_bytes(family: IpFamily, key: &[u8], value: &[u8]) -> Option<Self> {
        let (addresses, rest) = match family {
            IpFamily::V4 => (key.get(..8)?, key.get(8..)?),
            IpFamily::V6 => (key.get(..32)?, key.get(32..)?),
        };
        let address = |bytes: &[u8]| -> Option<IpAddr> {
            Some(match family {
                IpFamily::V4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
                IpFamily::V6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
            })
        };
        let (first, second) = addresses.split_at(addresses.len() / 2);
        let port = |at: usize| Some(u16::from_be_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let first = (address(first)?, port(0)?);
        let second = (address(second)?, port(2)?);
        let protocol = u32::from_ne_bytes(rest.get(4..8)?.try_into().ok()?);
        let word = u64::from_ne_bytes(value.get(..8)?.try_into().ok()?);
        let (client, server) = if word >> 63 == 0 { (first, second) } else { (second, first) };
        let time = u64::from_ne_bytes(value.get(8..16)?.try_into().ok()?);
        Some(FlowEntry {
            client,
            server,
            protocol: u8::try_from(protocol).ok()?,
            epoch: word as u32,
            time: time & !(1 << Self::CUT_BIT),
            is_cut: time >> Self::CUT_BIT != 0,
        })
    }
}

/// The key and the value of a connection that the first end began, as the program writes them. The
/// program evaluates it again unless it is of the current epoch.
pub fn flow_element(
    client: End,
    server: End,
    protocol: u8,
    epoch: u32,
    time: u64,
) -> (Vec<u8>, Vec<u8>) {
    let raw = |address: IpAddr| -> Vec<u64> {
        let key = address_key(address);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .enumerate()
                .fold(0_u64, |sum, (at, byte)| sum | u64::from(*byte) << (8 * at))
        };
        // The program compares numbers in the order of the machine.
        let convert = |number: u64, bytes: usize| {
            if cfg!(target_endian = "big") {
                number.swap_bytes() >> (64 - 8 * bytes)
            } else {
                number
            }
        };
        key.chunks(key.len().min(8)).map(|part| convert(number(part), part.len())).collect()
    };
    let raw_port = |port: u16| u16::from_ne_bytes(port.to_be_bytes());
    let rank = |(address, port): End| (raw(address), raw_port(port));
    let began = u64::from(rank(client) > rank(server));
    let (first, second) = if began == 0 { (client, server) } else { (server, client) };
    let key = [
        &address_key(first.0)[..],
        &address_key(second.0),
        &first.1.to_be_bytes(),
        &second.1.to_be_bytes(),
        &u32::from(protocol).to_ne_bytes(),
    ]
    .concat();
    let words =
        key.chunks_exact(8).filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    let sum = words.fold(0, |sum, word| sum ^ word);
    let check = (sum ^ sum >> 32) & u64::from(u32::MAX >> 1);
    let word = (check | began << 31) << 32 | u64::from(epoch);
    (key, [word.to_ne_bytes(), time.to_ne_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_connection_can_be_read() {
        for (client, server) in [
            (("10.0.0.1", 40_000), ("10.0.0.2", 80)),
            (("10.0.0.2", 80), ("10.0.0.1", 40_000)),
            (("fd00::1", 1), ("fd00::1", 2)),
            (("fd00::1", 2), ("fd00::1", 1)),
        ] {
            let end = |(address, port): (&str, u16)| -> End { (address.parse().unwrap(), port) };
            let (client, server) = (end(client), end(server));
            let (key, value) = flow_element(client, server, 6, 7, 1 << 40);
            let read = FlowEntry::from_bytes(IpFamily::from(client.0), &key, &value);
            let (protocol, epoch, time, is_cut) = (6, 7, 1 << 40, false);
            assert_eq!(read, Some(FlowEntry { client, server, protocol, epoch, time, is_cut }));
        }
    }
}
