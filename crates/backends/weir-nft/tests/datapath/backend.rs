use weir_datapath::{ApplyError, Mode, Rejection};
use weir_nft::{MergeLimit, Nft};
pub(crate) use weir_trials::trial;
use weir_trials::{Backend, Rejects};

/// The nftables backend for the shared trials.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nftables(pub(crate) MergeLimit);

impl Backend for Nftables {
    type Datapath = Nft;

    fn open(self, mode: Mode) -> Result<Nft, ApplyError> {
        Nft::open(mode).map(|nft| nft.with_merge_limit(self.0))
    }

    fn disturbances(self) -> Vec<String> {
        let all = [
            "nft insert rule inet weir forward drop",
            "nft flush table inet weir",
            "nft delete table inet weir",
            "nft flush chain inet weir forward",
            "nft add table inet weir { flags dormant; }",
            "nft add chain inet weir forward { policy drop; }",
        ];
        all.map(str::to_owned).to_vec()
    }

    fn guard_disturbances(self) -> Vec<String> {
        let all = [
            "nft flush chain inet weir-guard prerouting",
            "nft flush map inet weir-guard links",
            "nft flush map inet weir-guard records",
            "nft delete table inet weir-guard",
            "nft delete table bridge weir-guard",
            "nft insert rule bridge weir-guard prerouting accept",
        ];
        all.map(str::to_owned).to_vec()
    }
}

impl Rejects for Nftables {
    fn open_rejecting(self, mode: Mode, rejection: Rejection) -> Result<Nft, ApplyError> {
        self.open(mode).map(|nft| nft.with_rejection(rejection))
    }
}
