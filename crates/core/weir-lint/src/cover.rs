//! Which rules, peers and ports include others. The functions can miss a case, but never report a
//! false one.

use std::collections::HashSet;

use ipnet::IpNet;
use weir_model::{
    Block, NAMESPACE_NAME_LABEL, Name, Peer, PolicyRule, PortMatch, PortRange, PortSpec, Protocol,
    Requirement, Scope, Selector, Subject, Who,
};

use crate::{MAX_COMPARED, index::Index, select};

/// Whether `wide` matches every connection that `narrow` matches. Both are rules in the namespace
/// `own`.
pub(crate) fn rule(index: &Index<'_>, own: &Name, wide: &PolicyRule, narrow: &PolicyRule) -> bool {
    ports(wide.ports.as_deref(), narrow.ports.as_deref()) && peers(index, own, wide, narrow)
}

fn peers(index: &Index<'_>, own: &Name, wide: &PolicyRule, narrow: &PolicyRule) -> bool {
    match (&wide.peers, &narrow.peers) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => {
            let is_covered =
                |narrow: &Peer| wide.iter().any(|wide| who(index, own, &wide.who, &narrow.who));
            !narrow.is_empty() && narrow.iter().all(is_covered)
        }
    }
}

/// Whether `wide` matches every peer that `narrow` matches.
pub(crate) fn who(index: &Index<'_>, own: &Name, wide: &Who, narrow: &Who) -> bool {
    match (wide, narrow) {
        (
            Who::Pods { scope: wide_scope, pods: wide },
            Who::Pods { scope: narrow_scope, pods: narrow },
        ) => select::covers(wide, narrow) && scope(index, own, wide_scope, narrow_scope),
        (Who::Block(wide), Who::Block(narrow)) => block(wide, narrow),
        (Who::Nodes(wide), Who::Nodes(narrow)) => select::covers(wide, narrow),
        (Who::Domain(wide), Who::Domain(narrow)) => wide == narrow,
        _ => false,
    }
}

/// Whether a cluster-wide policy selects every pod that another policy selects.
pub(crate) fn subject(index: &Index<'_>, own: &Name, wide: &Subject, narrow: &Subject) -> bool {
    select::covers(&wide.pods, &narrow.pods) && scope(index, own, &wide.scope, &narrow.scope)
}

fn scope(index: &Index<'_>, own: &Name, wide: &Scope, narrow: &Scope) -> bool {
    match (wide, narrow) {
        (Scope::Own, Scope::Own) => true,
        (Scope::Own, Scope::Matching(narrow)) => select::covers(&only(own), narrow),
        (Scope::Matching(wide), Scope::Own) => index.namespaces(wide).contains(own),
        (Scope::Matching(wide), Scope::Matching(narrow)) => select::covers(wide, narrow),
    }
}

/// The selector of the namespace with this name.
fn only(name: &Name) -> Selector {
    [Requirement::equals(NAMESPACE_NAME_LABEL, name.clone())].into_iter().collect()
}

fn block(wide: &Block, narrow: &Block) -> bool {
    let inside = |outer: &IpNet, inner: &IpNet| outer.contains(inner);
    let overlaps = |except: &&IpNet| inside(except, &narrow.net) || inside(&narrow.net, except);
    let is_excluded = |except: &IpNet| narrow.except.iter().any(|outer| inside(outer, except));
    inside(&wide.net, &narrow.net) && wide.except.iter().filter(overlaps).all(is_excluded)
}

/// Whether `wide` includes every port of `narrow`.
pub(crate) fn ports(wide: Option<&[PortSpec]>, narrow: Option<&[PortSpec]>) -> bool {
    match (wide, narrow) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => {
            let equal: HashSet<&PortMatch> = wide.iter().map(|spec| &spec.ports).collect();
            let compared = &wide[..wide.len().min(MAX_COMPARED)];
            let is_covered = |narrow: &PortSpec| {
                equal.contains(&narrow.ports)
                    || compared.iter().any(|wide| port(&wide.ports, &narrow.ports))
            };
            !narrow.is_empty() && narrow.iter().all(is_covered)
        }
    }
}

fn port(wide: &PortMatch, narrow: &PortMatch) -> bool {
    match (wide, narrow) {
        (PortMatch::Range(wide), PortMatch::Range(narrow)) => {
            wide.protocol == narrow.protocol
                && wide.first <= narrow.first
                && narrow.last <= wide.last
        }
        (PortMatch::Range(wide), PortMatch::Named { protocol: Some(protocol), .. }) => {
            *wide == PortRange::all(*protocol)
        }
        (
            PortMatch::Named { name: wide, protocol: any },
            PortMatch::Named { name: narrow, protocol },
        ) => wide == narrow && (any.is_none() || any == protocol),
        _ => false,
    }
}

/// Whether two rules can match the same connection, judging by ports and selectors.
pub(crate) fn can_both_match(one: &PolicyRule, two: &PolicyRule) -> bool {
    let ports = match (&one.ports, &two.ports) {
        (Some(one), Some(two)) => {
            one.iter().any(|one| two.iter().any(|two| ports_overlap(&one.ports, &two.ports)))
        }
        _ => true,
    };
    let peers = match (&one.peers, &two.peers) {
        (Some(one), Some(two)) => {
            one.iter().any(|one| two.iter().any(|two| peers_can_overlap(&one.who, &two.who)))
        }
        _ => true,
    };
    ports && peers
}

/// Whether two entries of `ports` have a port in common.
pub(crate) fn ports_overlap(one: &PortMatch, two: &PortMatch) -> bool {
    let protocols = |p: &PortMatch| match p {
        PortMatch::Range(range) => Some(range.protocol),
        PortMatch::Named { protocol, .. } => *protocol,
    };
    let same = |a: Option<Protocol>, b: Option<Protocol>| a.is_none() || b.is_none() || a == b;
    same(protocols(one), protocols(two))
        && match (one, two) {
            (PortMatch::Range(one), PortMatch::Range(two)) => {
                one.first <= two.last && two.first <= one.last
            }
            _ => true,
        }
}

fn peers_can_overlap(one: &Who, two: &Who) -> bool {
    match (one, two) {
        (Who::Pods { scope: one_scope, pods: one }, Who::Pods { scope: two_scope, pods: two }) => {
            let scopes_can_overlap = match (one_scope, two_scope) {
                (Scope::Matching(one), Scope::Matching(two)) => {
                    select::contradiction(&[one, two]).is_none()
                }
                _ => true,
            };
            scopes_can_overlap && select::contradiction(&[one, two]).is_none()
        }
        (Who::Block(one), Who::Block(two)) => {
            one.net.contains(&two.net) || two.net.contains(&one.net)
        }
        (Who::Nodes(one), Who::Nodes(two)) => select::contradiction(&[one, two]).is_none(),
        (Who::Nodes(_), Who::Pods { .. }) | (Who::Pods { .. }, Who::Nodes(_)) => false,
        _ => true,
    }
}

/// Whether the exceptions of a block cover all of it.
pub(crate) fn is_empty(block: &Block) -> bool {
    let mut except: Vec<(u128, u128)> = block.except.iter().map(|e| (first(e), last(e))).collect();
    except.sort_unstable();
    // The lowest address that is not covered so far.
    let mut free = first(&block.net);
    for (first, last) in except {
        match last.checked_add(1) {
            _ if first > free => return false,
            Some(next) => free = free.max(next),
            None => return true,
        }
    }
    free > last(&block.net)
}

fn first(net: &IpNet) -> u128 {
    number(net.network())
}

fn last(net: &IpNet) -> u128 {
    number(net.broadcast())
}

fn number(address: std::net::IpAddr) -> u128 {
    match address {
        std::net::IpAddr::V4(v4) => v4.to_bits().into(),
        std::net::IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_of(net: &str, except: &[&str]) -> Block {
        Block::new(net.parse().unwrap(), except.iter().map(|e| e.parse().unwrap()))
    }

    #[test]
    fn a_block_is_empty_if_its_exceptions_cover_it() {
        assert!(is_empty(&block_of("0.0.0.0/0", &["128.0.0.0/1", "0.0.0.0/1"])));
        assert!(is_empty(&block_of("::/0", &["::/1", "8000::/1"])));
        assert!(is_empty(&block_of("10.0.0.0/8", &["10.0.0.0/9", "10.64.0.0/10", "10.128.0.0/9"])));
        assert!(!is_empty(&block_of("10.0.0.0/8", &[])));
        assert!(!is_empty(&block_of("10.0.0.0/8", &["10.0.0.0/9", "10.192.0.0/10"])));
        assert!(!is_empty(&block_of("::/0", &["8000::/1"])));
    }

    #[test]
    fn a_block_covers_a_smaller_one_unless_an_exception_overlaps_it() {
        let wide = block_of("10.0.0.0/8", &["10.1.0.0/16"]);
        assert!(block(&wide, &block_of("10.2.0.0/16", &[])));
        assert!(block(&wide, &block_of("10.0.0.0/8", &["10.0.0.0/15"])));
        assert!(!block(&wide, &block_of("10.0.0.0/8", &[])));
        assert!(!block(&wide, &block_of("10.1.2.0/24", &[])));
        assert!(!block(&wide, &block_of("::/0", &[])));
    }
}
