//! The reports about denied packets.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::SystemTime,
};

use weir_datapath::{DropCause, Dropped, Rejection};
use weir_model::{Direction, Protocol};

use crate::{answering::Answering, kernel, layout::Report, program::result, sys::RingBuffer};

/// The reports of the programs in the network namespace of the thread that opened it. They are shared
/// with every other reader: each report reaches one of them.
#[derive(Debug)]
pub struct EbpfReports {
    buffer: RingBuffer,
    answering: Option<Answering>,
}

impl EbpfReports {
    /// Opens the reports, and forgets the earlier ones. Fails with `NotFound` while no rules are
    /// installed.
    pub fn open() -> io::Result<Self> {
        let mut buffer = kernel::reports()?;
        buffer.drain(|_| ());
        Ok(EbpfReports { buffer, answering: None })
    }

    /// Also answers the denied packets. Needs CAP_NET_RAW if some are answered.
    pub fn with_answers(self, rejection: &Rejection) -> io::Result<Self> {
        let needs = !rejection.directions.is_empty();
        let answering = needs.then(|| Answering::open(rejection.clone())).transpose()?;
        Ok(EbpfReports { answering, ..self })
    }

    /// The reports since the last call, whose packets are answered now. The file descriptor is readable when there are some.
    pub fn take(&mut self) -> Vec<Dropped> {
        let (now, mut packets) = (SystemTime::now(), Vec::new());
        self.buffer.drain(|bytes| {
            let Some(report) = Report::from_bytes(bytes) else { return };
            let packet = dropped(report, now);
            if let (Some(answering), DropCause::Rules(direction)) =
                (&mut self.answering, &packet.cause)
            {
                answering.answer(&report, *direction);
            }
            packets.push(packet);
        });
        packets
    }
}

impl AsFd for EbpfReports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.buffer.as_fd()
    }
}

fn dropped(report: Report, time: SystemTime) -> Dropped {
    let cause = match report.cause as i32 {
        result::DENIED_INGRESS => DropCause::Rules(Direction::Ingress),
        result::DENIED_EGRESS => DropCause::Rules(Direction::Egress),
        _ => DropCause::Answer,
    };
    let ports = Protocol::from_number(report.protocol);
    Dropped {
        time,
        cause,
        from: report.source.0,
        to: report.destination.0,
        protocol: report.protocol,
        ports: ports.map(|_| (report.source.1, report.destination.1)),
        link: None,
    }
}
