//! The names and comments of sets and chains.

use std::fmt::{self, Write as _};

use hashbrown::HashMap;
use sha2::{Digest, Sha256};
use weir_datapath::DropCause;
use weir_model::{Direction, IpFamily, Name, PortNameList, SetId, SetKey};

/// The longest comment in bytes. nft accepts up to 128.
pub(crate) const MAX_COMMENT_BYTES: usize = 120;

/// The digits of digests.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The number of digits of 128 bits.
const DIGEST_LENGTH: usize = 22;

/// A stable digest of content, for the name of the object that has this content: the first 128 bits
/// of SHA-256, in as few digits and letters as possible.
///
/// Authors of policies control the content, and two objects with one name would be one object in
/// the kernel. So the digest must resist collisions. It is short because the kernel finds a set by
/// its name in a list, and measures the length of every name that it passes.
pub(crate) fn digest(content: &str) -> String {
    digits(&Sha256::digest(content))
}

/// The digest of the `Debug` output of some content, which is not kept in memory.
pub(crate) fn digest_debug(content: &impl fmt::Debug) -> String {
    let mut hasher = HashWriter(Sha256::new());
    _ = write!(hasher, "{content:?}");
    digits(&hasher.0.finalize())
}

struct HashWriter(Sha256);

impl fmt::Write for HashWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// The first 128 bits of a digest, in digits and letters.
fn digits(digest: &[u8]) -> String {
    let mut rest = digest.iter().take(16).fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    let mut text = ['0'; DIGEST_LENGTH];
    for digit in text.iter_mut().rev() {
        let value = usize::try_from(rest % 62).unwrap_or_default();
        *digit = DIGITS.get(value).map_or('0', |digit| char::from(*digit));
        rest /= 62;
    }
    text.iter().collect()
}

/// A stable digest of a list of sets. A list of port names that sets share is digested once.
pub(crate) fn digest_sets(sets: &[SetId]) -> String {
    let mut known: HashMap<&PortNameList, String> = HashMap::new();
    let mut content = String::new();
    for set in sets {
        _ = match &**set {
            SetKey::Ports { owners, names } => {
                let names = known.entry(names).or_insert_with(|| digest(&format!("{names:?}")));
                writeln!(content, "{owners:?} {names}")
            }
            other => writeln!(content, "{other:?}"),
        };
    }
    digest(&content)
}

/// Text as a comment of nft: printable ASCII without quotes, and truncated. Names in a cluster have
/// no other characters.
pub(crate) fn comment(text: &str) -> Name {
    let mut clean = String::new();
    for letter in text.chars() {
        let letter =
            if matches!(letter, ' ' | '!' | '#'..='[' | ']'..='~') { letter } else { '\'' };
        if clean.len() + letter.len_utf8() > MAX_COMMENT_BYTES {
            break;
        }
        clean.push(letter);
    }
    clean.into()
}

/// The map from the addresses of pods to the chains with their rules.
pub(crate) fn dispatch_map(direction: Direction, family: IpFamily) -> Name {
    let word = if direction == Direction::Ingress { "in" } else { "out" };
    format!("{word}{}", family.digit()).into()
}

/// The set with the grants of all pods that share the grants chain.
pub(crate) fn grants_set(direction: Direction, family: IpFamily) -> Name {
    format!("{}-grants", dispatch_map(direction, family)).into()
}

/// The chain that looks up grants.
pub(crate) fn grants_chain(direction: Direction, family: IpFamily) -> Name {
    format!("{direction}{}", family.digit()).into()
}

/// The chain for packets that admin policies deny, and for all packets to drop.
pub(crate) fn denied_chain(direction: Direction) -> Name {
    format!("{direction}-denied").into()
}

/// The chain for packets that no NetworkPolicy of an isolated pod allows.
pub(crate) fn isolated_chain(direction: Direction) -> Name {
    format!("{direction}-isolated").into()
}

/// The chain that answers denied packets.
pub(crate) fn reject_chain(direction: Direction) -> Name {
    format!("{direction}-reject").into()
}

/// The set of all pods of this node, if the senders of denied packets get answers.
pub(crate) fn node_pods_set(family: IpFamily) -> Name {
    format!("node-pods{}", family.digit()).into()
}

/// The set that pairs each pod with itself. NetworkPolicies do not apply when a pod reaches itself
/// through a service.
pub(crate) fn self_set(family: IpFamily) -> Name {
    format!("self{}", family.digit()).into()
}

/// The set and the chain for the replies of terminated connections.
pub(crate) fn cut(family: IpFamily) -> Name {
    format!("cut{}", family.digit()).into()
}

/// The set for the replies of terminated connections of protocols without ports.
pub(crate) fn cut_pairs_set(family: IpFamily) -> Name {
    format!("cut{}-pairs", family.digit()).into()
}

/// The set of the senders of these replies.
pub(crate) fn cut_senders_set(family: IpFamily) -> Name {
    format!("cut{}-senders", family.digit()).into()
}

/// The chain that reports dropped packets.
pub(crate) fn report_chain(cause: DropCause) -> Name {
    format!("{cause}-report").into()
}

/// The set of the sources of reported packets.
pub(crate) fn reported_set(family: IpFamily) -> Name {
    format!("reported{}", family.digit()).into()
}

/// The set of the links through which new sources of reported packets arrive.
pub(crate) const REPORTED_LINKS: &str = "reported-links";

/// The chain for packets that belong to no tracked connection.
pub(crate) fn new_chain(family: IpFamily) -> Name {
    format!("new{}", family.digit()).into()
}

/// The chain for packets to the node that belong to no tracked connection.
pub(crate) fn local_chain(family: IpFamily) -> Name {
    format!("local{}", family.digit()).into()
}

/// The set of the families in which a pod of the node is isolated for ingress.
pub(crate) const ISOLATED_FAMILIES: &str = "isolated";

/// The chain for packets to all pods on a bridge, or to a group of them, while a pod of the node is
/// isolated for ingress.
pub(crate) fn group_chain(family: IpFamily) -> Name {
    format!("group{}", family.digit()).into()
}

/// The chain for packets that egress rules let pass: it applies the ingress rules and accepts.
pub(crate) fn onward_chain(family: IpFamily) -> Name {
    format!("onward{}", family.digit()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_128_bits_of_sha256_in_base_62() {
        assert_eq!(digest(""), "6ve2WrOl3mnciB6WIL2fIa");
        assert_eq!(digest("abc"), "5frS7ZK2oCrJOLG43t7nIh");
    }
}
