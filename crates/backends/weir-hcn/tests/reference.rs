//! `docs/reference/windows.md` documents every rule, and the tests that it names exist.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use weir_engine::{Locality, compile};
use weir_hcn::{Acl, render};
use weir_model::World;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The cells of the tables of a section, row by row.
fn rows(section: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/reference/windows.md")).unwrap();
    let (_, text) = page.split_once(&format!("## {section}\n")).expect("the section exists");
    let text = text.split("\n## ").next().unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with('|') && !line.starts_with("| ---"));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

/// All files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_test_that_the_windows_reference_names_exists() {
    let rows = rows("The design, clause by clause");
    let tests = rows.iter().filter_map(|row| row.last());
    let words = tests.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let is_test = |word: &&str| {
        word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let names: BTreeSet<&str> = words.filter(is_test).collect();
    assert!(names.len() > 25, "{names:?}");
    let text: String = [root().join("crates"), root().join("xtask")]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    for name in names {
        assert!(text.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}

/// A row of the table of rules.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Documented {
    /// `None` if the rule has no priority.
    priorities: Option<(u16, u16)>,
    kind: String,
    /// The beginning of the id; `None` for the id of a policy.
    id: Option<String>,
}

impl Documented {
    fn parse(row: &[String]) -> Option<Documented> {
        let [priority, kind, id, _] = row else { return None };
        let numbers: Vec<u16> = priority.split('–').filter_map(|part| part.parse().ok()).collect();
        let priorities = match (&*numbers, &**priority) {
            ([one], _) => Some((*one, *one)),
            ([first, last], _) => Some((*first, *last)),
            (_, "none") => None,
            _ => return None,
        };
        let id = id.strip_prefix('`').map(|id| id.trim_end_matches('`').to_owned());
        Some(Documented { priorities, kind: kind.clone(), id })
    }

    fn describes(&self, acl: &Acl) -> bool {
        let in_range = match (self.priorities, acl.priority) {
            (Some((first, last)), Some(number)) => (first..=last).contains(&number),
            (None, None) => true,
            _ => false,
        };
        let has_id = match &self.id {
            Some(id) => acl.id.starts_with(id.as_str()),
            None => acl.id.contains('#'),
        };
        in_range && has_id && self.kind == acl.rule_type.to_string()
    }
}

#[test]
fn every_rule_is_documented() {
    let documented: BTreeSet<Documented> =
        rows("Rules").iter().filter_map(|row| Documented::parse(row)).collect();
    let mut used: BTreeMap<&Documented, usize> = BTreeMap::new();
    for file in files(&root().join("cases"), "yaml") {
        let name = file.display().to_string();
        for case in weir_api::cases(name.as_str().into(), &fs::read(&file).unwrap()) {
            let world: World = case.objects.into_iter().collect();
            let program = compile(&world, Locality::Everywhere);
            for (id, endpoint) in &program.endpoints {
                for acl in render(id, endpoint, &program, &BTreeSet::new()).acls {
                    let rows: Vec<&Documented> =
                        documented.iter().filter(|row| row.describes(&acl)).collect();
                    let [row] = &*rows else { panic!("{acl} is documented by {rows:?}") };
                    *used.entry(*row).or_default() += 1;
                }
            }
        }
    }
    // Only policies that do not fit into ACLs have these.
    let is_rare = |row: &&Documented| {
        row.id.as_deref() == Some("weir:endless")
            || [1999, 2999].map(|one| Some((one, one))).contains(&row.priorities)
    };
    let unused = documented.iter().filter(|row| !used.contains_key(row) && !is_rare(row));
    let unused: Vec<&Documented> = unused.collect();
    assert!(unused.is_empty(), "no case has {unused:?}");
}
