//! Findings that the author of the manifests has decided to ignore.

use std::path::{Path, PathBuf};

use jiff::civil::Date;
use weir_api::IgnoreAnnotation;
use weir_model::{Finding, Location, ObjectRef, Severity};

// The codes of findings about suppressions.
const UNUSED: &str = "unused-suppression";
const EXPIRED: &str = "expired-suppression";
const INVALID: &str = "invalid-suppression";

/// Where a suppression is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuppressionSource {
    /// An annotation of the object.
    Annotation,
    /// An entry of weir.yaml.
    Configuration,
}

impl SuppressionSource {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            SuppressionSource::Annotation => "annotation",
            SuppressionSource::Configuration => "configuration",
        }
    }
}

/// A finding that is not reported.
#[derive(Clone, Debug)]
pub struct SuppressedFinding {
    /// The finding.
    pub finding: Finding,
    /// The reason.
    pub reason: String,
    /// Where the reason is written.
    pub source: SuppressionSource,
}

/// An entry of `lint.ignore`.
#[derive(Debug)]
pub struct IgnoreEntry {
    /// The code of the findings.
    pub code: Option<String>,
    /// A pattern for `Kind namespace/name`.
    pub object: Option<String>,
    /// A pattern for the file.
    pub path: Option<String>,
    /// The reason.
    pub reason: String,
    /// The last day on which the entry has an effect.
    pub expires: Option<Date>,
    /// The file and line of the entry.
    pub location: Location,
    /// The folder of the configuration, to which paths are relative.
    pub folder: PathBuf,
}

/// Divides findings, as of a day. The reported ones include those about suppressions without an effect.
pub fn suppress(
    findings: Vec<Finding>,
    annotations: &[IgnoreAnnotation],
    entries: &[IgnoreEntry],
    today: Date,
) -> (Vec<Finding>, Vec<SuppressedFinding>) {
    let mut used_annotations = vec![false; annotations.len()];
    let mut used_entries = vec![false; entries.len()];
    let (mut reported, mut suppressed) = (Vec::new(), Vec::new());
    for finding in findings {
        let mut why = None;
        for (annotation, used) in annotations.iter().zip(&mut used_annotations) {
            if !annotation.reason.is_empty() && is_annotated(&finding, annotation) {
                *used = true;
                why.get_or_insert((&annotation.reason, SuppressionSource::Annotation));
            }
        }
        for (entry, used) in entries.iter().zip(&mut used_entries) {
            if entry.matches(&finding) {
                *used = true;
                if !entry.has_expired(today) {
                    why.get_or_insert((&entry.reason, SuppressionSource::Configuration));
                }
            }
        }
        match why {
            None => reported.push(finding),
            Some((reason, source)) => {
                suppressed.push(SuppressedFinding { finding, reason: reason.clone(), source });
            }
        }
    }
    for (annotation, used) in annotations.iter().zip(used_annotations) {
        reported.extend(about_annotation(annotation, used));
    }
    for (entry, used) in entries.iter().zip(used_entries) {
        reported.extend(entry.problem(used, today));
    }
    reported.sort();
    (reported, suppressed)
}

/// Whether a finding is about the object of an annotation, and has its code.
fn is_annotated(finding: &Finding, annotation: &IgnoreAnnotation) -> bool {
    if finding.code != annotation.code {
        return false;
    }
    let place = |location: &Option<Location>| location.as_ref().map(|one| one.file.clone());
    let is_same_file = place(&finding.location) == place(&annotation.location);
    let line = finding.location.as_ref().map_or(0, |location| location.line);
    if is_same_file && annotation.lines.contains(&line) {
        return true;
    }
    let ObjectRef { kind, namespace, name } = &annotation.object;
    finding.object.as_ref().is_some_and(|object| {
        object.kind == *kind
            && object.name == *name
            && (object.namespace == *namespace || (namespace.is_empty() && is_same_file))
    })
}

fn about_annotation(annotation: &IgnoreAnnotation, used: bool) -> Option<Finding> {
    let IgnoreAnnotation { object, code, reason, location, .. } = annotation;
    let (kind, message, hint) = if reason.is_empty() {
        let message = format!("the annotation to ignore {code} gives no reason, so it is not used");
        (INVALID, message, "write the reason as its value")
    } else if used {
        return None;
    } else {
        (UNUSED, format!("there is no finding {code} to ignore"), "remove the annotation")
    };
    Some(Finding {
        location: location.clone(),
        code: kind,
        severity: Severity::Warning,
        object: Some(object.clone()),
        field: format!("metadata.annotations[ignore-lint.weir.dev/{code}]"),
        message,
        hint: hint.to_owned(),
    })
}

impl IgnoreEntry {
    fn matches(&self, finding: &Finding) -> bool {
        let file = finding.location.as_ref().map(|location| &*location.file).unwrap_or_default();
        let has = |pattern: &Option<String>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| glob(pattern, text))
        };
        let file = file.strip_prefix("./").unwrap_or(file);
        let folder = self.folder.strip_prefix(".").unwrap_or(&self.folder);
        let inside = Path::new(file).strip_prefix(folder).ok().and_then(Path::to_str);
        has(&self.code, finding.code)
            && has(&self.object, &finding.object_text())
            && (has(&self.path, file) || inside.is_some_and(|inside| has(&self.path, inside)))
    }

    fn has_expired(&self, today: Date) -> bool {
        self.expires.is_some_and(|last| last < today)
    }

    fn problem(&self, used: bool, today: Date) -> Option<Finding> {
        let (code, message, hint) = match self.expires {
            Some(last) if self.has_expired(today) => {
                let message = format!("the entry expired after {last}, so it is not used");
                (EXPIRED, message, "fix the findings, or decide again and set a later day")
            }
            _ if used => return None,
            _ => (UNUSED, "the entry matches no finding".to_owned(), "remove the entry"),
        };
        Some(Finding {
            location: Some(self.location.clone()),
            code,
            severity: Severity::Warning,
            object: None,
            field: String::new(),
            message: format!("{message} (reason: {})", self.reason),
            hint: hint.to_owned(),
        })
    }
}

/// Whether a text has the form of a pattern. `*` is any text without `/`, `**` any text. A pattern
/// that ends in `/` matches everything that begins with it.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    match pattern.strip_suffix('/') {
        Some(folder) => text.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
        None => glob_bytes(pattern.as_bytes(), text.as_bytes()),
    }
}

/// Compares from each position that a `*` can reach, so the time is proportional to the product of
/// the lengths.
fn glob_bytes(pattern: &[u8], text: &[u8]) -> bool {
    // `reached[i]` is whether the pattern so far matches the first `i` bytes of the text.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    let mut at = 0;
    while at < pattern.len() {
        let is_any = pattern[at..].starts_with(b"**");
        let is_star = pattern[at] == b'*';
        let mut next = vec![false; text.len() + 1];
        for i in 0..=text.len() {
            if is_star {
                let before = i > 0 && next[i - 1] && (is_any || text[i - 1] != b'/');
                next[i] = reached[i] || before;
            } else if i > 0 {
                next[i] = reached[i - 1] && text[i - 1] == pattern[at];
            }
        }
        reached = next;
        at += if is_any { 2 } else { 1 };
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        assert!(glob("NetworkPolicy shop/*", "NetworkPolicy shop/db"));
        assert!(!glob("NetworkPolicy shop/*", "NetworkPolicy shop2/db"));
        assert!(!glob("*", "a/b") && glob("**", "a/b") && glob("a/**/c", "a/x/y/c"));
        assert!(glob("legacy/", "legacy/a/b.yaml") && !glob("legacy/", "legacy.yaml"));
        assert!(glob("./a.yaml", "a.yaml") && !glob("a.yaml", "a.yaml.bak") && !glob("", "a"));
        let stars = "*".repeat(3000);
        assert!(!glob(&format!("{stars}b"), &"a".repeat(3000)), "no exponential search");
    }
}
