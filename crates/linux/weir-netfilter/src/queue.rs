use std::{io, sync::Arc, time::Duration};

use rustix::io::Errno;
use weir_netlink::{
    Header, Malformed, Message, MessageWriter, Messages, NetlinkError, NetlinkProtocol, Socket,
    kind,
};

use crate::nfnetlink;

/// The packets that rules divert to a queue. Each waits for a verdict. A queue has at most one
/// reader.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    socket: Arc<Socket>,
    number: u16,
    buffer: Vec<u8>,
}

/// A packet that waits for a verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedPacket<'a> {
    pub(crate) id: u32,
    /// The number of the hook.
    pub(crate) hook: u8,
    /// The index of the input link; on a bridge, that of the port.
    pub(crate) link: Option<u32>,
    /// The packet from its IP header on.
    pub(crate) bytes: &'a [u8],
}

/// Gives verdicts on packets of a queue. The kernel accepts them from the reader's socket only.
#[derive(Clone, Debug)]
pub(crate) struct Verdicts {
    socket: Arc<Socket>,
    number: u16,
}

/// A verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueVerdict {
    Drop,
    Accept,
}

/// The most packets that wait. The kernel drops further ones, and the resolver of a pod repeats
/// its question.
const MAX_WAITING_PACKETS: u32 = 4096;
/// The receive buffer: as many packets of the usual size.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// A message contains one packet.
const MESSAGE_BYTES: usize = 128 * 1024;

impl PacketQueue {
    /// Binds a queue in the calling thread's network namespace until the value is dropped.
    pub(crate) fn open(number: u16) -> Result<PacketQueue, NetlinkError> {
        let failed = |source| NetlinkError::Socket { what: "open a packet queue", source };
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).map_err(failed)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES).map_err(failed)?;
        socket.request(configuration(number).bytes())?;
        Ok(PacketQueue { socket: Arc::new(socket), number, buffer: vec![0; MESSAGE_BYTES] })
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        Verdicts { socket: self.socket.clone(), number: self.number }
    }

    /// Visits the next packet. Returns without one after the timeout.
    pub(crate) fn receive(
        &mut self,
        timeout: Duration,
        mut visit: impl FnMut(QueuedPacket<'_>),
    ) -> io::Result<()> {
        let bytes = match self.socket.receive(&mut self.buffer, Some(timeout)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            // The kernel dropped packets, because the buffer was full.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => return Ok(()),
            Err(error) => return Err(error),
        };
        for message in Messages::new(bytes).flatten().filter(|one| one.kind == NFQNL_MSG_PACKET) {
            if let Ok(packet) = QueuedPacket::read(&message) {
                visit(packet);
            }
        }
        Ok(())
    }
}

impl<'a> QueuedPacket<'a> {
    fn read(message: &Message<'a>) -> Result<Self, Malformed> {
        let (mut header, mut bytes) = (None, &[][..]);
        let (mut input, mut port) = (None, None);
        for attribute in message.attributes(nfnetlink::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                NFQA_PACKET_HDR => header = attribute.value.first_chunk::<7>(),
                NFQA_IFINDEX_INDEV => input = Some(attribute.be_u32()?),
                NFQA_IFINDEX_PHYSINDEV => port = Some(attribute.be_u32()?),
                NFQA_PAYLOAD => bytes = attribute.value,
                _ => (),
            }
        }
        let [a, b, c, d, _, _, hook] = *header.ok_or(Malformed::Value(NFQA_PACKET_HDR))?;
        let (id, link) = (u32::from_be_bytes([a, b, c, d]), port.or(input));
        Ok(QueuedPacket { id, hook, link, bytes })
    }
}

impl Verdicts {
    /// Decides about a packet.
    pub(crate) fn send(&self, packet: u32, verdict: QueueVerdict) -> io::Result<()> {
        let mut writer = MessageWriter::default();
        let header = Header { kind: NFQNL_MSG_VERDICT, flags: kind::REQUEST, sequence: 0 };
        let code: u32 = match verdict {
            QueueVerdict::Drop => NF_DROP,
            QueueVerdict::Accept => NF_ACCEPT,
        };
        let value = [code.to_be_bytes(), packet.to_be_bytes()].concat();
        writer
            .message(header, |message| {
                message
                    .fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, self.number))
                    .bytes(NFQA_VERDICT_HDR, &value);
            })
            .expect("a verdict fits into a message");
        self.socket.send(writer.bytes())
    }
}

/// A request for a queue, with whole packets.
fn configuration(number: u16) -> MessageWriter {
    let mut writer = MessageWriter::default();
    let header = Header { kind: NFQNL_MSG_CONFIG, flags: kind::REQUEST | kind::ACK, sequence: 1 };
    let [a, b, c, d] = u32::from(u16::MAX).to_be_bytes();
    writer
        .message(header, |message| {
            message
                .fixed(&nfnetlink::header(nfnetlink::UNSPECIFIED, number))
                .bytes(NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0])
                .bytes(NFQA_CFG_PARAMS, &[a, b, c, d, NFQNL_COPY_PACKET])
                .be_u32(NFQA_CFG_QUEUE_MAXLEN, MAX_WAITING_PACKETS);
        })
        .expect("the configuration fits into a message");
    writer
}

// Message types and attributes, as in `linux/netfilter/nfnetlink_queue.h`.
const NFQNL_MSG_PACKET: u16 = 0x300;
const NFQNL_MSG_VERDICT: u16 = 0x301;
const NFQNL_MSG_CONFIG: u16 = 0x302;
const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_IFINDEX_INDEV: u16 = 5;
const NFQA_IFINDEX_PHYSINDEV: u16 = 7;
const NFQA_PAYLOAD: u16 = 10;
const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
