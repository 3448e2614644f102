//! Ports as they are typed: `80`, `80/UDP`, `http`, `dns/UDP`.

use std::{fmt, str::FromStr};

use weir_model::{Pod, PortRange, Protocol};

/// A port as typed: a number or a name, perhaps with a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortArg {
    what: What,
    protocol: Option<Protocol>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Number(u16),
    Name(String),
}

impl PortArg {
    /// The ports it means at a destination. A number without a protocol is a TCP port; a name is one of the pod's.
    pub(crate) fn at(&self, pod: Option<&Pod>) -> Vec<PortRange> {
        match &self.what {
            What::Number(port) => {
                vec![PortRange::one(self.protocol.unwrap_or(Protocol::Tcp), *port)]
            }
            What::Name(name) => pod
                .map(|pod| pod.ports.as_slice())
                .unwrap_or_default()
                .iter()
                .filter(|port| *port.name == **name)
                .filter(|port| self.protocol.is_none_or(|protocol| port.protocol == protocol))
                .map(|port| PortRange::one(port.protocol, port.port))
                .collect(),
        }
    }
}

impl fmt::Display for PortArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol;
        match &self.what {
            What::Number(port) => write!(f, "{port}/{}", protocol.unwrap_or(Protocol::Tcp)),
            What::Name(name) => match protocol {
                None => write!(f, "{name}"),
                Some(protocol) => write!(f, "{name}/{protocol}"),
            },
        }
    }
}

impl FromStr for PortArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = match text.split_once('/') {
            None => (text, None),
            Some((port, protocol)) => (port, Some(protocol)),
        };
        let protocol = protocol
            .map(|word| {
                let known = |p: &Protocol| p.to_string().eq_ignore_ascii_case(word);
                Protocol::ALL.into_iter().find(known).ok_or_else(|| {
                    format!("`{word}` is no protocol that policies know: TCP, UDP or SCTP")
                })
            })
            .transpose()?;
        let what = match port.parse::<u32>() {
            Ok(number) => match u16::try_from(number) {
                Ok(port @ 1..) => What::Number(port),
                _ => return Err(format!("{number} is no port: 1 to 65535")),
            },
            Err(_) if is_name(port) => What::Name(port.to_owned()),
            Err(_) => return Err(format!("`{port}` is neither a number nor the name of a port")),
        };
        Ok(PortArg { what, protocol })
    }
}

fn is_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && text.bytes().any(|b| b.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_names_with_a_protocol() {
        for (text, meant) in
            [("80", "80/TCP"), ("53/udp", "53/UDP"), ("http", "http"), ("dns/UDP", "dns/UDP")]
        {
            assert_eq!(text.parse::<PortArg>().map(|port| port.to_string()), Ok(meant.to_owned()));
        }
        for text in ["", "0", "65536", "80/ICMP", "80/", "Web", "-1"] {
            assert!(text.parse::<PortArg>().is_err(), "{text}");
        }
    }
}
