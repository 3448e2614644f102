//! Transcripts: commands with their output, in files of the folder `transcripts`.
//!
//! ```text
//! # A comment.
//!
//! $ cat >pod.yaml <<EOF
//! apiVersion: v1
//! EOF
//!
//! $ weir lint -f - <pod.yaml
//! nothing found
//! --- exit 0
//! ```
//!
//! `cat` gives a text a name, for the standard input of later commands. With `UPDATE_EXPECT=1` the
//! test writes the current output into the files.

use std::{collections::BTreeMap, fs, path::Path};

use expect_test::expect_file;

use crate::{text_of, weir, weir_reading};

#[test]
fn every_command_prints_the_output_in_its_transcript() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/transcripts");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let actual = run(&fs::read_to_string(&path).unwrap());
        expect_file![path].assert_eq(&actual);
    }
}

/// Runs the commands of a transcript. Returns the transcript with the actual output.
fn run(transcript: &str) -> String {
    let (mut actual, mut inputs) = (String::new(), BTreeMap::new());
    let mut lines = transcript.split_inclusive('\n');
    while let Some(line) = lines.next() {
        actual.push_str(line);
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix("$ cat >").and_then(|l| l.strip_suffix(" <<EOF")) {
            let input: String = lines.by_ref().take_while(|line| *line != "EOF\n").collect();
            actual.extend([&input, "EOF\n"]);
            inputs.insert(name, input);
        } else if let Some(command) = line.strip_prefix("$ weir ") {
            let output = match command.split_once(" <") {
                Some((arguments, input)) => weir_reading(arguments, &inputs[input]),
                None => weir(command),
            };
            actual.push_str(&text_of(&output));
            // The rest of the previous output.
            lines.by_ref().find(|line| line.starts_with("--- exit "));
        }
    }
    actual
}
