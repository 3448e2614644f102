use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::timeout,
};

use crate::{AdminClient, ApiClient, ApiError, PodCommand};

/// The longest line. The rest of a longer one is discarded.
const MAX_LINE_BYTES: u64 = 256 * 1024;
/// The most lines that wait for the reader. Programs that print more have to wait.
const MAX_LINES: usize = 1024;
/// How long to wait for the exit status of a program.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Programs that run in pods at the same time, and the lines that they print.
pub struct PodStreams<'a> {
    client: &'a AdminClient,
    tasks: JoinSet<()>,
    sender: Sender<(String, StreamItem)>,
    receiver: Receiver<(String, StreamItem)>,
}

/// The output of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A line, without its line feed.
    Line(String),
    /// The program ended. The reason, if it failed or did not start.
    Ended(Option<String>),
}

impl<'a> PodStreams<'a> {
    /// No programs.
    pub fn new(client: &'a AdminClient) -> Self {
        let (sender, receiver) = channel(MAX_LINES);
        PodStreams { client, tasks: JoinSet::new(), sender, receiver }
    }

    /// Starts a program. `key` identifies its lines. This needs `create` on pods/exec.
    ///
    /// The program counts as ended if it prints nothing for this long.
    pub fn start(&mut self, key: &str, command: PodCommand, silence: Duration) {
        let (client, sender, key) =
            (self.client.api().clone(), self.sender.clone(), key.to_owned());
        let run = async move {
            let end = match stream(&client, command, silence, &key, &sender).await {
                Ok(failure) => failure,
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                    Some(format!("{error}{}", cause.unwrap_or_default()))
                }
            };
            _ = sender.send((key, StreamItem::Ended(end))).await;
        };
        self.tasks.spawn_on(run, self.client.runtime().handle());
    }

    /// The next output of any program. `None` after the timeout.
    pub fn next(&mut self, wait: Duration) -> Option<(String, StreamItem)> {
        let receiver = &mut self.receiver;
        // A timeout needs the runtime already when it is created.
        self.client
            .runtime()
            .block_on(async { timeout(wait, receiver.recv()).await.ok().flatten() })
    }
}

/// Runs a program to its end. Returns why it failed, if it did.
async fn stream(
    client: &ApiClient,
    command: PodCommand,
    silence: Duration,
    key: &str,
    sender: &Sender<(String, StreamItem)>,
) -> Result<Option<String>, ApiError> {
    let mut process = client.request("create", "pods/exec", |client| exec(client, command)).await?;
    let failed = |error| ApiError::from_kube(kube::Error::ReadEvents(error), "create", "pods/exec");
    if let Some(stdout) = process.stdout() {
        let mut stdout = BufReader::new(stdout);
        loop {
            let mut line = Vec::new();
            let mut part = (&mut stdout).take(MAX_LINE_BYTES);
            let read = timeout(silence, part.read_until(b'\n', &mut line)).await;
            read.map_err(|_| ApiError::timed_out(silence))?.map_err(failed)?;
            if line.is_empty() {
                break;
            }
            let line = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            if sender.send((key.to_owned(), StreamItem::Line(line))).await.is_err() {
                break;
            }
        }
    }
    let status = match process.take_status() {
        Some(status) => timeout(STATUS_TIMEOUT, status).await.ok().flatten(),
        None => None,
    };
    process.abort();
    let failure = status.filter(|status| status.status.as_deref() == Some("Failure"));
    Ok(failure.map(|status| status.message.unwrap_or_default()))
}

async fn exec(client: Client, command: PodCommand) -> Result<AttachedProcess, kube::Error> {
    let PodCommand { namespace, pod, container, command } = command;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let options = AttachParams::default().container(container).stderr(false);
    pods.exec(&pod, command, &options).await
}
