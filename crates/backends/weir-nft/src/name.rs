use sha2::{Digest, Sha256};
use weir_model::Name;

/// A stable digest of what something says, for its name: the first 128 bits of SHA-256, as hexadecimal digits.
///
/// What is said comes from whoever may write a policy, and two things with one name would be one thing in the kernel: nobody
/// must be able to make a second text for a name.
pub(crate) fn digest(said: &str) -> String {
    Sha256::digest(said).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Text that fits in a comment of nft: quotes and control characters are replaced, and it is cut at 120 bytes.
pub(crate) fn comment(text: &str) -> Name {
    let mut clean = String::new();
    for letter in text.chars() {
        let letter =
            if letter == '"' || letter == '\\' || letter.is_control() { '\'' } else { letter };
        if clean.len() + letter.len_utf8() > 120 {
            break;
        }
        clean.push(letter);
    }
    clean.into()
}
