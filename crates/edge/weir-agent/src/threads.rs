//! The threads that send events to the loop.

use std::{
    io,
    net::TcpListener,
    sync::{
        Arc,
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use tokio::{runtime, time::sleep};
use weir_datapath::Drops;
use weir_runtime::{Signal, Signals};

use crate::{
    AgentEvent,
    cni::PluginSocket,
    http::{self, Offer},
    report::AgentReport,
};

/// The most batches of dropped packets in the loop's queue. Packets beyond them count as missed.
const MAX_DROP_BATCHES: usize = 16;
/// The delay after the datapath failed to report dropped packets.
const DROPS_RETRY: Duration = Duration::from_secs(5);
/// The interval of attempts to send a signal to a loop whose queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(10);

/// Starts the thread that turns signals, and the CNI plugin's requests if there is a socket, into
/// events, and serves HTTP on the listeners.
pub(crate) fn listen(
    listeners: Vec<(TcpListener, Offer)>,
    socket: Option<PluginSocket>,
    report: Arc<AgentReport>,
    events: SyncSender<AgentEvent>,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (ready, is_ready) = mpsc::channel();
    let run = move || {
        for (listener, offer) in listeners {
            let router = http::router(report.clone(), offer);
            runtime.spawn(weir_runtime::http::serve(listener, router));
        }
        if let Some(socket) = socket {
            let events = events.clone();
            runtime.spawn(async {
                if let Err(error) = socket.serve(events).await {
                    tracing::error!(%error, "cannot serve the CNI plugin");
                }
            });
        }
        let signals = runtime.block_on(async { Signals::stop_and_reload() });
        let signals = signals.map(|signals| runtime.spawn(forward(signals, events)));
        // The starting thread waits for this.
        if ready.send(signals.map(drop)).is_ok() {
            runtime.block_on(std::future::pending::<()>());
        }
    };
    thread::Builder::new().name("weir-listen".into()).spawn(run)?;
    is_ready.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()))
}

/// Sends signals to the loop as events.
async fn forward(mut signals: Signals, events: SyncSender<AgentEvent>) {
    loop {
        let signal = signals.next().await;
        let event = || match signal {
            Signal::Stop => AgentEvent::Stop,
            Signal::Reload => AgentEvent::Resync,
        };
        // This thread also serves HTTP, so it must not block while the loop's queue is full.
        while let Err(TrySendError::Full(_)) = events.try_send(event()) {
            sleep(QUEUE_RETRY).await;
        }
    }
}

/// Starts the thread that receives dropped packets. However many there are, they never block the
/// loop.
pub(crate) fn receive_drops(
    mut drops: Box<dyn Drops + Send>,
    events: SyncSender<AgentEvent>,
) -> io::Result<()> {
    let receive = move || {
        // Every queued batch holds a clone.
        let queued = Arc::new(());
        loop {
            let event = match drops.next() {
                // The kernel's counters show how many were missed.
                Ok(_) if Arc::strong_count(&queued) > MAX_DROP_BATCHES => continue,
                Ok(packets) => AgentEvent::Dropped(packets, queued.clone()),
                Err(error) => AgentEvent::DropsUnavailable(error.with_causes()),
            };
            let is_unavailable = matches!(event, AgentEvent::DropsUnavailable(_));
            if events.send(event).is_err() {
                return;
            }
            if is_unavailable {
                thread::sleep(DROPS_RETRY);
            }
        }
    };
    thread::Builder::new().name("weir-drops".into()).spawn(receive).map(drop)
}
