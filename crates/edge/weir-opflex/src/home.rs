//! Whether what is in the API is about this node at all.

/// How many names are told.
const FEW: usize = 3;

/// Who we are, as we were told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Where the objects are.
    pub(crate) namespace: String,
    /// This node.
    pub(crate) node: String,
    /// What names begin with.
    pub(crate) prefix: String,
}

impl Home {
    /// Why nothing is done: none of the HostprotPols is that of this node. What they are called tells what may be wrong.
    pub(crate) fn stranger<'a>(&self, own: &str, names: impl Iterator<Item = &'a str>) -> String {
        let Home { namespace, node, prefix } = self;
        let (of_node, of_prefix) = (format!("_node_{node}"), format!("{prefix}_node_"));
        let (mut count, mut prefixes, mut nodes) = (0, Vec::new(), Vec::new());
        for name in names {
            count += 1;
            prefixes.extend(name.strip_suffix(&of_node));
            nodes.extend(name.strip_prefix(&of_prefix));
        }
        let stays = "the folder stays as it is";
        if count == 0 {
            return format!(
                "there are no HostprotPols in namespace {namespace}, and {stays}; check that `weir controller --enable hpp` is in charge, and \
                 --hpp-namespace here and there; if it was disabled, `weir agent --datapath opflex --cleanup` empties the folder"
            );
        }
        let hint = match (prefixes.is_empty(), nodes.is_empty()) {
            (false, _) => {
                format!("the prefix of this node's is {}: check --aci-prefix", few(&prefixes))
            }
            (true, false) => format!("there are those of {}: check --node", few(&nodes)),
            (true, true) => "check --node and --aci-prefix".into(),
        };
        format!(
            "none of the {count} HostprotPols in namespace {namespace} is {own}, that of this node, and {stays}; {hint}"
        )
    }
}

/// The first of some names, and how many more there are.
fn few(names: &[&str]) -> String {
    let first = names[..names.len().min(FEW)].join(", ");
    match names.len().saturating_sub(FEW) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[&str], expected: &[&str]) {
        let home = Home { namespace: "aci".into(), node: "n1".into(), prefix: "demo".into() };
        let said = home.stranger("demo_node_n1", names.iter().copied());
        assert!(said.contains("the folder stays as it is"), "{said}");
        for part in expected {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn what_is_there_tells_what_is_wrong() {
        check(&[], &["no HostprotPols in namespace aci", "--hpp-namespace", "--cleanup"]);
        check(
            &["kube_node_n1", "kube_np_static-egress"],
            &["none of the 2", "is demo_node_n1", "is kube: check --aci-prefix"],
        );
        let others = ["demo_node_n2", "demo_node_n3", "demo_node_n4", "demo_node_n5"];
        check(&others, &["n2, n3, n4 and 1 more: check --node"]);
        check(&["kube_node_n2"], &["check --node and --aci-prefix"]);
    }
}
