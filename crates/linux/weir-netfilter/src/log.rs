use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, SystemTime},
};

use rustix::io::Errno;
use weir_netlink::{Header, Messages, NetlinkError, Protocol, Socket, Writer, kind};

use crate::{Logged, nfnetlink};

/// The packets that rules log to a group. One program at a time can read a group.
#[derive(Debug)]
pub struct PacketLog {
    socket: Socket,
    buffer: Vec<u8>,
    /// The number that the next packet should have.
    next: u32,
    lost: u64,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no line to the kernel.
    #[error("cannot open a netlink socket for logged packets")]
    Open(#[source] io::Error),
    /// Somebody else reads the group, or we are not allowed to; the kernel says the same for both.
    #[error("log group {group} is read by another program, or this one has no right to")]
    Taken {
        /// The group.
        group: u16,
    },
    /// The kernel does not give us the group.
    #[error("cannot read log group {group}")]
    Bind {
        /// The group.
        group: u16,
        /// What went wrong.
        source: NetlinkError,
    },
    /// Nothing can be received.
    #[error("cannot receive logged packets")]
    Receive(#[source] io::Error),
}

/// How much of a packet is copied: addresses, a few extension headers, ports.
const COPY: u32 = 128;
/// So many packets are sent to us at once, if they come quickly enough.
const AT_ONCE: u32 = 64;
/// Otherwise this many hundredths of a second after the first.
const DELAY: u32 = 10;
/// The kernel's buffer for them.
const KERNEL_BUFFER: u32 = 16 * 1024;
/// How many bytes may wait for us: some thousand packets.
const RECEIVE_BUFFER: usize = 2 << 20;

impl PacketLog {
    /// Reads a group in the network namespace that this thread is in, until dropped.
    pub fn open(group: u16) -> Result<PacketLog, LogError> {
        let mut socket = Socket::open(Protocol::Netfilter).map_err(LogError::Open)?;
        socket.set_receive_buffer(RECEIVE_BUFFER).map_err(LogError::Open)?;
        socket.request(configuration(group).bytes()).map_err(|error| match error {
            NetlinkError::Refused(refusal)
                if matches!(
                    refusal.error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy
                ) =>
            {
                LogError::Taken { group }
            }
            source => LogError::Bind { group, source },
        })?;
        Ok(PacketLog { socket, buffer: vec![0; 64 * 1024], next: 0, lost: 0 })
    }

    /// Visits the packets that have come, or waits for some; returns without any after the patience.
    pub fn receive(
        &mut self,
        patience: Duration,
        mut visit: impl FnMut(Logged),
    ) -> Result<(), LogError> {
        let bytes = match self.socket.receive(&mut self.buffer, Some(patience)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            // Some were lost. The next that comes has a number that tells how many.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                return Ok(());
            }
            Err(error) => return Err(LogError::Receive(error)),
        };
        let now = SystemTime::now();
        for message in Messages::new(bytes).flatten().filter(|message| message.kind == PACKET) {
            // What cannot be read is missed like what did not come, when the next one does.
            let Ok((logged, number)) = Logged::read(&message, now) else { continue };
            if let Some(number) = number {
                self.lost += u64::from(number.wrapping_sub(self.next));
                self.next = number.wrapping_add(1);
            }
            logged.into_iter().for_each(&mut visit);
        }
        Ok(())
    }

    /// How many packets were logged and could not be delivered, up to the last that was.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Asks for a group, and for packets with numbers.
fn configuration(group: u16) -> Writer {
    let mut writer = Writer::default();
    let header = Header { kind: CONFIG, flags: kind::REQUEST | kind::ACK, sequence: 1 };
    let [a, b, c, d] = COPY.to_be_bytes();
    writer
        .message(header, |message| {
            message
                .fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, group))
                .u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND)
                .bytes(NFULA_CFG_MODE, &[a, b, c, d, NFULNL_COPY_PACKET, 0])
                .be_u32(NFULA_CFG_NLBUFSIZ, KERNEL_BUFFER)
                .be_u32(NFULA_CFG_TIMEOUT, DELAY)
                .be_u32(NFULA_CFG_QTHRESH, AT_ONCE)
                .be_u16(NFULA_CFG_FLAGS, NFULNL_CFG_F_SEQ);
        })
        .expect("a configuration is short");
    writer
}

// The kernel's words, as in `linux/netfilter/nfnetlink_log.h`.
const PACKET: u16 = 0x400;
const CONFIG: u16 = 0x401;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_NLBUFSIZ: u16 = 3;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULA_CFG_FLAGS: u16 = 6;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULNL_CFG_F_SEQ: u16 = 1;
