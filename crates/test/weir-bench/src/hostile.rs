//! Policies that a tenant wrote to exhaust a node: memory and CPU time of a process that reads one,
//! compiles it and applies it in a network namespace.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{Read as _, Write},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use weir_aci::{AciSettings, Files, GroupNames, Hpp};
use weir_api::ManifestReader;
use weir_datapath::{Datapath, Planner as _};
use weir_engine::{Engine, Locality};
use weir_iptables::Variant;
use weir_model::{Change, Direction, Object, Program};
use weir_testkit::{HostileAdminShape, HostileShape};

use crate::{
    datapath::{ApplyResult, BenchAgent, ebpf, in_new_lab, iptables, nftables},
    docs, measure,
};

/// Policies of hostile shapes.
#[derive(Debug, Args)]
pub(crate) struct HostileBench {
    /// The size of a policy in bytes. The default is the largest that etcd takes.
    #[arg(long, default_value_t = 1_500_000)]
    bytes: usize,
    /// The backends.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "nftables,iptables-nft,iptables-legacy,ebpf,hcn,hpp,opflex"
    )]
    backends: Vec<HostileBackend>,
    /// Only shapes whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Write the table to docs/performance.md.
    #[arg(long)]
    write_docs: bool,
}

/// A backend that applies hostile policies.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HostileBackend {
    Nftables,
    IptablesNft,
    IptablesLegacy,
    /// Needs root.
    Ebpf,
    /// The ACLs of Windows endpoints, in memory.
    Hcn,
    /// The objects that the controller for Cisco ACI writes, in memory.
    Hpp,
    /// These objects, and the files that a node writes for them, in memory.
    Opflex,
}

/// Applies the manifests of standard input. Prints the CPU time in milliseconds and the peak of the
/// resident memory in bytes.
#[derive(Debug, Args)]
pub(crate) struct HostileChild {
    #[arg(value_enum)]
    backend: HostileBackend,
}

impl HostileBench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut table = String::from(
            "| shape | direction | backend | bytes | CPU time | peak memory |\n\
             | --- | --- | --- | ---: | ---: | ---: |\n",
        );
        for shape in HostileShape::ALL.into_iter().filter(|shape| self.is_selected(shape.name())) {
            for direction in Direction::BOTH {
                let manifests = shape.manifests(direction, self.bytes);
                let all = self.backends.iter();
                Self::measure(&mut table, shape.name(), direction, &manifests, all)?;
            }
        }
        let shapes = HostileAdminShape::ALL.into_iter();
        for shape in shapes.filter(|shape| self.is_selected(shape.name())) {
            for &direction in shape.directions() {
                let manifests = shape.manifests(direction, self.bytes);
                let able = self.backends.iter().filter(|backend| backend.has_admin_tiers());
                Self::measure(&mut table, shape.name(), direction, &manifests, able)?;
            }
        }
        write!(out, "{table}")?;
        if self.write_docs { docs::put("hostile", &table) } else { Ok(()) }
    }

    fn is_selected(&self, shape: &str) -> bool {
        shape.contains(&self.only)
    }

    /// Adds a row for each backend.
    fn measure<'a>(
        table: &mut String,
        shape: &str,
        direction: Direction,
        manifests: &str,
        backends: impl Iterator<Item = &'a HostileBackend>,
    ) -> Result<()> {
        for backend in backends {
            let name = backend.name();
            eprintln!("{shape}, {direction}, {name}");
            let cost = measure_child(&name, manifests);
            let cost = cost.with_context(|| format!("{shape}, {direction}, {name}"))?;
            let bytes = manifests.len();
            writeln!(table, "| {shape} | {direction} | {name} | {bytes} | {cost} |")?;
        }
        Ok(())
    }
}

impl HostileBackend {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether the backend applies cluster-wide policies. Host protection objects cannot express
    /// them.
    fn has_admin_tiers(self) -> bool {
        !matches!(self, HostileBackend::Hpp | HostileBackend::Opflex)
    }
}

/// The cost of applying manifests, in a new process.
fn measure_child(backend: &str, manifests: &str) -> Result<String> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut child = Command::new(program)
        .args(["hostile-child", backend])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the measurement")?;
    let mut stdin = child.stdin.take().context("the process has no standard input")?;
    stdin.write_all(manifests.as_bytes()).context("cannot write manifests")?;
    drop(stdin);
    let output = child.wait_with_output().context("cannot wait for the measurement")?;
    ensure!(output.status.success(), "the measurement failed: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl HostileChild {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut text = Vec::new();
        std::io::stdin().read_to_end(&mut text).context("cannot read manifests")?;
        let changes = parse(text)?;
        match self.backend {
            HostileBackend::Nftables => in_new_lab(|| apply(nftables()?, changes)),
            HostileBackend::IptablesNft => in_new_lab(|| apply(iptables(Variant::Nft)?, changes)),
            HostileBackend::IptablesLegacy => {
                in_new_lab(|| apply(iptables(Variant::Legacy)?, changes))
            }
            HostileBackend::Ebpf => {
                weir_lab::enter_with_bpf()?;
                in_new_lab(|| apply(ebpf()?, changes))
            }
            HostileBackend::Hcn => render_acls(changes),
            HostileBackend::Hpp => render_objects(&changes).map(drop),
            HostileBackend::Opflex => render_files(&changes),
        }?;
        let (cpu, peak) = (measure::process_cpu(), measure::peak()?);
        writeln!(out, "{:.0} ms | {} MB", cpu.as_secs_f64() * 1e3, peak / 1_000_000)?;
        Ok(())
    }
}

fn parse(text: Vec<u8>) -> Result<Vec<Change>> {
    let mut reader = ManifestReader::new();
    reader.read_file("hostile".into(), &text);
    drop(text);
    let manifests = reader.finish();
    let first = manifests.findings.first();
    ensure!(first.is_none(), "the manifests are invalid: {first:?}");
    Ok(manifests.objects.into_iter().map(Change::Put).collect())
}

/// Applies policies as an agent does.
fn apply<D: Datapath>(datapath: D, changes: Vec<Change>) -> Result<()> {
    let mut agent = BenchAgent::open(datapath);
    agent.compile(changes);
    ensure!(agent.apply()? == ApplyResult::Applied, "the policy wrote nothing");
    Ok(())
}

/// Plans the ACLs of the node's pods, and renders the request for each endpoint.
fn render_acls(changes: Vec<Change>) -> Result<()> {
    let mut program = Program::default();
    let mut engine = Engine::new(Locality::Node(NODE.into()));
    program.apply(engine.apply(changes));
    let mut planner = weir_hcn::Planner::new(BTreeSet::new());
    let plan = planner.replan(&program, &weir_hcn::Installed::default());
    let mut bytes = 0;
    for step in &plan.steps {
        let weir_hcn::Step::Put { acls, .. } = step else { continue };
        bytes += acls.iter().map(|acl| acl.policy().to_string().len()).sum::<usize>();
    }
    ensure!(bytes > 0, "the policy has no ACLs");
    Ok(())
}

/// Computes the objects of the cluster, and renders the request for each of them.
fn render_objects(changes: &[Change]) -> Result<Hpp> {
    let mut hpp = Hpp::new(settings());
    hpp.apply(changes);
    let objects = hpp.objects().values();
    let bytes = objects.map(|object| object.manifest(SPACE).to_string().len()).sum::<usize>();
    ensure!(bytes > 0, "the policy has no objects");
    Ok(hpp)
}

/// Renders the files of the node.
fn render_files(changes: &[Change]) -> Result<()> {
    let hpp = render_objects(changes)?;
    let mut files = Files::new(&settings(), SPACE, NODE, GroupNames::Policy);
    for change in changes {
        if let Change::Put(Object::Pod(pod)) = change {
            files.put_pod(pod);
        }
    }
    hpp.objects().values().for_each(|object| files.put(object.clone()));
    ensure!(files.drain_dirty().count() > 0, "the policy has no files");
    Ok(())
}

/// The node of all pods of `HostileShape`.
const NODE: &str = "here";
const SPACE: &str = "kube-system";

fn settings() -> AciSettings {
    AciSettings { prefix: "demo".into() }
}
