//! The links of the machine.

use std::{io, time::Duration};

use rustix::io::Errno;
use weir_datapath::{ApplyError, ApplyErrorKind, NodeLinks, Tunnel};
use weir_netlink::{
    Attribute, Attributes, Header, Malformed, Message, MessageWriter, NetlinkError,
    NetlinkProtocol, Socket, kind,
};

/// How often to list the links again because they changed meanwhile.
const MAX_READS: usize = 10;

/// Lists the links of a network namespace whenever they changed.
#[derive(Debug)]
pub struct LinkWatch {
    socket: Socket,
    changes: Socket,
    buffer: Vec<u8>,
    /// Whether links may have changed since the last list.
    is_stale: bool,
}

impl LinkWatch {
    /// Watches the links in the network namespace of the calling thread.
    pub fn open() -> Result<LinkWatch, ApplyError> {
        let socket = Socket::open(NetlinkProtocol::Route).map_err(failed)?;
        let changes = Socket::open(NetlinkProtocol::Route).map_err(failed)?;
        changes.join(RTNLGRP_LINK).map_err(failed)?;
        Ok(LinkWatch { socket, changes, buffer: vec![0; 64 * 1024], is_stale: true })
    }

    /// The links, if they changed since the previous call or may have.
    pub fn read_changed(&mut self) -> Result<Option<NodeLinks>, ApplyError> {
        self.receive().map_err(failed)?;
        if !self.is_stale {
            return Ok(None);
        }
        for _ in 0..MAX_READS {
            match self.list() {
                Ok(links) => {
                    self.is_stale = false;
                    return Ok(Some(links));
                }
                Err(NetlinkError::Interrupted) => (),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(NetlinkError::Interrupted))
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            match self.changes.receive(&mut self.buffer, Some(Duration::ZERO)) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => self.is_stale = true,
                Err(error) => {
                    self.is_stale = true;
                    let lost = [Errno::NOBUFS, Errno::MSGSIZE];
                    if !Errno::from_io_error(&error).is_some_and(|errno| lost.contains(&errno)) {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn list(&mut self) -> Result<NodeLinks, NetlinkError> {
        let mut writer = MessageWriter::default();
        let header = Header { kind: RTM_GETLINK, flags: kind::REQUEST | kind::DUMP, sequence: 1 };
        let request = writer.message(header, |body| _ = body.fixed(&[0; IFINFOMSG_LENGTH]));
        request.expect("the request fits into a message");
        let (mut links, mut malformed) = (NodeLinks::default(), None);
        self.socket
            .query(writer.bytes(), |message| {
                if let Err(error) = read_link(&message, &mut links) {
                    malformed = Some(error.into());
                }
            })
            .and(malformed.map_or(Ok(()), Err))?;
        Ok(links)
    }
}

/// Adds the link in a message.
fn read_link(message: &Message<'_>, links: &mut NodeLinks) -> Result<(), Malformed> {
    let header = message.payload.first_chunk::<IFINFOMSG_LENGTH>().ok_or(Malformed::Message)?;
    let [_, _, _, _, a, b, c, d, e, f, g, h, ..] = *header;
    let (index, flags) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let (mut name, mut kind, mut data) = ("", "", None);
    for attribute in message.attributes(IFINFOMSG_LENGTH) {
        let attribute = attribute?;
        match attribute.kind {
            // The kernel accepts any bytes. A link without a readable name is no pod's.
            IFLA_IFNAME => name = attribute.text().unwrap_or_default(),
            IFLA_LINKINFO => (kind, data) = read_info(attribute.attributes())?,
            _ => (),
        }
    }
    match kind {
        "veth" | "netkit" if name.is_empty() => (),
        "veth" | "netkit" => _ = links.pairs.insert(name.into(), index),
        // A link that is down receives nothing. The kernel has such links for most protocols.
        _ if flags & IFF_UP == 0 => (),
        "vxlan" => links.tunnels.extend(port(data, IFLA_VXLAN_PORT)?),
        "geneve" => links.tunnels.extend(port(data, IFLA_GENEVE_PORT)?),
        "ipip" => links.tunnels.extend([Tunnel::Protocol(IPPROTO_IPIP)]),
        "sit" | "ip6tnl" => {
            links.tunnels.extend([IPPROTO_IPIP, IPPROTO_IPV6].map(Tunnel::Protocol));
        }
        "gre" | "gretap" | "erspan" | "ip6gre" | "ip6gretap" | "ip6erspan" => {
            links.tunnels.extend([Tunnel::Protocol(IPPROTO_GRE)]);
        }
        _ => (),
    }
    Ok(())
}

type Info<'a> = (&'a str, Option<Attribute<'a>>);

/// The kind of a link, and the attributes that only this kind has.
fn read_info(attributes: Attributes<'_>) -> Result<Info<'_>, Malformed> {
    let (mut kind, mut data) = ("", None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_INFO_KIND => kind = attribute.text()?,
            IFLA_INFO_DATA => data = Some(attribute),
            _ => (),
        }
    }
    Ok((kind, data))
}

/// The UDP port of a tunnel.
fn port(data: Option<Attribute<'_>>, number: u16) -> Result<Option<Tunnel>, Malformed> {
    for attribute in data.iter().flat_map(Attribute::attributes) {
        let attribute = attribute?;
        if attribute.kind == number {
            return attribute.be_u16().map(|port| Some(Tunnel::Udp(port)));
        }
    }
    Ok(None)
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ApplyError {
    ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: "cannot list the links of the node".to_owned(),
        source: Box::new(error),
    }
}

// From `linux/rtnetlink.h`, `linux/if_link.h`, `linux/if.h` and `linux/in.h`.
const RTM_GETLINK: u16 = 18;
const RTNLGRP_LINK: u32 = 1;
const IFINFOMSG_LENGTH: usize = 16;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_GENEVE_PORT: u16 = 5;
const IPPROTO_IPIP: u8 = 4;
const IPPROTO_IPV6: u8 = 41;
const IPPROTO_GRE: u8 = 47;

#[cfg(test)]
mod tests {
    use weir_netlink::Messages;

    use super::*;

    #[test]
    fn a_link_with_an_unreadable_name_does_not_hide_others() {
        let mut writer = MessageWriter::default();
        for name in [&b"\xff\xfe\0"[..], b"veth1\0"] {
            let header = Header { kind: 16, flags: 0, sequence: 1 };
            let link = writer.message(header, |body| {
                body.fixed(&[0; IFINFOMSG_LENGTH]).bytes(IFLA_IFNAME, name);
                body.nest(IFLA_LINKINFO, |info| _ = info.text(IFLA_INFO_KIND, "veth"));
            });
            link.expect("it fits");
        }
        let mut links = NodeLinks::default();
        for message in Messages::new(writer.bytes()) {
            read_link(&message.expect("valid"), &mut links).expect("readable");
        }
        assert_eq!(links.pairs, [("veth1".into(), 0)].into());
    }
}
