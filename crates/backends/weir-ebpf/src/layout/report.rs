use std::net::IpAddr;

use weir_netfilter::report;

use crate::program;

/// A report about a denied packet: cause and family (2 bytes each), protocol and flags of the program
/// (4 bytes), both addresses, both ports, and the first 16 bytes of the TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The cause: ingress, egress or a reply, in the order of the counters.
    pub cause: u32,
    /// The number of the protocol.
    pub protocol: u8,
    /// Whether its sender may get an answer: it is neither a reply nor an error.
    pub is_answerable: bool,
    /// The source, with its port; 0 if the protocol has none.
    pub source: (IpAddr, u16),
    /// The destination.
    pub destination: (IpAddr, u16),
    /// The numbers and flags of the TCP header. Without meaning for other protocols.
    pub sequence: u32,
    /// See `sequence`.
    pub acknowledgement: u32,
    /// See `sequence`.
    pub tcp_flags: u8,
}

impl Report {
    pub(crate) const CAUSE: i16 = 0;
    pub(crate) const FAMILY: i16 = 2;
    pub(crate) const PROTOCOL: i16 = 4;
    pub(crate) const ADDRESSES: i16 = 8;
    /// The bytes of the TCP header.
    pub(crate) const TCP_BYTES: i16 = 16;
    /// Where the flags of the program begin, in the word of the protocol.
    pub(crate) const FLAGS_SHIFT: i32 = 8;
    /// The size of the buffer: some thousand reports.
    pub(crate) const BUFFER_BYTES: u32 = 256 * 1024;
    /// The most source addresses, and links, that have limits of their own at a time.
    pub(crate) const MAX_SOURCES: u32 = report::MAX_SOURCES;
    pub(crate) const MAX_LINKS: u32 = report::MAX_LINKS;
    /// The reports from a source, and about new sources of a link, in about a second.
    pub(crate) const PER_SOURCE: i32 = report::PER_SECOND as i32;
    pub(crate) const NEW_SOURCES_PER_LINK: i32 = report::NEW_SOURCES_PER_SECOND as i32;

    /// The report with these bytes; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| <[u8; 2]>::try_from(bytes.get(at..at + 2)?).ok();
        let word = u32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?);
        let rest = bytes.get(8..)?;
        let (from, to, ports): (IpAddr, IpAddr, usize) = match u16::from_ne_bytes(half(2)?) {
            4 => {
                let address = |at: usize| <[u8; 4]>::try_from(rest.get(at..at + 4)?).ok();
                (address(0)?.into(), address(4)?.into(), 16)
            }
            6 => {
                let address = |at: usize| <[u8; 16]>::try_from(rest.get(at..at + 16)?).ok();
                (address(0)?.into(), address(16)?.into(), 40)
            }
            _ => return None,
        };
        let tcp = bytes.get(ports + 4..ports + 4 + Self::TCP_BYTES as usize)?;
        let number = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let flags = (word >> Self::FLAGS_SHIFT) as i32;
        Some(Report {
            cause: u16::from_ne_bytes(half(0)?).into(),
            protocol: word as u8,
            is_answerable: flags & program::UNANSWERED == 0,
            source: (from, u16::from_be_bytes(half(ports)?)),
            destination: (to, u16::from_be_bytes(half(ports + 2)?)),
            sequence: number(4)?,
            acknowledgement: number(8)?,
            tcp_flags: *tcp.get(13)?,
        })
    }
}
