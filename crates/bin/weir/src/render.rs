use std::{cell::OnceCell, collections::BTreeSet, env, io::Write};

use clap::Args;
use serde::Serialize;
use weir_datapath::policy_name;
use weir_engine::Locality;
use weir_kube::ClusterKinds;
use weir_model::{PolicyId, World};

use crate::{
    agent::ADDRESS,
    clusters::ClustersArgs,
    datapath::{
        CompareLive, DatapathKind, DatapathProfile, LiveComparison, Rendered, Rendering, Unit,
    },
    exit::Exit,
    failure::{Failure, nearest},
    names, no_rules,
    observe::agent_address,
    opflex, platform,
    present::{self, Format, Schema, findings::FindingJson},
    source::{Loaded, SourceArgs},
    status,
    translation::{self, TranslationOutput},
};

/// Print the rules that the agent would install
///
/// The output depends on the datapath.
///
/// `sim`: the endpoints, their rules with the policy lines they come from, and the sets that the
/// rules use. Rules that several endpoints share are printed once.
///
/// `nftables`: the ruleset of a node in nft syntax.
///
/// `iptables`: the sets and rules of a node in the format of `ipset save`, `iptables-save` and
/// `ip6tables-save`.
///
/// `ebpf`: the content of the maps of a node, and the programs.
///
/// `hcn`: the ACLs of each pod's endpoint on Windows, one per line. JSON and YAML have the format of
/// HNS.
///
/// `opflex`: the `.netpol` files, each after its name. JSON and YAML also contain the HostprotPols,
/// the HostprotRemoteIpContainers, and the security groups that each pod's endpoint must list.
///
/// With `--policy` and `iptables`: only the chains, rules and entries that come from one policy. If
/// several policies share a chain or a set, it is printed completely.
///
/// With `--generated`: the NetworkPolicies that the controller memcached writes for each Memcached,
/// as manifests.
///
/// With `--cluster`: the same, and the NetworkPolicies that the controller clusterset writes for each
/// ClusterSetNetworkPolicy. In their names, the name of the policy stands for its uid.
///
/// With `--live`, on a node: print the difference between the rules that are installed there and
/// those that should be: on Linux in the packet filter of this network namespace, on Windows on
/// the endpoints of HNS. Nothing is written. The exit status is 0 if there is no difference and 1
/// otherwise. A difference is normal right after a change, until the agent has applied it. The
/// datapath, the mode and `--denied` are those of the agent, and so are the addresses of domain
/// names that it has learned.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir render -f examples/shop/manifests\n  weir render -f examples/shop/manifests -n shop -o yaml\n  weir render -f examples/shop/manifests --datapath nftables\n  weir render -f examples/shop/manifests --datapath iptables\n  weir render -f examples/shop/manifests --datapath iptables --policy shop/db\n  weir render -f examples/shop/manifests --datapath hcn\n  weir render -f examples/shop/manifests --datapath opflex -o yaml\n  weir render --cluster east=examples/clusterset/east --cluster west=examples/clusterset/west\n  weir render -f examples/memcached/manifests --generated\n\nCompare the rules of a node with the cluster:\n  NODE_NAME=node-1 weir render --live"
)]
pub(crate) struct RenderCommand {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    clusters: ClustersArgs,
    /// The datapath to print the rules for [default: sim; with --live, that of the agent, or
    /// nftables on Linux and hcn on Windows if it does not answer]
    #[arg(long, value_name = "NAME", value_enum, conflicts_with = "clusters")]
    datapath: Option<DatapathKind>,
    /// The node to print the rules of [default: all nodes; with --live, NODE_NAME]
    #[arg(long, value_name = "NAME", conflicts_with = "clusters")]
    node: Option<String>,
    /// Print only the rules that come from this policy, for iptables
    #[arg(long, value_name = "[NAMESPACE/]NAME", conflicts_with_all = ["clusters", "live"])]
    policy: Option<String>,
    /// Print the NetworkPolicy that each Memcached requests
    #[arg(long, conflicts_with_all = ["clusters", "datapath", "node", "policy", "live"])]
    generated: bool,
    /// Compare with the rules that are installed on this machine
    #[arg(long, conflicts_with = "clusters")]
    live: bool,
    /// The HTTP address of the agent, for its datapath and mode, its answers to denied packets and
    /// its domain names
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS, requires = "live", value_parser = agent_address)]
    agent: String,
    /// The prefix of names
    #[arg(long, value_name = "PREFIX", default_value = opflex::PREFIX, value_parser = opflex::prefix, help_heading = "Cisco ACI")]
    aci_prefix: String,
    #[command(flatten)]
    aci_files: opflex::FileOptions,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl RenderCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        if !self.clusters.is_empty() {
            let (loaded, worlds) = self.source.load_separately(&self.clusters)?;
            translation::write_clusters(&loaded, &worlds, &self.translations(), out)?;
            return Ok(Exit::Yes);
        }
        if self.generated {
            let loaded = self.source.load_complete(ClusterKinds::Policies)?;
            translation::write_generated(&loaded, &self.translations(), out)?;
            return Ok(Exit::Yes);
        }
        let settings = self.live.then(|| status::rule_settings(&self.agent));
        let default = match &settings {
            Some(settings) => settings.datapath.unwrap_or(platform::DEFAULT),
            None => DatapathKind::Sim,
        };
        let DatapathProfile { name, rendering, live, .. } =
            self.datapath.unwrap_or(default).profile();
        let compare_with = match settings {
            Some(settings) => Some((comparison(name, live)?, settings)),
            None => None,
        };
        self.check_options(name, &rendering)?;
        let node = self.node()?;
        let loaded = if self.live {
            // Without an agent, names have no addresses.
            let names = names::request(&self.agent).unwrap_or_default();
            self.source.load_with_names(rendering.kinds, &names)?
        } else {
            self.source.load_complete(rendering.kinds)?
        };
        if let Some(node) = &node {
            self.check_node(node, &loaded.world)?;
        }
        if let (Some((compare, settings)), Some(node)) = (compare_with, &node) {
            let program = weir_engine::compile(
                &loaded.without_synthetic(),
                Locality::Node(node.as_str().into()),
            );
            let difference = compare(&program, &settings)?;
            return self.print_difference(&difference, name, node, &loaded, out);
        }
        let rendered = Rendered {
            loaded: &loaded,
            node: node.as_deref(),
            namespace: self.source.namespace(),
            aci_prefix: &self.aci_prefix,
            aci_files: &self.aci_files,
            output: self.output,
            program: OnceCell::new(),
        };
        match &self.policy {
            Some(policy) => self.print_policy(policy, name, &rendering, &rendered, out)?,
            None => (rendering.write)(&rendered, out)?,
        }
        if let Some(why) = no_rules::reason(&rendered) {
            anstream::eprintln!("note: {}", present::plain::Plain(why));
        }
        Ok(Exit::Yes)
    }

    fn translations(&self) -> TranslationOutput<'_> {
        TranslationOutput { namespace: self.source.namespace(), format: self.output }
    }

    /// Prints the part of each policy with this name. Policies of several kinds can have it.
    fn print_policy(
        &self,
        policy: &str,
        datapath: &str,
        rendering: &Rendering,
        of: &Rendered<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let Some(render) = rendering.policy else {
            let what = format!("`{datapath}` cannot print the rules of one policy");
            let hint = "use `--datapath iptables`, or leave out --policy";
            return Err(Failure::new(what, hint).into());
        };
        let known = of.loaded.world.policies.keys().map(|id| (policy_name(id), id));
        let known: Vec<(String, &PolicyId)> = known.collect();
        let found: Vec<&PolicyId> =
            known.iter().filter(|(name, _)| name == policy).map(|(_, id)| *id).collect();
        if found.is_empty() {
            let names: Vec<&str> = known.iter().map(|(name, _)| &**name).collect();
            let hint = match nearest(policy, &names)[..] {
                [] => "the input has no policies".to_owned(),
                ref near => format!("did you mean {}?", near.join(" or ")),
            };
            return Err(Failure::new(format!("there is no policy {policy}"), hint).into());
        }
        let program = of.program();
        for id in found {
            match render(program, id) {
                Some(part) => write!(out, "{part}")?,
                None => match of.node {
                    Some(node) => writeln!(out, "# {id} selects no pod on node {node}")?,
                    None => writeln!(out, "# {id} selects no pod")?,
                },
            }
        }
        Ok(())
    }

    /// Fails for an option that the datapath would ignore.
    fn check_options(&self, datapath: &str, rendering: &Rendering) -> Result<(), Failure> {
        if rendering.unit == Unit::Node && self.source.namespace().is_some() {
            let what = format!("-n selects pods, but `{datapath}` is printed for whole nodes");
            return Err(Failure::new(what, "leave out -n; --node NAME selects a node"));
        }
        if self.live || rendering.formats.contains(&self.output) {
            return Ok(());
        }
        let what = format!("`{datapath}` is printed only {}", rendering.syntax);
        let hint = "leave out -o; `--datapath sim` prints the same rules as JSON and YAML";
        Err(Failure::new(what, hint))
    }

    /// Fails for a node that neither the nodes nor the pods mention.
    fn check_node(&self, node: &str, world: &World) -> Result<(), Failure> {
        let of_pods = world.pods.values().filter_map(|pod| pod.node.as_deref());
        let known: BTreeSet<&str> = world.nodes.keys().map(|name| &**name).chain(of_pods).collect();
        if known.contains(node) { Ok(()) } else { Err(self.no_node(node, &known)) }
    }

    /// The node to print the rules of. With `--live` it is required.
    fn node(&self) -> Result<Option<String>, Failure> {
        if !self.live || self.node.is_some() {
            return Ok(self.node.clone());
        }
        match env::var("NODE_NAME") {
            Ok(node) if !node.is_empty() => Ok(Some(node)),
            _ => Err(Failure::new(
                "the name of this node is unknown",
                "set it with `--node NAME` or in the variable NODE_NAME",
            )),
        }
    }

    /// The error for an unknown node, with the known ones.
    fn no_node(&self, node: &str, known: &BTreeSet<&str>) -> Failure {
        /// The maximum number of nodes to list in the hint.
        const MAX_LISTED: usize = 5;
        let all: Vec<&str> = known.iter().copied().collect();
        let mut hint = match all.len() {
            0 => "the input has no nodes, and no pod has a nodeName".to_owned(),
            1..=MAX_LISTED => format!("the nodes are {}", all.join(", ")),
            _ => format!("did you mean {}?", nearest(node, &all).join(" or ")),
        };
        if !self.live {
            hint.push_str("; leave out --node to print the rules of all nodes");
        }
        Failure::new(format!("there is no node {node}"), hint)
    }

    fn print_difference(
        &self,
        difference: &str,
        datapath: &str,
        node: &str,
        loaded: &Loaded,
        out: &mut dyn Write,
    ) -> anyhow::Result<Exit> {
        match self.output.structured() {
            Some(form) => {
                let difference = difference.lines().collect();
                let findings = present::findings::to_json(&loaded.findings);
                let output = Difference { node, datapath, difference, findings };
                present::value(out, form, Schema::RenderLive, &output)?;
            }
            None if difference.is_empty() => writeln!(out, "no difference")?,
            None => writeln!(out, "{}", difference.trim_end())?,
        }
        Ok(Exit::when(difference.is_empty()))
    }
}

/// The function that compares with the machine.
fn comparison(datapath: &str, live: LiveComparison) -> Result<CompareLive, Failure> {
    match live {
        LiveComparison::Compare(compare) => Ok(compare),
        LiveComparison::Unsupported { reason, hint } => {
            let what = format!(
                "`--live` compares with the rules on this machine, but `{datapath}` {reason}"
            );
            Err(Failure::new(what, hint))
        }
    }
}

#[derive(Serialize)]
struct Difference<'a> {
    node: &'a str,
    datapath: &'a str,
    /// The steps that would make the machine equal to the rules.
    difference: Vec<&'a str>,
    findings: Vec<FindingJson>,
}
