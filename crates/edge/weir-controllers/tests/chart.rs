//! The chart contains the CustomResourceDefinitions that `weir crds` prints.

use std::{collections::BTreeSet, fs, path::Path};

use weir_controllers::crds;

#[test]
fn the_chart_contains_the_definitions_that_weir_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/weir/files/crds");
    let controllers: BTreeSet<&str> = crds::ALL.iter().map(|crd| crd.controller).collect();
    let files: BTreeSet<String> = fs::read_dir(&folder)
        .expect("the chart has a folder for definitions")
        .map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let expected = controllers.iter().map(|controller| format!("{controller}.yaml")).collect();
    assert_eq!(files, expected);
    for controller in controllers {
        let of_controller = crds::ALL.iter().filter(|crd| crd.controller == controller);
        let printed: Vec<&str> = of_controller.map(|crd| crd.yaml).collect();
        let packaged =
            fs::read_to_string(folder.join(format!("{controller}.yaml"))).expect("a file");
        assert!(
            packaged == printed.join("---\n"),
            "{controller}.yaml is stale: run `cargo xtask package`"
        );
    }
}
