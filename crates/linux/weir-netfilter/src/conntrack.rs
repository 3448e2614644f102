use std::io;

use weir_model::Flow;
use weir_netlink::{Body, Header, NetlinkError, Protocol, Socket, Writer, kind};

use crate::{Connection, nfnetlink};

/// The connections of a network namespace.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    writer: Writer,
    sequence: u32,
}

/// Why connections cannot be listed or forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// There is no line to the kernel.
    #[error("cannot open a netlink socket for connections")]
    Open(#[source] io::Error),
    /// The list failed, or something in it cannot be read; all the rest was visited.
    #[error("cannot list the connections that the kernel remembers")]
    List(#[source] NetlinkError),
    /// A connection is still there.
    #[error("cannot make the kernel forget the connection {flow}")]
    Forget {
        /// Which one.
        flow: Flow,
        /// What went wrong.
        source: NetlinkError,
    },
}

impl Conntrack {
    /// Opens the table of the network namespace that this thread is in.
    pub fn open() -> Result<Conntrack, ConntrackError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(ConntrackError::Open)?;
        Ok(Conntrack { socket, writer: Writer::default(), sequence: 0 })
    }

    /// Visits all connections whose transport policies can name, as they come.
    ///
    /// The table lives on meanwhile: what is there from beginning to end is visited, perhaps twice; what comes or goes may be.
    pub fn list(&mut self, mut visit: impl FnMut(Connection)) -> Result<(), ConntrackError> {
        let mut unreadable = None;
        self.write(GET, kind::DUMP, |message| {
            message.fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, 0));
        });
        self.socket
            .query(self.writer.bytes(), |message| match Connection::read(&message) {
                Ok(connection) => connection.into_iter().for_each(&mut visit),
                Err(malformed) => unreadable = Some(malformed.into()),
            })
            .and(unreadable.map_or(Ok(()), Err))
            .map_err(ConntrackError::List)
    }

    /// Forgets exactly this connection: its next packet is judged anew. One that is gone already is fine, and another one that
    /// has the same tuple by now stays.
    pub fn forget(&mut self, connection: &Connection) -> Result<(), ConntrackError> {
        self.write(DELETE, kind::ACK, |message| connection.write(message));
        match self.socket.request(self.writer.bytes()) {
            Err(NetlinkError::Refused(refusal))
                if refusal.error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            result => {
                result.map_err(|source| ConntrackError::Forget { flow: connection.flow(), source })
            }
        }
    }

    fn write(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Body<'_>)) {
        self.sequence = self.sequence.wrapping_add(1);
        self.writer.clear();
        let header = Header { kind, flags: kind::REQUEST | flags, sequence: self.sequence };
        self.writer.message(header, body).expect("what names a connection is short");
    }
}

// The kernel's words, as in `linux/netfilter/nfnetlink_conntrack.h`.
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
