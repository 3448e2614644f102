//! The names by which the agent finds the objects of its node.

/// The number of names in a message.
const NAMES_SHOWN: usize = 3;

/// The node, and where its objects are, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    /// The namespace of the objects.
    pub(crate) namespace: String,
    /// The name of this node.
    pub(crate) node: String,
    /// The prefix of the names of all objects.
    pub(crate) prefix: String,
}

impl NodeIdentity {
    /// Explains that none of the HostprotPols belongs to this node. Their names show which flag is
    /// probably wrong.
    pub(crate) fn mismatch<'a>(&self, own: &str, names: impl Iterator<Item = &'a str>) -> String {
        let NodeIdentity { namespace, node, prefix } = self;
        let (node_suffix, node_prefix) = (format!("_node_{node}"), format!("{prefix}_node_"));
        let (mut count, mut prefixes, mut nodes) = (0, Vec::new(), Vec::new());
        for name in names {
            count += 1;
            prefixes.extend(name.strip_suffix(&node_suffix));
            nodes.extend(name.strip_prefix(&node_prefix));
        }
        if count == 0 {
            return format!(
                "there are no HostprotPols in namespace {namespace}; the files stay unchanged; \
                 check that a `weir controller --enable hpp` runs and leads, and --hpp-namespace \
                 of both; after disabling the controller, remove the files with \
                 `weir agent --datapath opflex --cleanup`"
            );
        }
        let hint = if !prefixes.is_empty() {
            format!("this node has one with the prefix {}: check --aci-prefix", few(&prefixes))
        } else if !nodes.is_empty() {
            format!("other nodes have one: {}: check --node", few(&nodes))
        } else {
            "check --node and --aci-prefix".into()
        };
        format!(
            "none of the {count} HostprotPols in namespace {namespace} is {own}, the one of this \
             node; the files stay unchanged; {hint}"
        )
    }
}

/// The first names, and the number of the others.
fn few(names: &[&str]) -> String {
    let first = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[&str], expected: &[&str]) {
        let identity =
            NodeIdentity { namespace: "aci".into(), node: "n1".into(), prefix: "demo".into() };
        let message = identity.mismatch("demo_node_n1", names.iter().copied());
        assert!(message.contains("the files stay unchanged"), "{message}");
        for part in expected {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn the_names_of_other_objects_show_which_flag_is_wrong() {
        check(&[], &["no HostprotPols in namespace aci", "--hpp-namespace", "--cleanup"]);
        check(
            &["kube_node_n1", "kube_np_static-egress"],
            &["none of the 2", "is demo_node_n1", "the prefix kube: check --aci-prefix"],
        );
        let others = ["demo_node_n2", "demo_node_n3", "demo_node_n4", "demo_node_n5"];
        check(&others, &["n2, n3, n4 and 1 more: check --node"]);
        check(&["kube_node_n2"], &["check --node and --aci-prefix"]);
    }
}
