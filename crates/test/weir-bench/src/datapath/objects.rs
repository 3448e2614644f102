//! The number of kernel objects of a node with a hundred pods.

use std::fmt;

use anyhow::Result;
use serde_json::{Value, json};
use weir_engine::{Engine, Locality};
use weir_iptables::Variant;
use weir_lab::{Lab, LabNode, Layout};
use weir_model::Program;

use super::{
    backend::{MeasuredBackend, Ruleset},
    nft,
    program::SystemProgram,
};
use crate::workload::{ClusterShape, NODE};

/// The number of kernel objects by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) tables: usize,
    pub(crate) chains: usize,
    pub(crate) rules: usize,
    /// Named sets and maps.
    pub(crate) sets: usize,
    /// Anonymous sets and maps inside rules.
    pub(crate) anonymous: usize,
}

impl Objects {
    pub(crate) fn all(self) -> usize {
        self.tables + self.chains + self.rules + self.sets + self.anonymous
    }

    pub(crate) fn json(self) -> Value {
        json!({
            "tables": self.tables, "chains": self.chains, "rules": self.rules, "sets": self.sets,
            "anonymous_sets": self.anonymous, "all": self.all(),
        })
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} chains, {} rules, {} sets",
            self.chains,
            self.rules,
            self.sets + self.anonymous
        )
    }
}

/// The objects of one cluster.
pub(crate) struct ObjectCount {
    pub(crate) shape: ClusterShape,
    pub(crate) backend: Ruleset,
    /// The objects in the rendered rules.
    pub(crate) rendered: Objects,
    /// The objects that the kernel lists after loading the rules.
    pub(crate) listed: Objects,
}

impl ObjectCount {
    pub(crate) fn json(&self) -> Value {
        json!({
            "world": self.shape.to_string(),
            "backend": self.backend.to_string(),
            "pods": self.shape.pods(),
            "policies": self.shape.policies(),
            "rendered": self.rendered.json(),
            "listed": self.listed.json(),
        })
    }
}

/// Renders and loads the rules of a node for each cluster.
pub(crate) fn count(quick: bool) -> Result<Vec<ObjectCount>> {
    let sizes: &[usize] = if quick { &[1_000] } else { &[1_000, 25_000] };
    let mut rows = Vec::new();
    for &size in sizes {
        let shape = ClusterShape::Small(size);
        eprintln!("{shape}: counting");
        let mut program = Program::default();
        program.apply(Engine::new(Locality::Node(NODE.into())).apply(shape.changes()));
        for backend in Ruleset::ALL {
            let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
            let lab = Lab::build(&Layout { nodes, ..Layout::default() })?;
            let listed = lab.on_node(NODE, || {
                MeasuredBackend::Rules(backend).enforce(&program)?;
                listed(backend)
            })??;
            let rendered = match backend {
                Ruleset::Nftables => in_text(&weir_nft::render(&program).to_string()),
                Ruleset::Iptables(_) => in_saved(&weir_iptables::render(&program).to_string()),
            };
            rows.push(ObjectCount { shape, backend, rendered, listed });
        }
    }
    Ok(rows)
}

/// Counts the objects in the namespace of this thread.
fn listed(backend: Ruleset) -> Result<Objects> {
    let saves = match backend {
        Ruleset::Nftables => return Ok(in_listing(&nft::list()?)),
        Ruleset::Iptables(Variant::Nft) => ["iptables-nft-save", "ip6tables-nft-save"],
        Ruleset::Iptables(Variant::Legacy) => ["iptables-legacy-save", "ip6tables-legacy-save"],
    };
    let mut text = SystemProgram("ipset").run(&["save"], "")?;
    for save in saves {
        text.extend(SystemProgram(save).run(&["-t", "filter"], "")?);
    }
    Ok(in_saved(&String::from_utf8_lossy(&text)))
}

/// Counts the output of ipset and iptables-save. Built-in chains, which have a policy, do not count.
fn in_saved(text: &str) -> Objects {
    let count = |is: fn(&str) -> bool| text.lines().filter(|line| is(line)).count();
    Objects {
        chains: count(|line| line.starts_with(':') && line.contains(" - ")),
        rules: count(|line| line.starts_with("-A ")),
        sets: count(|line| line.starts_with("create ")),
        ..Objects::default()
    }
}

/// Counts a ruleset as text: a table has sets and chains, a chain has rules.
fn in_text(text: &str) -> Objects {
    let mut objects = Objects::default();
    let mut in_chain = false;
    for line in text.lines().map(str::trim) {
        match line.split_whitespace().next() {
            Some("table") => objects.tables += 1,
            Some("set" | "map") => objects.sets += 1,
            Some("chain") => {
                objects.chains += 1;
                in_chain = true;
            }
            Some("}") => in_chain = false,
            Some("type" | "policy") | None => (),
            Some(_) if in_chain => {
                objects.rules += 1;
                objects.anonymous += line.matches('{').count();
            }
            Some(_) => (),
        }
    }
    objects
}

/// Counts the output of `nft -j list ruleset`.
fn in_listing(listing: &Value) -> Objects {
    let mut objects = Objects::default();
    for (kind, object) in
        listing["nftables"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten()
    {
        match kind.as_str() {
            "table" => objects.tables += 1,
            "chain" => objects.chains += 1,
            "set" | "map" => objects.sets += 1,
            "rule" => {
                objects.rules += 1;
                objects.anonymous += anonymous(&object["expr"]);
            }
            _ => (),
        }
    }
    objects
}

fn anonymous(expression: &Value) -> usize {
    match expression {
        Value::Array(parts) => parts.iter().map(anonymous).sum(),
        Value::Object(parts) => {
            let own = parts.get("set").is_some_and(Value::is_array);
            usize::from(own) + parts.values().map(anonymous).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_where_they_are_written() {
        let text = "table inet weir {\n\tset a {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.1,\n\t\t\t10.0.0.2 }\n\t}\n\
                    \n\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tip saddr @a accept\n\
                    \t\ttcp dport { 80, 81 } accept\n\t}\n}\n";
        let expected = Objects { tables: 1, chains: 1, rules: 2, sets: 1, anonymous: 1 };
        assert_eq!(in_text(text), expected);
        let ports = json!({"match": {"op": "==", "left": {}, "right": {"set": [80, 81]}}});
        let listing = json!({"nftables": [
            {"metainfo": {}}, {"table": {}}, {"chain": {}}, {"set": {}},
            {"rule": {"expr": [{"match": {"right": "@a"}}, {"accept": null}]}},
            {"rule": {"expr": [ports, {"accept": null}]}},
        ]});
        assert_eq!(in_listing(&listing), expected);
        let saved = "create a hash:ip\nadd a 10.0.0.1\n*filter\n:FORWARD ACCEPT [0:0]\n:ours - [0:0]\n\
                     -A FORWARD -j ours\n-A ours -m set --match-set a src -j ACCEPT\nCOMMIT\n";
        let expected = Objects { chains: 1, rules: 2, sets: 1, ..Objects::default() };
        assert_eq!(in_saved(saved), expected);
    }
}
