//! Parts of sentences.

use weir_model::{Peers, Ports, Rule};

/// The most ports that the text of a rule lists. All peers of a rule have its ports, so longer lists
/// would multiply.
const MAX_PORTS: usize = 100;

/// The ports of a rule. Empty for a set of named ports, which contains the ports itself.
pub fn ports(rule: &Rule) -> String {
    match (&rule.peers, &rule.ports) {
        (Peers::PortSet(_), _) => String::new(),
        (_, Ports::Of(list)) => join(list.iter(), ", "),
        (_, ports) => ports.to_string(),
    }
}

/// Joins ports, or the names of ports, up to a limit.
pub fn join(list: impl ExactSizeIterator<Item = impl ToString>, separator: &str) -> String {
    let more = list.len().saturating_sub(MAX_PORTS);
    let some: Vec<String> = list.take(MAX_PORTS).map(|one| one.to_string()).collect();
    match more {
        0 => some.join(separator),
        more => format!("{} and {more} more", some.join(separator)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_ports_is_cut() {
        assert_eq!(join((1..4).map(|port| port * 10), ", "), "10, 20, 30");
        let long = join(0..250, " or ");
        assert!(long.starts_with("0 or 1 or ") && long.ends_with(" or 99 and 150 more"), "{long}");
    }
}
