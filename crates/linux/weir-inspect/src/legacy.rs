//! The chains of iptables-legacy, which netlink does not show.

use std::{collections::BTreeSet, fs, process::Command};

use crate::signatures::{Filter, PolicyRules, owners};

/// The tables of a family that some program has created, and the program that lists their rules.
const FAMILIES: [(&str, &str); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"),
];

/// Finds the rules of policy engines. Without the programs of iptables-legacy it finds none.
pub(crate) fn find_policy_rules() -> Vec<PolicyRules> {
    let mut found = Vec::new();
    for (tables, program) in FAMILIES {
        // Listing the rules of a table would create it.
        let tables = fs::read_to_string(tables).unwrap_or_default();
        if !tables.lines().any(|table| table == "filter") {
            continue;
        }
        let saved = save(program, "filter").unwrap_or_default();
        let names: BTreeSet<&str> = saved.lines().filter_map(chain_name).collect();
        let filter = Filter::IptablesLegacy;
        let all = owners(|name| names.contains(name)).into_iter();
        found.extend(all.map(|(owner, sign)| PolicyRules { owner, filter, sign }));
    }
    found
}

/// Whether rules of the table `nat` can change the destination of packets. If the rules cannot be
/// listed, they can.
pub(crate) fn has_translation() -> bool {
    FAMILIES.iter().any(|(tables, program)| {
        let tables = fs::read_to_string(tables).unwrap_or_default();
        let has_table = tables.lines().any(|table| table == "nat");
        has_table && save(program, "nat").is_none_or(|saved| saved.lines().any(is_translation))
    })
}

/// Whether a line of iptables-save is a rule for packets before they are routed.
fn is_translation(line: &str) -> bool {
    ["-A PREROUTING ", "-A OUTPUT "].iter().any(|start| line.starts_with(start))
}

/// The chain that a line of iptables-save declares.
fn chain_name(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next()
}

/// The output of a program, which some systems install outside the PATH of an ordinary user.
fn save(program: &str, table: &str) -> Option<String> {
    let run = |path: &str| Command::new(path).args(["-t", table]).output();
    let output = run(program).or_else(|_| run(&format!("/usr/sbin/{program}"))).ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_translate_destinations_are_recognized() {
        assert!(is_translation("-A PREROUTING -j KUBE-SERVICES"));
        assert!(!is_translation("-A POSTROUTING -j MASQUERADE"));
        assert!(!is_translation(":PREROUTING ACCEPT [0:0]"));
    }

    #[test]
    fn chains_are_read_from_the_output_of_iptables_save() {
        let saved = "*filter\n:FORWARD ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\nCOMMIT";
        let names: Vec<&str> = saved.lines().filter_map(chain_name).collect();
        assert_eq!(names, ["FORWARD", "cali-FORWARD"]);
    }
}
