use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use weir_model::{Flow, Name};

/// The lab cannot be built, or a probe has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not a Linux system.
    #[error("network namespaces exist on Linux only")]
    Unsupported,
    /// The process has neither root privileges nor a user namespace.
    #[error("not permitted to create network namespaces")]
    Forbidden {
        /// The kernel's error.
        source: io::Error,
    },
    /// eBPF programs were requested without root privileges.
    #[error("eBPF programs need root privileges")]
    NeedsRoot,
    /// A user namespace was requested too late.
    #[error("a process that has threads cannot move into a user namespace")]
    TooLate,
    /// A namespace could not be created or entered.
    #[error("cannot {what}")]
    Namespace {
        /// The failed operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A kernel setting of a new namespace could not be written.
    #[error("cannot set `{setting}` in a new network namespace")]
    Setting {
        /// Its path below `/proc/sys/net`.
        setting: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel rejected a link, an address or a route.
    #[error("cannot {what}")]
    Link {
        /// The failed operation.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Two owners claim one address.
    #[error("{address} belongs to {first} and to {second}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// The first owner.
        first: String,
        /// The second owner.
        second: String,
    },
    /// Two nodes have the same name.
    #[error("two nodes are called `{0}`")]
    TwoNodes(Name),
    /// The lab has no node with this name.
    #[error("the lab has no node `{0}`")]
    NoNode(String),
    /// An address that no node or pod can have.
    #[error("{address} cannot be the address of {owner}: {why}")]
    Unusable {
        /// The address.
        address: IpAddr,
        /// The node or pod that was to have it.
        owner: String,
        /// The reason.
        why: &'static str,
    },
    /// A flow for which no packet can be sent.
    #[error("{flow} cannot be probed: {why}")]
    Impossible {
        /// The flow.
        flow: Flow,
        /// The reason.
        why: &'static str,
    },
    /// A probe got neither an answer nor a timeout.
    #[error("{flow} was neither answered nor dropped")]
    Probe {
        /// The flow. For several SCTP flows between the same ends it can be any of them, because
        /// raw sockets report no port.
        flow: Flow,
        /// The error of the probe.
        source: io::Error,
    },
    /// An echo request got neither an answer nor a timeout.
    #[error("an echo request from {from} to {to} was neither answered nor dropped")]
    Ping {
        /// The source address.
        from: IpAddr,
        /// The destination address.
        to: IpAddr,
        /// The error of the request.
        source: io::Error,
    },
    /// A DNS server could not be started.
    #[error("cannot start a DNS server at {at}")]
    Resolver {
        /// The address.
        at: SocketAddr,
        /// The error of the socket.
        source: io::Error,
    },
    /// A conversation that got no first answer.
    #[error("{flow} cannot be kept open: it got no answer")]
    Unanswered {
        /// The flow.
        flow: Flow,
    },
    /// No listener could be started at the far end of a probe.
    #[error("cannot listen at the far end of {flow}")]
    Answer {
        /// The flow.
        flow: Flow,
        /// The kernel's error.
        source: io::Error,
    },
    /// Waiting for answers failed.
    #[error("cannot wait for answers")]
    Wait {
        /// The kernel's error.
        source: io::Error,
    },
}

impl LabError {
    /// A hint for the user, if there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            LabError::Unsupported => Some("run this on a Linux machine or in a Linux container"),
            LabError::Forbidden { .. } => Some(
                "run as root, or allow user namespaces: `sysctl user.max_user_namespaces=10000`, on Debian also \\
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
                    "load the module that passes bridged packets to the firewall: `modprobe br_netfilter`",
                )
            }
            LabError::Setting { .. } => {
                Some("`/proc/sys/net` must be writable, as on a host or in a privileged container")
            }
            LabError::Taken { .. } => Some("give one of them another address"),
            LabError::Probe { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some(
                    "something rejects the packets at the far end: a filter with `reject` instead of `drop`?",
                )
            }
            LabError::Answer { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("stop the program that listens there: the lab needs the port for its listener")
            }
            _ => None,
        }
    }
}

fn denied(source: &io::Error) -> bool {
    source.kind() == io::ErrorKind::PermissionDenied
}
