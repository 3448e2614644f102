use std::io::Write;

use clap::Args;
use serde::Serialize;
use weir_engine::Locality;

use crate::{
    exit::Exit,
    failure::Failure,
    filter::Filter,
    present::{self, Format, findings::Report, program::Listing},
    source::{self, Source},
};

/// Print what would be programmed
///
/// For `sim`: the endpoints with their rules, the rules with the policy lines they come from, and the sets that they name. Rules
/// that several endpoints share are printed once. For `nftables`: the ruleset of a node, in nft's own syntax. For `iptables`: its sets and
/// rules, as `ipset save`, `iptables-save` and `ip6tables-save` would print them. For `hcn`: the ACL policies of each pod's endpoint on
/// Windows, as HNS is given them.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir render -f examples/shop/manifests\n  weir render -f examples/shop/manifests -n shop -o yaml\n  weir render -f examples/shop/manifests --datapath nftables\n  weir render -f examples/shop/manifests --datapath iptables\n  weir render -f examples/shop/manifests --datapath hcn"
)]
pub(crate) struct Render {
    #[command(flatten)]
    source: Source,
    /// The datapath to print it for: sim, nftables, iptables or hcn
    #[arg(long, value_name = "NAME", default_value = "sim")]
    datapath: String,
    /// The node to print it for [default: all]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Render {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        source::known_datapath(&self.datapath, &["sim", "nftables", "iptables", "hcn"])?;
        let loaded = self.source.load_complete()?;
        let world = &loaded.world;
        let locality = match &self.node {
            None => Locality::Everywhere,
            Some(node) => {
                let runs = |pod: &weir_model::Pod| pod.node.as_deref() == Some(node);
                if !world.nodes.contains_key(&**node) && !world.pods.values().any(runs) {
                    let hint = "leave out --node to print the rules of all nodes";
                    return Err(Failure::new(format!("there is no node {node}"), hint).into());
                }
                Locality::Node(node.as_str().into())
            }
        };
        let program = weir_engine::compile(world, locality);
        if self.datapath == "hcn" {
            write!(out, "{}", weir_hcn::Acls::of(&program))?;
            return Ok(Exit::Yes);
        }
        match Filter::named(&self.datapath) {
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

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    listing: &'a Listing,
    /// What reading the input found.
    findings: Vec<Report>,
}
