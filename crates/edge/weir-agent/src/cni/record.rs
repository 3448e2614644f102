//! Attachments as lines of text, which the datapath keeps for the next agent.
//!
//! ```text
//!   NAMESPACE/NAME UID CONTAINER INTERFACE NETWORK ADDRESS,… LINK,… end
//! ```
//!
//! A missing value is `-`. Characters that are not letters, digits or one of `._:-` are written as
//! `%` and two hexadecimal digits for each byte.

use std::fmt::Write;

use weir_cni_protocol::Attachment;

const NONE: &str = "-";
const END: &str = "end";

/// The line of an attachment.
pub(super) fn encode(attachment: &Attachment) -> String {
    let Attachment { namespace, name, uid, container, interface, network, addresses, links } =
        attachment;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let list = |texts: &[String]| {
        let texts: Vec<String> = texts.iter().map(|text| escape(text)).collect();
        if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
    };
    let words = [
        format!("{}/{}", escape(namespace), escape(name)),
        uid.as_deref().map_or(NONE.to_owned(), escape),
        escape(container),
        escape(interface),
        escape(network),
        list(&addresses),
        list(links),
        END.to_owned(),
    ];
    words.join(" ")
}

/// The attachment of a line. `None` if the line is incomplete or malformed.
pub(super) fn decode(line: &str) -> Option<Attachment> {
    let words: Vec<&str> = line.split(' ').collect();
    let [pod, uid, container, interface, network, addresses, links, END] = words[..] else {
        return None;
    };
    let (namespace, name) = pod.split_once('/')?;
    let list = |word: &str| -> Option<Vec<String>> {
        let parts = word.split(',').filter(|part| *part != NONE);
        parts.map(unescape).collect()
    };
    let addresses = list(addresses)?.iter().map(|one| one.parse().ok()).collect::<Option<_>>()?;
    Some(Attachment {
        namespace: unescape(namespace)?,
        name: unescape(name)?,
        uid: if uid == NONE { None } else { Some(unescape(uid)?) },
        container: unescape(container)?,
        interface: unescape(interface)?,
        network: unescape(network)?,
        addresses,
        links: list(links)?,
    })
}

fn escape(text: &str) -> String {
    if text == NONE {
        return "%2d".to_owned();
    }
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._:-".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> Attachment {
        Attachment {
            namespace: "shop".into(),
            name: "web-1".into(),
            uid: Some("1b-2".into()),
            container: "c0ffee".into(),
            interface: "eth0".into(),
            network: "my net, \"%\" ä".into(),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            links: vec!["veth1".into(), "-".into()],
        }
    }

    #[test]
    fn a_record_is_read_back() {
        let line = encode(&attachment());
        let expected = "shop/web-1 1b-2 c0ffee eth0 my%20net%2c%20%22%25%22%20%c3%a4 10.0.0.1,fd00::1 veth1,%2d end";
        assert_eq!(line, expected);
        assert_eq!(decode(&line), Some(attachment()));
        let bare = Attachment { uid: None, links: Vec::new(), ..attachment() };
        assert_eq!(decode(&encode(&bare)), Some(bare));
    }

    #[test]
    fn an_incomplete_record_is_none() {
        let line = encode(&attachment());
        for length in 0..line.len() {
            assert_eq!(decode(&line[..length]), None, "{}", &line[..length]);
        }
        for bad in ["a/b - c d e f - end", "a/b - c d e 10.0.0.1 %f end", "a b c d e - - end"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
