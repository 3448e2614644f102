//! The script that checks a Windows node. PowerShell is not available here, so these tests parse the
//! script and do not execute it.

use std::{collections::BTreeSet, fs};

use tree_sitter::{Node, Parser};

use crate::shell::root;

const SCRIPT: &str = "deploy/windows/check-node.ps1";

/// The commands that the script may use. The two that write are for the folder of the report.
const COMMANDS: [&str; 19] = [
    "ConvertFrom-Json",
    "ConvertTo-Json",
    "ForEach-Object",
    "Get-Command",
    "Get-HnsEndpoint",
    "Get-HnsNetwork",
    "Get-ItemProperty",
    "Get-Service",
    "Join-Path",
    "New-Item",
    "New-Object",
    "Out-Null",
    "Resolve-Path",
    "Select-Object",
    "Set-Content",
    "Set-StrictMode",
    "Test-Path",
    "Where-Object",
    "Write-Output",
];

/// Calls a function for a node of the syntax tree and for all nodes below it.
fn walk<'a>(node: Node<'a>, visit: &mut impl FnMut(Node<'a>)) {
    visit(node);
    let mut cursor = node.walk();
    for child in node.children(&mut cursor) {
        walk(child, visit);
    }
}

#[test]
fn the_script_for_windows_parses_and_only_reads() {
    let text = fs::read_to_string(root().join(SCRIPT)).expect("a file");
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_powershell::LANGUAGE.into()).expect("a known grammar");
    let tree = parser.parse(&text, None).expect("a tree");
    let part = |node: Node<'_>| &text[node.byte_range()];
    let (mut own, mut used) = (BTreeSet::new(), BTreeSet::new());
    walk(tree.root_node(), &mut |node| {
        let line = node.start_position().row + 1;
        assert!(!node.is_error() && !node.is_missing(), "{SCRIPT}:{line}: {}", part(node));
        match node.kind() {
            "function_name" => _ = own.insert(part(node)),
            "command_name" => _ = used.insert(part(node)),
            _ => (),
        }
    });
    assert!(own.contains("Invoke-Weir") && used.contains("Get-HnsEndpoint"), "{own:?} {used:?}");
    let others: Vec<&&str> =
        used.iter().filter(|name| !own.contains(**name) && !COMMANDS.contains(name)).collect();
    // `& $Weir` runs weir.exe; the arguments are checked below.
    assert!(others.iter().all(|name| **name == "$Weir"), "{others:?}");
    for call in text.lines().filter(|line| line.contains("Invoke-Weir @(")) {
        assert!(call.contains("'--version'") || call.contains("'render', '--live'"), "{call}");
    }
    for call in text.lines().filter(|line| line.contains("Get-Agent '")) {
        let paths = ["/readyz", "/status", "/metrics"];
        assert!(paths.iter().any(|path| call.contains(path)), "{call}");
    }
    for secret in ["Get-ChildItem", "gci ", "Env:", "Get-Content $Kubeconfig", "serviceaccount"] {
        assert!(!text.contains(secret), "the report must not contain secrets: {secret}");
    }
}
