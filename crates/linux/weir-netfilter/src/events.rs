use std::{io, time::Duration};

use rustix::io::Errno;
use weir_netlink::{Attributes, Malformed, Message, Messages, NetlinkProtocol, Socket};

use crate::{Connection, nfnetlink};

/// The connections that begin and end in a network namespace. Packets in between cost nothing.
#[derive(Debug)]
pub struct ConnectionEvents {
    socket: Socket,
    buffer: Vec<u8>,
    overruns: u64,
}

/// The begin or the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// Its first packet passed all rules.
    Began(Connection),
    /// It ended or timed out.
    Ended(Connection, Option<TrafficCount>),
}

/// The packets and bytes of a connection in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCount {
    /// The packets.
    pub packets: u64,
    /// The bytes, with the headers of the network layer.
    pub bytes: u64,
}

/// Why the events of connections cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The socket cannot be opened.
    #[error("cannot open a netlink socket for the events of connections")]
    Open(#[source] io::Error),
    /// The kernel does not send the events, or permission is missing.
    #[error("cannot subscribe to the events of connections")]
    Subscribe(#[source] io::Error),
    /// Receiving failed.
    #[error("cannot receive the events of connections")]
    Receive(#[source] io::Error),
}

/// Which events to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventScope {
    /// Connections that begin.
    Begins,
    /// Connections that begin and end. It is of use only if the kernel counts packets.
    BeginsAndEnds,
}

/// The receive buffer, which the kernel doubles: about ten thousand events.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// The most events that one call visits, so that it ends also if they never stop.
const MAX_EVENTS: usize = 16_384;

impl ConnectionEvents {
    /// Subscribes to the events of the calling thread's network namespace.
    pub fn open(scope: EventScope) -> Result<ConnectionEvents, EventsError> {
        let socket = Socket::open(NetlinkProtocol::Netfilter).map_err(EventsError::Open)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES).map_err(EventsError::Open)?;
        socket.join(NFNLGRP_CONNTRACK_NEW).map_err(EventsError::Subscribe)?;
        if scope == EventScope::BeginsAndEnds {
            socket.join(NFNLGRP_CONNTRACK_DESTROY).map_err(EventsError::Subscribe)?;
        }
        Ok(ConnectionEvents { socket, buffer: vec![0; 16 * 1024], overruns: 0 })
    }

    /// Visits the events that wait, up to a limit. Returns without any after the timeout.
    pub fn receive(
        &mut self,
        timeout: Duration,
        mut visit: impl FnMut(ConnectionEvent),
    ) -> Result<(), EventsError> {
        let mut timeout = timeout;
        for _ in 0..MAX_EVENTS {
            let bytes = match self.socket.receive(&mut self.buffer, Some(timeout)) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(()),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                    self.overruns += 1;
                    return Ok(());
                }
                Err(error) => return Err(EventsError::Receive(error)),
            };
            // The rest of the buffered events, without waiting.
            timeout = Duration::ZERO;
            let events = Messages::new(bytes).flatten().filter_map(|message| read(&message).ok());
            events.flatten().for_each(&mut visit);
        }
        Ok(())
    }

    /// How often the kernel discarded events because the receive buffer was full. Each time, at
    /// least one event was lost.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }
}

/// Reads an event. `None` for other messages.
fn read(message: &Message<'_>) -> Result<Option<ConnectionEvent>, Malformed> {
    match message.kind {
        IPCTNL_MSG_CT_NEW => Connection::read(message).map(ConnectionEvent::Began).map(Some),
        IPCTNL_MSG_CT_DELETE => {
            let (connection, traffic) = (Connection::read(message)?, traffic(message)?);
            Ok(Some(ConnectionEvent::Ended(connection, traffic)))
        }
        _ => Ok(None),
    }
}

/// The counters of both directions. `None` if the kernel does not count.
fn traffic(message: &Message<'_>) -> Result<Option<TrafficCount>, Malformed> {
    let mut total: Option<TrafficCount> = None;
    for attribute in message.attributes(nfnetlink::HEADER) {
        let attribute = attribute?;
        if matches!(attribute.kind, CTA_COUNTERS_ORIG | CTA_COUNTERS_REPLY) {
            let total = total.get_or_insert_default();
            let one = direction(attribute.attributes())?;
            total.packets = total.packets.saturating_add(one.packets);
            total.bytes = total.bytes.saturating_add(one.bytes);
        }
    }
    Ok(total)
}

fn direction(attributes: Attributes<'_>) -> Result<TrafficCount, Malformed> {
    let mut count = TrafficCount::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            CTA_COUNTERS_PACKETS => count.packets = u64::from_be_bytes(attribute.array()?),
            CTA_COUNTERS_BYTES => count.bytes = u64::from_be_bytes(attribute.array()?),
            _ => (),
        }
    }
    Ok(count)
}

// Groups, as in `linux/netfilter/nfnetlink_compat.h`.
const NFNLGRP_CONNTRACK_NEW: u32 = 1;
const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;
// Message types and attributes, as in `linux/netfilter/nfnetlink_conntrack.h`.
const IPCTNL_MSG_CT_NEW: u16 = 0x100;
const IPCTNL_MSG_CT_DELETE: u16 = 0x102;
const CTA_COUNTERS_ORIG: u16 = 9;
const CTA_COUNTERS_REPLY: u16 = 10;
const CTA_COUNTERS_PACKETS: u16 = 1;
const CTA_COUNTERS_BYTES: u16 = 2;
