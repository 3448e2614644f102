use super::Size;

/// The number of admin rules of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) enum AdminRules {
    Thousand,
    TenThousand,
}

impl AdminRules {
    pub(super) const ALL: [AdminRules; 2] = [AdminRules::Thousand, AdminRules::TenThousand];

    pub(super) fn count(self) -> usize {
        match self {
            AdminRules::Thousand => 1_000,
            AdminRules::TenThousand => 10_000,
        }
    }
}

/// A measured task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) enum Task {
    Load,
    One,
    OneOfRuled(AdminRules),
    OneHere(AdminRules),
    OneInIpset,
    Restart,
}

impl Task {
    pub(super) const ALL: [Task; 8] = [
        Task::Load,
        Task::One,
        Task::OneOfRuled(AdminRules::Thousand),
        Task::OneOfRuled(AdminRules::TenThousand),
        Task::OneHere(AdminRules::Thousand),
        Task::OneHere(AdminRules::TenThousand),
        Task::OneInIpset,
        Task::Restart,
    ];

    pub(super) fn what(self, size: Size) -> String {
        let Size { members, tenants, .. } = size;
        match self {
            Task::Load => format!("first load of {members} members"),
            Task::One => format!("add or remove one of {members} peers"),
            Task::OneOfRuled(rules) => {
                let rules = rules.count();
                format!("add or remove one of {members} peers of {rules} admin rules")
            }
            Task::OneHere(rules) => {
                let rules = rules.count();
                format!("add or remove one pod of the node, {members} peers of {rules} admin rules")
            }
            Task::OneInIpset => format!("add or remove one of {members} peers of ipset"),
            Task::Restart => format!(
                "restart without changes, {} sets of {} members",
                tenants.sets, tenants.members
            ),
        }
    }

    /// The unit and its number per second.
    pub(super) fn unit(self) -> (&'static str, f64) {
        match self {
            Task::Load | Task::Restart => ("ms", 1e3),
            Task::One | Task::OneOfRuled(_) | Task::OneHere(_) | Task::OneInIpset => ("µs", 1e6),
        }
    }
}
