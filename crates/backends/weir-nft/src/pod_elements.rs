//! The elements of shared sets and maps that belong to one pod.

use std::{collections::BTreeSet, sync::Arc};

use weir_datapath::{Granted, isolated_by};
use weir_model::{Direction, Endpoint, IpFamily, Name, PodId, Program, RuleSet, SetId};

use crate::{
    ElementData, ElementKey, NftVerdict, Planner, chain,
    names::{self, comment},
};

/// The elements of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodElements {
    /// The set or map and the key of each element.
    pub(crate) elements: Vec<(Name, ElementKey)>,
    /// The sets whose members determine the elements.
    pub(crate) depends_on: BTreeSet<SetId>,
    pub(crate) rules: Arc<RuleSet>,
}

type WireElement = (Name, ElementKey, Option<Arc<ElementData>>);

impl PodElements {
    /// Computes the elements of a pod, with their data, and adds the chains that they need.
    pub(crate) fn compute(
        planner: &mut Planner,
        program: &Program,
        id: &PodId,
        endpoint: &Endpoint,
    ) -> (PodElements, Vec<WireElement>) {
        let mut elements: Vec<WireElement> = Vec::new();
        let mut depends_on = BTreeSet::new();
        if planner.lists_pods() {
            let own = endpoint.addresses.iter();
            elements.extend(own.map(|&address| {
                (names::node_pods_set(address.into()), ElementKey::Address(address), None)
            }));
        }
        if !endpoint.rules.is_open() {
            let own = endpoint.addresses.iter();
            elements.extend(own.map(|&address| {
                (names::self_set(address.into()), ElementKey::Pair(address, address), None)
            }));
        }
        for direction in Direction::BOTH {
            let rules = endpoint.rules.chain(direction);
            if rules.is_open() {
                continue;
            }
            let granted = Granted::from_chain(rules);
            depends_on.extend(granted.iter().flat_map(|granted| granted.sets()).cloned());
            let granted = granted.and_then(|granted| granted.list(program));
            for &address in &endpoint.addresses {
                let family = IpFamily::from(address);
                let chain = match &granted {
                    Some(_) => names::grants_chain(direction, family),
                    None => {
                        let rules_of = &endpoint.rules;
                        let known =
                            planner.chains.get(rules_of, direction, family, planner.table());
                        known.unwrap_or_else(|| {
                            let chain = chain::add(planner, program, rules, direction, family);
                            planner.chains.put(rules_of, direction, family, &chain);
                            chain
                        })
                    }
                };
                let why = comment(&format!("{id} {}", isolated_by(rules)));
                let data = ElementData { verdict: NftVerdict::Jump(chain), comment: why };
                let map = names::dispatch_map(direction, family);
                elements.push((map, ElementKey::Address(address), Some(data.into())));
                let granted = granted.iter().flatten();
                let peers = granted.filter(|(peer, ..)| IpFamily::from(*peer) == family);
                elements.extend(peers.map(|&(peer, protocol, port)| {
                    let key = ElementKey::Grant(address, peer, protocol, port);
                    (names::grants_set(direction, family), key, None)
                }));
            }
        }
        let keys = elements.iter().map(|(set, key, _)| (set.clone(), key.clone())).collect();
        let rules = endpoint.rules.clone();
        (PodElements { elements: keys, depends_on, rules }, elements)
    }
}
