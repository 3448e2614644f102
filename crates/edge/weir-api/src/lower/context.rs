use std::fmt;

use weir_model::{Finding, Location, Name, NameTable, ObjectRef, Severity, closest};

use crate::document::{MapEntry, Tree, TreeValue};

/// The most findings that are kept.
const MAX_FINDINGS: usize = 50_000;

/// The code of the finding that replaces all further ones.
pub(crate) const TOO_MANY: &str = "too-many-findings";

/// Adds a finding, up to the limit. Hostile input can contain millions of errors.
pub(crate) fn keep(findings: &mut Vec<Finding>, finding: Finding) {
    match findings.len() {
        0..MAX_FINDINGS => findings.push(finding),
        MAX_FINDINGS => findings.push(Finding {
            code: TOO_MANY,
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: "there are further findings that are not listed".into(),
            hint: "correct the listed ones first".into(),
            ..finding
        }),
        _ => (),
    }
}

/// The current position while an object is lowered, and the findings so far.
pub(crate) struct LowerContext<'a> {
    file: &'a Name,
    names: &'a mut NameTable,
    findings: &'a mut Vec<Finding>,
    object: Option<ObjectRef>,
    /// The namespace of objects without one (S2).
    pub(crate) default_namespace: Name,
    path: Vec<PathStep>,
    /// Whether the API server would reject the object.
    pub(crate) invalid: bool,
    /// Whether a finding about the object is an error.
    pub(crate) has_errors: bool,
    /// The severity of an unknown field.
    unknown: Severity,
}

/// A step on the way to a field.
pub(crate) enum PathStep {
    Field(&'static str),
    Unknown(Box<str>),
    Key(Box<str>),
    Index(usize),
}

impl fmt::Display for PathStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathStep::Field(name) => write!(f, ".{name}"),
            PathStep::Unknown(name) => write!(f, ".{name}"),
            PathStep::Key(key) => write!(f, "[{key}]"),
            PathStep::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl From<&'static str> for PathStep {
    fn from(name: &'static str) -> Self {
        PathStep::Field(name)
    }
}

impl From<usize> for PathStep {
    fn from(index: usize) -> Self {
        PathStep::Index(index)
    }
}

/// The fields of a mapping.
pub(crate) struct Fields<'t> {
    pub(crate) line: u32,
    entries: &'t [MapEntry],
    /// Whether it is a mapping without unknown and repeated fields.
    pub(crate) clean: bool,
}

impl<'t> Fields<'t> {
    /// A field; null counts as missing (V1).
    pub(crate) fn get(&self, name: &str) -> Option<&'t Tree> {
        crate::document::find(self.entries, name)
    }

    /// The line of a field's name.
    pub(crate) fn line_of(&self, name: &str) -> Option<u32> {
        self.entries.iter().find(|entry| *entry.key == *name).map(|entry| entry.line)
    }

    /// Whether a field occurs more than once, so that its value is ambiguous.
    pub(crate) fn is_repeated(&self, name: &str) -> bool {
        self.entries.iter().filter(|entry| *entry.key == *name).count() > 1
    }

    /// How many of these fields are given.
    pub(crate) fn count(&self, names: &[&str]) -> usize {
        names.iter().filter(|name| self.get(name).is_some()).count()
    }
}

impl<'a> LowerContext<'a> {
    pub(crate) fn new(
        file: &'a Name,
        names: &'a mut NameTable,
        findings: &'a mut Vec<Finding>,
        object: Option<ObjectRef>,
    ) -> Self {
        LowerContext {
            file,
            default_namespace: names.intern("default"),
            names,
            findings,
            object,
            path: Vec::new(),
            invalid: false,
            has_errors: false,
            unknown: Severity::Error,
        }
    }

    /// Sets the object that findings are about from now on.
    pub(crate) fn about(&mut self, object: ObjectRef) {
        self.object = Some(object);
    }

    /// The namespace of the object.
    pub(crate) fn home(&self) -> &Name {
        self.object.as_ref().map_or(&self.default_namespace, |object| &object.namespace)
    }

    pub(crate) fn name(&mut self, text: &str) -> Name {
        self.names.intern(text)
    }

    pub(crate) fn location(&self, line: u32) -> Option<Location> {
        Some(Location { file: self.file.clone(), line })
    }

    /// Runs `f` where an unknown field may belong to a newer API: a warning, not an error.
    pub(crate) fn tolerating_unknown<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.unknown, Severity::Warning);
        let done = f(self);
        self.unknown = before;
        done
    }

    /// Runs `f` one step further down.
    pub(crate) fn at<T>(&mut self, step: impl Into<PathStep>, f: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step.into());
        let done = f(self);
        self.path.pop();
        done
    }

    pub(crate) fn find(
        &mut self,
        code: &'static str,
        severity: Severity,
        line: u32,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.has_errors |= severity == Severity::Error;
        let path: String = self.path.iter().map(PathStep::to_string).collect();
        let finding = Finding {
            location: self.location(line),
            code,
            severity,
            object: self.object.clone(),
            field: path.strip_prefix('.').unwrap_or(&path).into(),
            message: message.into(),
            hint: hint.into(),
        };
        keep(self.findings, finding);
    }

    /// Reports an error that makes the API server reject the object.
    pub(crate) fn invalid(
        &mut self,
        line: u32,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.invalid = true;
        self.find("invalid", Severity::Error, line, message, hint);
    }

    /// The fields of a mapping; those not in `known` are reported. Null is an empty mapping.
    pub(crate) fn fields<'t>(&mut self, tree: &'t Tree, known: &[&'static str]) -> Fields<'t> {
        let mut fields = self.any_fields(tree);
        for (at, entry) in fields.entries.iter().enumerate() {
            if !known.contains(&&*entry.key) {
                fields.clean = false;
                self.unknown_field(entry, known);
            } else if fields.entries[..at].iter().any(|e| e.key == entry.key) {
                // The document's reader reported it.
                fields.clean = false;
                self.invalid = true;
            }
        }
        fields
    }

    /// The fields of a mapping that may have further ones. A field similar to one of `known` is
    /// reported as misspelt.
    pub(crate) fn open_fields<'t>(&mut self, tree: &'t Tree, known: &[&'static str]) -> Fields<'t> {
        let fields = self.any_fields(tree);
        // The document's reader reported repeated fields.
        self.invalid |= known.iter().any(|name| fields.is_repeated(name));
        for entry in fields.entries.iter().filter(|entry| !known.contains(&&*entry.key)) {
            if let Some(meant) = closest(&entry.key, known.iter().copied()) {
                let key = crate::document::quote(entry.written.as_deref().unwrap_or(&entry.key));
                let message = format!("there is no field {key} here");
                let hint = format!("did you mean `{meant}`?");
                self.at(PathStep::Unknown(entry.key.clone()), |ctx| {
                    ctx.find("unknown-field", ctx.unknown, entry.line, message, hint);
                });
            }
        }
        fields
    }

    /// The fields of a mapping, with any names.
    pub(crate) fn any_fields<'t>(&mut self, tree: &'t Tree) -> Fields<'t> {
        let line = tree.line;
        match &tree.value {
            TreeValue::Map(entries) => Fields { line, entries, clean: true },
            TreeValue::Null => Fields { line, entries: &[], clean: true },
            _ => {
                let message = format!("expected a mapping, found {}", tree.describe());
                self.invalid(line, message, "write `field: value` lines here");
                Fields { line, entries: &[], clean: false }
            }
        }
    }

    fn unknown_field(&mut self, entry: &MapEntry, known: &[&'static str]) {
        let written = entry.written.as_deref().unwrap_or(&entry.key);
        let key = crate::document::quote(written);
        // A longer list would not help.
        let expected = match known.len() {
            0..=12 => format!("; expected {}", known.join(", ")),
            _ => String::new(),
        };
        let hint = match closest(&entry.key, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "remove the field, or move it to where it belongs".into(),
        };
        let message = format!("there is no field {key} here{expected}");
        self.at(PathStep::Unknown(entry.key.clone()), |ctx| {
            ctx.find("unknown-field", ctx.unknown, entry.line, message, hint);
        });
    }
}
