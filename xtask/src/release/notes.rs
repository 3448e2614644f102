//! The release notes: the section of the changelog about a version.

use anyhow::{Context, Result, bail};

/// The section of a version, or `Unreleased` if the version has none yet.
pub(crate) fn generate(changelog: &str, version: &str) -> Result<String> {
    let is_of = |heading: &str| heading == version || heading.starts_with(&format!("{version} "));
    let sections: Vec<(&str, &str)> = changelog
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .collect();
    let found = sections.iter().find(|(heading, _)| is_of(heading));
    let found = found.or_else(|| sections.iter().find(|(heading, _)| *heading == "Unreleased"));
    let (_, text) = found.with_context(|| format!("CHANGELOG.md has no section {version}"))?;
    let text = text.trim();
    if text.is_empty() {
        bail!("CHANGELOG.md says nothing about version {version}");
    }
    Ok(format!("# weir {version}\n\n{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 (2027-01-01)\n\n### A\n- two\n\n## 0.1.0\n\n- one\n";

    #[test]
    fn the_notes_are_the_section_of_the_version() {
        let notes = |version| generate(CHANGELOG, version).unwrap();
        assert_eq!(notes("0.2.0"), "# weir 0.2.0\n\n### A\n- two\n");
        assert_eq!(notes("0.1.0"), "# weir 0.1.0\n\n- one\n");
        assert_eq!(notes("0.3.0"), "# weir 0.3.0\n\n- new\n");
        assert!(generate("# Changelog\n\n## Unreleased\n", "1.0.0").is_err());
    }
}
