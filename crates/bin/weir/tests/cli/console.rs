//! Documents that show commands with their output. The fence of such a block is `console`, and a
//! command begins with `$ weir `. `UPDATE_EXPECT=1` rewrites the output.

use std::fs;

use expect_test::expect_file;

use crate::{root, stderr, stdout, weir};

const FENCE: &str = "```console\n";

#[test]
fn documents_show_the_output_of_their_commands() {
    for path in [
        "docs/guides/windows.md",
        "docs/reference/windows.md",
        "examples/argo-cd/README.md",
        "examples/memcached/README.md",
        "examples/windows/README.md",
    ] {
        let path = root().join(path).canonicalize().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(FENCE), "{} shows no command", path.display());
        expect_file![&path].assert_eq(&with_current_output(&text));
    }
}

/// The text with the output that its commands have now. Messages follow the data.
fn with_current_output(text: &str) -> String {
    let mut parts = text.split(FENCE);
    let mut current = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (shown, rest) = part.split_once("```\n").expect("a fence ends");
        current += FENCE;
        for command in shown.lines().filter_map(|line| line.strip_prefix("$ weir ")) {
            let output = weir(command);
            current += &format!("$ weir {command}\n{}{}", stdout(&output), stderr(&output));
        }
        current += &format!("```\n{rest}");
    }
    current
}

#[test]
fn the_examples_pass_their_tests_with_every_evaluation_in_memory() {
    for (example, probes) in [("windows", 8), ("memcached", 7)] {
        for datapath in ["sim", "hcn"] {
            let output = weir(&format!("test --datapath {datapath} examples/{example}/tests.yaml"));
            assert_eq!(output.status.code(), Some(0), "{example}: {}", stdout(&output));
            let all = format!("{probes} passed, 0 failed\n");
            assert!(stdout(&output).ends_with(&all), "{}", stdout(&output));
        }
    }
}
