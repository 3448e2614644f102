//! Records of addresses that names had before.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::DomainPattern;

/// The first word of a record.
pub(crate) const RECORD: &str = "former";

/// A text from which [`parse_former`] restores the former addresses of a pattern's names.
pub fn former_record(pattern: &DomainPattern, addresses: &BTreeSet<IpAddr>) -> String {
    let mut record = format!("{RECORD} {pattern}");
    addresses.iter().for_each(|address| record.push_str(&format!(" {address}=")));
    record
}

/// Restores the former addresses of a pattern's names. `None` for another record. The end of an
/// address is marked, because an agent that is killed while it writes can leave a part of a record.
pub fn parse_former(record: &str) -> Option<(DomainPattern, Vec<IpAddr>)> {
    let mut words = record.split(' ');
    let (RECORD, pattern) = (words.next()?, words.next()?) else { return None };
    let pattern = match pattern.strip_prefix("*.") {
        Some(parent) => DomainPattern::Under(parent.into()),
        None => DomainPattern::Exact(pattern.into()),
    };
    let addresses = words.filter_map(|word| word.strip_suffix('=')?.parse().ok());
    Some((pattern, addresses.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_restore_the_addresses_of_patterns() {
        let addresses: [IpAddr; 2] = [[192, 0, 2, 17].into(), "2001:db8::1".parse().unwrap()];
        let exact = DomainPattern::Exact("a.example.com".into());
        for pattern in [exact.clone(), DomainPattern::Under("example.com".into())] {
            let record = former_record(&pattern, &addresses.into());
            assert_eq!(parse_former(&record), Some((pattern, addresses.to_vec())));
        }
        for other in ["", "former", "name a 192.0.2.1=1800000000", "compiling 77"] {
            assert_eq!(parse_former(other), None, "{other}");
        }
        let part = parse_former("former a.example.com 192.0.2.17= x= 192.0.2.1");
        assert_eq!(part, Some((exact, vec![addresses[0]])));
    }
}
