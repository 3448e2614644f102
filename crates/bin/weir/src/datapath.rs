//! The datapaths: how each one runs, renders, is tested and is compared with the machine.
//!
//! *Invariant*: [`DatapathKind::profile`] is the only `match` over the kinds. A new backend adds a
//! variant and an arm.

use std::{cell::OnceCell, fmt, io::Write};

use clap::{ValueEnum, builder::PossibleValue};
use weir_engine::Locality;
use weir_hcn::Acls;
use weir_kube::ClusterKinds;
use weir_model::{Flow, Name, PolicyId, Program, Verdict, World};
use weir_reach::ReachState;

use crate::{
    agent::AgentCommand,
    exit::Exit,
    failure::Failure,
    kernel::KernelLab,
    opflex, platform,
    present::{self, Format, Schema, findings::FindingJson, program::Listing},
    source::Loaded,
    status::RuleSettings,
};

/// A datapath, as `--datapath` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatapathKind {
    Sim,
    Nftables,
    Iptables,
    Ebpf,
    Hcn,
    Opflex,
}

/// The properties of a datapath that the commands need.
pub(crate) struct DatapathProfile {
    /// The value of `--datapath`.
    pub(crate) name: &'static str,
    /// The line that shell completion shows.
    summary: &'static str,
    /// Runs `weir agent`; `None` if this operating system has no such datapath.
    pub(crate) agent: Option<RunAgent>,
    /// Prints the rules for `weir render`.
    pub(crate) rendering: Rendering,
    /// Evaluates the probes of `weir test`.
    pub(crate) testing: Testing,
    /// Compares the rules with the machine for `weir render --live`.
    pub(crate) live: LiveComparison,
}

/// Runs an agent until it ends.
pub(crate) type RunAgent = fn(&AgentCommand) -> anyhow::Result<Exit>;

/// The way rules are printed.
#[derive(Clone, Copy)]
pub(crate) struct Rendering {
    /// Writes them.
    pub(crate) write: fn(&Rendered<'_>, &mut dyn Write) -> anyhow::Result<()>,
    /// The kinds of objects that it needs.
    pub(crate) kinds: ClusterKinds,
    /// The formats that `write` supports.
    pub(crate) formats: &'static [Format],
    /// The syntax of the output, for the error about another format.
    pub(crate) syntax: &'static str,
    /// Whether `-n` restricts the output.
    pub(crate) unit: Unit,
    /// Renders the part that comes from a policy, which is `None` if the policy selects no pod.
    /// `None` if the datapath cannot show the part.
    pub(crate) policy: Option<RenderPolicy>,
}

/// Renders the part of a program that comes from a policy.
pub(crate) type RenderPolicy = fn(&Program, &PolicyId) -> Option<String>;

/// The unit that rules are printed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Each pod by itself, so that a namespace can be selected.
    Pod,
    /// A whole node.
    Node,
}

/// The input of a rendering.
pub(crate) struct Rendered<'a> {
    pub(crate) loaded: &'a Loaded,
    /// The node to print the rules of; `None` for all.
    pub(crate) node: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) aci_prefix: &'a str,
    pub(crate) aci_files: &'a opflex::FileOptions,
    pub(crate) output: Format,
    /// The compiled rules, once they are needed.
    pub(crate) program: OnceCell<Program>,
}

/// The way the probes of a test are evaluated.
#[derive(Clone, Copy)]
pub(crate) enum Testing {
    /// In this process.
    InMemory(fn(&ReachState, &[Flow]) -> Result<Vec<Probed>, Failure>),
    /// With real packets, in network namespaces of this machine.
    InKernel(PacketFilter),
}

/// The answer of a datapath to a probe.
pub(crate) struct Probed {
    /// Whether the connection passes.
    pub(crate) verdict: Verdict,
    /// A policy that the datapath cannot express completely, if one applies.
    pub(crate) shortfall: Option<String>,
}

/// Returns the difference between the installed rules and those of a program in a mode, empty if
/// there is none.
pub(crate) type CompareLive = fn(&Program, &RuleSettings) -> Result<String, Failure>;

/// Whether rules can be compared with those that are installed on this machine.
#[derive(Clone, Copy)]
pub(crate) enum LiveComparison {
    /// They can.
    Compare(CompareLive),
    /// They cannot.
    Unsupported { reason: &'static str, hint: &'static str },
}

/// A packet filter of the Linux kernel. On other systems its functions fail.
#[derive(Clone, Copy)]
pub(crate) struct PacketFilter {
    /// Runs `weir agent`; `None` on other systems.
    pub(crate) agent: Option<RunAgent>,
    /// Prepares this process for labs, before it has a second thread.
    pub(crate) enter: fn() -> Result<(), Failure>,
    /// Installs the policies of a world on a node of a lab.
    pub(crate) enforce: fn(&KernelLab, &Name, &World) -> Result<(), Failure>,
    /// The steps from the installed rules to a program.
    pub(crate) live: LiveComparison,
    /// Tries a program in a network namespace, and returns what this node lacks for its rules.
    pub(crate) check: fn(&Program) -> Result<Vec<String>, Failure>,
}

impl DatapathKind {
    /// Everything that depends on the kind.
    pub(crate) fn profile(self) -> DatapathProfile {
        match self {
            DatapathKind::Sim => DatapathProfile {
                name: "sim",
                summary: "The compiled rules, in memory",
                agent: None,
                rendering: Rendering {
                    write: listing,
                    kinds: ClusterKinds::Policies,
                    formats: &[Format::Text, Format::Json, Format::Yaml],
                    syntax: "as text, JSON or YAML",
                    unit: Unit::Pod,
                    policy: None,
                },
                testing: Testing::InMemory(compiled),
                live: LiveComparison::Unsupported {
                    reason: "exists only in memory",
                    hint: "leave out `--live`, or leave out `--datapath` to compare with the datapath of this system",
                },
            },
            DatapathKind::Nftables => DatapathProfile {
                name: "nftables",
                summary: "nftables on Linux",
                agent: platform::NFTABLES.agent,
                rendering: Rendering {
                    write: |of, out| Ok(write!(out, "{}", weir_nft::render(of.program()))?),
                    kinds: ClusterKinds::Policies,
                    formats: &[Format::Text],
                    syntax: "in nft syntax",
                    unit: Unit::Node,
                    policy: None,
                },
                testing: Testing::InKernel(platform::NFTABLES),
                live: platform::NFTABLES.live,
            },
            DatapathKind::Iptables => DatapathProfile {
                name: "iptables",
                summary: "iptables and ipset on Linux",
                agent: platform::IPTABLES.agent,
                rendering: Rendering {
                    write: |of, out| Ok(write!(out, "{}", weir_iptables::render(of.program()))?),
                    kinds: ClusterKinds::Policies,
                    formats: &[Format::Text],
                    syntax: "in the format of ipset save and iptables-save",
                    unit: Unit::Node,
                    policy: Some(|program, policy| {
                        let part = weir_iptables::render_policy(program, policy);
                        part.map(|part| part.to_string())
                    }),
                },
                testing: Testing::InKernel(platform::IPTABLES),
                live: platform::IPTABLES.live,
            },
            DatapathKind::Ebpf => DatapathProfile {
                name: "ebpf",
                summary: "eBPF programs at netfilter's hooks on Linux (experimental)",
                agent: platform::EBPF.agent,
                rendering: Rendering {
                    write: |of, out| Ok(write!(out, "{}", weir_ebpf::render(of.program()))?),
                    kinds: ClusterKinds::Policies,
                    formats: &[Format::Text],
                    syntax: "as the content of maps and the program",
                    unit: Unit::Node,
                    policy: None,
                },
                testing: Testing::InKernel(platform::EBPF),
                live: platform::EBPF.live,
            },
            DatapathKind::Hcn => DatapathProfile {
                name: "hcn",
                summary: "ACLs of the Host Networking Service on Windows",
                agent: platform::HCN,
                rendering: Rendering {
                    write: write_acls,
                    kinds: ClusterKinds::Policies,
                    formats: &[Format::Text, Format::Json, Format::Yaml],
                    syntax: "as text, JSON or YAML",
                    unit: Unit::Node,
                    policy: None,
                },
                testing: Testing::InMemory(acls),
                live: platform::HCN_LIVE,
            },
            DatapathKind::Opflex => DatapathProfile {
                name: "opflex",
                summary: "Policy files for opflex-agent (Cisco ACI)",
                // opflex-agent runs on Linux.
                agent: if cfg!(windows) { None } else { Some(AgentCommand::run_opflex) },
                rendering: Rendering {
                    write: opflex::render,
                    kinds: ClusterKinds::PoliciesAndServices,
                    formats: &[Format::Text, Format::Json, Format::Yaml],
                    syntax: "as files, JSON or YAML",
                    unit: Unit::Node,
                    policy: None,
                },
                testing: Testing::InMemory(opflex::probe),
                live: LiveComparison::Unsupported {
                    reason: "writes files for opflex-agent",
                    hint: "leave out `--live`, and compare with the files in /var/lib/opflex-agent-ovs/netpols, or with `curl 127.0.0.1:9640/status` on the node",
                },
            },
        }
    }
}

impl ValueEnum for DatapathKind {
    fn value_variants<'a>() -> &'a [Self] {
        use DatapathKind::{Ebpf, Hcn, Iptables, Nftables, Opflex, Sim};
        &[Sim, Nftables, Iptables, Ebpf, Hcn, Opflex]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let DatapathProfile { name, summary, .. } = self.profile();
        Some(PossibleValue::new(name).help(summary))
    }
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.profile().name)
    }
}

impl Rendered<'_> {
    /// The rules to print.
    pub(crate) fn program(&self) -> &Program {
        self.program.get_or_init(|| {
            let locality = match self.node {
                None => Locality::Everywhere,
                Some(node) => Locality::Node(node.into()),
            };
            weir_engine::compile(&self.loaded.world, locality)
        })
    }
}

/// Prints the compiled rules.
fn listing(of: &Rendered<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    #[derive(serde::Serialize)]
    struct ListingOutput<'a> {
        #[serde(flatten)]
        listing: &'a Listing,
        findings: Vec<FindingJson>,
    }
    let listing = Listing::new(of.program(), of.namespace);
    match of.output.structured() {
        Some(form) => {
            let findings = present::findings::to_json(&of.loaded.findings);
            let output = ListingOutput { listing: &listing, findings };
            present::value(out, form, Schema::Render, &output)
        }
        None => Ok(present::program::write(out, &listing)?),
    }
}

/// Prints the ACLs of each pod's endpoint: text, or the policies in the format of HNS.
fn write_acls(of: &Rendered<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let acls = Acls::render(of.program());
    match of.output.structured() {
        Some(form) => {
            let output = serde_json::json!({"endpoints": acls.to_json()});
            present::value(out, form, Schema::RenderHcn, &output)
        }
        None => Ok(write!(out, "{acls}")?),
    }
}

/// Evaluates flows against the compiled rules.
fn compiled(state: &ReachState, flows: &[Flow]) -> Result<Vec<Probed>, Failure> {
    Ok(flows.iter().map(|flow| state.program.verdict(flow).into()).collect())
}

/// Evaluates flows against the ACLs of Windows nodes.
fn acls(state: &ReachState, flows: &[Flow]) -> Result<Vec<Probed>, Failure> {
    let acls = Acls::render(&state.program);
    let probe = |flow: &Flow| Probed {
        verdict: acls.verdict(flow),
        shortfall: acls.shortfall(flow).map(ToString::to_string),
    };
    Ok(flows.iter().map(probe).collect())
}

impl From<Verdict> for Probed {
    fn from(verdict: Verdict) -> Self {
        Probed { verdict, shortfall: None }
    }
}
