//! A matrix as a self-contained SVG picture.

use weir_reach::{Cell, Coverage, Matrix, OtherNetworks, spell};

use super::plain::Plain;

/// The distance between two cells, in pixels.
const CELL: usize = 26;
/// The margin of the picture, in pixels.
const MARGIN: usize = 16;
/// The approximate width of a character of the labels, in pixels.
const LABEL_CHARACTER: f64 = 7.3;
/// The approximate width of a character of the notes, in pixels.
const NOTE_CHARACTER: f64 = 6.7;
/// The additional distance between two namespaces, in pixels.
const NAMESPACE_GAP: usize = 8;

/// The width of the legend, in pixels.
const LEGEND_WIDTH: usize = 440;

const STYLE: &str = "\
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2937; }
.page { fill: #ffffff; stroke: #d0d7de; }
.title { font: 600 15px system-ui, sans-serif; }
.note { font: 12px system-ui, sans-serif; fill: #4b5563; }
.all { fill: #34a46b; } .some { fill: #e8b33f; } .none { fill: #dc6360; } .void { fill: #eef1f5; }
rect.cell:hover { stroke: #111827; stroke-width: 2; }
.mark { font: 600 13px system-ui, sans-serif; fill: #ffffff; text-anchor: middle; pointer-events: none; }
";

/// Draws the matrix. Each cell lists its ports in a tooltip.
pub(crate) fn picture(matrix: &Matrix) -> String {
    let longest = matrix.ends.iter().map(|end| end.chars().count()).max().unwrap_or(0);
    let label = (longest as f64 * LABEL_CHARACTER) as usize + MARGIN;
    let at = offsets(&matrix.ends);
    let side = at.last().map_or(0, |last| last + CELL);
    let (left, top) = (label + MARGIN, label * 3 / 4 + 78);
    let ports = format!("Ports: {}", matrix.ports);
    let note_width = (ports.chars().count() as f64 * NOTE_CHARACTER) as usize;
    // The label of the last column extends to the right.
    let width = (left + side + label * 3 / 4).max(note_width).max(left + LEGEND_WIDTH) + MARGIN;
    let height = top + side + 60;
    let mut svg = String::new();
    let out = &mut svg;
    out.push_str(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>which pods reach which</title>\n<style>\n{STYLE}</style>\n<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
            width - 1,
            height - 1
        ));
    for (class, y, text) in [
        ("title", 28, "Which pods reach which"),
        ("note", 48, "Rows are sources, columns are destinations."),
        ("note", 66, &ports),
    ] {
        let text = escape(text);
        out.push_str(&format!("<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{text}</text>\n"));
    }
    for (index, (end, offset)) in matrix.ends.iter().zip(&at).enumerate() {
        let (x, y) = (left + offset + CELL / 2 + 4, top - 8);
        let members = matrix.members.get(end).map(|pods| pods.join("\n"));
        let members = members.map(|pods| format!("<title>{}</title>", lines(&pods)));
        let text = format!("{}{}", escape(end), members.unwrap_or_default());
        if index < matrix.destinations().len() {
            out.push_str(&format!(
                "<text x=\"{x}\" y=\"{y}\" transform=\"rotate(-45 {x} {y})\">{text}</text>\n"
            ));
        }
        let y = top + offset + CELL / 2 + 4;
        out.push_str(&format!(
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{text}</text>\n",
            left - 8
        ));
    }
    for ((from, row), y) in matrix.ends.iter().zip(&matrix.cells).zip(&at) {
        for ((to, cell), x) in matrix.ends.iter().zip(row).zip(&at) {
            draw(out, (left + x, top + y), (from, to), cell.as_deref());
        }
    }
    legend(out, left, top + side + 24);
    out.push_str("</svg>\n");
    svg
}

/// The offset of each row and column.
fn offsets(ends: &[String]) -> Vec<usize> {
    let namespace = |end: &str| end.split_once('/').map(|(namespace, _)| namespace.to_owned());
    let mut at = 0;
    let mut offsets = Vec::with_capacity(ends.len());
    for (index, end) in ends.iter().enumerate() {
        if index > 0 {
            at += CELL;
            at += if namespace(&ends[index - 1]) == namespace(end) { 0 } else { NAMESPACE_GAP };
        }
        offsets.push(at);
    }
    offsets
}

fn draw(out: &mut String, (x, y): (usize, usize), (from, to): (&str, &str), cell: Option<&Cell>) {
    let (class, mark) = match cell.map(Cell::coverage) {
        None => ("void", ""),
        Some(Coverage::All) => ("all", "✓"),
        Some(Coverage::Some) => ("some", "~"),
        Some(Coverage::None) => ("none", "✗"),
        Some(Coverage::Unknown) => ("void", "?"),
    };
    let mut title = vec![format!("{from} → {to}")];
    for (word, ports) in cell.iter().flat_map(|cell| {
        [
            ("allowed", &cell.allowed),
            ("denied", &cell.denied),
            ("for some addresses", &cell.partly),
            ("other open ports", &cell.other),
        ]
    }) {
        if !ports.is_empty() {
            title.push(format!("{word}: {}", spell(ports).join(", ")));
        }
    }
    match cell.map(|cell| cell.other_networks) {
        Some(OtherNetworks::Only) => {
            title.push("not judged: not on the cluster network".to_owned())
        }
        Some(OtherNetworks::Also) => title.push("other networks are not judged".to_owned()),
        Some(OtherNetworks::None) | None => (),
    }
    if cell.is_none() {
        title.push("no connection to evaluate".to_owned());
    }
    let size = CELL - 2;
    let title = lines(&title.join("\n"));
    out.push_str(&format!(
            "<g><rect class=\"cell {class}\" x=\"{x}\" y=\"{y}\" width=\"{size}\" height=\"{size}\" rx=\"4\"><title>{title}</title></rect>"
        ));
    if !mark.is_empty() {
        let (x, y) = (x + size / 2, y + size / 2 + 5);
        out.push_str(&format!("<text class=\"mark\" x=\"{x}\" y=\"{y}\">{mark}</text>"));
    }
    out.push_str("</g>\n");
}

fn legend(out: &mut String, left: usize, y: usize) {
    let mut x = left;
    for (class, text) in [
        ("all", "all ports"),
        ("some", "some ports"),
        ("none", "no port"),
        ("void", "not evaluated"),
    ] {
        out.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" rx=\"3\"/>"
        ));
        out.push_str(&format!(
            "<text class=\"note\" x=\"{}\" y=\"{}\">{text}</text>\n",
            x + 20,
            y + 11
        ));
        x += 44 + (text.len() as f64 * NOTE_CHARACTER) as usize;
    }
}

/// Escapes the lines of a tooltip.
fn lines(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// Escapes untrusted text for XML.
pub(crate) fn escape(text: &str) -> String {
    let text = Plain(text).to_string();
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}
