//! Which policies and rules were used, as agents observed it.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use weir_flows::PoliciesPage;

use super::{
    agents::{AgentLine, Agents, ClusterAgents, print_message, remark},
    gaps::unavailable,
    local::LocalAgent,
};
use crate::{
    exit::Exit,
    failure::Failure,
    present::{self, Schema, flows::UnusedPolicies},
};

/// The uses of policies and rules on some nodes.
pub(super) struct PolicyUses {
    pages: Vec<PoliciesPage>,
    /// Why there may be further nodes, if the API server does not list the nodes.
    nodes_unknown: Option<String>,
}

impl PolicyUses {
    /// Reads the uses. Fails if a node sends none.
    pub(super) fn read(agents: &Agents<'_>) -> anyhow::Result<Self> {
        match agents {
            Agents::One(agent) => {
                Ok(PolicyUses { pages: vec![LocalAgent(agent).policies()?], nodes_unknown: None })
            }
            Agents::Cluster(cluster) => PolicyUses::read_cluster(cluster),
        }
    }

    fn read_cluster(cluster: &ClusterAgents) -> anyhow::Result<Self> {
        let (mut pages, mut senders) = (Vec::new(), BTreeSet::new());
        let words = ["flows", "--uses", "--output=json"].map(str::to_owned);
        let collected = cluster.collect(&words, |AgentLine { node, line }| {
            let page = serde_json::from_str::<PoliciesPage>(&line).map_err(|error| {
                let what = format!("cannot read the answer of node {node}: {error}");
                Failure::new(what, "use the release of weir that the agents have")
            })?;
            pages.push(page);
            senders.insert(node);
            Ok(())
        })?;
        collected.messages().iter().for_each(|message| print_message(message));
        let silent = collected.away.iter().map(|away| &away.node);
        let silent: BTreeSet<&String> =
            silent.chain(collected.answered.difference(&senders)).collect();
        if let Some(node) = silent.first() {
            let what = match silent.len() {
                1 => format!("a policy may be in use on node {node}, which sent no answer"),
                count => format!(
                    "a policy may be in use on {count} nodes that sent no answer, such as {node}"
                ),
            };
            return Err(Failure::new(what, "repeat the command when all nodes answer").into());
        }
        Ok(PolicyUses { pages, nodes_unknown: collected.nodes_unknown })
    }

    /// Writes the uses of all nodes together as text.
    pub(super) fn write(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        self.print_unavailable();
        present::flows::write_uses(out, &self.pages)?;
        Ok(Exit::Yes)
    }

    /// Writes the uses as one JSON object per node.
    pub(super) fn write_json(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        for page in &self.pages {
            let page = Schema::PolicyUses.tag(page);
            serde_json::to_writer(&mut *out, &page).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Ok(Exit::Yes)
    }

    /// Writes the policies that were not used as text.
    pub(super) fn write_unused(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let unused = self.unused();
        unused.write(out)?;
        Ok(Exit::when(unused.policies.is_empty()))
    }

    /// Writes the policies that were not used as JSON.
    pub(super) fn write_unused_json(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let unused = self.unused();
        let schema = Schema::PoliciesUnused;
        serde_json::to_writer(&mut *out, &schema.tag(&unused)).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(Exit::when(unused.policies.is_empty()))
    }

    /// The policies that were not used. Prints the nodes on which they may be in use.
    fn unused(&self) -> UnusedPolicies {
        let mut unused = UnusedPolicies::new(&self.pages);
        self.print_unavailable();
        let is_unavailable = self.pages.iter().any(|page| page.flows_unavailable.is_some());
        if is_unavailable || self.nodes_unknown.is_some() {
            unused.set_incomplete();
        }
        unused
    }

    /// Prints the nodes whose agents do not observe connections.
    fn print_unavailable(&self) {
        for page in &self.pages {
            if let Some(why) = &page.flows_unavailable {
                print_message(&remark(&page.node, &unavailable(why)));
            }
        }
    }
}
