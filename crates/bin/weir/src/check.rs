use std::io::Write;

use anyhow::Context;
use clap::{Args, ValueEnum};
use weir_api::ManifestReader;
use weir_engine::Locality;
use weir_model::{Program, World};

use crate::{
    datapath::{DatapathKind, Testing},
    exit::Exit,
    failure::Failure,
    platform,
    present::plain::Plain,
};

/// Check whether this node can enforce policies
///
/// Prints what is missing or in the way, one line each: features of the kernel, settings of bridges,
/// and rules of other policy engines that also filter packets of pods. It installs sample policies in
/// a network namespace of its own, so nothing on the node changes. `weir install` runs it on every
/// node. It needs root. The exit status is 1 if it prints such a line.
#[derive(Args)]
#[command(after_help = "Examples:\n  weir check\n  weir check --datapath iptables")]
pub(crate) struct CheckCommand {
    /// The datapath: nftables, iptables or ebpf (experimental)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = platform::DEFAULT, hide_possible_values = true)]
    datapath: DatapathKind,
}

/// Policies that need every feature of the kernel that the rules use.
const SAMPLE: &str = include_str!("check/sample.yaml");

impl CheckCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let Testing::InKernel(filter) = self.datapath.profile().testing else {
            let in_kernel =
                |kind: &&DatapathKind| matches!(kind.profile().testing, Testing::InKernel(_));
            let kinds = DatapathKind::value_variants().iter().filter(in_kernel);
            let flags: Vec<String> = kinds.map(|kind| format!("`--datapath {kind}`")).collect();
            let what = format!("there is no check for `--datapath {}`", self.datapath);
            return Err(Failure::new(what, format!("use {}", flags.join(" or "))).into());
        };
        let lacks = (filter.check)(&sample()?)?;
        for line in &lacks {
            writeln!(out, "{}", Plain(line))?;
        }
        Ok(Exit::when(lacks.is_empty()))
    }
}

/// The rules of the sample, for a node with all of its pods.
fn sample() -> anyhow::Result<Program> {
    let mut reader = ManifestReader::new();
    reader.read_file("sample.yaml".into(), SAMPLE.as_bytes());
    let world: World = reader.finish().objects.into_iter().collect();
    let program = weir_engine::compile(&world, Locality::Everywhere);
    (!program.endpoints.is_empty()).then_some(program).context("the sample has pods")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_rules_of_every_kind() {
        let mut reader = ManifestReader::new();
        reader.read_file("sample.yaml".into(), SAMPLE.as_bytes());
        let manifests = reader.finish();
        assert!(manifests.findings.is_empty(), "{:?}", manifests.findings);
        let program = sample().unwrap();
        assert_eq!(program.endpoints.len(), 2);
        let text = weir_nft::render(&program).to_string();
        for word in ["tcp", "udp", "sctp", "ip6", "10.0.0.0", "8080-8090"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
