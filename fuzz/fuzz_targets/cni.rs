//! Whatever the container runtime passes and the agent replies, the CNI plugin prints the previous
//! result unchanged or an error in the form of the CNI specification.
#![no_main]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    sync::{LazyLock, Mutex},
    thread,
};

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

/// The reply of the agent to the next requests.
static REPLY: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The directory of the agent's socket, where a thread answers requests with [`REPLY`].
static AGENT: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket can be bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The plugin may close the connection at any time.
            _ = BufReader::new(&stream).read_line(&mut String::new());
            let reply = REPLY.lock().map(|reply| reply.clone()).unwrap_or_default();
            _ = stream.write_all(&reply);
        }
    });
    directory
});

const COMMANDS: [&str; 7] = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", "OTHER"];

fuzz_target!(|bytes: &[u8]| {
    let Some((selector, rest)) = bytes.split_first() else { return };
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (arguments, reply, input) = (part(), part(), part());
    *REPLY.lock().expect("no thread panics while it holds the reply") = reply.to_vec();
    let input = with_socket(input);
    let variable = |name: &str| {
        Some(match name {
            "CNI_COMMAND" => COMMANDS[usize::from(*selector) % COMMANDS.len()].to_owned(),
            "CNI_ARGS" => String::from_utf8_lossy(arguments).into_owned(),
            "CNI_CONTAINERID" | "CNI_IFNAME" | "CNI_NETNS" if *selector < 128 => "a".to_owned(),
            _ => return None,
        })
    };
    let (mut output, mut messages) = (Vec::new(), Vec::new());
    let status = weir_cni::run(weir_cni::Call {
        arguments: Vec::new(),
        variable: &variable,
        input: &mut &*input,
        output: &mut output,
        messages: &mut messages,
    });
    if output.is_empty() {
        assert_eq!(status, 0, "a failure without an error object");
        return;
    }
    let answer: Value = serde_json::from_slice(&output).expect("the answer is JSON");
    if status != 0 {
        assert!(answer["code"].is_number() && answer["msg"].is_string(), "{answer}");
    } else if variable("CNI_COMMAND").as_deref() == Some("ADD") {
        let given: Value = serde_json::from_slice(&input).expect("a successful call had JSON");
        assert_eq!(answer, given["prevResult"]);
    }
});

/// Points a configuration to the agent of this program, with the shortest timeout.
fn with_socket(input: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(input) else {
        return input.to_vec();
    };
    fields.insert("socket".to_owned(), json!(AGENT.path().join("socket")));
    fields.insert("timeout".to_owned(), json!(0.1));
    Value::Object(fields).to_string().into_bytes()
}
