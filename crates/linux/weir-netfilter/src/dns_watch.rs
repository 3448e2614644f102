use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use weir_names::{DnsObserver, DnsPacket, DnsScope, Handling, HeldAnswer, LocalHook, Segment};
use weir_netlink::NetlinkError;

use crate::{
    dns_rules::{DnsRules, QUEUE, RulesError},
    packet,
    queue::{PacketQueue, QueueVerdict, QueuedPacket, Verdicts},
};

/// Observes the DNS packets of pods, and holds the answers that policies need until their
/// addresses are in force.
///
/// When the value is dropped, the kernel delivers DNS packets directly again.
#[derive(Debug)]
pub struct DnsWatch {
    rules: DnsRules,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    scope: Mutex<Arc<DnsScope>>,
    is_stopping: AtomicBool,
}

/// Why DNS packets cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum DnsWatchError {
    /// The queue cannot be read.
    #[error("cannot read packet queue {QUEUE}")]
    Queue(#[source] NetlinkError),
    /// The rules cannot be opened.
    #[error("cannot open nftables")]
    Open(#[source] NetlinkError),
    /// The rules cannot be written.
    #[error("cannot write table inet weir-names")]
    Rules(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The interval of checks whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(500);
/// The delay after the queue failed.
const RETRY: Duration = Duration::from_secs(1);

impl DnsWatch {
    /// Starts a thread that calls `on_answer` for each packet with answers. Nothing is observed
    /// before the first call of [`watch`](DnsWatch::watch).
    pub fn start(
        on_answer: impl FnMut(HeldAnswer) + Send + 'static,
    ) -> Result<DnsWatch, DnsWatchError> {
        let queue = PacketQueue::open(QUEUE).map_err(DnsWatchError::Queue)?;
        let rules = DnsRules::open().map_err(DnsWatchError::Open)?;
        let scope = Mutex::new(Arc::default());
        let shared = Arc::new(Shared { scope, is_stopping: AtomicBool::new(false) });
        let reader = Reader { shared: shared.clone(), queue, observer: DnsObserver::default() };
        let read = move || reader.run(on_answer);
        let thread = thread::Builder::new().name("weir-names".into()).spawn(read);
        thread.map_err(DnsWatchError::Thread)?;
        Ok(DnsWatch { rules, shared })
    }

    /// Observes exactly this scope.
    pub fn watch(&mut self, scope: &DnsScope) -> Result<(), DnsWatchError> {
        *self.shared.scope.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(scope.clone());
        self.divert(&scope.pods)
    }

    fn divert(&mut self, pods: &BTreeSet<std::net::IpAddr>) -> Result<(), DnsWatchError> {
        self.rules.divert(pods).map_err(|error| {
            DnsWatchError::Rules(match error {
                RulesError::Netlink(error) => error.into(),
                RulesError::TooLong(error) => error.into(),
            })
        })
    }
}

impl Drop for DnsWatch {
    fn drop(&mut self) {
        // The table goes first, so that no packet waits for a reader.
        _ = self.divert(&BTreeSet::new());
        self.shared.is_stopping.store(true, Ordering::Relaxed);
    }
}

/// The thread's state.
struct Reader {
    shared: Arc<Shared>,
    queue: PacketQueue,
    observer: DnsObserver,
}

impl Reader {
    fn run(mut self, mut on_answer: impl FnMut(HeldAnswer)) {
        let verdicts = self.queue.verdicts();
        while !self.shared.is_stopping.load(Ordering::Relaxed) {
            let Reader { shared, queue, observer } = &mut self;
            let received = queue.receive(STOP_INTERVAL, |packet| {
                let scope = shared.scope.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let handling = match dns_packet(&packet) {
                    Some(dns) => observer.observe(&dns, &scope, Instant::now()),
                    None => Handling::Deliver,
                };
                handle(&verdicts, packet.id, handling, &mut on_answer);
            });
            if received.is_err() {
                thread::sleep(RETRY);
            }
        }
    }
}

fn handle(
    verdicts: &Verdicts,
    id: u32,
    handling: Handling,
    on_answer: &mut impl FnMut(HeldAnswer),
) {
    // If the kernel rejects a verdict, the packet or the queue no longer exists.
    match handling {
        Handling::Deliver => _ = verdicts.send(id, QueueVerdict::Accept),
        Handling::Drop => _ = verdicts.send(id, QueueVerdict::Drop),
        Handling::Hold(answers) => {
            let verdicts = verdicts.clone();
            let deliver = move || _ = verdicts.send(id, QueueVerdict::Accept);
            on_answer(HeldAnswer::new(answers, deliver));
        }
    }
}

/// Reads a queued packet; `None` if it is not UDP or TCP, or truncated.
fn dns_packet<'a>(packet: &QueuedPacket<'a>) -> Option<DnsPacket<'a>> {
    let (header, transport) = packet::split(packet.bytes)?;
    let (from, to) = header.ports?;
    let (segment, payload) = match header.protocol {
        packet::UDP => {
            let length = u16::from_be_bytes(*transport.get(4..6)?.first_chunk()?);
            (None, transport.get(8..length.into())?)
        }
        packet::TCP => {
            let number = u32::from_be_bytes(*transport.get(4..8)?.first_chunk()?);
            let (words, flags) = (transport.get(12)? >> 4, transport.get(13)?);
            let [syn, reset, ack] = [0x02, 0x04, 0x10].map(|bit| flags & bit != 0);
            let payload = transport.get(usize::from(words) * 4..)?;
            (Some(Segment { number, syn, ack, reset }), payload)
        }
        _ => return None,
    };
    Some(DnsPacket {
        from: SocketAddr::new(header.source, from),
        to: SocketAddr::new(header.destination, to),
        segment,
        payload,
        local: match packet.hook {
            LOCAL_IN => Some(LocalHook::Input),
            LOCAL_OUT => Some(LocalHook::Output),
            _ => None,
        },
        link: packet.link,
    })
}

/// The numbers of the hooks for packets to and from the node itself.
const LOCAL_IN: u8 = 1;
const LOCAL_OUT: u8 = 3;
