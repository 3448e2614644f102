//! weir-api rejects the manifests that the API server rejects, with a finding at the right field. The
//! first line of each manifest is the expectation: `# expect: <field> <words of the message>`.

use std::{fs, path::Path};

use weir_api::ManifestReader;
use weir_model::{Finding, Severity};

#[test]
fn invalid_manifests_have_a_finding_at_the_invalid_field() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases/invalid");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        let expected = text.lines().next().and_then(|line| line.strip_prefix("# expect: "));
        let Some((field, words)) = expected.and_then(|rest| rest.split_once(' ')) else {
            wrong.push(format!("{name}: the first line is not `# expect: <field> <words>`"));
            continue;
        };
        let mut reader = ManifestReader::new();
        reader.read_file(name.as_ref().into(), text.as_bytes());
        let findings = reader.finish().findings;
        let fits = |finding: &Finding| {
            finding.severity >= Severity::Warning
                && finding.field == field
                && finding.message.contains(words)
        };
        if !findings.iter().any(fits) {
            let findings: Vec<String> = findings
                .iter()
                .map(|finding| format!("{} {}: {}", finding.code, finding.field, finding.message))
                .collect();
            wrong.push(format!("{name}: expected {field}: … {words} …, found {findings:#?}"));
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} disagreements:\n{}", wrong.len(), wrong.join("\n"));
}
