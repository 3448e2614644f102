//! What the API server refuses is refused here, with a finding at the right field. Each manifest says in its first line
//! what it expects: `# expect: <field> <words of the message>`.

use std::{fs, path::Path};

use weir_api::Reader;
use weir_model::{Finding, Severity};

#[test]
fn what_the_api_server_refuses_is_found_at_its_field() {
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
        let mut reader = Reader::new();
        reader.read(name.as_ref().into(), text.as_bytes());
        let findings = reader.finish().findings;
        let fits = |finding: &Finding| {
            finding.severity >= Severity::Warning
                && finding.field == field
                && finding.message.contains(words)
        };
        if !findings.iter().any(fits) {
            let said: Vec<String> = findings
                .iter()
                .map(|finding| format!("{} {}: {}", finding.code, finding.field, finding.message))
                .collect();
            wrong.push(format!("{name}: expected {field}: … {words} …, found {said:#?}"));
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} disagreements:\n{}", wrong.len(), wrong.join("\n"));
}
