//! Cisco ACI: the files of opflex-agent for a world, and the flags of its controller and agents.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use clap::Args;
use serde::Serialize;
use weir_aci::{AciSettings, Files, GroupNames, Netpol, RenderedCluster};
use weir_model::{Finding, Flow, Pod, PolicyKind, Severity, World};
use weir_reach::ReachState;

use crate::{
    datapath::{Probed, Rendered},
    failure::Failure,
    listen::{self, Http},
    present::{self, Schema, findings::FindingJson},
};

/// The flags that the controller and the agents share.
#[derive(Args, Clone, Debug)]
pub(crate) struct Aci {
    /// The name prefix: the aci-prefix (system id) of the installation
    #[arg(long, value_name = "PREFIX", default_value = PREFIX, value_parser = prefix, help_heading = "Cisco ACI")]
    pub(crate) aci_prefix: String,
    /// The namespace of HostprotPols and HostprotRemoteIpContainers
    #[arg(long, value_name = "NAME", default_value = NAMESPACE, help_heading = "Cisco ACI")]
    pub(crate) hpp_namespace: String,
}

/// The flags of the agent.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodeOptions {
    #[command(flatten)]
    pub(crate) aci: Aci,
    #[command(flatten)]
    pub(crate) files: FileOptions,
    /// The folder that opflex-agent watches
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/opflex-agent-ovs/netpols",
        help_heading = "Cisco ACI"
    )]
    pub(crate) netpol_dir: PathBuf,
    /// The address to serve /hpp on, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8091", value_parser = listen::http, help_heading = "Cisco ACI")]
    pub(crate) hpp_http: Http,
}

/// The flags on which the content and names of the files depend.
#[derive(Args, Clone, Debug)]
pub(crate) struct FileOptions {
    /// The policy space of the files [default: the prefix]
    #[arg(long, value_name = "NAME", value_parser = prefix, help_heading = "Cisco ACI")]
    pub(crate) aci_space: Option<String>,
    /// The names of the groups of policies, as the endpoints list them: `hash` of their rules, as
    /// with Cisco's hpp-optimization; `policy`, the name of each policy, as without; or `both`,
    /// while host agents change from one to the other
    #[arg(
        long,
        value_name = "NAMES",
        default_value = "hash",
        value_parser = group_names,
        help_heading = "Cisco ACI"
    )]
    pub(crate) group_names: GroupNames,
}

impl FileOptions {
    /// The policy space.
    pub(crate) fn space<'a>(&'a self, prefix: &'a str) -> &'a str {
        self.aci_space.as_deref().unwrap_or(prefix)
    }
}

/// Parses the names of groups.
fn group_names(text: &str) -> Result<GroupNames, String> {
    match text {
        "hash" => Ok(GroupNames::Hash),
        "policy" => Ok(GroupNames::Policy),
        "both" => Ok(GroupNames::Both),
        _ => Err("expected `hash`, `policy` or `both`".into()),
    }
}

/// The default prefix of names.
pub(crate) const PREFIX: &str = "kube";

/// Parses a prefix that both Kubernetes and ACI allow.
pub(crate) fn prefix(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain) {
        Ok(text.into())
    } else {
        Err("expected lower case letters, digits, `_` and `-`, a letter or digit first".into())
    }
}

/// Evaluates flows against the files.
pub(crate) fn probe(state: &ReachState, flows: &[Flow]) -> Result<Vec<Probed>, Failure> {
    let judge = judge(of_one_cluster(&state.world), PREFIX, PREFIX)?;
    let unsupported = judge.hpp().findings().into_iter().find(|finding| finding.code == "aci-kind");
    if let Some(finding) = unsupported {
        let what = format!("{}: {}", finding.object_text(), finding.message);
        return Err(Failure::new(what, finding.hint));
    }
    Ok(flows.iter().map(|flow| judge.verdict(flow).into()).collect())
}

/// Replaces ClusterSetNetworkPolicies by the NetworkPolicies that the clusters translate them to.
fn of_one_cluster(world: &World) -> World {
    let mut world = world.clone();
    let policies = std::mem::take(&mut world.policies).into_values().map(|mut policy| {
        if policy.id.kind == PolicyKind::ClusterSetNetworkPolicy {
            policy.id.kind = PolicyKind::NetworkPolicy;
            // No Kubernetes name has a slash, so this name is unique.
            policy.id.name = format!("clusterset/{}", policy.id.name).into();
        }
        (policy.id.clone(), policy)
    });
    world.policies = policies.collect();
    world
}

/// Prints the files of a node, or of all.
pub(crate) fn render(of: &Rendered<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let Rendered { loaded, node, aci_prefix: prefix, aci_files: options, output, .. } = *of;
    let world = &loaded.world;
    let judge = judge(world.clone(), prefix, options.space(prefix))?;
    let mut findings = judge.hpp().findings();
    let files = match node {
        Some(node) => {
            let pods = world.pods.values().filter(|pod| pod.node.as_deref() == Some(node));
            files(&judge, pods, node, prefix, options)
        }
        None => {
            let mut all = files(&judge, world.pods.values(), "", prefix, options);
            let fixed = |file: &&Netpol| {
                options.group_names != GroupNames::Policy || !is_of_policy(&file.file)
            };
            let others = judge.files().iter().filter(fixed);
            all.extend(others.map(|file| (file.file.clone(), file.text.clone())));
            all
        }
    };
    findings.extend(nothing(world, node, &files));
    let Some(form) = output.structured() else {
        for finding in &findings {
            match &finding.object {
                Some(object) => writeln!(out, "# {object}: {}", finding.message)?,
                None => writeln!(out, "# {}", finding.message)?,
            }
        }
        for (name, text) in files {
            writeln!(out, "# {name}\n{text}")?;
        }
        return Ok(());
    };
    let objects = judge.hpp().objects().values();
    let answer = OpflexOutput {
        objects: objects.map(|object| object.manifest(NAMESPACE)).collect(),
        files: files
            .into_iter()
            .map(|(name, text)| Ok((name, serde_json::from_str(&text)?)))
            .collect::<Result<_, serde_json::Error>>()?,
        groups: world
            .pods
            .values()
            .filter(|pod| node.is_none_or(|node| pod.node.as_deref() == Some(node)))
            .filter(|pod| !pod.own_addresses().is_empty())
            .map(|pod| (pod.id.to_string(), judge.hpp().groups(pod)))
            .collect(),
        findings: present::findings::to_json(&[&loaded.findings[..], &findings].concat()),
    };
    present::value(out, form, Schema::RenderOpflex, &answer)
}

/// Why there are no files of policies, if there are none.
fn nothing(world: &World, node: Option<&str>, files: &BTreeMap<String, String>) -> Option<Finding> {
    if files.keys().any(|name| is_of_policy(name)) {
        return None;
    }
    let mut policies = world.policies.keys();
    let message = match node {
        _ if !policies.any(|id| id.kind == PolicyKind::NetworkPolicy) => {
            "there is no NetworkPolicy in the input, so no pod is isolated: only the files that every node has"
                .into()
        }
        Some(node) => format!(
            "no NetworkPolicy selects a pod of node {node}: only the files that every node has"
        ),
        None => "no NetworkPolicy has a file: only the files that every node has".into(),
    };
    Some(Finding {
        location: None,
        code: "aci-empty",
        severity: Severity::Warning,
        object: None,
        field: String::new(),
        message,
        hint: "give the policies and their pods, with `spec.nodeName`".into(),
    })
}

/// Whether a file is of a policy. Static objects and nodes have different names.
fn is_of_policy(file: &str) -> bool {
    !file.contains("_np_static-") && !file.contains("_node_")
}

/// The default namespace of the objects.
pub(crate) const NAMESPACE: &str = "aci-containers-system";

#[derive(Serialize)]
struct OpflexOutput {
    /// The objects that the controller writes to the API server.
    objects: Vec<serde_json::Value>,
    /// The files that the agent writes on the node.
    files: BTreeMap<String, serde_json::Value>,
    /// The security groups that the endpoint of each pod must list.
    groups: BTreeMap<String, Vec<String>>,
    /// The findings from reading the input and about policies that ACI cannot express.
    findings: Vec<FindingJson>,
}

/// The files of a node with these pods.
fn files<'a>(
    judge: &RenderedCluster,
    pods: impl Iterator<Item = &'a Pod>,
    node: &str,
    prefix: &str,
    options: &FileOptions,
) -> BTreeMap<String, String> {
    let settings = AciSettings { prefix: prefix.into() };
    let mut files = Files::new(&settings, options.space(prefix), node, options.group_names);
    pods.for_each(|pod| files.put_pod(pod));
    judge.hpp().objects().values().for_each(|object| files.put(object.clone()));
    files.drain_dirty().filter_map(|(name, file)| Some((name, file?.text))).collect()
}

fn judge(world: World, prefix: &str, space: &str) -> Result<RenderedCluster, Failure> {
    let settings = AciSettings { prefix: prefix.into() };
    let world = weir_aci::with_derived_endpoints(world);
    RenderedCluster::new(&settings, space, &world).map_err(|error| {
        Failure::new(
            format!("internal error: cannot parse the generated opflex files: {error}"),
            "this is a bug; please report it with the manifests",
        )
    })
}
