use std::{
    collections::BTreeSet, fs, os::unix::fs::MetadataExt, process::ExitCode, sync::Mutex, thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use weir_datapath::{ApplyError, Dropped, Guarded, Mode, Rejection};
use weir_ebpf::{Ebpf, EbpfReports};
use weir_nft::Nft;
use weir_trials::{Backend, Rejects, ReportReader};

use crate::{disturb, fast_lane, own};

/// The eBPF backend for the shared trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EbpfPrograms;

impl Backend for EbpfPrograms {
    type Datapath = Guarded<Ebpf, Nft>;

    fn open(self, mode: Mode) -> Result<Self::Datapath, ApplyError> {
        Ok(Guarded { policies: Ebpf::open(mode)?, guard: Nft::open(mode)? })
    }

    fn disturbances(self) -> Vec<String> {
        ["remove forward4", "remove config", "remove all"].map(disturb::command).to_vec()
    }

    fn guard_disturbances(self) -> Vec<String> {
        let all = ["nft flush map inet weir-guard links", "nft delete table bridge weir-guard"];
        all.map(str::to_owned).to_vec()
    }

    fn counts_terminated(self) -> bool {
        false
    }

    fn reports(self) -> Box<dyn ReportReader> {
        Box::new(Reports(EbpfReports::open().unwrap()))
    }
}

impl Rejects for EbpfPrograms {
    fn open_rejecting(
        self,
        mode: Mode,
        rejection: Rejection,
    ) -> Result<Self::Datapath, ApplyError> {
        answer_here(rejection);
        self.open(mode)
    }
}

/// Answers denied packets in the network namespace of this thread until the process ends, as an agent
/// does that reads reports.
fn answer_here(rejection: Rejection) {
    static ANSWERED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    let namespace = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    // A buffer has one reader. The reader keeps the namespace, so that no other one gets its number.
    if !ANSWERED.lock().unwrap().insert(namespace) {
        return;
    }
    thread::spawn(move || {
        let reports = loop {
            match EbpfReports::open() {
                Ok(reports) => break reports,
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut reports = Reports(reports.with_answers(&rejection).unwrap());
        loop {
            reports.receive(Duration::from_secs(1), &mut |_| ());
        }
    });
}

struct Reports(EbpfReports);

impl ReportReader for Reports {
    fn receive(&mut self, timeout: Duration, visit: &mut dyn FnMut(Dropped)) {
        let timeout = Timespec::try_from(timeout).unwrap();
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)).unwrap();
        self.0.take().into_iter().for_each(visit);
    }
}

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [first, rest @ ..] if first == disturb::COMMAND => {
            disturb::run(rest);
            return ExitCode::SUCCESS;
        }
        [first] if first == own::REPLACE => own::replace_forever(),
        _ => (),
    }
    weir_trials::main_with_bpf(|| {
        let all = weir_trials::trials("ebpf", EbpfPrograms).into_iter();
        let all = all.chain(own::trials());
        let all = all.chain(weir_trials::reject_trials("ebpf", EbpfPrograms));
        all.chain(fast_lane::trials()).collect()
    })
}
