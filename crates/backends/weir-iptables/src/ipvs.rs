//! The addresses of IPVS services, which kube-proxy adds to the interface `kube-ipvs0`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustix::io::Errno;
use weir_netlink::{
    Body, Header, Malformed, Message, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind,
};

/// The interface.
const INTERFACE: &str = "kube-ipvs0";

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// The length of `struct ifinfomsg`.
const IFINFOMSG_LENGTH: usize = 16;
/// The length of `struct ifaddrmsg`.
const IFADDRMSG_LENGTH: usize = 8;
/// The position of the interface's index in both.
const INDEX: std::ops::Range<usize> = 4..8;

/// Reads the addresses of IPVS services.
#[derive(Debug)]
pub(crate) struct IpvsAddresses(Socket);

impl IpvsAddresses {
    /// Opens a socket in the current network namespace of this thread.
    pub(crate) fn open() -> std::io::Result<Self> {
        Socket::open(NetlinkProtocol::Route).map(IpvsAddresses)
    }

    /// The addresses of the interface. Empty without the interface, and `None` if they changed
    /// meanwhile.
    pub(crate) fn read(&mut self) -> Result<Option<BTreeSet<IpAddr>>, NetlinkError> {
        let mut addresses = BTreeSet::new();
        let Some(index) = self.interface_index()? else { return Ok(Some(addresses)) };
        let body = |body: &mut Body<'_>| _ = body.fixed(&[0; IFADDRMSG_LENGTH]);
        let mut parsed = Ok(());
        let listed = self.query(RTM_GETADDR, kind::DUMP, body, |message| {
            if parsed.is_ok() && message.payload.get(INDEX) == Some(&index) {
                parsed = parse_address(message).map(|address| addresses.extend(address));
            }
        });
        match listed {
            Err(NetlinkError::Interrupted) => return Ok(None),
            listed => listed?,
        }
        parsed?;
        Ok(Some(addresses))
    }

    fn interface_index(&mut self) -> Result<Option<[u8; 4]>, NetlinkError> {
        let body = |body: &mut Body<'_>| {
            body.fixed(&[0; IFINFOMSG_LENGTH]).text(IFLA_IFNAME, INTERFACE);
        };
        let mut index = None;
        let found = self.query(RTM_GETLINK, kind::ACK, body, |message| {
            index = message.payload.get(INDEX).and_then(|index| index.try_into().ok());
        });
        match found {
            Err(NetlinkError::Rejected(rejection)) if rejection.errno() == Some(Errno::NODEV) => {
                Ok(None)
            }
            found => found.map(|()| index),
        }
    }

    fn query(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
        visit: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let mut writer = MessageWriter::default();
        let header = Header { kind, flags: kind::REQUEST | flags, sequence: 0 };
        // The messages have a fixed length that fits.
        _ = writer.message(header, body);
        self.0.query(writer.bytes(), visit)
    }
}

/// The address in a message. Link-local addresses do not belong to services.
fn parse_address(message: Message<'_>) -> Result<Option<IpAddr>, Malformed> {
    let mut found = None;
    for attribute in message.attributes(IFADDRMSG_LENGTH) {
        let attribute = attribute?;
        // With both, the second is the own address and the first that of the other end.
        if attribute.kind == IFA_LOCAL || attribute.kind == IFA_ADDRESS && found.is_none() {
            found = Some(match attribute.value.len() {
                4 => Ipv4Addr::from(attribute.array::<4>()?).into(),
                _ => Ipv6Addr::from(attribute.array::<16>()?).into(),
            });
        }
    }
    let is_link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    Ok(found.filter(|address| !is_link_local(address)))
}
