use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use weir_model::Name;

use crate::message::{Message, Question, Value};

/// The most addresses of one answer. An answer with more teaches nothing.
const MAX_ADDRESSES_PER_ANSWER: usize = 256;
/// The most aliases between a name and its addresses.
const MAX_ALIASES: usize = 16;
/// A longer time to live is malformed: RFC 2181, section 8.
const MAX_WIRE_TTL: u32 = i32::MAX as u32;

/// The addresses that an answer gives for the name in its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsAnswer {
    /// The address of the pod that asked.
    pub pod: IpAddr,
    /// The name that the pod asked for, in lower case and without the final dot.
    pub name: Name,
    /// The addresses, each with its time to live as the answer gives it.
    pub addresses: BTreeMap<IpAddr, Duration>,
}

impl DnsAnswer {
    /// Follows the aliases of an answer from the name in the question. Records that this does not
    /// lead to are ignored. `None` without addresses, or if the answer contradicts itself.
    pub(crate) fn from_message(
        pod: IpAddr,
        question: &Question,
        message: &Message,
    ) -> Option<DnsAnswer> {
        let mut aliases: BTreeMap<&Name, (&Name, u32)> = BTreeMap::new();
        for record in &message.records {
            if let Value::Alias(target) = &record.value {
                let before = aliases.insert(&record.owner, (target, record.ttl));
                if before.is_some_and(|(other, _)| other != target) {
                    return None;
                }
            }
        }
        let (mut owner, mut ttl, mut steps) = (&question.name, MAX_WIRE_TTL, 0);
        while let Some((target, alias_ttl)) = aliases.get(owner) {
            steps += 1;
            if steps > MAX_ALIASES || *alias_ttl > MAX_WIRE_TTL {
                return None;
            }
            (owner, ttl) = (target, ttl.min(*alias_ttl));
        }
        let mut addresses = BTreeMap::new();
        for record in message.records.iter().filter(|record| record.owner == *owner) {
            let Value::Address(address) = record.value else { continue };
            if address.is_ipv4() == question.is_ipv4()
                && is_routable(address)
                && record.ttl <= MAX_WIRE_TTL
            {
                addresses.insert(address, Duration::from_secs(record.ttl.min(ttl).into()));
            }
        }
        let is_plausible = !addresses.is_empty() && addresses.len() <= MAX_ADDRESSES_PER_ANSWER;
        is_plausible.then(|| DnsAnswer { pod, name: question.name.clone(), addresses })
    }
}

/// Whether a name can stand for this address. Those that never leave a machine or a link, such as
/// the metadata services of clouds, are not behind a name.
fn is_routable(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_special || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}
