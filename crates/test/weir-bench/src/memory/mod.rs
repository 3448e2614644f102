//! `cargo xtask bench memory`: the memory of an agent for each pod of its cluster.
//!
//! A process with the source and the engine of an agent follows an API server in this process. The
//! memory of the same process in a cluster without pods is subtracted.

mod anchor;
mod server;
mod world;

use std::{
    fmt::Write as _, io::Write, path::PathBuf, process::Command, sync::mpsc, thread, time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use weir_engine::{Budget, Engine, Locality};
use weir_kube::{Access, ClusterKinds, ClusterWatch, RetryPolicy};
use weir_runtime::SourceEvent;

use self::world::{RealisticWorld, node_name};
use crate::{Output, docs, measure};

/// The name of the table in docs/performance.md.
const NAME: &str = "memory";
/// How long the process waits before it measures itself.
const REST: Duration = Duration::from_millis(500);

/// The memory of an agent.
#[derive(Debug, Args)]
pub(crate) struct MemoryBench {
    /// Print a table or JSON.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Thousands of pods; several numbers are measured in turn.
    #[arg(long, value_name = "THOUSANDS", value_delimiter = ',', default_values_t = [50, 1000], value_parser = clap::value_parser!(u16).range(1..=4000))]
    pods: Vec<u16>,
    /// Write the table to docs/performance.md.
    #[arg(long, conflicts_with = "pods")]
    write_docs: bool,
}

/// What a process keeps of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keeper {
    /// What an agent keeps: the versions of objects, and the facts and indexes of the engine.
    Agent,
    /// A sorted array with the text of all facts.
    Array,
    /// A sorted array with the text of names; equal label sets are stored once.
    SharedLabels,
}

/// The work of the process that `memory` starts.
#[derive(Debug, Args)]
pub(crate) struct MemoryChild {
    #[arg(value_enum)]
    keeper: Keeper,
    pods: usize,
    #[arg(long)]
    room: usize,
    #[arg(long)]
    dual_stack: bool,
    /// The kubeconfig of the API server.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// The memory of a process in bytes.
#[derive(Clone, Copy, Debug)]
struct ProcessMemory {
    anonymous: f64,
    file: f64,
    peak: f64,
}

struct Row {
    pods: usize,
    dual_stack: bool,
    keeper: Keeper,
    empty: ProcessMemory,
    full: ProcessMemory,
}

impl Row {
    fn bytes_per_pod(&self) -> f64 {
        (self.full.anonymous - self.empty.anonymous) / self.pods as f64
    }

    fn json(&self) -> Value {
        let memory = |memory: ProcessMemory| json!({"anonymous": memory.anonymous, "file": memory.file, "peak": memory.peak});
        json!({
            "pods": self.pods, "dual_stack": self.dual_stack, "keeper": self.keeper.name(),
            "empty": memory(self.empty), "full": memory(self.full),
            "bytes_per_pod": self.bytes_per_pod(),
        })
    }
}

impl Keeper {
    fn name(self) -> &'static str {
        match self {
            Keeper::Agent => "source and engine of an agent",
            Keeper::Array => "sorted array of all facts as text",
            Keeper::SharedLabels => "sorted array, label sets stored once",
        }
    }

    fn argument(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl MemoryBench {
    /// Measures and prints.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut rows = Vec::new();
        for thousands in &self.pods {
            for dual_stack in [false, true] {
                rows.extend(measure_world(usize::from(*thousands) * 1000, dual_stack)?);
            }
        }
        let table = table(&rows)?;
        match self.output {
            Output::Json => {
                let rows: Vec<Value> = rows.iter().map(Row::json).collect();
                writeln!(out, "{:#}", json!({"rows": rows}))?;
            }
            Output::Text => write!(out, "{table}")?,
        }
        if self.write_docs { docs::put(NAME, &table) } else { Ok(()) }
    }
}

fn table(rows: &[Row]) -> Result<String> {
    let mut table = String::from(
        "| pods | what | RssAnon | without pods | RssFile | peak | RssAnon for each pod |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
        writeln!(
            table,
            "| {}{} | {} | {} | {} | {} | {} | {:.0} bytes |",
            row.pods,
            if row.dual_stack { ", two addresses" } else { "" },
            row.keeper.name(),
            megabytes(row.full.anonymous),
            megabytes(row.empty.anonymous),
            megabytes(row.full.file),
            megabytes(row.full.peak),
            row.bytes_per_pod()
        )?;
    }
    Ok(table)
}

fn measure_world(pods: usize, dual_stack: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for keeper in [Keeper::Agent, Keeper::Array, Keeper::SharedLabels] {
        eprintln!("{pods} pods: {}", keeper.name());
        let empty = measure_child(keeper, pods, 0, dual_stack)?;
        let full = measure_child(keeper, pods, pods, dual_stack)?;
        rows.push(Row { pods, dual_stack, keeper, empty, full });
    }
    Ok(rows)
}

/// The memory of a new process that keeps these pods of a cluster for `room` pods.
fn measure_child(
    keeper: Keeper,
    room: usize,
    pods: usize,
    dual_stack: bool,
) -> Result<ProcessMemory> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(&program);
    command.args(["memory-child", &keeper.argument(), &pods.to_string()]);
    command.args(["--room", &room.to_string()]);
    command.args(dual_stack.then_some("--dual-stack"));
    let mut kubeconfig = None;
    if keeper == Keeper::Agent {
        let address = server::serve(RealisticWorld { pods, room, dual_stack })?;
        let path = std::env::temp_dir().join(format!("weir-bench-{}.yaml", std::process::id()));
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], clusters: [{{name: a, cluster: {{server: \"http://{address}\"}}}}], users: [{{name: a, user: {{}}}}]}}"
        );
        std::fs::write(&path, text).context("cannot write a kubeconfig")?;
        command.arg("--kubeconfig").arg(&path);
        kubeconfig = Some(path);
    }
    let output = command.output().context("cannot start the measurement");
    kubeconfig.into_iter().for_each(|path| _ = std::fs::remove_file(path));
    let output = output?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Value = serde_json::from_str(&text).with_context(|| {
        format!("the measurement printed `{text}`: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    let figure = |name: &str| figures[name].as_f64().context("a figure is missing");
    Ok(ProcessMemory {
        anonymous: figure("anonymous")?,
        file: figure("file")?,
        peak: figure("peak")?,
    })
}

impl MemoryChild {
    /// Keeps the pods, and prints the memory of this process.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let world =
            RealisticWorld { pods: self.pods, room: self.room, dual_stack: self.dual_stack };
        match (self.keeper, &self.kubeconfig) {
            (Keeper::Agent, Some(kubeconfig)) => {
                let kept = follow(Access::new(Some(kubeconfig), None))?;
                report(out)?;
                drop(kept);
            }
            (Keeper::Agent, None) => anyhow::bail!("an agent needs --kubeconfig"),
            (Keeper::Array, _) => {
                let kept = anchor::FactArray::new(world);
                ensure!(kept.len() == self.pods, "pods are missing in the array");
                report(out)?;
                drop(kept);
            }
            (Keeper::SharedLabels, _) => {
                let kept = anchor::SharedLabelArray::new(world);
                ensure!(kept.len() == self.pods, "pods are missing in the array");
                report(out)?;
                drop(kept);
            }
        }
        Ok(())
    }
}

fn report(out: &mut dyn Write) -> Result<()> {
    thread::sleep(REST);
    let figures = json!({
        "anonymous": measure::anonymous()?, "file": measure::of_files()?, "peak": measure::peak()?,
    });
    writeln!(out, "{figures}")?;
    Ok(())
}

/// Follows a cluster until everything is known, as an agent does.
fn follow(access: Access) -> Result<(ClusterWatch, Engine)> {
    let (sender, events) = mpsc::sync_channel::<SourceEvent>(1);
    let (kinds, policy) = (ClusterKinds::Policies, RetryPolicy::default());
    let watch =
        ClusterWatch::start(access, policy, kinds, move |event| sender.send(event).is_ok())?;
    let locality = Locality::Node(node_name(0).into());
    let mut engine = Engine::with_budget(locality, Budget::default()).with_staged_rules();
    for event in &events {
        engine.apply(event.changes);
        ensure!(event.unread.is_empty(), "the source cannot read: {:?}", event.unread);
        if event.in_sync {
            break;
        }
    }
    // The source must not end because nothing receives its events.
    thread::spawn(move || events.into_iter().for_each(drop));
    Ok((watch, engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_marks_for_the_table() {
        assert!(docs::has(NAME));
    }
}
