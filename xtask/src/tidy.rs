//! Rules of the repository as tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde_json::Value;

use crate::shell::root;

/// The external crates that core crates may link: data structures without I/O.
const CORE_MAY_USE: [&str; 6] =
    ["allocator-api2", "equivalent", "foldhash", "hashbrown", "ipnet", "smallvec"];

/// The source of the eBPF programs.
const PROGRAMS: &str = "crates/backends/weir-ebpf/src/program";
/// The first line of its files. The kernel accepts only programs whose licence the GPL allows.
const PROGRAM_LICENCE: &str = "// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only";

/// Duplicate names that are still to be replaced, with the folder of the less central type.
const DUPLICATE_NAMES: [(&str, &str); 2] =
    [("Node", "crates/bin/weir-cni"), ("Store", "crates/test/weir-hns-fake")];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root())
        .output();
    serde_json::from_slice(&output.expect("cargo runs").stdout).expect("cargo metadata is JSON")
}

/// The packages of the workspace, name to folder.
fn members(metadata: &Value) -> BTreeMap<String, String> {
    let packages = metadata["packages"].as_array().expect("there are packages");
    let ours = packages.iter().filter(|package| package["source"].is_null());
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"))
            .parent()
            .expect("a folder");
        manifest.strip_prefix(root()).expect("inside the repository").to_string_lossy().into_owned()
    };
    ours.map(|package| (package["name"].as_str().expect("a name").to_owned(), folder(package)))
        .collect()
}

/// The transitive dependencies of a package, without its dev-dependencies.
fn linked_with(metadata: &Value, package: &str) -> BTreeSet<String> {
    let name = |id: &Value| {
        let package =
            metadata["packages"].as_array()?.iter().find(|package| package["id"] == *id)?;
        Some(package["name"].as_str()?.to_owned())
    };
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a resolved graph");
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut todo: Vec<&Value> =
        nodes.iter().filter(|node| name(&node["id"]).as_deref() == Some(package)).collect();
    assert!(!todo.is_empty(), "{package} is in the graph");
    while let Some(node) = todo.pop() {
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let normal = dependency["dep_kinds"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()));
            if normal && seen.insert(name(&dependency["pkg"]).expect("dependencies are packages")) {
                todo.extend(nodes.iter().filter(|node| node["id"] == dependency["pkg"]));
            }
        }
    }
    seen
}

#[test]
fn the_core_is_pure() {
    let metadata = metadata();
    let members = members(&metadata);
    let core: Vec<&String> = members
        .iter()
        .filter(|(_, folder)| folder.starts_with("crates/core/"))
        .map(|(name, _)| name)
        .collect();
    assert!(core.len() >= 4, "crates/core has its crates: {core:?}");
    for package in core {
        for dependency in linked_with(&metadata, package) {
            assert!(
                dependency == "weir-model" || CORE_MAY_USE.contains(&&*dependency),
                "{package} is in crates/core and must not link {dependency}: core crates link weir-model and data structures"
            );
        }
    }
}

#[test]
fn arrows_point_inward() {
    let metadata = metadata();
    let members = members(&metadata);
    for (package, folder) in &members {
        for dependency in linked_with(&metadata, package) {
            let Some(to) = members.get(&dependency) else { continue };
            let goes_to = |folders: &[&str]| folders.iter().any(|folder| to.starts_with(folder));
            // weir-aci is no datapath: the hpp controller writes its output to the API server.
            let edge =
                ["crates/core/", "crates/edge/", "crates/linux/", "crates/backends/weir-aci"];
            assert!(
                !folder.starts_with("crates/edge/") || goes_to(&edge),
                "{package} is an edge and must not link {dependency}"
            );
            // A backend links weir-names through weir-netfilter only.
            let backend = [
                "crates/core/weir-model",
                "crates/core/weir-datapath",
                "crates/core/weir-names",
                "crates/linux/",
            ];
            assert!(
                !folder.starts_with("crates/backends/") || goes_to(&backend),
                "{package} is a backend and must not link {dependency}"
            );
            assert!(
                !folder.starts_with("crates/linux/") || goes_to(&backend),
                "{package} is a Linux library and must not link {dependency}"
            );
            let may_use_tests = folder.starts_with("crates/test/")
                || (package == "xtask"
                    && ["weir-programs", "weir-testbed"].contains(&&*dependency));
            assert!(
                may_use_tests || !to.starts_with("crates/test/"),
                "{package} must not link {dependency}, which exists for tests"
            );
            assert!(dependency != "xtask", "{package} must not link xtask");
        }
    }
}

#[test]
fn xtask_links_no_product_crate_and_few_others() {
    let metadata = metadata();
    let members = members(&metadata);
    let linked = linked_with(&metadata, "xtask");
    // They build in seconds: JSON, and the archives and checksums of images.
    let direct = ["anyhow", "serde_json", "weir-programs", "weir-testbed"].map(str::to_owned);
    let small = ["serde_json", "sha2", "tar"].map(|name| linked_with(&metadata, name));
    let small = small.into_iter().flatten().chain(["sha2", "tar"].map(str::to_owned));
    assert_eq!(linked, direct.into_iter().chain(small).collect());
    // Its own tests may use test support, but no product crate either.
    let packages = metadata["packages"].as_array().expect("there are packages");
    let xtask = packages.iter().find(|package| package["name"] == "xtask").expect("xtask");
    let direct = xtask["dependencies"].as_array().expect("dependencies").iter();
    for direct in direct.filter_map(|dependency| dependency["name"].as_str()) {
        let all = linked_with(&metadata, direct).into_iter().chain([direct.to_owned()]);
        for dependency in all {
            let folder = members.get(&dependency);
            assert!(
                folder.is_none_or(|folder| folder.starts_with("crates/test/")),
                "xtask must not link {dependency}, by way of {direct}"
            );
        }
    }
}

/// The library: the crates that can be published, in the order of their dependencies.
const LIBRARY: [&str; 4] = ["weir-model", "weir-api", "weir-engine", "weir-lint"];

#[test]
fn exactly_the_library_can_be_published() {
    let metadata = metadata();
    let members = members(&metadata);
    let packages = metadata["packages"].as_array().expect("there are packages").iter();
    let ours = packages.filter(|package| package["source"].is_null());
    // No list of registries means any registry, and an empty list means none.
    let published: BTreeSet<&str> = ours
        .filter(|package| package["publish"].is_null())
        .filter_map(|package| package["name"].as_str())
        .collect();
    assert_eq!(published, BTreeSet::from(LIBRARY));
    for package in LIBRARY {
        for dependency in linked_with(&metadata, package) {
            let is_ours = members.contains_key(&dependency);
            assert!(
                !is_ours || published.contains(&*dependency),
                "{package} can be published, but {dependency} cannot"
            );
        }
    }
}

#[test]
fn every_crate_uses_the_lints_of_the_workspace() {
    for (package, folder) in members(&metadata()) {
        let manifest =
            std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{package} does not use the lints of the workspace"
        );
    }
}

#[test]
fn the_source_of_the_programs_has_two_licences() {
    let files = std::fs::read_dir(root().join(PROGRAMS)).expect("a folder");
    let files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    assert!(files.len() > 1, "{PROGRAMS} has the programs: {files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(text.lines().next(), Some(PROGRAM_LICENCE), "{}", file.display());
    }
}

#[test]
fn no_file_contains_the_path_of_a_machine() {
    let output = Command::new("git")
        .args(["grep", "-nIE", "/(work|root|home)/[a-z]"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let hits = String::from_utf8_lossy(&output.stdout);
    let hits: Vec<&str> =
        hits.lines().filter(|line| !line.starts_with("xtask/src/tidy.rs:")).collect();
    assert!(hits.is_empty(), "machine paths:\n{}", hits.join("\n"));
}

#[test]
fn a_term_names_one_type() {
    let definitions = type_definitions();
    let glossary = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a file");
    let (_, glossary) = glossary.split_once("## Glossary").expect("a glossary");
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let terms: BTreeSet<&str> = rows.flat_map(|terms| terms.split(", ")).collect();
    assert!(terms.contains("Ledger"), "the glossary is a table of terms: {terms:?}");
    let is_in_model = |file: &str| file.starts_with("crates/core/weir-model/");
    for (name, files) in &definitions {
        let is_to_rename = |file: &str| {
            let is = |(old, folder): &(&str, &str)| old == name && file.starts_with(folder);
            DUPLICATE_NAMES.iter().any(is)
        };
        let files: Vec<&String> = files.iter().filter(|file| !is_to_rename(file)).collect();
        let is_term = terms.contains(&**name) || files.iter().any(|file| is_in_model(file));
        assert!(
            !is_term || files.len() <= 1,
            "{name} is a term of weir-model or the glossary; give the other types another name: {files:?}"
        );
    }
}

/// The names of types, with the files that define them. Without associated types.
fn type_definitions() -> BTreeMap<String, Vec<String>> {
    let output = Command::new("git")
        .args(["grep", "-nE", r"^\s*(pub(\([a-z: ]+\))? )?(struct|enum|union|trait|type) [A-Z]"])
        .args(["--", "crates/*/src/*.rs"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(file), Some(_), Some(code)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let is_associated = code.starts_with(' ') && code.trim_start().starts_with("type ");
        let name = code
            .split(|c: char| !c.is_alphanumeric())
            .find(|word| word.starts_with(|first: char| first.is_ascii_uppercase()));
        if let Some(name) = name.filter(|_| !is_associated) {
            definitions.entry(name.into()).or_default().push(file.into());
        }
    }
    definitions
}
