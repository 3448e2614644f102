use std::io;

/// A request from the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End the process: SIGTERM or SIGINT; on Windows Ctrl-C, Ctrl-Break, close or shutdown.
    Stop,
    /// Read everything again: SIGHUP. Windows has no such signal.
    Reload,
}

pub use platform::Signals;

impl Signals {
    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

#[cfg(unix)]
mod platform {
    use std::task::{Context, Poll};

    use tokio::signal::unix::{self, SignalKind, signal};

    use super::{Signal, io};

    /// The signals of this process. Their default action is off from here on. Needs a tokio runtime
    /// with I/O.
    #[derive(Debug)]
    pub struct Signals {
        stop: [unix::Signal; 2],
        reload: Option<unix::Signal>,
    }

    impl Signals {
        /// Listens for [`Signal::Stop`] only; SIGHUP keeps its default action.
        pub fn stop() -> io::Result<Self> {
            let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
            Ok(Signals { stop, reload: None })
        }

        /// Listens for [`Signal::Stop`] and [`Signal::Reload`].
        pub fn stop_and_reload() -> io::Result<Self> {
            Ok(Signals { reload: Some(signal(SignalKind::hangup())?), ..Self::stop()? })
        }

        pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
            if self.stop.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
                return Poll::Ready(Signal::Stop);
            }
            if self.reload.as_mut().is_some_and(|signal| signal.poll_recv(context).is_ready()) {
                return Poll::Ready(Signal::Reload);
            }
            Poll::Pending
        }
    }
}

#[cfg(windows)]
mod platform {
    use std::task::{Context, Poll};

    use tokio::signal::windows::{
        CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
    };

    use super::{Signal, io};

    /// The signals of this process. Needs a tokio runtime with I/O.
    #[derive(Debug)]
    pub struct Signals {
        interrupt: CtrlC,
        stop: CtrlBreak,
        close: CtrlClose,
        shutdown: CtrlShutdown,
    }

    impl Signals {
        /// Listens for [`Signal::Stop`].
        pub fn stop() -> io::Result<Self> {
            Ok(Signals {
                interrupt: ctrl_c()?,
                stop: ctrl_break()?,
                close: ctrl_close()?,
                shutdown: ctrl_shutdown()?,
            })
        }

        /// The same: Windows has no signal for [`Signal::Reload`].
        pub fn stop_and_reload() -> io::Result<Self> {
            Self::stop()
        }

        pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
            let ready = self.interrupt.poll_recv(context).is_ready()
                || self.stop.poll_recv(context).is_ready()
                || self.close.poll_recv(context).is_ready()
                || self.shutdown.poll_recv(context).is_ready();
            if ready { Poll::Ready(Signal::Stop) } else { Poll::Pending }
        }
    }
}
