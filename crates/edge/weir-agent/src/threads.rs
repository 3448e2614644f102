//! What runs beside the loop and sends it events.

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

use tokio::runtime::{self, Runtime};
use weir_datapath::Drops;

use crate::{
    Event,
    cni::Socket,
    http::{self, Offer},
    report::Report,
};

/// How many batches of drops may wait for the loop. What comes beyond is counted and not looked at.
const BATCHES: usize = 16;
/// How long to wait after an error.
const PAUSE: Duration = Duration::from_secs(5);

/// Listens for signals and, if asked to, for HTTP and for plugins.
pub(crate) fn listen(
    listeners: Vec<(TcpListener, Offer)>,
    socket: Option<Socket>,
    report: Arc<Report>,
    events: SyncSender<Event>,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (ready, is_ready) = mpsc::channel();
    let run = move || {
        for (listener, offer) in listeners {
            let report = report.clone();
            runtime.spawn(async move {
                if let Err(error) = http::serve(listener, report, offer).await {
                    tracing::error!(%error, "cannot serve HTTP");
                }
            });
        }
        if let Some(socket) = socket {
            let events = events.clone();
            runtime.spawn(async {
                if let Err(error) = socket.serve(events).await {
                    tracing::error!(%error, "cannot hear plugins");
                }
            });
        }
        signals(&runtime, &events, &ready);
    };
    thread::Builder::new().name("weir-listen".into()).spawn(run)?;
    is_ready.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()))
}

#[cfg(unix)]
fn signals(runtime: &Runtime, events: &SyncSender<Event>, ready: &mpsc::Sender<io::Result<()>>) {
    use tokio::signal::unix::{SignalKind, signal};
    let _entered = runtime.enter();
    let meanings: [(SignalKind, fn() -> Event); 3] = [
        (SignalKind::terminate(), || Event::Stop),
        (SignalKind::interrupt(), || Event::Stop),
        (SignalKind::hangup(), || Event::Compare),
    ];
    let listening = meanings.into_iter().try_for_each(|(kind, meaning)| {
        let mut signal = signal(kind)?;
        let events = events.clone();
        runtime.spawn(async move {
            while signal.recv().await.is_some() {
                // A loop that is busy hears of it later, and HTTP goes on meanwhile.
                while let Err(TrySendError::Full(_)) = events.try_send(meaning()) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
        Ok(())
    });
    // Whoever started the thread waits for this.
    _ = ready.send(listening);
    runtime.block_on(std::future::pending::<()>());
}

#[cfg(windows)]
fn signals(runtime: &Runtime, events: &SyncSender<Event>, ready: &mpsc::Sender<io::Result<()>>) {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
    let _entered = runtime.enter();
    let listening =
        || Ok::<_, io::Error>((ctrl_c()?, ctrl_break()?, ctrl_close()?, ctrl_shutdown()?));
    match listening() {
        Err(error) => _ = ready.send(Err(error)),
        Ok((mut interrupt, mut stop, mut close, mut shutdown)) => {
            let events = events.clone();
            runtime.spawn(async move {
                tokio::select! {
                    _ = interrupt.recv() => (),
                    _ = stop.recv() => (),
                    _ = close.recv() => (),
                    _ = shutdown.recv() => (),
                }
                // A loop that is busy hears of it later, and HTTP goes on meanwhile.
                while let Err(TrySendError::Full(_)) = events.try_send(Event::Stop) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            _ = ready.send(Ok(()));
        }
    }
    runtime.block_on(std::future::pending::<()>());
}

/// Hears of dropped packets. A flood of them never keeps the loop from anything else.
pub(crate) fn hear(mut drops: Box<dyn Drops + Send>, events: SyncSender<Event>) -> io::Result<()> {
    let hear = move || {
        // Every batch that waits holds a part of this.
        let places = Arc::new(());
        let mut missed = 0;
        loop {
            let event = match drops.next() {
                Ok(packets) if Arc::strong_count(&places) > BATCHES => {
                    missed += packets.len() as u64;
                    continue;
                }
                Ok(packets) => Event::Dropped(packets, places.clone()),
                Err(error) => Event::Deaf(error.with_causes()),
            };
            let is_deaf = matches!(event, Event::Deaf(_));
            let told = events.send(event);
            if is_deaf {
                thread::sleep(PAUSE);
            }
            if missed > 0 && told.is_ok() {
                _ = events.send(Event::Missed(std::mem::take(&mut missed)));
            }
            if told.is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("weir-drops".into()).spawn(hear).map(drop)
}
