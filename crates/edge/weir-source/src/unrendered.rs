//! Folders whose manifests another program must render first: kustomizations and Helm charts.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use weir_api::{CONFLICT, DUPLICATE, Tree, UNRENDERED, document};
use weir_model::{Finding, Location, Severity};

use crate::files::{LoadError, read_file};

/// The names of a kustomization's file. The last one does not look like a manifest.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// The fields of a kustomization that keep the policies and the labels of pods as they are.
const HARMLESS: [&str; 14] = [
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "images",
    "replicas",
    "commonAnnotations",
    "configMapGenerator",
    "secretGenerator",
    "generatorOptions",
    "sortOptions",
    "buildMetadata",
    "openapi",
];

/// The fields of a kustomization that change all objects alike, so that they still fit together.
const UNIFORM: [&str; 5] = ["namespace", "namePrefix", "nameSuffix", "labels", "commonLabels"];

/// The fields of a kustomization that name files other than manifests.
const OTHER_FILES: [&str; 10] = [
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "replacements",
    "configurations",
    "crds",
    "generators",
    "transformers",
    "validators",
    "openapi",
];

/// The maximum number of folders to name.
const MAX_NAMES: usize = 8;

/// The parts of a given path that another program must render.
#[derive(Debug, Default)]
pub(crate) struct UnrenderedTree {
    given: PathBuf,
    /// The folders of Helm charts that are not inside another one.
    charts: Vec<PathBuf>,
    kustomizations: Vec<Kustomization>,
}

#[derive(Debug)]
struct Kustomization {
    folder: PathBuf,
    file: PathBuf,
    /// The real path of the folder.
    real: PathBuf,
    is_component: bool,
    /// The fields with an effect on policies or pods.
    effects: BTreeSet<Box<str>>,
    /// The real paths of the folders that it includes.
    includes: Vec<PathBuf>,
    /// The real paths of its patches and other files that are not manifests.
    others: Vec<PathBuf>,
}

impl UnrenderedTree {
    /// Finds kustomizations and Helm charts among the files of a path, and removes the files that
    /// are not manifests.
    pub(crate) fn find(given: &Path, files: &mut Vec<PathBuf>) -> Result<Self, LoadError> {
        let is_named = |file: &Path, name: &str| file.file_name().is_some_and(|own| own == name);
        let folder_of = |file: &Path| file.parent().unwrap_or(Path::new("")).to_owned();
        let charts: BTreeSet<PathBuf> =
            files.iter().filter(|f| is_named(f, "Chart.yaml")).map(|f| folder_of(f)).collect();
        let is_outer =
            |chart: &&PathBuf| !chart.ancestors().skip(1).any(|above| charts.contains(above));
        let charts: Vec<PathBuf> = charts.iter().filter(is_outer).cloned().collect();
        files.retain(|file| !charts.iter().any(|chart| file.starts_with(chart)));
        let mut tree = UnrenderedTree { given: given.into(), charts, kustomizations: Vec::new() };
        let folders: BTreeSet<PathBuf> = files.iter().map(|file| folder_of(file)).collect();
        for folder in folders {
            let own = KUSTOMIZATIONS.iter().map(|name| folder.join(name));
            // A single given file has no folder to search.
            let is_searched = |file: &PathBuf| given.is_dir() || files.contains(file);
            if let Some(file) = own.filter(is_searched).find(|file| file.is_file()) {
                tree.kustomizations.push(Kustomization::read(folder, &file)?);
            }
        }
        if !tree.kustomizations.is_empty() {
            let others: BTreeSet<&PathBuf> =
                tree.kustomizations.iter().flat_map(|one| &one.others).collect();
            files.retain(|file| {
                let is_other = fs::canonicalize(file).is_ok_and(|real| others.contains(&real));
                !is_other && !KUSTOMIZATIONS.iter().any(|name| is_named(file, name))
            });
        }
        Ok(tree)
    }

    /// Whether there is nothing to render.
    pub(crate) fn is_empty(&self) -> bool {
        self.charts.is_empty() && self.kustomizations.is_empty()
    }

    /// Adds one finding for all charts and one for all kustomizations. The latter replaces the
    /// findings about objects that several kustomizations define.
    pub(crate) fn report(&self, findings: &mut Vec<Finding>) {
        if let Some(first) = self.charts.first() {
            let what = match self.charts.len() {
                1 => "a Helm chart, whose templates are".to_owned(),
                _ => format!("Helm charts ({}), whose templates are", names(&self.charts)),
            };
            let (message, hint) = (
                format!("this is {what} not manifests; it was not read"),
                format!("render it first: `helm template {} | weir … -f -`", first.display()),
            );
            findings.push(finding(Severity::Error, first.join("Chart.yaml"), message, hint));
        }
        let Some(first) = self.kustomizations.first() else { return };
        let before = findings.len();
        findings.retain(|finding| {
            let is_here = |at: &Location| Path::new(&*at.file).starts_with(&self.given);
            !(finding.severity == Severity::Error
                && [CONFLICT, DUPLICATE].contains(&finding.code)
                && finding.location.as_ref().is_some_and(is_here))
        });
        let conflicts = before - findings.len();
        let all = self.kustomizations.iter();
        let effects: BTreeSet<&str> =
            all.flat_map(|one| &one.effects).map(|effect| &**effect).collect();
        if effects.is_empty() && conflicts == 0 {
            return;
        }
        let is_uniform = conflicts == 0 && effects.iter().all(|effect| UNIFORM.contains(effect));
        let severity = if is_uniform { Severity::Warning } else { Severity::Error };
        let entries = self.entry_points();
        let is_one = entries.len() == 1;
        let noun = if is_one { "a kustomization was" } else { "kustomizations were" };
        let mut message = format!("{noun} not rendered: {}", names(&entries));
        if !effects.is_empty() {
            let effects: Vec<&str> = effects.into_iter().collect();
            message += &format!("; not applied: {}", effects.join(", "));
        }
        if conflicts > 0 {
            message += &format!("; {conflicts} objects have several definitions that differ");
        }
        let folder = entries.first().unwrap_or(&first.folder).display();
        let hint = format!(
            "render {}: `weir … -k {folder}`, or `kubectl kustomize {folder} | weir … -f -`",
            if is_one { "it" } else { "one of them" }
        );
        findings.push(finding(severity, first.file.clone(), message, hint));
    }

    /// The folders of the kustomizations that no other one includes.
    fn entry_points(&self) -> Vec<PathBuf> {
        let included: BTreeSet<&PathBuf> =
            self.kustomizations.iter().flat_map(|one| &one.includes).collect();
        let is_entry = |one: &&Kustomization| !one.is_component && !included.contains(&one.real);
        let entries = self.kustomizations.iter().filter(is_entry);
        let entries: Vec<PathBuf> = entries.map(|one| one.folder.clone()).collect();
        match entries.is_empty() {
            true => self.kustomizations.iter().map(|one| one.folder.clone()).collect(),
            false => entries,
        }
    }
}

impl Kustomization {
    fn read(folder: PathBuf, file: &Path) -> Result<Self, LoadError> {
        let (roots, _, _) = document::documents(&read_file(file)?);
        let entries = || roots.iter().flat_map(Tree::entries);
        let root = roots.first();
        let is_component = root.and_then(|root| root.get("kind")?.text()) == Some("Component");
        let real = fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
        let mut effects: BTreeSet<Box<str>> = BTreeSet::new();
        let (mut includes, mut others) = (Vec::new(), Vec::new());
        for entry in entries().filter(|entry| !entry.value.is_null()) {
            let key = &*entry.key;
            if !HARMLESS.contains(&key) {
                effects.insert(key.into());
            }
            let mut named = Vec::new();
            texts(&entry.value, &mut named);
            let real =
                named.into_iter().filter_map(|text| fs::canonicalize(folder.join(text)).ok());
            let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
                real.partition(|path| path.is_dir());
            if ["resources", "bases", "components"].contains(&key) {
                includes.extend(folders);
            } else if OTHER_FILES.contains(&key) {
                others.extend(files);
            }
        }
        let is_remote = |text: &&str| text.contains("://") || text.starts_with("github.com/");
        let resources = root.and_then(|root| root.get("resources")).map_or(&[][..], Tree::items);
        if resources.iter().filter_map(Tree::text).any(|text| is_remote(&text)) {
            effects.insert("remote resources".into());
        }
        let file = file.to_owned();
        Ok(Kustomization { folder, file, real, is_component, effects, includes, others })
    }
}

/// All texts in a value, which may be paths.
fn texts<'t>(tree: &'t Tree, all: &mut Vec<&'t str>) {
    all.extend(tree.text().filter(|text| text.len() < 256 && !text.contains('\n')));
    tree.items().iter().for_each(|item| texts(item, all));
    tree.entries().iter().for_each(|entry| texts(&entry.value, all));
}

/// The folders, or the first of them.
fn names(folders: &[PathBuf]) -> String {
    let shown = folders.iter().take(MAX_NAMES).map(|folder| folder.display().to_string());
    let shown: Vec<String> = shown.collect();
    match folders.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more folders", shown.join(", ")),
    }
}

fn finding(severity: Severity, file: PathBuf, message: String, hint: String) -> Finding {
    let location = Some(Location { file: file.to_string_lossy().into(), line: 1 });
    let (object, field) = (None, String::new());
    Finding { location, code: UNRENDERED, severity, object, field, message, hint }
}
