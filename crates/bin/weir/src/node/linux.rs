//! The datapaths of a Linux node.

use std::time::Duration;

use weir_agent::{Mode, Options};
use weir_datapath::{ApplyError, Dropped, Drops, Trouble};
use weir_iptables::Iptables;
use weir_netfilter::{LogError, PacketLog, report};
use weir_nft::Nft;

use crate::{agent::Agent, exit::Exit, failure::Failure, filter::Filter};

/// Their names; the first is what is taken if nothing is asked for.
pub(crate) const DATAPATHS: &[&str] = &["nftables", "iptables", "opflex"];

/// Opens the datapath that the options name, and does what was asked for with it.
pub(crate) fn open(agent: &Agent, options: &Options) -> anyhow::Result<Exit> {
    let drops = Some(Box::new(Reported::default()) as Box<dyn Drops + Send>);
    match Filter::named(options.datapath).unwrap_or(Filter::Nftables) {
        Filter::Nftables => {
            let mode = match options.mode {
                Mode::Enforce => weir_nft::Mode::Enforce,
                Mode::Audit => weir_nft::Mode::Audit,
            };
            agent.keep(options, Nft::open(mode).map_err(refused)?, drops)
        }
        Filter::Iptables => {
            let mode = match options.mode {
                Mode::Enforce => weir_iptables::Mode::Enforce,
                Mode::Audit => weir_iptables::Mode::Audit,
            };
            agent.keep(options, Iptables::open(mode, None).map_err(refused)?, drops)
        }
    }
}

/// The packets that the rules report. The kernel is asked when somebody listens, and again after an error.
#[derive(Default)]
struct Reported(Option<PacketLog>);

impl Drops for Reported {
    fn next(&mut self) -> Result<Vec<Dropped>, ApplyError> {
        let Some(log) = &mut self.0 else {
            self.0 = Some(PacketLog::open(report::GROUP).map_err(unheard)?);
            // From now on they can be heard of, and that is news.
            return Ok(Vec::new());
        };
        let mut packets = Vec::new();
        while packets.is_empty() {
            let received = log.receive(Duration::from_secs(60), |packet| {
                packets.extend(report::dropped(&packet))
            });
            if let Err(error) = received {
                self.0 = None;
                return Err(unheard(error));
            }
        }
        Ok(packets)
    }
}

fn unheard(error: LogError) -> ApplyError {
    ApplyError {
        trouble: Trouble::Unavailable,
        what: "cannot hear of dropped packets".into(),
        source: error.into(),
    }
}

fn refused(error: ApplyError) -> Failure {
    Failure::new(error, "run it as root, or with CAP_NET_ADMIN, on a kernel that has nftables")
}
