//! The names of chains and sets, in kube-router's format: a prefix and the start of a digest.
//!
//! The format joins its words without separators, so that two objects could share a name. Its last
//! free word is a version. Ours contains the information that the others omit, and never the time:
//! an unchanged object keeps its name.

use std::net::IpAddr;

use sha2::{Digest, Sha256};
use weir_model::{Direction, IpFamily, Name, PodId, PolicyId};

use crate::Hook;

/// The chain of a pod.
pub(crate) const POD: &str = "KUBE-POD-FW-";
/// The chain of a policy.
pub(crate) const POLICY: &str = "KUBE-NWPLCY-";
/// A set that rules look up sources in.
pub(crate) const SOURCES: &str = "KUBE-SRC-";
/// A set that rules look up destinations in.
pub(crate) const DESTINATIONS: &str = "KUBE-DST-";
/// The prefix of the names of IPv6 sets.
const SIX: &str = "inet6:";

/// A prefix and the digest of some words: the first 16 characters of SHA-256 in base 32.
pub(crate) fn hashed(prefix: &str, words: &[&str]) -> Name {
    format!("{prefix}{}", id(&words.concat())).into()
}

/// The first 16 characters of SHA-256 in base 32.
pub(crate) fn id(text: &str) -> String {
    const LETTERS: [u8; 32] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text);
    let bits = digest.iter().take(10).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    (0..16).rev().map(|at| char::from(LETTERS[(bits >> (5 * at)) as usize & 31])).collect()
}

/// The chain of one direction of a pod. Both families use the same name.
pub(crate) fn pod_chain(pod: &PodId, direction: Direction) -> Name {
    let version = format!("/{}/{direction}", pod.namespace.len());
    hashed(POD, &[&pod.namespace, &pod.name, &version])
}

/// The chain of a policy with this content.
pub(crate) fn policy_chain(policy: &PolicyId, family: IpFamily, content: &str) -> Name {
    let version = format!("{}/{content}", policy_version(policy));
    hashed(POLICY, &[&policy.namespace, &policy.name, &version, &family.to_string()])
}

/// The chain of several merged policies with this content.
pub(crate) fn merged_chain(family: IpFamily, content: &str) -> Name {
    hashed(POLICY, &["/", content, &family.to_string()])
}

/// The signpost of a pod. Both families use the same name.
pub(crate) fn pod_signpost(pod: &PodId) -> Name {
    hashed(POD, &[&pod.namespace, &pod.name, &format!("/{}", pod.namespace.len())])
}

/// The signpost of a policy. Both families use the same name.
pub(crate) fn policy_signpost(policy: &PolicyId) -> Name {
    hashed(POLICY, &[&policy.namespace, &policy.name, &policy_version(policy)])
}

/// The signpost that lists policies.
pub(crate) fn list_signpost(policies: &[&PolicyId]) -> Name {
    let of = |policy: &&PolicyId| format!("{policy:?}");
    let list = policies.iter().map(of).collect::<Vec<_>>().join("\n");
    hashed(POLICY, &["/", &list, "/list"])
}

/// The digest of a policy as an address.
pub(crate) fn policy_address(policy: &PolicyId) -> IpAddr {
    let text = format!("{}{}{}", policy.namespace, policy.name, policy_version(policy));
    let mut octets = [0; 16];
    octets.copy_from_slice(&Sha256::digest(text)[..16]);
    // No machine has an address in 100::/8.
    octets[0] = 1;
    IpAddr::from(octets)
}

/// The words of a policy that its namespace and name leave out.
fn policy_version(policy: &PolicyId) -> String {
    format!("/{}/{}", policy.namespace.len(), policy.kind)
}

/// A branch of the tree that leads to the chains of pods.
pub(crate) fn branch(direction: Direction, net: &str) -> Name {
    hashed(POD, &["/", &direction.to_string(), "/", net])
}

/// The set with this content, for the peers of one direction.
pub(crate) fn peer_set(direction: Direction, family: IpFamily, meaning: &str) -> Name {
    let prefix = match direction {
        Direction::Ingress => SOURCES,
        Direction::Egress => DESTINATIONS,
    };
    in_family(family, &hashed(prefix, &["/", meaning, &family.to_string()]))
}

/// The temporary set that replaces another one.
pub(crate) fn temporary_set(set: &str, family: IpFamily) -> Name {
    in_family(family, &hashed(SOURCES, &["/", set, "/stand-in"]))
}

/// The name of a set in a family.
pub(crate) fn in_family(family: IpFamily, name: &str) -> Name {
    match family {
        IpFamily::V4 => name.into(),
        IpFamily::V6 => format!("{SIX}{name}").into(),
    }
}

/// Whether a chain belongs to weir or kube-router.
pub(crate) fn is_our_chain(name: &str) -> bool {
    name.starts_with(POD)
        || name.starts_with(POLICY)
        || Hook::ALL.into_iter().any(|hook| hook.chain() == name)
}

/// Whether a set belongs to weir, or to the policies of kube-router.
pub(crate) fn is_our_set(name: &str) -> bool {
    let bare = name.strip_prefix(SIX).unwrap_or(name);
    bare.starts_with(SOURCES) || bare.starts_with(DESTINATIONS) || bare == "kube-router-local-pods"
}

/// The maximum length of a comment on a rule or an entry in the kernel.
pub(crate) const MAX_COMMENT: usize = 255;

/// Text for a comment: printable ASCII without quotes, cut at the maximum length. Names in a cluster
/// have no other characters.
pub(crate) fn comment(text: &str) -> Name {
    let mut clean = String::new();
    for letter in text.chars() {
        let is_plain = matches!(letter, ' ' | '!' | '#'..='&' | '('..='[' | ']'..='~');
        let letter = if is_plain { letter } else { '.' };
        if clean.len() + letter.len_utf8() > MAX_COMMENT {
            break;
        }
        clean.push(letter);
    }
    clean.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names from the tests of kube-router and from reports of its users.
    #[test]
    fn names_match_those_of_kube_router() {
        let policy = |name| hashed(POLICY, &["nsA", name, "1", "IPv4"]);
        assert_eq!(&*policy("simple-egress"), "KUBE-NWPLCY-C23KD7UE4TAT3Y5M");
        assert_eq!(&*policy("simple-ingress-egress"), "KUBE-NWPLCY-IDIX352DRLNY3D23");
        assert_eq!(&*policy("simple-egress-pr"), "KUBE-NWPLCY-2UTXQIFBI5TAPUCL");
        assert_eq!(&*policy("sctp-egress"), "KUBE-NWPLCY-HHGHJNRMJN6UUDNA");
        assert_eq!(&*policy("sctp-ingress"), "KUBE-NWPLCY-BHQGYKZ6X5RBPUOB");
        assert_eq!(&*policy("invalid-endport"), "KUBE-NWPLCY-N5DQE4SCQ56JEMH7");
        let v6 = |prefix, words: &[&str]| in_family(IpFamily::V6, &hashed(prefix, words));
        let whoami = |family| ["default", "whoami", family];
        assert_eq!(&*hashed(DESTINATIONS, &whoami("IPv4")), "KUBE-DST-IZ5JGF4W6BKI7CEV");
        assert_eq!(&*v6(DESTINATIONS, &whoami("IPv6")), "inet6:KUBE-DST-GZIEGRFLGG6BN3N7");
        let debug = |family| ["default", "debug", family];
        assert_eq!(&*hashed(SOURCES, &debug("IPv4")), "KUBE-SRC-C2EUPKL23CCP4COF");
        assert_eq!(&*v6(SOURCES, &debug("IPv6")), "inet6:KUBE-SRC-VY6KNKQ4BF6Y4J2K");
        let egress = |family| ["default", "debug", "egressrule", "0", family, "pod"];
        assert_eq!(&*hashed(DESTINATIONS, &egress("IPv4")), "KUBE-DST-P226T6HGLTLDGDLC");
        assert_eq!(&*v6(DESTINATIONS, &egress("IPv6")), "inet6:KUBE-DST-KSECZGZUJPU4SKA3");
        let block = ["default", "whoami", "ingressrule", "0", "IPv4", "ipblock"];
        assert_eq!(&*hashed(SOURCES, &block), "KUBE-SRC-KLLOHJLFVAV654Z2");
    }

    #[test]
    fn words_that_join_to_equal_text_do_not_share_a_name() {
        let chain = |namespace: &str, name: &str| {
            pod_chain(&PodId::new(namespace, name), Direction::Ingress)
        };
        assert_ne!(chain("dev", "opsdb"), chain("devops", "db"));
        assert_ne!(chain("a", "bcdefghijklm1"), chain("abcdefghijk", "lm"));
        assert_eq!(chain("dev", "opsdb").len(), 28);
    }

    #[test]
    fn our_chains_and_sets_are_recognized_by_name() {
        assert!(is_our_chain("KUBE-ROUTER-FORWARD") && is_our_chain("KUBE-POD-FW-ABC"));
        assert!(!is_our_chain("KUBE-ROUTER-SERVICES") && !is_our_chain("KUBE-FORWARD"));
        assert!(is_our_set("inet6:KUBE-SRC-ABC") && is_our_set("KUBE-DST-ABC"));
        assert!(!is_our_set("kube-router-svip") && !is_our_set("KUBE-CLUSTER-IP"));
    }
}
