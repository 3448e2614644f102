use std::{io, time::Duration};

use futures::future::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader},
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::timeout,
};

use crate::{AdminClient, ApiClient, ApiError, PodCommand};

/// The longest line. A program that prints a longer one counts as failed. Agents send at most this
/// much in one answer.
const MAX_LINE_BYTES: u64 = 8 << 20;
/// The longest message of standard error. The rest of a longer one becomes further messages.
const MAX_REMARK_BYTES: u64 = 4096;
/// The most lines that wait for the reader. Programs that print more have to wait.
const MAX_LINES: usize = 64;
/// How long to wait for the exit status of a program.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Programs that run in pods at the same time, and the lines that they print.
pub struct PodStreams<'a> {
    client: &'a AdminClient,
    tasks: JoinSet<()>,
    sender: Sender<(String, StreamItem)>,
    receiver: Receiver<(String, StreamItem)>,
}

/// The output of a program. Its remarks and its lines arrive in no defined order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A line of standard output, without its line feed.
    Line(String),
    /// A line of standard error, without its line feed.
    Remark(String),
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

/// Why the output of a program cannot be read.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the program printed nothing for {} s", after.as_secs())]
    Silent { after: Duration },
    #[error("the program printed a line of more than {} MiB", MAX_LINE_BYTES >> 20)]
    LongLine,
}

impl StreamError {
    fn from_read(error: io::Error) -> Self {
        ApiError::from_kube(kube::Error::ReadEvents(error), "create", "pods/exec").into()
    }
}

/// Runs a program to its end. Returns why it failed, if it did.
async fn stream(
    client: &ApiClient,
    command: PodCommand,
    silence: Duration,
    key: &str,
    sender: &Sender<(String, StreamItem)>,
) -> Result<Option<String>, StreamError> {
    let mut process = client.request("create", "pods/exec", |client| exec(client, command)).await?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    // Unread output of one kind would block the other.
    try_join(
        async {
            match stdout {
                Some(stdout) => send_lines(BufReader::new(stdout), silence, key, sender).await,
                None => Ok(()),
            }
        },
        async {
            match stderr {
                Some(stderr) => send_remarks(BufReader::new(stderr), key, sender).await,
                None => Ok(()),
            }
        },
    )
    .await
    .map_err(|error| match error {
        StreamError::Api(error) => client.locate(error).into(),
        error => error,
    })?;
    let status = match process.take_status() {
        Some(status) => timeout(STATUS_TIMEOUT, status).await.ok().flatten(),
        None => None,
    };
    process.abort();
    let failure = status.filter(|status| status.status.as_deref() == Some("Failure"));
    Ok(failure.map(|status| status.message.unwrap_or_default()))
}

/// Sends the lines of standard output until it ends, or the reader is gone.
async fn send_lines(
    mut stdout: impl AsyncBufRead + Unpin,
    silence: Duration,
    key: &str,
    sender: &Sender<(String, StreamItem)>,
) -> Result<(), StreamError> {
    loop {
        let read = timeout(silence, next_line(&mut stdout, MAX_LINE_BYTES + 1)).await;
        let line = read.map_err(|_| StreamError::Silent { after: silence })?;
        let Some(line) = line.map_err(StreamError::from_read)? else { return Ok(()) };
        if line.len() as u64 > MAX_LINE_BYTES {
            return Err(StreamError::LongLine);
        }
        if sender.send((key.to_owned(), StreamItem::Line(line))).await.is_err() {
            return Ok(());
        }
    }
}

/// Sends the lines of standard error until it ends, or the reader is gone.
async fn send_remarks(
    mut stderr: impl AsyncBufRead + Unpin,
    key: &str,
    sender: &Sender<(String, StreamItem)>,
) -> Result<(), StreamError> {
    loop {
        let line = next_line(&mut stderr, MAX_REMARK_BYTES).await;
        let Some(line) = line.map_err(StreamError::from_read)? else { return Ok(()) };
        if sender.send((key.to_owned(), StreamItem::Remark(line))).await.is_err() {
            return Ok(());
        }
    }
}

/// The next line without its line feed, or its first bytes. `None` at the end.
async fn next_line(
    input: &mut (impl AsyncBufRead + Unpin),
    limit: u64,
) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    input.take(limit).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

async fn exec(client: Client, command: PodCommand) -> Result<AttachedProcess, kube::Error> {
    let PodCommand { namespace, pod, container, command } = command;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let options = AttachParams::default().container(container);
    pods.exec(&pod, command, &options).await
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// What a program with this output sends, and why its output cannot be read.
    fn sent(stdout: &[u8], stderr: &[u8]) -> (Vec<StreamItem>, Option<String>) {
        let (sender, mut receiver) = channel(MAX_LINES);
        let silence = Duration::from_secs(60);
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let result = runtime.block_on(async {
            let lines = send_lines(stdout, silence, "n1", &sender);
            try_join(lines, send_remarks(stderr, "n1", &sender)).await
        });
        let items = std::iter::from_fn(|| receiver.try_recv().ok()).map(|(_, item)| item);
        (items.collect(), result.err().map(|error| error.to_string()))
    }

    #[test]
    fn lines_and_remarks_arrive_separately() {
        let (items, error) = sent(b"one\n\ntwo", b"why\r\n");
        let line = |text: &str| StreamItem::Line(text.into());
        let remark = StreamItem::Remark("why\r".into());
        assert_eq!((items, error), (vec![line("one"), line(""), line("two"), remark], None));
    }

    #[test]
    fn a_line_has_a_limit() {
        let longest = vec![b'x'; MAX_LINE_BYTES as usize];
        let (items, error) = sent(&longest, b"");
        assert_eq!((items.len(), error), (1, None));
        let (items, error) = sent(&[&longest[..], b"\n"].concat(), b"");
        assert_eq!((items.len(), error), (1, None));
        let (items, error) = sent(&[&longest[..], b"x\n"].concat(), b"");
        let expected = "the program printed a line of more than 8 MiB";
        assert_eq!((items, error.as_deref()), (Vec::new(), Some(expected)));
    }

    #[test]
    fn a_long_remark_is_split() {
        let (items, error) = sent(b"", &[b'x'; MAX_REMARK_BYTES as usize + 1]);
        assert_eq!((items.len(), error), (2, None));
    }
}
