//! The addresses of the machine.

use std::{collections::BTreeSet, io, net::IpAddr};

use weir_netlink::{
    Attributes, Header, Malformed, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind,
};

/// Lists the addresses of all interfaces in the network namespace of the calling thread.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut route = Socket::open(NetlinkProtocol::Route)?;
    addresses_over(&mut route).map_err(io::Error::other)
}

/// Lists the addresses of all interfaces in the network namespace of the socket.
pub(crate) fn addresses_over(route: &mut Socket) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let mut writer = MessageWriter::default();
    let header = Header { kind: RTM_GETADDR, flags: kind::REQUEST | kind::DUMP, sequence: 1 };
    let request = writer.message(header, |body| _ = body.fixed(&[0; IFADDRMSG_LENGTH]));
    request.expect("the request fits into a message");
    let (mut addresses, mut malformed) = (BTreeSet::new(), None);
    route
        .query(writer.bytes(), |message| match parse(message.attributes(IFADDRMSG_LENGTH)) {
            Ok(address) => addresses.extend(address),
            Err(error) => malformed = Some(error.into()),
        })
        .and(malformed.map_or(Ok(()), Err))?;
    Ok(addresses)
}

/// The address in a message. On a point-to-point link, `IFA_ADDRESS` is that of the peer.
fn parse(attributes: Attributes<'_>) -> Result<Option<IpAddr>, Malformed> {
    let (mut address, mut local) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        let read = || match attribute.value.len() {
            4 => attribute.array::<4>().map(IpAddr::from),
            _ => attribute.array::<16>().map(IpAddr::from),
        };
        match attribute.kind {
            IFA_ADDRESS => address = Some(read()?),
            IFA_LOCAL => local = Some(read()?),
            _ => (),
        }
    }
    Ok(local.or(address))
}

// From `linux/rtnetlink.h` and `linux/if_addr.h`.
const RTM_GETADDR: u16 = 22;
const IFADDRMSG_LENGTH: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
