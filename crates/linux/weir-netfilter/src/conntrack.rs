use std::io;

use rustix::io::Errno;
use weir_netlink::{Body, Header, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind};

use crate::{Connection, nfnetlink, terminate::PacketWait};

/// The connections of a network namespace.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    /// The socket for the addresses of the machine.
    pub(crate) route: Socket,
    /// The wait before connections are listed.
    pub(crate) packets: PacketWait,
    writer: MessageWriter,
    sequence: u32,
}

/// Why listing or deleting connections failed.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The socket cannot be opened.
    #[error("cannot open a netlink socket for connections")]
    Open(#[source] io::Error),
    /// The addresses of the machine cannot be read.
    #[error("cannot list the addresses of this machine")]
    Addresses(#[source] NetlinkError),
    /// The list is incomplete, or an entry cannot be decoded. All other entries were visited.
    #[error("cannot list the tracked connections")]
    List(#[source] NetlinkError),
    /// The kernel did not delete a connection.
    #[error("cannot delete the tracked connection {connection}")]
    Delete {
        /// The connection.
        connection: Box<Connection>,
        /// The cause.
        source: NetlinkError,
    },
}

impl Conntrack {
    /// Opens the table of the calling thread's network namespace.
    pub fn open() -> Result<Conntrack, ConntrackError> {
        let open = |protocol| Socket::open(protocol).map_err(ConntrackError::Open);
        let (socket, route) = (open(NetlinkProtocol::Netfilter)?, open(NetlinkProtocol::Route)?);
        let (writer, packets) = (MessageWriter::default(), PacketWait::default());
        Ok(Conntrack { socket, route, packets, writer, sequence: 0 })
    }

    /// Visits all connections.
    ///
    /// The table changes meanwhile. A connection that exists throughout is visited at least once.
    /// One that starts or ends meanwhile may be visited.
    pub fn list(&mut self, mut visit: impl FnMut(Connection)) -> Result<(), ConntrackError> {
        let mut malformed = None;
        self.write(IPCTNL_MSG_CT_GET, kind::DUMP, |message| {
            message.fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, 0));
        });
        self.socket
            .query(self.writer.bytes(), |message| match Connection::read(&message) {
                Ok(connection) => visit(connection),
                Err(error) => malformed = Some(error.into()),
            })
            .and(malformed.map_or(Ok(()), Err))
            .map_err(ConntrackError::List)
    }

    /// Deletes exactly this connection, so that the rules apply to its next packet.
    ///
    /// A connection that no longer exists is not an error. Another one with the same tuple stays.
    pub fn delete(&mut self, connection: &Connection) -> Result<(), ConntrackError> {
        self.write(IPCTNL_MSG_CT_DELETE, kind::ACK, |message| connection.write(message));
        match self.socket.request(self.writer.bytes()) {
            Err(NetlinkError::Rejected(rejection)) if rejection.errno() == Some(Errno::NOENT) => {
                Ok(())
            }
            result => {
                let connection = || Box::new(*connection);
                result.map_err(|source| ConntrackError::Delete { connection: connection(), source })
            }
        }
    }

    fn write(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Body<'_>)) {
        self.sequence = self.sequence.wrapping_add(1);
        self.writer.clear();
        let header = Header { kind, flags: kind::REQUEST | flags, sequence: self.sequence };
        self.writer.message(header, body).expect("the tuple of a connection fits into a message");
    }
}

// Message types, as in `linux/netfilter/nfnetlink_conntrack.h`.
const IPCTNL_MSG_CT_GET: u16 = 0x101;
const IPCTNL_MSG_CT_DELETE: u16 = 0x102;
