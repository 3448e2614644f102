//! Exact lists of networks.

use ipnet::IpNet;

/// Removes networks that lie inside others, and sorts the rest.
pub(crate) fn distinct(mut nets: Vec<IpNet>) -> Vec<IpNet> {
    nets.sort();
    nets.dedup();
    let mut kept: Vec<IpNet> = Vec::with_capacity(nets.len());
    for net in nets {
        // A network sorts directly before the networks inside it.
        if !kept.last().is_some_and(|last| last.contains(&net)) {
            kept.push(net);
        }
    }
    kept
}

/// The text of a network. A single address has no prefix length.
pub(crate) fn text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

#[cfg(test)]
mod tests {
    use weir_model::Block;

    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn exceptions_leave_exactly_the_rest() {
        let block = Block::new("8.8.8.8/24".parse().unwrap(), nets(&["8.8.8.9/31"]));
        let rest = block.nets().iter().map(text).collect::<Vec<_>>().join(" ");
        assert_eq!(
            rest,
            "8.8.8.0/29 8.8.8.10/31 8.8.8.12/30 8.8.8.16/28 8.8.8.32/27 8.8.8.64/26 8.8.8.128/25"
        );
        let all = Block::new("10.0.0.0/8".parse().unwrap(), nets(&["10.0.0.0/9", "10.128.0.0/9"]));
        assert_eq!(all.nets(), []);
    }

    #[test]
    fn networks_inside_another_network_are_removed() {
        let list = nets(&["10.0.0.0/16", "10.0.0.0/8", "10.0.0.1/32", "11.0.0.0/8", "fd00::1/128"]);
        assert_eq!(distinct(list), nets(&["10.0.0.0/8", "11.0.0.0/8", "fd00::1/128"]));
    }
}
