use std::{io, net::IpAddr};

use weir_model::{Flow, Name};

/// Why a lab cannot be built or a probe has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not a Linux system.
    #[error("network namespaces exist on Linux only")]
    Unsupported,
    /// Neither the rights of root nor a user namespace.
    #[error("not allowed to make network namespaces")]
    Forbidden {
        /// What the kernel said.
        source: io::Error,
    },
    /// A user namespace was asked for too late.
    #[error("a process that has threads cannot move into a user namespace")]
    TooLate,
    /// A namespace could not be made or entered.
    #[error("cannot {what}")]
    Namespace {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A kernel setting of a new namespace could not be written.
    #[error("cannot set `{setting}` in a new network namespace")]
    Setting {
        /// Its path below `/proc/sys/net`.
        setting: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A link, an address or a route was refused.
    #[error("cannot {what}")]
    Link {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Two places claim one address.
    #[error("{address} belongs to {first} and to {second}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// Who claims it.
        first: String,
        /// Who claims it too.
        second: String,
    },
    /// Two nodes have one name.
    #[error("two nodes are called `{0}`")]
    TwoNodes(Name),
    /// A name that no node of the lab has.
    #[error("the lab has no node `{0}`")]
    NoNode(String),
    /// An address that cannot be given to anyone.
    #[error("{address} cannot be the address of {owner}: {why}")]
    Unusable {
        /// The address.
        address: IpAddr,
        /// Who was to have it.
        owner: String,
        /// What is special about it.
        why: &'static str,
    },
    /// A flow that no packet can be sent for.
    #[error("{flow} cannot be tried: {why}")]
    Impossible {
        /// The flow.
        flow: Flow,
        /// The reason.
        why: &'static str,
    },
    /// A probe met something other than an answer or silence.
    #[error("{flow} was neither answered nor dropped")]
    Probe {
        /// The flow; of several over SCTP between the same two ends, any: refusals of raw packets do not say their port.
        flow: Flow,
        /// What it met.
        source: io::Error,
    },
    /// An echo request met something other than an answer or silence.
    #[error("an echo request from {from} to {to} was neither answered nor dropped")]
    Ping {
        /// Where it came from.
        from: IpAddr,
        /// Where it went.
        to: IpAddr,
        /// What it met.
        source: io::Error,
    },
    /// A conversation that could not begin.
    #[error("{flow} cannot be kept open: it is not answered")]
    Unanswered {
        /// The flow.
        flow: Flow,
    },
    /// Nobody could be put at the far end of a probe.
    #[error("cannot answer at the far end of {flow}")]
    Answer {
        /// The flow.
        flow: Flow,
        /// What the kernel said.
        source: io::Error,
    },
    /// The probes could not be watched.
    #[error("cannot wait for answers")]
    Wait {
        /// What the kernel said.
        source: io::Error,
    },
}

impl LabError {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            LabError::Unsupported => Some("run this on a Linux machine or in a Linux container"),
            LabError::Forbidden { .. } => Some(
                "run as root, or let users make namespaces: `sysctl user.max_user_namespaces=10000`, on Debian also \
                 `kernel.unprivileged_userns_clone=1`, on Ubuntu also `kernel.apparmor_restrict_unprivileged_userns=0`; \
                 a container must be privileged",
            ),
            LabError::TooLate => {
                Some("run as root, or call `weir_lab::enter` first thing in `main`")
            }
            LabError::Namespace { source, .. } if denied(source) => {
                Some("run as root, or call `weir_lab::enter` first thing in `main`")
            }
            LabError::Setting { setting, source }
                if setting.starts_with("bridge/") && source.kind() == io::ErrorKind::NotFound =>
            {
                Some(
                    "load the module that shows what bridges switch to filters: `modprobe br_netfilter`",
                )
            }
            LabError::Setting { .. } => Some(
                "`/proc/sys/net` must be writable, as it is outside containers and in privileged ones",
            ),
            LabError::Taken { .. } => Some("give one of them another address"),
            LabError::Probe { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some(
                    "something answers for the far end: a filter that rejects instead of dropping?",
                )
            }
            LabError::Answer { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("stop what listens there: the lab puts a listener of its own at the far end")
            }
            _ => None,
        }
    }
}

fn denied(source: &io::Error) -> bool {
    source.kind() == io::ErrorKind::PermissionDenied
}
