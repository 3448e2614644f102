//! The objects of one pod: its entries of shared sets, and its chains.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_datapath::{Granted, isolated_by, policy_names};
use weir_model::{Direction, Endpoint, IpFamily, Name, PodId, Program, SetId};

use crate::{
    Entry, Planner,
    chain::{ChainCompiler, SharedRules},
    name::comment,
    signposts::{PodDirection, PodSignposts},
    skeleton,
};

/// The entries and chains of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodEntries {
    /// Its entries of shared sets, with their comments.
    pub(crate) entries: BTreeMap<(Name, Entry), Name>,
    /// The chains of its addresses.
    pub(crate) chains: BTreeMap<(Direction, IpAddr), Name>,
    /// The program sets that these depend on.
    pub(crate) depends_on: BTreeSet<SetId>,
    /// Its part in the signposts.
    pub(crate) signposts: PodSignposts,
}

/// Computes the entries of a pod, and adds its chains.
pub(crate) fn compute(
    planner: &mut Planner,
    program: &Program,
    id: &PodId,
    endpoint: &Endpoint,
    shared: &mut SharedRules,
) -> PodEntries {
    let mut pod_entries = PodEntries::default();
    let pod_comment = comment(&id.to_string());
    for &address in &endpoint.addresses {
        let set = skeleton::local(IpFamily::from(address));
        pod_entries.entries.insert((set, Entry::Address(address)), pod_comment.clone());
    }
    for direction in Direction::BOTH {
        let rules = endpoint.rules.chain(direction);
        let of = PodDirection { pod: id, rules: &endpoint.rules, direction };
        if rules.is_open() {
            for &address in &endpoint.addresses {
                planner.signposts.add(&mut pod_entries.signposts, &of, address, None);
            }
            continue;
        }
        let granted = Granted::from_chain(rules);
        pod_entries.depends_on.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
        let granted = granted.and_then(|granted| granted.by_policies(program));
        let why = comment(&format!("{id} {}", isolated_by(rules)));
        for &address in &endpoint.addresses {
            let family = IpFamily::from(address);
            let set = skeleton::isolated(direction, family);
            pod_entries.entries.insert((set, Entry::Address(address)), why.clone());
            let Some(granted) = &granted else {
                let mut compiler = ChainCompiler { planner, program, direction, family };
                let (chain, places) = compiler.add_pod_chain(id, &endpoint.rules, shared);
                let there = Some((&chain, &*places));
                planner.signposts.add(&mut pod_entries.signposts, &of, address, there);
                pod_entries.chains.insert((direction, address), chain);
                continue;
            };
            let ours = |peer: &IpAddr| IpFamily::from(*peer) == family && !peer.is_unspecified();
            for (&(peer, protocol, port), policies) in granted {
                if ours(&peer) {
                    let entry = Entry::Grant(address, protocol, port, peer);
                    let set = skeleton::grants(direction, family);
                    let why =
                        comment(&format!("{id} by {}", policy_names(policies.iter().copied())));
                    pod_entries.entries.insert((set, entry), why);
                }
            }
            planner.signposts.add(&mut pod_entries.signposts, &of, address, None);
        }
    }
    pod_entries
}
