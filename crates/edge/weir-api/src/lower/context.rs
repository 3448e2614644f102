use std::{collections::HashSet, fmt, net::IpAddr, sync::Arc};

use weir_model::{Finding, Location, Name, ObjectRef, Severity, closest};

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

/// Texts that many objects share.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    all: HashSet<Name>,
    /// The size at which unused texts are removed.
    limit: usize,
}

impl NameTable {
    /// The shared copy of a text.
    pub(crate) fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.all.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.all.insert(name.clone());
        name
    }

    /// Removes texts that no object uses any more, once there are many.
    pub(crate) fn tidy(&mut self) {
        const MIN_LIMIT: usize = 4096;
        if self.all.len() > self.limit.max(MIN_LIMIT) {
            self.all.retain(|name| Arc::strong_count(name) > 1);
            self.limit = 2 * self.all.len();
        }
    }
}

/// The current position while an object is lowered, and the findings so far.
pub(crate) struct LowerContext<'a> {
    file: &'a Name,
    names: &'a mut NameTable,
    findings: &'a mut Vec<Finding>,
    object: Option<ObjectRef>,
    path: Vec<PathStep>,
    /// Whether the API server would reject the object.
    pub(crate) invalid: bool,
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
            names,
            findings,
            object,
            path: Vec::new(),
            invalid: false,
            unknown: Severity::Error,
        }
    }

    /// Sets the object that findings are about from now on.
    pub(crate) fn about(&mut self, object: ObjectRef) {
        self.object = Some(object);
    }

    pub(crate) fn name(&mut self, text: &str) -> Name {
        self.names.name(text)
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

    /// The elements of a list. Null is an empty list.
    pub(crate) fn list<'t>(&mut self, tree: &'t Tree) -> Option<&'t [Tree]> {
        match &tree.value {
            TreeValue::Seq(items) => Some(items),
            TreeValue::Null => Some(&[]),
            _ => {
                let message = format!("expected a list, found {}", tree.describe());
                self.invalid(tree.line, message, "begin each element with `- `");
                None
            }
        }
    }

    /// Reads all elements of a list. `None` if any of them is invalid; the errors of all are
    /// reported.
    pub(crate) fn each<T>(
        &mut self,
        tree: &Tree,
        mut read: impl FnMut(&mut Self, usize, &Tree) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = self.list(tree)?;
        let read: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.at(index, |ctx| read(ctx, index, item)))
            .collect();
        read.into_iter().collect()
    }

    pub(crate) fn text<'t>(&mut self, tree: &'t Tree) -> Option<&'t str> {
        match &tree.value {
            TreeValue::Str(text) => Some(text),
            _ => {
                let (advice, hint) = if tree.lacks_quotes() {
                    ("; quote it", "write it in double quotes")
                } else {
                    ("", "write a string here")
                };
                let message = format!("expected a string, found {}{advice}", tree.describe());
                self.invalid(tree.line, message, hint);
                None
            }
        }
    }

    /// A whole number from `low` to `high`.
    pub(crate) fn number(&mut self, tree: &Tree, low: i64, high: i64) -> Option<i64> {
        match tree.value {
            TreeValue::Int(number, _) if (low..=high).contains(&number) => Some(number),
            TreeValue::Int(..) | TreeValue::Float(_) => {
                let message = format!(
                    "expected a whole number from {low} to {high}, found {}",
                    tree.describe()
                );
                self.invalid(tree.line, message, format!("choose a number from {low} to {high}"));
                None
            }
            _ => {
                let message =
                    format!("expected a number from {low} to {high}, found {}", tree.describe());
                let hint = match tree.text() {
                    Some(_) => "write the number without quotes",
                    None => "write a number",
                };
                self.invalid(tree.line, message, hint);
                None
            }
        }
    }

    /// A port number.
    pub(crate) fn port(&mut self, tree: &Tree) -> Option<u16> {
        self.number(tree, 1, 65535).and_then(|port| u16::try_from(port).ok())
    }

    pub(crate) fn boolean(&mut self, tree: &Tree) -> Option<bool> {
        match tree.value {
            TreeValue::Bool(value, _) => Some(value),
            _ => {
                let message = format!("expected true or false, found {}", tree.describe());
                self.invalid(tree.line, message, "write true or false, without quotes");
                None
            }
        }
    }

    /// One of several words.
    pub(crate) fn word<T: Copy>(&mut self, tree: &Tree, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(tree)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let list: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        // The versions of the admin kinds use different words.
        let renamed = list
            .iter()
            .find(|word| matches!((text, **word), ("Allow", "Accept") | ("Accept", "Allow")));
        let hint = match renamed.copied().or_else(|| closest(text, list.iter().copied())) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write {}", one_of(&list)),
        };
        let message = format!("expected {}, found {}", one_of(&list), tree.describe());
        self.invalid(tree.line, message, hint);
        None
    }

    /// An address.
    pub(crate) fn address(&mut self, tree: &Tree) -> Option<IpAddr> {
        let text = self.text(tree)?;
        match super::cidr::address(text) {
            Some(address) => Some(address),
            None => {
                let message = format!("expected an IP address, found {}", tree.describe());
                self.invalid(tree.line, message, "write an address such as 10.0.0.1 or fd00::1");
                None
            }
        }
    }
}

/// Words for a sentence: `a, b or c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).into(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
