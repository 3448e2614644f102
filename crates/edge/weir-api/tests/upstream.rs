//! The cases of upstream projects are read without findings.

use std::{fs, path::Path};

#[test]
fn every_upstream_case_is_read_without_findings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases/upstream");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        for case in weir_api::cases("upstream".into(), &fs::read(&path).unwrap()) {
            assert_eq!(case.findings, [], "{}: {}", path.display(), case.name);
            assert!(!case.probes.is_empty());
            let world = case.objects.iter().cloned().collect();
            for probe in &case.probes {
                assert!(probe.flow(&world).is_ok(), "{}: {}", path.display(), case.name);
            }
            count += 1;
        }
    }
    assert!(count >= 94);
}
