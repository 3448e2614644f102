//! The API server's rules for names, labels and ports. An error is a phrase that says what was
//! expected.

/// The name of a namespace or of another object that becomes a DNS label.
pub(crate) fn dns_label(name: &str) -> Result<(), String> {
    expect(
        name.len() <= 63 && is_dns_label(name),
        "at most 63 lower case letters, digits and `-`, with a letter or digit at both ends",
    )
}

/// The name of most objects.
pub(crate) fn dns_subdomain(name: &str) -> Result<(), String> {
    expect(
        name.len() <= 253 && name.split('.').all(is_dns_label),
        "at most 253 lower case letters, digits, `-` and `.`, with a letter or digit at both ends of each part",
    )
}

/// The key of a label.
pub(crate) fn label_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| dns_subdomain(prefix).is_err()) {
        return Err("a DNS name before the `/`".into());
    }
    expect(
        !name.is_empty() && is_label_text(name),
        "at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, after an optional DNS name and `/`",
    )
}

/// The value of a label.
pub(crate) fn label_value(value: &str) -> Result<(), String> {
    expect(
        value.is_empty() || is_label_text(value),
        "at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, or nothing",
    )
}

/// The name of a container port.
pub(crate) fn port_name(name: &str) -> Result<(), String> {
    let fits = (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.contains("--")
        && !name.starts_with('-')
        && !name.ends_with('-');
    expect(
        fits,
        "at most 15 lower case letters, digits and single `-` inside, with at least one letter",
    )
}

/// A domain name in a policy: two or more parts, optionally after `*.`.
pub(crate) fn domain_name(name: &str) -> Result<(), String> {
    let is_part = |part: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_')
    };
    let parts = name.strip_prefix("*.").unwrap_or(name);
    let parts = parts.strip_suffix('.').unwrap_or(parts);
    expect(
        parts.contains('.') && parts.split('.').all(is_part),
        "a domain name of two or more parts, as in `kubernetes.io` or `*.kubernetes.io`",
    )
}

fn expect(is_valid: bool, expected: &str) -> Result<(), String> {
    if is_valid { Ok(()) } else { Err(expected.into()) }
}

fn is_dns_label(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn is_label_text(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_api_server() {
        let long = "a".repeat(64);
        for (name, label, subdomain) in [
            ("shop", true, true),
            ("shop-1", true, true),
            ("a.b", false, true),
            ("Shop", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            ("", false, false),
            ("a_b", false, false),
            (&long, false, true),
        ] {
            assert_eq!(
                (dns_label(name).is_ok(), dns_subdomain(name).is_ok()),
                (label, subdomain),
                "{name}"
            );
        }
    }

    #[test]
    fn labels_follow_the_api_server() {
        for (key, fits) in [
            ("app", true),
            ("kubernetes.io/metadata.name", true),
            ("A_b.c", true),
            ("a/b/c", false),
            ("/a", false),
            ("a/", false),
            ("", false),
            ("a b", false),
            ("Example.com/a", false),
        ] {
            assert_eq!(label_key(key).is_ok(), fits, "{key}");
        }
        for (value, fits) in
            [("", true), ("v1.0", true), ("-a", false), ("a b", false), ("*", false)]
        {
            assert_eq!(label_value(value).is_ok(), fits, "{value}");
        }
    }

    /// V3.
    #[test]
    fn port_names_follow_the_api_server() {
        for (name, fits) in [
            ("http", true),
            ("serve-80-tcp", true),
            ("8080", false),
            ("Http", false),
            ("a--b", false),
            ("-a", false),
            ("a-", false),
            ("abcdefghijklmnop", false),
            ("", false),
        ] {
            assert_eq!(port_name(name).is_ok(), fits, "{name}");
        }
    }
}
