//! `weir.yaml`: the findings that `weir lint` ignores.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use serde::Deserialize;
use weir_api::{Tree, document};
use weir_model::Location;
use weir_view::suppression::IgnoreEntry;

use crate::failure::Failure;

/// The name of the file, beside the manifests or in the current folder.
const FILE_NAME: &str = "weir.yaml";

/// The maximum size of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The current day.
pub(crate) fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// The findings to ignore.
#[derive(Debug, Default)]
pub(crate) struct LintConfig {
    /// The entries of `lint.ignore`, in order.
    pub(crate) ignore: Vec<IgnoreEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping with the key `lint`")]
struct ConfigFile {
    lint: LintSection,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping with the key `ignore`")]
struct LintSection {
    #[serde(default)]
    ignore: Vec<EntryFields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an entry with a reason, and a code, an object or a path")]
struct EntryFields {
    code: Option<String>,
    object: Option<String>,
    path: Option<String>,
    reason: String,
    expires: Option<String>,
}

impl LintConfig {
    /// Reads the given file, or else each `weir.yaml` beside the manifests, or else the one in the
    /// current folder.
    pub(crate) fn find(given: Option<&Path>, manifests: &[PathBuf]) -> Result<Self, Failure> {
        let mut config = LintConfig::default();
        if let Some(path) = given {
            config.read(path)?;
            return Ok(config);
        }
        let mut folders: Vec<PathBuf> = Vec::new();
        for path in manifests.iter().filter(|path| path.as_os_str() != "-") {
            let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
            let folder = folder.unwrap_or(Path::new("")).to_owned();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        let is_config = |path: &PathBuf| path.is_file() && is_configuration(path);
        let mut found: Vec<PathBuf> =
            folders.iter().map(|folder| folder.join(FILE_NAME)).filter(is_config).collect();
        if found.is_empty() {
            found.extend(Some(PathBuf::from(FILE_NAME)).filter(is_config));
        }
        found.iter().try_for_each(|path| config.read(path))?;
        Ok(config)
    }

    fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let failed = |line: u32, why: &str| {
            let place = if line > 0 { format!(":{line}") } else { String::new() };
            let hint = "see docs/reference/lint.md, \"Ignore findings\"";
            Failure::new(format!("cannot read {}{place}: {why}", path.display()), hint)
        };
        let bytes = read_bytes(path).map_err(|error| failed(0, &error.to_string()))?;
        let (roots, repeats, error) = document::documents(&bytes);
        if let Some(error) = error {
            return Err(failed(error.line, &error.message));
        }
        if let Some(repeat) = repeats.first() {
            return Err(failed(repeat.again, &format!("the key {} occurs twice", repeat.key)));
        }
        let [root] = &roots[..] else { return Err(failed(0, "expected one document")) };
        let file: ConfigFile = serde_json::from_value(root.into())
            .map_err(|error: serde_json::Error| failed(0, &error.to_string()))?;
        let entries = root.get("lint").and_then(|lint| lint.get("ignore"));
        let lines = entries.map_or(&[][..], Tree::items).iter().map(|entry| entry.line);
        for (entry, line) in file.lint.ignore.into_iter().zip(lines) {
            let EntryFields { code, object, path: files, reason, expires } = entry;
            if reason.trim().is_empty() {
                return Err(failed(line, "an entry needs a reason"));
            }
            if code.is_none() && object.is_none() && files.is_none() {
                return Err(failed(line, "an entry needs a code, an object or a path"));
            }
            let expires = expires.map(|text| text.parse::<Date>()).transpose();
            let expires =
                expires.map_err(|_| failed(line, "`expires` must be a day such as 2027-01-31"))?;
            self.ignore.push(IgnoreEntry {
                code,
                object,
                path: files,
                reason: reason.trim().to_owned(),
                expires,
                location: Location { file: path.to_string_lossy().into(), line },
                folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            });
        }
        Ok(())
    }
}

/// Whether a file has the form of a configuration. Manifests can have the same name.
fn is_configuration(path: &Path) -> bool {
    let Ok(bytes) = read_bytes(path) else { return true };
    let (roots, _, error) = document::documents(&bytes);
    error.is_some() || roots.iter().any(weir_api::is_configuration)
}

fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    fs::read(path)
}
