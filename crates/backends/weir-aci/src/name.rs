//! Object names, and the hashes in them.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The maximum length of a policy object's name in ACI.
const MAX_LENGTH: usize = 63;
/// The maximum length of the readable part of a name with a hash.
const MAX_READABLE_LENGTH: usize = 31;

/// The first half of the SHA-256 digest, in hexadecimal.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..16].iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a String never fails");
        hex
    })
}

/// The name of a policy object: prefix, type and key. A hash replaces the parts that are too long.
pub(crate) fn policy_object(prefix: &str, kind: &str, key: &str) -> String {
    let whole = format!("{prefix}_{kind}_{}", key.replace('/', "_"));
    if whole.len() <= MAX_LENGTH {
        return whole;
    }
    if prefix.len() > MAX_READABLE_LENGTH {
        return hash(&format!("{prefix}_{kind}_{key}"));
    }
    if prefix.len() + kind.len() + 1 > MAX_READABLE_LENGTH {
        return format!("{prefix}_{}", hash(&format!("{kind}_{key}")));
    }
    format!("{prefix}_{kind}_{}", hash(key))
}

/// The Kubernetes name of an ACI object. Kubernetes does not allow underscores.
pub(crate) fn resource(name: &str) -> String {
    name.replace('_', "-")
}

/// Whether a name is safe as a file name and as part of an opflex URI.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_a_readable_part_and_a_hash() {
        assert_eq!(policy_object("demo_xyz1", "node", "n1.lan"), "demo_xyz1_node_n1.lan");
        let (long, hashed) = ("n".repeat(60), hash(&"n".repeat(60)));
        assert_eq!(policy_object("demo", "node", &long), format!("demo_node_{hashed}"));
        let (prefix, rest) = ("p".repeat(30), hash(&format!("node_{long}")));
        assert_eq!(policy_object(&prefix, "node", &long), format!("{prefix}_{rest}"));
        let prefix = "p".repeat(40);
        assert_eq!(policy_object(&prefix, "node", &long), hash(&format!("{prefix}_node_{long}")));
    }
}
