//! The software bill of materials, in the format of CycloneDX 1.5.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use weir_testbed::sha256;

use super::iptables::DebianPackage;
use crate::shell::{self, root};

/// The crates that are linked into packages for a target, and the Debian packages beside them.
pub(crate) fn generate(
    target: &str,
    packages: &[&str],
    debian: &[(&DebianPackage, &str)],
) -> Result<Value> {
    // Without the crates that only run at build time: build scripts, macros and tests.
    let mut tree = shell::command("cargo", &["tree", "--locked", "--prefix", "none"]);
    tree.args(["--edges", "normal,no-proc-macro", "--target", target, "--format", "{p}|{l}"]);
    for package in packages {
        tree.args(["--package", package]);
    }
    let output = tree.output().context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let text = String::from_utf8(output.stdout)?;
    let mut components: Vec<Value> = crates(&text, &checksums(&lock))?;
    components.extend(debian.iter().map(|(package, architecture)| package.component(architecture)));
    let version = env!("CARGO_PKG_VERSION");
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "weir",
                "name": "weir",
                "version": version,
                "properties": [{"name": "target", "value": target}],
            },
        },
        "components": components,
    });
    // Derived from the content, so that equal contents give equal documents.
    document["serialNumber"] = uuid(&sha256(document.to_string().as_bytes())).into();
    Ok(document)
}

/// Writes the document.
pub(crate) fn write(document: &Value, file: &Path) -> Result<()> {
    let text = format!("{document:#}\n");
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The components of the output of `cargo tree`, sorted and each once.
fn crates(tree: &str, checksums: &BTreeMap<(String, String), String>) -> Result<Vec<Value>> {
    let mut found = BTreeMap::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('|').context("cargo tree prints a licence")?;
        // A repeated crate ends with `(*)`, and one of the workspace with its path.
        let licence = licence.trim_end_matches(" (*)").trim();
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            bail!("cargo tree prints an unexpected line: {line}");
        };
        let version = version.trim_start_matches('v');
        let mut component = json!({
            "type": "library",
            "bom-ref": format!("{name}@{version}"),
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if !licence.is_empty() {
            // Older crates separate alternatives with a slash.
            let expression = licence.replace('/', " OR ");
            component["licenses"] = json!([{"expression": expression}]);
        }
        if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        found.insert((name.to_owned(), version.to_owned()), component);
    }
    Ok(found.into_values().collect())
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]").skip(1);
    let entry = |block: &str| {
        Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    };
    blocks.filter_map(entry).collect()
}

/// A UUID of version 8 from a checksum.
fn uuid(hash: &str) -> String {
    let part = |range: std::ops::Range<usize>| hash.get(range).unwrap_or_default();
    let [a, b, c, d, e] = [0..8, 8..12, 13..16, 17..20, 20..32].map(part);
    format!("urn:uuid:{a}-{b}-8{c}-8{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_linked_crates_once_and_no_others() {
        let document = generate("x86_64-unknown-linux-musl", &["weir"], &[]).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<&str> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"weir-engine") && names.contains(&"rustls"), "{names:?}");
        for absent in ["proptest", "serde_derive", "cc", "windows-sys", "weir-cluster", "xtask"] {
            assert!(!names.contains(&absent), "{absent} is not linked");
        }
        let references: Vec<&Value> = components.iter().map(|one| &one["bom-ref"]).collect();
        let mut distinct: Vec<&str> = references.iter().filter_map(|one| one.as_str()).collect();
        distinct.dedup();
        assert_eq!(distinct.len(), references.len());
        for component in components {
            assert!(component["licenses"].is_array(), "{component}");
            let is_ours = component["name"].as_str().unwrap().starts_with("weir");
            assert_eq!(component["hashes"].is_null(), is_ours, "{component}");
        }
        assert_eq!(document, generate("x86_64-unknown-linux-musl", &["weir"], &[]).unwrap());
        let serial = document["serialNumber"].as_str().unwrap();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36, "{serial}");
    }
}
