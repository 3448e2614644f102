use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, SystemTime},
};

use rustix::io::Errno;
use weir_netlink::{Header, MessageWriter, Messages, NetlinkError, NetlinkProtocol, Socket, kind};

use crate::{Logged, nfnetlink};

/// The packets that rules log to a group. A group has at most one reader.
#[derive(Debug)]
pub struct PacketLog {
    socket: Socket,
    buffer: Vec<u8>,
    /// The expected number of the next packet.
    next: u32,
    lost: u64,
}

/// Why reading a log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The socket cannot be opened.
    #[error("cannot open a netlink socket for logged packets")]
    Open(#[source] io::Error),
    /// Another program reads the group, or permission is missing. The kernel does not distinguish.
    #[error("log group {group} has another reader, or permission to read it is missing")]
    Taken {
        /// The group.
        group: u16,
    },
    /// The kernel rejected the request for the group.
    #[error("cannot read log group {group}")]
    Bind {
        /// The group.
        group: u16,
        /// The cause.
        source: NetlinkError,
    },
    /// Receiving failed.
    #[error("cannot receive logged packets")]
    Receive(#[source] io::Error),
}

/// The copied bytes per packet: addresses, a few extension headers and ports.
const COPY_BYTES: u32 = 128;
/// The kernel sends a batch as soon as it has this many packets.
const BATCH_PACKETS: u32 = 64;
/// The kernel sends a smaller batch after this many hundredths of a second.
const BATCH_DELAY_CENTISECONDS: u32 = 10;
/// The kernel's buffer for a batch.
const BATCH_BYTES: u32 = 16 * 1024;
/// The receive buffer: some thousand packets.
const RECEIVE_BUFFER_BYTES: usize = 2 << 20;

impl PacketLog {
    /// Binds a group in the calling thread's network namespace until the value is dropped.
    pub fn open(group: u16) -> Result<PacketLog, LogError> {
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).map_err(LogError::Open)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES).map_err(LogError::Open)?;
        socket.request(configuration(group).bytes()).map_err(|error| match error {
            NetlinkError::Rejected(rejection)
                if matches!(
                    rejection.error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy
                ) =>
            {
                LogError::Taken { group }
            }
            source => LogError::Bind { group, source },
        })?;
        Ok(PacketLog { socket, buffer: vec![0; 64 * 1024], next: 0, lost: 0 })
    }

    /// Visits the next packets. Returns without any after the timeout.
    pub fn receive(
        &mut self,
        timeout: Duration,
        mut visit: impl FnMut(Logged),
    ) -> Result<(), LogError> {
        let bytes = match self.socket.receive(&mut self.buffer, Some(timeout)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            // Packets were lost. The number of the next packet shows how many.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                return Ok(());
            }
            Err(error) => return Err(LogError::Receive(error)),
        };
        let now = SystemTime::now();
        for message in
            Messages::new(bytes).flatten().filter(|message| message.kind == NFULNL_MSG_PACKET)
        {
            // A malformed packet counts as lost when the next one arrives.
            let Ok((logged, number)) = Logged::read(&message, now) else { continue };
            if let Some(number) = number {
                self.lost += u64::from(number.wrapping_sub(self.next));
                self.next = number.wrapping_add(1);
            }
            logged.into_iter().for_each(&mut visit);
        }
        Ok(())
    }

    /// The number of logged packets that were lost before the last delivered one.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A request for a group, with numbered packets.
fn configuration(group: u16) -> MessageWriter {
    let mut writer = MessageWriter::default();
    let header = Header { kind: NFULNL_MSG_CONFIG, flags: kind::REQUEST | kind::ACK, sequence: 1 };
    let [a, b, c, d] = COPY_BYTES.to_be_bytes();
    writer
        .message(header, |message| {
            message
                .fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, group))
                .u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND)
                .bytes(NFULA_CFG_MODE, &[a, b, c, d, NFULNL_COPY_PACKET, 0])
                .be_u32(NFULA_CFG_NLBUFSIZ, BATCH_BYTES)
                .be_u32(NFULA_CFG_TIMEOUT, BATCH_DELAY_CENTISECONDS)
                .be_u32(NFULA_CFG_QTHRESH, BATCH_PACKETS)
                .be_u16(NFULA_CFG_FLAGS, NFULNL_CFG_F_SEQ);
        })
        .expect("the configuration fits into a message");
    writer
}

// Message types and attributes, as in `linux/netfilter/nfnetlink_log.h`.
const NFULNL_MSG_PACKET: u16 = 0x400;
const NFULNL_MSG_CONFIG: u16 = 0x401;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_NLBUFSIZ: u16 = 3;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULA_CFG_FLAGS: u16 = 6;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULNL_CFG_F_SEQ: u16 = 1;
