//! The packets that the rules report as dropped.

use std::{io, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};
use weir_datapath::{ApplyError, ApplyErrorKind, Dropped, Drops, Rejection};
use weir_ebpf::EbpfReports;
use weir_netfilter::{PacketLog, report};

/// The reports of rules. The socket is opened on the first call, and again after an error.
#[derive(Default)]
pub(super) struct PacketReports(Option<PacketLog>);

impl Drops for PacketReports {
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError> {
        let Some(log) = &mut self.0 else {
            self.0 = Some(PacketLog::open(report::GROUP).map_err(unavailable)?);
            // The empty batch reports that drops can be received from now on.
            return Ok(Vec::new());
        };
        let mut packets = Vec::new();
        while packets.is_empty() {
            let received = log.receive(Duration::from_secs(60), |packet| {
                packets.extend(report::dropped(&packet))
            });
            if let Err(error) = received {
                self.0 = None;
                return Err(unavailable(error));
            }
        }
        Ok(packets)
    }
}

/// How long to wait for a report. After that, the programs may have another buffer.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The reports of eBPF programs, and of the rules of the guard. The reader of the reports also answers
/// denied packets.
pub(super) struct GuardedReports {
    rejection: Rejection,
    guard: Option<PacketLog>,
    /// `None` while no programs are installed.
    policies: Option<EbpfReports>,
}

impl Drops for GuardedReports {
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError> {
        if self.guard.is_none() {
            self.guard = Some(PacketLog::open(report::GROUP).map_err(unavailable)?);
            return Ok(Vec::new());
        }
        let packets = self.wait();
        if packets.is_err() {
            (self.guard, self.policies) = (None, None);
        }
        packets
    }
}

impl GuardedReports {
    pub(super) fn new(rejection: Rejection) -> Self {
        GuardedReports { rejection, guard: None, policies: None }
    }

    fn wait(&mut self) -> Result<Vec<Dropped>, ApplyError> {
        let GuardedReports { guard: Some(guard), policies, rejection } = self else {
            return Ok(Vec::new());
        };
        loop {
            if policies.is_none() {
                *policies = match EbpfReports::open() {
                    Ok(reports) => Some(reports.with_answers(rejection).map_err(cannot_answer)?),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(unavailable(error)),
                };
            }
            let mut sources = vec![PollFd::new(guard, PollFlags::IN)];
            sources.extend(policies.as_ref().map(|buffer| PollFd::new(buffer, PollFlags::IN)));
            let timeout = match sources.len() {
                1 => Timespec { tv_sec: 0, tv_nsec: 100_000_000 },
                _ => IDLE,
            };
            let ready = match poll(&mut sources, Some(&timeout)) {
                Err(Errno::INTR) => continue,
                ready => ready.map_err(unavailable)?,
            };
            if ready == 0 {
                *policies = None;
                continue;
            }
            let mut packets = policies.as_mut().map(EbpfReports::take).unwrap_or_default();
            guard
                .receive(Duration::ZERO, |packet| packets.extend(report::dropped(&packet)))
                .map_err(unavailable)?;
            if !packets.is_empty() {
                return Ok(packets);
            }
        }
    }
}

fn cannot_answer(error: io::Error) -> ApplyError {
    ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: "cannot answer denied packets: `--denied` with eBPF needs CAP_NET_RAW".into(),
        source: error.into(),
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> ApplyError {
    ApplyError {
        kind: ApplyErrorKind::Unavailable,
        what: "cannot receive reports of dropped packets".into(),
        source: error.into(),
    }
}
