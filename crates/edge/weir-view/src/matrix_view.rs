//! A cell of a matrix, as data.

use serde::Serialize;
use weir_reach::{Cell, Coverage, OtherNetworks, spell};

/// A cell of a matrix as JSON.
#[derive(Serialize)]
pub struct ConnectionJson<'a> {
    from: &'a str,
    to: &'a str,
    reach: &'static str,
    allowed: Vec<String>,
    denied: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partly: Vec<String>,
    #[serde(rename = "otherPorts", skip_serializing_if = "Vec::is_empty")]
    other: Vec<String>,
    /// Whether the ends can also connect over a network that is not judged.
    #[serde(rename = "otherNetworks", skip_serializing_if = "is_false")]
    other_networks: bool,
}

impl<'a> ConnectionJson<'a> {
    /// The cell of two ends.
    pub fn new(from: &'a str, to: &'a str, cell: &Cell) -> Self {
        ConnectionJson {
            from,
            to,
            reach: match cell.coverage() {
                Coverage::All => "all",
                Coverage::Some => "some",
                Coverage::None => "none",
                Coverage::Unknown => "notJudged",
            },
            allowed: spell(&cell.allowed),
            denied: spell(&cell.denied),
            partly: spell(&cell.partly),
            other: spell(&cell.other),
            other_networks: cell.other_networks == OtherNetworks::Also,
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}
