//! Names, and the hashes in them.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest name that a policy object may have there.
const LONGEST: usize = 63;
/// The longest that the readable part may be if a hash follows.
const LONGEST_READABLE: usize = 31;

/// The first half of a SHA-256, in hexadecimal.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..16].iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes everything");
        hex
    })
}

/// The name of a policy object: prefix, type and key, with a hash for what would be too long.
pub(crate) fn policy_object(prefix: &str, kind: &str, key: &str) -> String {
    let whole = format!("{prefix}_{kind}_{}", key.replace('/', "_"));
    if whole.len() <= LONGEST {
        return whole;
    }
    if prefix.len() > LONGEST_READABLE {
        return hash(&format!("{prefix}_{kind}_{key}"));
    }
    if prefix.len() + kind.len() + 1 > LONGEST_READABLE {
        return format!("{prefix}_{}", hash(&format!("{kind}_{key}")));
    }
    format!("{prefix}_{kind}_{}", hash(key))
}

/// What Kubernetes calls the object of that name: it allows no underscores.
pub(crate) fn resource(name: &str) -> String {
    name.replace('_', "-")
}

/// Whether a name can be that of a file, and part of an address of an object, without meaning anything else there.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_keeps_what_fits_and_a_hash_of_the_rest() {
        assert_eq!(policy_object("demo_xyz1", "node", "n1.lan"), "demo_xyz1_node_n1.lan");
        let (long, hashed) = ("n".repeat(60), hash(&"n".repeat(60)));
        assert_eq!(policy_object("demo", "node", &long), format!("demo_node_{hashed}"));
        let (prefix, rest) = ("p".repeat(30), hash(&format!("node_{long}")));
        assert_eq!(policy_object(&prefix, "node", &long), format!("{prefix}_{rest}"));
        let prefix = "p".repeat(40);
        assert_eq!(policy_object(&prefix, "node", &long), hash(&format!("{prefix}_node_{long}")));
    }
}
