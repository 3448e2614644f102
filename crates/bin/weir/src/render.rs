use std::{collections::BTreeSet, env, io::Write};

use clap::Args;
use serde::Serialize;
use weir_engine::Locality;
use weir_model::Program;

use crate::{
    exit::Exit,
    failure::{Failure, nearest},
    filter::Filter,
    live, opflex,
    present::{self, Format, findings::Report, program::Listing},
    source::{self, Loaded, Source},
};

/// Print what would be programmed
///
/// For `sim`: the endpoints with their rules, the rules with the policy lines they come from, and the sets that they name. Rules
/// that several endpoints share are printed once. For `nftables`: the ruleset of a node, in nft's own syntax. For `iptables`: its sets and
/// rules, as `ipset save`, `iptables-save` and `ip6tables-save` would print them. For `hcn`: the ACL policies of each pod's endpoint on
/// Windows, as HNS is given them. For `opflex`: the `.netpol` files, each after its name; as JSON or YAML also the HostprotPols and
/// HostprotRemoteIpContainers, and the security groups that each pod's endpoint must list.
///
/// With `--live`, on a node: what would have to be done to the packet filter of this network namespace to make it so. Nothing is
/// written; the exit status is 0 if nothing would have to be done, and 1 otherwise. Right after a change that is usual: the agent
/// is about to do it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir render -f examples/shop/manifests\n  weir render -f examples/shop/manifests -n shop -o yaml\n  weir render -f examples/shop/manifests --datapath nftables\n  weir render -f examples/shop/manifests --datapath iptables\n  weir render -f examples/shop/manifests --datapath hcn\n  weir render -f examples/shop/manifests --datapath opflex -o yaml\n\nOn a node, is what the cluster wants in force there?\n  NODE_NAME=node-1 weir render --live"
)]
pub(crate) struct Render {
    #[command(flatten)]
    source: Source,
    /// The datapath to print it for: sim, nftables, iptables, hcn or opflex [default: sim; with --live, nftables]
    #[arg(long, value_name = "NAME")]
    datapath: Option<String>,
    /// The node to print it for [default: all; with --live, NODE_NAME]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Print the difference to what is in force here
    #[arg(long)]
    live: bool,
    /// What names begin with, for opflex
    #[arg(long, value_name = "PREFIX", default_value = opflex::PREFIX, value_parser = opflex::prefix)]
    aci_prefix: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Render {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let known: &[&str] = match self.live {
            true => &["nftables", "iptables"],
            false => &["sim", "nftables", "iptables", "hcn", "opflex"],
        };
        let datapath = self.datapath.as_deref().unwrap_or(known[0]);
        if self.live {
            has_packet_filter(datapath)?;
        }
        source::known_datapath(datapath, known)?;
        self.fits(datapath)?;
        let node = self.node()?;
        let loaded = self.source.load_complete()?;
        let world = &loaded.world;
        let locality = match &node {
            None => Locality::Everywhere,
            Some(node) => {
                let named = world.pods.values().filter_map(|pod| pod.node.as_deref());
                let known: BTreeSet<&str> =
                    world.nodes.keys().map(|name| &**name).chain(named).collect();
                if !known.contains(node.as_str()) {
                    return Err(self.no_node(node, &known).into());
                }
                Locality::Node(node.as_str().into())
            }
        };
        if datapath == "opflex" {
            let findings = &loaded.findings;
            opflex::render(world, findings, node.as_deref(), &self.aci_prefix, self.output, out)?;
            return Ok(Exit::Yes);
        }
        let filter = Filter::named(datapath);
        if let (true, Some(filter), Some(node)) = (self.live, filter, node) {
            let program = weir_engine::compile(&loaded.without_made_up(), locality);
            return self.compare(&program, filter, &node, &loaded, out);
        }
        let program = weir_engine::compile(world, locality);
        if datapath == "hcn" {
            write!(out, "{}", weir_hcn::Acls::of(&program))?;
            return Ok(Exit::Yes);
        }
        match filter {
            Some(Filter::Nftables) => {
                write!(out, "{}", weir_nft::render(&program))?;
                return Ok(Exit::Yes);
            }
            Some(Filter::Iptables) => {
                write!(out, "{}", weir_iptables::render(&program))?;
                return Ok(Exit::Yes);
            }
            None => (),
        }
        let listing = Listing::new(&program, self.source.namespace());
        match self.output.structured() {
            Some(form) => {
                let findings = present::findings::reports(&loaded.findings);
                present::value(out, form, &Answer { listing: &listing, findings })?;
            }
            None => present::program::write(out, &listing)?,
        }
        Ok(Exit::Yes)
    }
}

impl Render {
    /// Fails for an option that would change nothing of what is printed for the datapath.
    fn fits(&self, datapath: &str) -> Result<(), Failure> {
        if datapath != "sim" && self.source.namespace().is_some() {
            let what = format!("-n chooses among pods, and `{datapath}` is printed for nodes");
            return Err(Failure::new(what, "leave out -n; --node NAME chooses a node"));
        }
        let only = match (datapath, self.output) {
            _ if self.live => return Ok(()),
            ("nftables", Format::Json | Format::Yaml) => "in nft's own syntax",
            ("iptables", Format::Json | Format::Yaml) => "as iptables-save prints it",
            ("hcn", Format::Yaml) => "as JSON",
            _ => return Ok(()),
        };
        let hint = "leave out -o; `--datapath sim` has the same rules as JSON and YAML";
        Err(Failure::new(format!("`{datapath}` is printed {only} and in no other way"), hint))
    }

    /// The node to print it for. The rules of a machine are those of one node.
    fn node(&self) -> Result<Option<String>, Failure> {
        if !self.live || self.node.is_some() {
            return Ok(self.node.clone());
        }
        match env::var("NODE_NAME") {
            Ok(node) if !node.is_empty() => Ok(Some(node)),
            _ => Err(Failure::new(
                "which node this is is not known",
                "say it with `--node NAME`, or in the variable NODE_NAME",
            )),
        }
    }

    /// That there is no such node, and which there are.
    fn no_node(&self, node: &str, known: &BTreeSet<&str>) -> Failure {
        /// So many are all named.
        const FEW: usize = 5;
        let all: Vec<&str> = known.iter().copied().collect();
        let mut hint = match all.len() {
            0 => "no node is known, and no pod says where it runs".to_owned(),
            1..=FEW => format!("the nodes are {}", all.join(", ")),
            _ => format!("did you mean {}?", nearest(node, &all).join(" or ")),
        };
        if !self.live {
            hint.push_str("; leave out --node to print the rules of all nodes");
        }
        Failure::new(format!("there is no node {node}"), hint)
    }

    fn compare(
        &self,
        program: &Program,
        filter: Filter,
        node: &str,
        loaded: &Loaded,
        out: &mut dyn Write,
    ) -> anyhow::Result<Exit> {
        let difference = live::difference(program, filter)?;
        match self.output.structured() {
            Some(form) => {
                let datapath = filter.name();
                let difference = difference.lines().collect();
                let findings = present::findings::reports(&loaded.findings);
                present::value(out, form, &Difference { node, datapath, difference, findings })?;
            }
            None if difference.is_empty() => writeln!(out, "no difference")?,
            None => writeln!(out, "{}", difference.trim_end())?,
        }
        Ok(Exit::when(difference.is_empty()))
    }
}

/// `--live` looks at the packet filter of this machine. What to do where there is none to look at.
fn has_packet_filter(datapath: &str) -> Result<(), Failure> {
    let (what, hint) = match datapath {
        "sim" => (
            "is only in memory",
            "leave out `--live`, or use `--datapath nftables` or `--datapath iptables`",
        ),
        "hcn" => (
            "has the ACLs of Windows nodes",
            "leave out `--live`, and compare with `curl 127.0.0.1:9640/status` on the node",
        ),
        "opflex" => {
            let hint = "leave out `--live`, and compare with the files in /var/lib/opflex-agent-ovs/netpols, or with `curl 127.0.0.1:9640/status` on the node";
            ("has files, which opflex-agent reads", hint)
        }
        _ => return Ok(()),
    };
    let what = format!(
        "`--live` compares with the packet filter of this machine, and `{datapath}` {what}"
    );
    Err(Failure::new(what, hint))
}

#[derive(Serialize)]
struct Difference<'a> {
    node: &'a str,
    datapath: &'a str,
    /// What would have to be done, step by step.
    difference: Vec<&'a str>,
    /// What reading the input found.
    findings: Vec<Report>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    listing: &'a Listing,
    /// What reading the input found.
    findings: Vec<Report>,
}
