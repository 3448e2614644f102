use std::io::{self, BufRead, Read, Write};

use crate::{FlowRecord, SCHEMA};

/// The longest line that [`read_records`] accepts. Names of objects have at most 253 bytes.
pub const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Why a line is not a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading failed.
    #[error("cannot read flow records")]
    Read(#[from] io::Error),
    /// The line is too long.
    #[error("line {line}: a flow record has at most {MAX_LINE_BYTES} bytes")]
    TooLong {
        /// The number of the line, from 1.
        line: usize,
    },
    /// The line has another format.
    #[error("line {line}: not a flow record")]
    Malformed {
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// The record has another version.
    #[error("line {line}: expected the schema {SCHEMA}, not {found:?}")]
    Version {
        /// The number of the line, from 1.
        line: usize,
        /// The schema of the record.
        found: String,
    },
}

/// Writes a record and a line feed.
pub fn write_record(out: &mut dyn Write, record: &FlowRecord) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record).map_err(io::Error::from)?;
    out.write_all(b"\n")
}

/// Reads records, one per line. Empty lines are skipped, and a wrong line does not end the list.
pub fn read_records<R: BufRead>(
    mut input: R,
) -> impl Iterator<Item = Result<FlowRecord, RecordError>> {
    let mut number = 0;
    let mut is_over = false;
    std::iter::from_fn(move || {
        while !is_over {
            number += 1;
            match next_line(&mut input, number) {
                Ok(None) => is_over = true,
                Ok(Some(line)) if line.trim_ascii().is_empty() => (),
                Ok(Some(line)) => return Some(parse(&line, number)),
                Err(error) => {
                    is_over = matches!(error, RecordError::Read(_));
                    return Some(Err(error));
                }
            }
        }
        None
    })
}

fn next_line(input: &mut impl BufRead, number: usize) -> Result<Option<Vec<u8>>, RecordError> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > MAX_LINE_BYTES && line.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
        return Err(RecordError::TooLong { line: number });
    }
    Ok(Some(line))
}

fn parse(line: &[u8], number: usize) -> Result<FlowRecord, RecordError> {
    let record: FlowRecord = serde_json::from_slice(line)
        .map_err(|source| RecordError::Malformed { line: number, source })?;
    if record.schema_version != SCHEMA {
        return Err(RecordError::Version { line: number, found: record.schema_version });
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::{FlowVerdict, RecordEnd, example::record};

    #[test]
    fn a_record_is_one_line_and_reads_back_as_it_was() {
        let other = FlowRecord {
            verdict: FlowVerdict::Allow,
            from: RecordEnd::Others { others: true },
            port: None,
            packets: Some(10),
            bytes: Some(1200),
            ..record()
        };
        let mut out = Vec::new();
        write_record(&mut out, &record()).unwrap();
        write_record(&mut out, &other).unwrap();
        let read: Vec<FlowRecord> = read_records(&*out).map(Result::unwrap).collect();
        assert_eq!(read, [record(), other]);
        expect![[r#"
            {"schemaVersion":"weir.dev/flow/v1","node":"n1","verdict":"deny","from":{"namespace":"shop","kind":"Deployment","name":"web","pod":"web-7d4-x"},"to":{"address":"203.0.113.7"},"protocol":"TCP","port":443,"policies":[{"kind":"NetworkPolicy","namespace":"shop","name":"web","direction":"egress","effect":"isolate"}],"morePolicies":0,"firstSeen":"2026-01-02T03:04:05.678Z","lastSeen":"2026-01-02T03:05:05.678Z","connections":3,"sampling":{"source":"reports","complete":false,"limitPerSecond":20}}
        "#]]
        .assert_eq(std::str::from_utf8(&out).unwrap().split_inclusive('\n').next().unwrap());
    }

    #[test]
    fn wrong_lines_are_reported_and_the_others_read() {
        let mut lines = Vec::new();
        write_record(&mut lines, &record()).unwrap();
        lines.extend(b"{}\n\n");
        lines.extend(vec![b'x'; 70_000]);
        lines.push(b'\n');
        let newer = FlowRecord { schema_version: "weir.dev/flow/v2".into(), ..record() };
        write_record(&mut lines, &newer).unwrap();
        lines.extend(serde_json::to_vec(&record()).unwrap());
        let read = read_records(&*lines);
        let texts: Vec<String> = read
            .map(|read| read.map_or_else(|error| error.to_string(), |record| record.node))
            .collect();
        assert_eq!(
            texts,
            [
                "n1",
                "line 2: not a flow record",
                "line 4: a flow record has at most 65536 bytes",
                "line 5: expected the schema weir.dev/flow/v1, not \"weir.dev/flow/v2\"",
                "n1"
            ]
        );
    }

    #[test]
    fn errors_name_fields_instead_of_types() {
        let error = |line: &str| match parse(line.as_bytes(), 1) {
            Err(RecordError::Malformed { source, .. }) => source.to_string(),
            other => panic!("{other:?}"),
        };
        let text = error("7");
        assert!(text.contains("a flow record, as `weir flows -o json` prints it"), "{text}");
        let mut record = serde_json::to_value(record()).unwrap();
        record["from"] = serde_json::json!({"pod": 7});
        let text = error(&record.to_string());
        assert!(text.contains("expected an end: namespace"), "{text}");
        assert!(!text.contains("RecordEnd"), "{text}");
    }

    #[test]
    fn ends_and_rules_have_a_short_text() {
        let FlowRecord { from, to, policies, .. } = record();
        assert_eq!(format!("{from} {to}"), "shop/deployment/web 203.0.113.7");
        assert_eq!(policies[0].to_string(), "NetworkPolicy shop/web egress isolates");
        assert!(from.is_named("web") && from.is_named("shop/web-7d4-x") && from.is_in("shop"));
        assert!(!from.is_named("other/web") && !to.is_named("203.0.113.7"));
    }
}
