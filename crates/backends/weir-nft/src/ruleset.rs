use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in order.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The header whose addresses a rule looks at.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub(crate) fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }
}

/// Everything weir puts into the kernel: one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Sets and maps by name.
    pub sets: BTreeMap<String, Set>,
    /// Chains by name.
    pub chains: BTreeMap<String, Chain>,
}

/// A set, or a map from its elements to verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// What the elements are.
    pub kind: Kind,
    /// The family of the addresses in them.
    pub family: Family,
    /// What it means, for people.
    pub comment: String,
    /// The elements.
    pub elements: BTreeSet<Element>,
}

/// What the elements of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Addresses.
    Addresses,
    /// Two addresses.
    Pairs,
    /// Addresses, each with a protocol and a port.
    Ports,
    /// Addresses, each with the chain to go to.
    Verdicts,
}

/// An element of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The address.
    pub address: IpAddr,
    /// What comes after it: nothing, another address, a protocol and port, or a verdict, in nft's syntax.
    pub rest: String,
}

/// A chain and its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Where the kernel calls it; `None` if other chains do.
    pub hook: Option<Hook>,
    /// The rules in order, in nft's syntax.
    pub rules: Vec<String>,
}

/// Where the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// For packets that the node passes on.
    Forward,
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table inet weir {{")?;
        for (name, set) in &self.sets {
            set.write(f, name)?;
        }
        for (name, chain) in &self.chains {
            chain.write(f, name)?;
        }
        writeln!(f, "}}")
    }
}

impl Set {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let address = match self.family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        let (word, kind) = match self.kind {
            Kind::Addresses => ("set", address.to_owned()),
            Kind::Pairs => ("set", format!("{address} . {address}")),
            Kind::Ports => ("set", format!("{address} . inet_proto . inet_service")),
            Kind::Verdicts => ("map", format!("{address} : verdict")),
        };
        writeln!(f, "\t{word} {name} {{\n\t\ttype {kind}")?;
        writeln!(f, "\t\tcomment \"{}\"", self.comment)?;
        if !self.elements.is_empty() {
            let elements =
                self.elements.iter().map(|element| format!("{}{}", element.address, element.rest));
            writeln!(
                f,
                "\t\telements = {{ {} }}",
                elements.collect::<Vec<_>>().join(",\n\t\t\t     ")
            )?;
        }
        writeln!(f, "\t}}\n")
    }
}

impl Chain {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        writeln!(f, "\tchain {name} {{")?;
        if let Some(Hook::Forward) = self.hook {
            writeln!(f, "\t\ttype filter hook forward priority filter; policy accept;")?;
        }
        for rule in &self.rules {
            writeln!(f, "\t\t{rule}")?;
        }
        writeln!(f, "\t}}\n")
    }
}
