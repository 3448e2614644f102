use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;
use weir_model::Finding;

use crate::failure::Failure;

/// The findings of an earlier `weir lint -o json`. Lines and messages may change.
pub(crate) struct Baseline(BTreeSet<KnownFinding>);

#[derive(Deserialize)]
#[serde(expecting = "the output of `weir lint -o json`")]
struct BaselineFile {
    findings: Vec<KnownFinding>,
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(expecting = "a finding, as `weir lint -o json` prints it")]
struct KnownFinding {
    code: String,
    file: String,
    object: String,
    field: String,
}

impl Baseline {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let hint = "write it with `weir lint -o json > FILE`";
        let failed = |why: String| {
            Failure::new(format!("cannot read the baseline {}: {why}", path.display()), hint)
        };
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let file: BaselineFile =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        Ok(Baseline(file.findings.into_iter().collect()))
    }

    pub(crate) fn contains(&self, finding: &Finding) -> bool {
        let file = finding.location.as_ref().map(|place| place.file.to_string());
        self.0.contains(&KnownFinding {
            code: finding.code.into(),
            file: file.unwrap_or_default(),
            object: finding.object_text(),
            field: finding.field.clone(),
        })
    }
}
