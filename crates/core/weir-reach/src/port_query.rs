use std::{fmt, str::FromStr};

use weir_model::{Pod, PortRange, Protocol, Service, ServicePort};

/// A port as a user types it: `80`, `80/UDP`, `http`, `dns/UDP`, or `any` for all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQuery {
    port: NumberOrName,
    protocol: Option<Protocol>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NumberOrName {
    Any,
    Number(u16),
    Name(String),
}

impl PortQuery {
    /// Whether it stands for all ports.
    pub fn is_any(&self) -> bool {
        self.port == NumberOrName::Any
    }

    /// The matching ports of a destination. A number without a protocol is a TCP port; a name
    /// refers to a port of the pod.
    pub fn at(&self, pod: Option<&Pod>) -> Vec<PortRange> {
        match &self.port {
            NumberOrName::Any => {
                let protocols = Protocol::ALL.into_iter();
                let asked = protocols.filter(|p| self.protocol.is_none_or(|asked| asked == *p));
                asked.map(PortRange::all).collect()
            }
            NumberOrName::Number(port) => {
                vec![PortRange::one(self.protocol.unwrap_or(Protocol::Tcp), *port)]
            }
            NumberOrName::Name(name) => pod
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

impl PortQuery {
    /// The matching ports of a Service. A number without a protocol is a TCP port.
    pub fn of_service<'s>(&self, service: &'s Service) -> Vec<&'s ServicePort> {
        let fits = |port: &&ServicePort| match &self.port {
            NumberOrName::Any => true,
            NumberOrName::Number(number) => {
                port.port == *number && port.protocol == self.protocol.unwrap_or(Protocol::Tcp)
            }
            NumberOrName::Name(name) => {
                *port.name == **name && self.protocol.is_none_or(|asked| port.protocol == asked)
            }
        };
        service.ports.iter().filter(fits).collect()
    }
}

impl fmt::Display for PortQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol;
        match &self.port {
            NumberOrName::Any => match protocol {
                None => f.write_str("any port"),
                Some(protocol) => write!(f, "any {protocol} port"),
            },
            NumberOrName::Number(port) => write!(f, "{port}/{}", protocol.unwrap_or(Protocol::Tcp)),
            NumberOrName::Name(name) => match protocol {
                None => write!(f, "{name}"),
                Some(protocol) => write!(f, "{name}/{protocol}"),
            },
        }
    }
}

impl FromStr for PortQuery {
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
                    format!("`{word}` is not a protocol of network policies: use TCP, UDP or SCTP")
                })
            })
            .transpose()?;
        let port = match port.parse::<u32>() {
            Ok(number) => match u16::try_from(number) {
                Ok(port @ 1..) => NumberOrName::Number(port),
                _ => return Err(format!("{number} is not a valid port (1 to 65535)")),
            },
            Err(_) if port == "any" => NumberOrName::Any,
            Err(_) if is_name(port) => NumberOrName::Name(port.to_owned()),
            Err(_) => {
                return Err(format!("`{port}` is neither a port number nor a valid port name"));
            }
        };
        Ok(PortQuery { port, protocol })
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
    fn a_port_is_a_number_or_a_name_with_an_optional_protocol() {
        for (text, expected) in [
            ("80", "80/TCP"),
            ("53/udp", "53/UDP"),
            ("http", "http"),
            ("dns/UDP", "dns/UDP"),
            ("any", "any port"),
            ("any/udp", "any UDP port"),
        ] {
            assert_eq!(
                text.parse::<PortQuery>().map(|port| port.to_string()),
                Ok(expected.to_owned())
            );
        }
        for text in ["", "0", "65536", "80/ICMP", "80/", "Web", "-1"] {
            assert!(text.parse::<PortQuery>().is_err(), "{text}");
        }
    }
}
