use clap::Args;
use weir_engine::Budget;

/// The most that policies may use on a node.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BudgetArgs {
    /// The most entries that one policy may use on this node. An address in a set is one entry, a
    /// set is 32, and a rule, a port range or an exception is 8 for each distinct set of rules. A
    /// policy that exceeds it isolates its pods and allows nothing
    #[arg(long, value_name = "ENTRIES", default_value_t = Budget::default().policy, value_parser = entries)]
    policy_budget: usize,
    /// The most entries that the policies of one namespace may use on this node
    #[arg(long, value_name = "ENTRIES", default_value_t = Budget::default().namespace, value_parser = entries)]
    namespace_budget: usize,
    /// The most entries that all policies may use on this node
    #[arg(long, value_name = "ENTRIES", default_value_t = Budget::default().node, value_parser = entries)]
    node_budget: usize,
}

impl From<BudgetArgs> for Budget {
    fn from(args: BudgetArgs) -> Self {
        let BudgetArgs { policy_budget, namespace_budget, node_budget } = args;
        Budget { policy: policy_budget, namespace: namespace_budget, node: node_budget }
    }
}

/// A number of entries. A budget of zero would lock down every policy.
fn entries(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(entries @ 1..) => Ok(entries),
        _ => Err("expected a number of entries, at least 1".into()),
    }
}
