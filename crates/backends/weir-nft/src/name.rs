use std::fmt::Display;

/// A short, stable digest of what something says, for its name: FNV-1a, as 16 hexadecimal digits.
pub(crate) fn digest(said: &impl Display) -> String {
    let text = said.to_string();
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Text that fits in a comment of nft: quotes and control characters are replaced, and it is cut at 120 bytes.
pub(crate) fn comment(text: &str) -> String {
    let mut clean = String::new();
    for letter in text.chars() {
        let letter =
            if letter == '"' || letter == '\\' || letter.is_control() { '\'' } else { letter };
        if clean.len() + letter.len_utf8() > 120 {
            break;
        }
        clean.push(letter);
    }
    clean
}
