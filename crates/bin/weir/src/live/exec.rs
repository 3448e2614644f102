//! Probes from an existing container of a pod.

use serde_json::Value;
use weir_kube::{AdminClient, ApiError, PodCommand};
use weir_model::{Flow, Protocol};

use super::{PodProbes, ProbeAnswer};
use crate::{connect::verdict_of, failure::Failure};

/// Prints a line for each target: its number, the letter of its verdict, and the program's message.
const SCRIPT: &str = include_str!("exec.sh");

/// The maximum number of targets of one run of the script, which tries 20 at the same time.
const MAX_TARGETS_PER_RUN: usize = 40;

/// The annotation of the container that kubectl uses.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Runs the script in containers.
pub(super) struct ExecRunner {
    pub(super) client: AdminClient,
}

impl ExecRunner {
    /// Tries the flows of all pods. Returns the answers for each pod in order.
    pub(super) fn probe(
        &self,
        pods: &[PodProbes],
        flows: &[Flow],
    ) -> Result<Vec<Vec<ProbeAnswer>>, Failure> {
        let mut commands = Vec::new();
        for pod in pods {
            let container = self.container(pod)?;
            let tcp: Vec<Flow> = tcp_flows(pod, flows).collect();
            let runs = tcp.chunks(MAX_TARGETS_PER_RUN);
            commands.extend(runs.map(|flows| command(pod, &container, flows)));
        }
        let mut outputs = self.client.run(&commands).into_iter();
        let mut answers = Vec::with_capacity(pods.len());
        for pod in pods {
            let tcp: Vec<Flow> = tcp_flows(pod, flows).collect();
            let mut letters = Vec::with_capacity(tcp.len());
            for run in tcp.chunks(MAX_TARGETS_PER_RUN) {
                let output = outputs.next().unwrap_or_else(|| Ok(String::new())).map_err(failed)?;
                letters.extend(read_letters(&output, run.len()));
            }
            let mut letters = letters.into_iter();
            let answer = |at: &usize| {
                let protocol = flows[*at].protocol;
                if protocol != Protocol::Tcp {
                    return Err(format!("--exec tries only TCP, not {protocol}"));
                }
                let (letter, message) = letters.next().unwrap_or_default();
                let unknown = || format!("the container of {} cannot try it: {message}", pod.id);
                verdict_of(letter).ok_or_else(unknown)
            };
            answers.push(pod.probes.iter().map(answer).collect());
        }
        Ok(answers)
    }

    /// The container of a pod that the script runs in.
    fn container(&self, pod: &PodProbes) -> Result<String, Failure> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.id.namespace, pod.id.name);
        let object = self.client.get(&path).map_err(failed)?.unwrap_or_default();
        default_container(&object).ok_or_else(|| {
            Failure::new(format!("there is no pod {} any more", pod.id), "run the test again")
        })
    }
}

/// The container of a pod that kubectl would use.
fn default_container(pod: &Value) -> Option<String> {
    let named = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str();
    let first = pod["spec"]["containers"][0]["name"].as_str();
    named.or(first).map(str::to_owned)
}

fn tcp_flows<'a>(pod: &'a PodProbes, flows: &'a [Flow]) -> impl Iterator<Item = Flow> + 'a {
    let flows = pod.probes.iter().map(|at| flows[*at]);
    flows.filter(|flow| flow.protocol == Protocol::Tcp)
}

fn command(pod: &PodProbes, container: &str, flows: &[Flow]) -> PodCommand {
    let mut command: Vec<String> = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned).into();
    command.extend(flows.iter().flat_map(|flow| [flow.to.to_string(), flow.port.to_string()]));
    PodCommand {
        namespace: pod.id.namespace.to_string(),
        pod: pod.id.name.to_string(),
        container: container.to_owned(),
        command,
    }
}

/// The letter and the message of each target. The output is not trusted.
fn read_letters(output: &str, count: usize) -> Vec<(char, String)> {
    let none = "it printed no result; it needs sh, and nc or bash and timeout";
    let mut letters = vec![('u', none.to_owned()); count];
    for line in output.lines() {
        let mut words = line.splitn(3, ' ');
        let at = words.next().and_then(|number| number.parse::<usize>().ok());
        let letter = words.next().and_then(|word| word.parse::<char>().ok());
        if let (Some(entry), Some(letter)) = (at.and_then(|at| letters.get_mut(at)), letter) {
            *entry = (letter, words.next().unwrap_or_default().to_owned());
        }
    }
    letters
}

fn failed(error: ApiError) -> Failure {
    let hint =
        format!("--exec needs permission to get pods and to create pods/exec; {}", error.hint());
    Failure::new(error, hint)
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        net::{SocketAddr, TcpListener},
        os::unix,
        path::Path,
        process::Command,
    };

    use super::*;

    /// Writes a program. Another process does it: a thread that starts a program at this moment
    /// would keep a file of this process open, and then it cannot be executed.
    fn write_program(path: &Path, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let mut sh = Command::new("/bin/sh");
        let status = sh.args(["-c", write, "sh"]).arg(path).arg(script).status();
        assert!(status.expect("sh runs").success());
    }

    /// The letters that the script prints with the programs of a folder.
    fn letters(programs: &Path, targets: &[SocketAddr]) -> String {
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", SCRIPT, "sh"]).env("PATH", programs);
        for target in targets {
            sh.args([target.ip().to_string(), target.port().to_string()]);
        }
        let output = sh.output().expect("sh runs");
        let text = String::from_utf8_lossy(&output.stdout);
        read_letters(&text, targets.len()).iter().map(|(letter, _)| *letter).collect()
    }

    #[test]
    fn the_messages_of_nc_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let target: SocketAddr = "10.0.0.1:80".parse().unwrap();
        for (message, status, letter) in [
            ("Connection to 10.0.0.1 80 port [tcp/http] succeeded!", 0, "a"),
            ("nc: connect to 10.0.0.1 port 80 (tcp) failed: Connection refused", 1, "a"),
            ("nc: 10.0.0.1 (10.0.0.1:80): Connection refused", 1, "a"),
            ("nc: connect to 10.0.0.1 port 80 (tcp) timed out: Operation now in progress", 1, "d"),
            ("nc: timed out", 1, "d"),
            ("Ncat: TIMEOUT.", 1, "d"),
            ("nc: 10.0.0.1 (10.0.0.1:80): Host is unreachable", 1, "d"),
            ("nc: invalid option -- 'z'", 1, "u"),
            ("sh: nc: Permission denied", 126, "u"),
        ] {
            let script = format!("echo \"{message}\" >&2; exit {status}");
            write_program(&folder.path().join("nc"), &script);
            assert_eq!(letters(folder.path(), &[target]), letter, "{message}");
        }
    }

    #[test]
    fn without_nc_bash_tries_the_connections() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(letters(folder.path(), &[open]), "u", "there is no program");
        let bash = ["/bin/bash", "/usr/bin/bash"].map(Path::new);
        let bash = bash.iter().find(|path| path.exists()).unwrap();
        unix::fs::symlink(bash, folder.path().join("bash")).unwrap();
        // A busy machine may need longer than any limit.
        write_program(&folder.path().join("timeout"), "shift; exec \"$@\"");
        let many = [open, closed].repeat(15);
        assert_eq!(letters(folder.path(), &many), "aa".repeat(15));
    }

    #[test]
    fn kubectls_container_is_used() {
        let mut pod = serde_json::json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(default_container(&pod).as_deref(), Some("a"));
        pod["metadata"] = serde_json::json!({"annotations": {DEFAULT_CONTAINER: "b"}});
        assert_eq!(default_container(&pod).as_deref(), Some("b"));
        assert_eq!(default_container(&Value::Null), None);
    }
}
