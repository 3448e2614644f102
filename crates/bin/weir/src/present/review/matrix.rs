//! A matrix for code hosts.

use std::collections::BTreeMap;

use weir_model::{Direction, Location, PodId, Severity, Verdict, World};
use weir_reach::{Cell, Connection, Coverage, Exposure, Matrix, OtherNetworks, phrase};

use super::{
    Remark,
    markdown::{Page, escape},
};
use crate::present::{
    exposure::ports_of,
    matrix::{MAX_TABLE_ROWS, abbreviated, open_ports},
};

/// The manifests behind the names of a matrix.
pub(crate) struct EndLocations<'a> {
    /// The cluster.
    pub(crate) world: &'a World,
    /// The workload of each pod.
    pub(crate) owners: &'a BTreeMap<PodId, String>,
}

impl EndLocations<'_> {
    /// The manifest of a row. A row of several pods begins with the name of one of them.
    fn find(&self, name: &str) -> Option<Location> {
        let name = name.split([',', ' ']).next()?;
        let (namespace, pod) = name.split_once('/')?;
        let id = PodId { namespace: namespace.into(), name: pod.into() };
        let owned = || Some(self.owners.iter().find(|(_, owner)| *owner == name)?.0);
        let pods = &self.world.pods;
        pods.get(&id).or_else(|| pods.get(owned()?))?.location.clone()
    }
}

/// A remark for each destination that some source reaches, at its manifest.
pub(crate) fn remarks(matrix: &Matrix, locations: &EndLocations<'_>) -> Vec<Remark> {
    let mut sources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (from, to, cell) in matrix.connections() {
        if cell.coverage() != Coverage::None {
            sources.entry(to).or_default().push(format!("{from} ({})", reach(cell)));
        }
    }
    let remark = |(to, from): (&str, Vec<String>)| Remark {
        code: "reachable",
        severity: Severity::Info,
        location: locations.find(to),
        about: to.to_owned(),
        message: format!("{to} can be reached from {}", from.join("; ")),
        suppression: None,
    };
    sources.into_iter().map(remark).collect()
}

/// The ports that a cell opens.
fn reach(cell: &Cell) -> String {
    match cell.coverage() {
        Coverage::All => phrase(&cell.allowed),
        Coverage::Unknown => "not judged".to_owned(),
        Coverage::Some | Coverage::None => open_ports(cell),
    }
}

/// The tables of a comment.
pub(crate) fn page(matrix: &Matrix, elsewhere: &[Connection], notes: &[String]) -> String {
    let mut page = Page::default();
    if matrix.ends.len() <= MAX_TABLE_ROWS {
        grid(&mut page, matrix);
    }
    notes.iter().for_each(|note| page.paragraph(&escape(note)));
    let is_open = |(_, _, cell): &(&str, &str, &Cell)| match cell.coverage() {
        Coverage::All => matrix.ends.len() > MAX_TABLE_ROWS,
        Coverage::Some => true,
        Coverage::None | Coverage::Unknown => false,
    };
    let open: Vec<_> = matrix.connections().filter(is_open).collect();
    page.table(&["from", "to", "open ports"], &open, |(from, to, cell)| {
        vec![escape(from), escape(to), escape(&reach(cell))]
    });
    if !elsewhere.is_empty() {
        page.paragraph("Open connections from and to other namespaces:");
    }
    page.table(&["from", "to", "ports"], elsewhere, |connection| {
        let names = |names: &[String]| {
            escape(&abbreviated(&names.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        let family = connection.family.map(|family| format!(" ({family} only)"));
        let ports = format!("{}{}", phrase(&connection.ports), family.unwrap_or_default());
        vec![names(&connection.from), names(&connection.to), ports]
    });
    page.finish()
}

fn grid(page: &mut Page, matrix: &Matrix) {
    let mut head = vec!["from ↓ to →".to_owned()];
    head.extend(matrix.destinations().iter().map(|end| escape(end)));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows: Vec<_> = matrix.ends.iter().zip(&matrix.cells).collect();
    page.table(&head, &rows, |(end, cells)| {
        let mut row = vec![format!("**{}**", escape(end))];
        row.extend(cells.iter().map(|cell| {
            let sign = match cell.as_ref().map(|cell| cell.coverage()) {
                None => "·",
                Some(Coverage::All) => "✅",
                Some(Coverage::Some) => "🟡",
                Some(Coverage::None) => "❌",
                Some(Coverage::Unknown) => "?",
            };
            let is_partial = |cell: &&Cell| cell.other_networks == OtherNetworks::Also;
            let also = if cell.as_deref().filter(is_partial).is_some() { "?" } else { "" };
            format!("{sign}{also}")
        }));
        row
    });
    page.paragraph(&format!(
        "✅ all, 🟡 some of: {}; ❌ closed, on every port",
        escape(&matrix.ports)
    ));
    let mut cells = matrix.connections();
    if cells.any(|(_, _, cell)| cell.other_networks != OtherNetworks::None) {
        page.paragraph("? not judged: other networks than the cluster network");
    }
}

/// A remark for each entry of an exposure, at the manifest of its first pod.
pub(crate) fn exposure_remarks(
    exposures: &[Exposure],
    locations: &EndLocations<'_>,
) -> Vec<Remark> {
    let open = exposures.iter().filter(|one| one.verdict == Verdict::Allow);
    let remark = |exposure: &Exposure| {
        let peers = exposure.peers.as_ref()?;
        let pods = exposure.pods.join(", ");
        let ports = ports_of(exposure);
        let message = match exposure.direction {
            Direction::Ingress => format!("new pods can reach {pods}: {peers}, {ports}"),
            Direction::Egress => format!("{pods} can reach new pods: {peers}, {ports}"),
        };
        let location = exposure.pods.first().and_then(|pod| locations.find(pod));
        Some(Remark {
            code: "exposed",
            severity: Severity::Info,
            location,
            about: pods,
            message,
            suppression: None,
        })
    };
    open.filter_map(remark).collect()
}

/// The table of an exposure.
pub(crate) fn exposure_page(exposures: &[Exposure]) -> String {
    let mut page = Page::default();
    page.paragraph("Open to pods and namespaces that do not exist yet:");
    page.table(&["pods", "direction", "new pods", "ports"], exposures, |exposure| {
        let (peers, mut ports) = match &exposure.peers {
            None => ("none".to_owned(), String::new()),
            Some(peers) => (peers.to_string(), ports_of(exposure)),
        };
        if exposure.peers.is_some() && exposure.verdict == Verdict::Deny {
            ports = format!("closed: {ports}");
        }
        let pods = escape(&exposure.pods.join(", "));
        vec![pods, exposure.direction.to_string(), escape(&peers), escape(&ports)]
    });
    page.finish()
}
