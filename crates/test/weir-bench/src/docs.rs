//! Writes tables and plots to `docs/`.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    datapath::{DatapathReport, Operation},
    root,
};

/// Replaces the measured tables of `docs/performance.md` and the plots in `docs/img`.
pub(crate) fn write(report: &DatapathReport) -> Result<()> {
    let docs = root().join("docs");
    let page = docs.join("performance.md");
    let mut text = fs::read_to_string(&page).with_context(|| cannot("read", &page))?;
    for (name, table) in report.tables() {
        // The plots of eBPF exist once it was measured.
        let table = if name == "ebpf-packets" { EBPF_PLOTS.to_owned() + &table } else { table };
        text = replace(&text, name, &table)
            .with_context(|| format!("{} has no marks for `{name}`", page.display()))?;
    }
    save(&page, &text)?;
    let plots = docs.join("img");
    fs::create_dir_all(&plots).with_context(|| cannot("create", &plots))?;
    for (name, operation) in
        [("connections.svg", Operation::Connection), ("datagrams.svg", Operation::OneWay)]
    {
        if report.has_packets() {
            save(&plots.join(name), &report.plot(operation))?;
        }
        if !report.ebpf.is_empty() {
            save(&plots.join(format!("ebpf-{name}")), &report.ebpf.plot(operation))?;
        }
    }
    Ok(())
}

/// The plots of eBPF, above its table of packets.
const EBPF_PLOTS: &str = "\
![CPU time of a new connection with eBPF, by the number of policies](img/ebpf-connections.svg)

![CPU time of a one-way UDP packet with eBPF, by the number of policies](img/ebpf-datagrams.svg)

";

/// Replaces one table of `docs/performance.md`.
pub(crate) fn put(name: &str, table: &str) -> Result<()> {
    let page = root().join("docs/performance.md");
    let text = fs::read_to_string(&page).with_context(|| cannot("read", &page))?;
    let text = replace(&text, name, table)
        .with_context(|| format!("{} has no marks for `{name}`", page.display()))?;
    save(&page, &text)
}

/// Replaces one plot of `docs/img`.
pub(crate) fn put_plot(name: &str, plot: &str) -> Result<()> {
    save(&root().join("docs/img").join(name), plot)
}

/// Writes a plot to `target`.
pub(crate) fn put_draft(name: &str, plot: &str) -> Result<()> {
    let folder = root().join("target");
    fs::create_dir_all(&folder).with_context(|| cannot("create", &folder))?;
    save(&folder.join(name), plot)
}

/// Whether the page has marks for a table.
#[cfg(test)]
pub(crate) fn has(name: &str) -> bool {
    let page = root().join("docs/performance.md");
    fs::read_to_string(page).is_ok_and(|text| replace(&text, name, "").is_some())
}

/// Replaces the text between the marks of a name. Returns `None` if there are no such marks.
fn replace(text: &str, name: &str, table: &str) -> Option<String> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&open)?;
    let (_, after) = rest.split_once(&close)?;
    Some(format!("{before}{open}\n{table}\n{close}{after}"))
}

fn save(path: &Path, text: &str) -> Result<()> {
    eprintln!("writing {}", path.display());
    fs::write(path, text).with_context(|| cannot("write", path))
}

fn cannot(verb: &str, path: &Path) -> String {
    format!("cannot {verb} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_between_marks_is_replaced() {
        let text = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n";
        let new = replace(text, "x", "new\n").expect("the text has marks");
        assert_eq!(new, "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n");
        assert_eq!(replace(&new, "x", "new\n").as_ref(), Some(&new));
        assert_eq!(replace(text, "y", "new"), None);
    }

    #[test]
    fn the_page_has_marks_for_every_table() {
        let page = root().join("docs/performance.md");
        let text = fs::read_to_string(page).expect("docs/performance.md exists");
        for name in [
            "packets",
            "objects",
            "control",
            "policies",
            "hostile",
            "ebpf-goals",
            "ebpf-packets",
            "ebpf-changes",
            "ebpf-flood",
            "flows",
        ] {
            assert!(replace(&text, name, "").is_some(), "{name}");
        }
    }
}
