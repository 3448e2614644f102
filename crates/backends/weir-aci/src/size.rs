//! Limits of an object's size. A policy whose rules exceed them is held: it isolates its pods and
//! allows nothing.

use weir_model::{Block, IpFamily, covering_nets};

use crate::{
    net,
    object::{ContainerSpec, HostprotRule},
};

/// Bounds for the objects of one policy.
#[derive(Clone, Debug)]
pub struct AciLimits {
    /// The maximum size of an object in bytes: the limit of the API server's store, less a margin.
    pub object_bytes: usize,
    /// The number of pairs of a block and a port up to which each pair is a rule. The rules of more
    /// pairs share a container with the networks of all blocks.
    pub block_rules: usize,
    /// The maximum number of pairs of a peer and a named port that the peer resolves. Each needs a
    /// search for pods.
    pub named_pairs: usize,
    /// The maximum number of named ports that the selected pods resolve. Each distinct numbering is
    /// an object.
    pub own_names: usize,
}

impl Default for AciLimits {
    fn default() -> Self {
        AciLimits { object_bytes: 1_300_000, block_rules: 1000, named_pairs: 1000, own_names: 200 }
    }
}

/// The rules of a policy do not fit into an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLarge;

/// Rules and containers of limited size.
#[derive(Debug)]
pub(crate) struct SizedRules {
    pub(crate) rules: Vec<HostprotRule>,
    pub(crate) containers: Vec<ContainerSpec>,
    bytes_left: usize,
}

impl SizedRules {
    pub(crate) fn new(limits: &AciLimits) -> Self {
        SizedRules { rules: Vec::new(), containers: Vec::new(), bytes_left: limits.object_bytes }
    }

    /// Adds a rule.
    pub(crate) fn push(&mut self, rule: HostprotRule) -> Result<(), TooLarge> {
        let bytes = serde_json::to_string(&rule).unwrap_or_default().len() + 1;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(TooLarge)?;
        self.rules.push(rule);
        Ok(())
    }
}

/// The networks of blocks as text, exceptions subtracted. Exceptions can need millions of networks.
pub(crate) fn block_nets<'b>(
    blocks: impl IntoIterator<Item = &'b Block>,
    limits: &AciLimits,
) -> Result<Vec<String>, TooLarge> {
    /// The size of an entry of a container beside its address.
    const ENTRY_BYTES: usize = 12;
    let mut texts = Vec::new();
    let mut bytes_left = limits.object_bytes;
    for block in blocks {
        let family = IpFamily::from(block.net.addr());
        for net in block.intervals().into_iter().flat_map(|part| covering_nets(part, family)) {
            let text = net::text(&net);
            bytes_left = bytes_left.checked_sub(text.len() + ENTRY_BYTES).ok_or(TooLarge)?;
            texts.push(text);
        }
    }
    Ok(texts)
}
