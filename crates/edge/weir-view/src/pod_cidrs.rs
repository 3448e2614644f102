//! The networks of the pods: they determine synthetic addresses, and whether a verdict depends on
//! them.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use weir_api::PodNetworks;
use weir_model::{Finding, Flow, Location, ObjectRef, Severity, World};
use weir_reach::{Assumption, PodAddresses, ReachState};

use crate::{failure::Failure, loaded::Loaded};

/// The code of a finding about a block that decides about synthetic addresses.
pub const SYNTHETIC_ADDRESS: &str = "synthetic-address";

/// The networks that pods usually have, if the user does not give them: the private ones, and the
/// shared one of RFC 6598.
const USUAL: [&str; 4] = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"];

/// The networks of the pods, as the user gave them; none for the usual ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodCidrs<'a>(pub &'a [IpNet]);

impl PodCidrs<'_> {
    /// Moves the synthetic addresses of pods into the given networks.
    pub fn apply(self, mut loaded: Loaded) -> Result<Loaded, Failure> {
        loaded.synthetic = self.readdress(&mut loaded.world, loaded.synthetic)?;
        Ok(loaded)
    }

    /// Moves the synthetic addresses of a world into the given networks, and returns them.
    pub fn readdress(
        self,
        world: &mut World,
        synthetic: BTreeSet<IpAddr>,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        if self.0.is_empty() {
            return Ok(synthetic);
        }
        let Some(networks) = PodNetworks::new(self.0) else {
            let hint = "give --pod-cidr once, or once for IPv4 and once for IPv6";
            return Err(Failure::new("several pod networks of one IP family", hint));
        };
        networks.readdress(world, &synthetic).map_err(|network| {
            let what = format!("the pod network {network} has too few addresses for all pods");
            Failure::new(what, "give a larger network with --pod-cidr")
        })
    }

    /// A finding for each block whose effect depends on the synthetic addresses of a state.
    pub fn findings(self, state: &ReachState, synthetic: &BTreeSet<IpAddr>) -> Vec<Finding> {
        let networks = self.networks();
        let addresses = PodAddresses { synthetic, networks: &networks };
        addresses.assumptions(state).iter().map(|assumption| self.finding(assumption)).collect()
    }

    /// A note for each end of a connection whose synthetic address decides the verdict.
    pub fn notes(
        self,
        state: &ReachState,
        synthetic: &BTreeSet<IpAddr>,
        flow: &Flow,
    ) -> Vec<String> {
        let networks = self.networks();
        let deciding = PodAddresses { synthetic, networks: &networks }.deciding(state, flow);
        let note = |address: IpAddr| {
            let (who, advice) = match state.program.owner(address) {
                Some((id, _)) => (id.to_string(), self.advice()),
                None => (
                    "a host network pod".to_owned(),
                    "give its spec.nodeName and the Node with its addresses",
                ),
            };
            format!(
                "the verdict depends on an ipBlock and on the synthetic address {address} of \
                 {who}; {advice}"
            )
        };
        deciding.into_iter().map(note).collect()
    }

    /// The networks that the pods can have.
    pub fn networks(self) -> Vec<IpNet> {
        if self.0.is_empty() {
            USUAL.iter().filter_map(|net| net.parse().ok()).collect()
        } else {
            self.0.to_vec()
        }
    }

    fn advice(self) -> &'static str {
        if self.0.is_empty() {
            "give the network of your pods with --pod-cidr"
        } else {
            "it is in only a part of the pod network; select pods by their labels"
        }
    }

    fn finding(self, assumption: &Assumption) -> Finding {
        let Assumption { policy, origin, location, block, peer, address, subject } = assumption;
        let location = location.as_ref().map(|location| match origin.line {
            0 => location.clone(),
            line => Location { line, ..location.clone() },
        });
        Finding {
            location,
            code: SYNTHETIC_ADDRESS,
            severity: Severity::Info,
            object: Some(ObjectRef::from(policy)),
            field: format!("spec.{origin}"),
            message: format!(
                "{block} contains some of the addresses that pods can have: the result for \
                 {subject} and {peer} depends on the synthetic address {address}"
            ),
            hint: self.advice().to_owned(),
        }
    }
}
