//! Flows in a file, and flows and metrics to OpenTelemetry collectors.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use prometheus_client::encoding::text::encode;
use weir_flows::{FlowRecord, otlp_logs, write_record};

use crate::{otlp_metrics::MetricsSender, report::AgentReport};

/// The interval at which changed flows are written.
const INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which metrics are sent.
const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// The longest time that connecting, sending or receiving may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest time between two messages about failures.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(60);
/// The most bytes that are read of a collector's answer.
const MAX_ANSWER_BYTES: u64 = 4096;

/// Where flows go, besides HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowExport {
    /// A file with one record per line.
    pub log: Option<FlowLog>,
    /// A collector of OpenTelemetry logs.
    pub collector: Option<OtlpCollector>,
}

/// A file that is rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowLog {
    /// The path. Older files have it with `.1`, `.2` and so on.
    pub path: PathBuf,
    /// The size at which the file is rotated, in bytes.
    pub max_bytes: u64,
    /// The number of older files.
    pub older_files: u32,
}

/// The address of an OpenTelemetry collector, for OTLP over HTTP with JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpCollector {
    /// The host and the port.
    pub authority: String,
    /// The path of the logs or metrics, such as `/v1/logs`.
    pub path: String,
}

impl FlowExport {
    /// Whether flows go nowhere else.
    pub(crate) fn is_empty(&self) -> bool {
        self.log.is_none() && self.collector.is_none()
    }
}

/// Starts the thread that exports flows.
pub(crate) fn export(
    export: FlowExport,
    node: String,
    version: &'static str,
    report: Arc<AgentReport>,
) -> io::Result<()> {
    let FlowExport { log, collector } = export;
    if let Some(log) = log {
        let mut file = RotatedFile { log, file: None, bytes: 0 };
        let report = report.clone();
        start("weir-flow-log", report, "the flow log", move |flows| file.write(flows))?;
    }
    if let Some(collector) = collector {
        let send = move |flows: &[FlowRecord]| {
            let body = otlp_logs(&node, version, flows).to_string();
            collector.send(body.as_bytes())
        };
        start("weir-flow-otlp", report, "the OpenTelemetry collector", send)?;
    }
    Ok(())
}

/// Starts the thread that sends metrics to a collector. After a failure, the next values follow.
pub(crate) fn export_metrics(
    collector: OtlpCollector,
    node: String,
    version: &'static str,
    report: Arc<AgentReport>,
) -> io::Result<()> {
    let now = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos())
    };
    let sender = MetricsSender { node, version, start: now() };
    let run = move || {
        let mut messages = MessageLimit::default();
        loop {
            thread::sleep(METRICS_INTERVAL);
            let mut text = String::new();
            let sent = encode(&mut text, &report.registry).map_err(io::Error::other);
            let sent = sent
                .and_then(|()| collector.send(sender.body(&text, now()).to_string().as_bytes()));
            if let Err(error) = sent {
                report.metrics.error("export");
                if messages.allows() {
                    tracing::warn!(%error, "cannot send metrics to the OpenTelemetry collector");
                }
            }
        }
    };
    thread::Builder::new().name("weir-otlp".into()).spawn(run).map(drop)
}

/// Starts a thread that passes on the flows that changed. After a failure it tries again with the
/// same ones, as far as the agent still stores them.
fn start(
    thread: &str,
    report: Arc<AgentReport>,
    target: &'static str,
    mut write: impl FnMut(&[FlowRecord]) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        let mut last = 0;
        let mut messages = MessageLimit::default();
        loop {
            thread::sleep(INTERVAL);
            loop {
                let page = report.flows.since(last);
                if page.flows.is_empty() {
                    break;
                }
                if let Err(error) = write(&page.flows) {
                    report.metrics.error("export");
                    if messages.allows() {
                        tracing::warn!(%error, "cannot write flows to {target}");
                    }
                    break;
                }
                last = page.last;
                if !page.more {
                    break;
                }
            }
        }
    };
    thread::Builder::new().name(thread.into()).spawn(run).map(drop)
}

/// Limits the messages about failures.
#[derive(Default)]
struct MessageLimit(Option<Instant>);

impl MessageLimit {
    /// Whether a message is due. It then counts as written.
    fn allows(&mut self) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= MESSAGE_INTERVAL);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

struct RotatedFile {
    log: FlowLog,
    file: Option<BufWriter<File>>,
    bytes: u64,
}

impl RotatedFile {
    fn write(&mut self, flows: &[FlowRecord]) -> io::Result<()> {
        let written = self.try_write(flows);
        if written.is_err() {
            self.file = None;
        }
        written
    }

    fn try_write(&mut self, flows: &[FlowRecord]) -> io::Result<()> {
        if self.bytes >= self.log.max_bytes {
            self.rotate()?;
        }
        let mut lines = Vec::new();
        flows.iter().try_for_each(|flow| write_record(&mut lines, flow))?;
        if self.file.is_none() {
            let file = open(&self.log.path)?;
            self.bytes = file.metadata()?.len();
            self.file = Some(BufWriter::new(file));
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(&lines)?;
        file.flush()?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let older = |number: u32| {
            let mut path = self.log.path.clone().into_os_string();
            path.push(format!(".{number}"));
            PathBuf::from(path)
        };
        for number in (1..self.log.older_files).rev() {
            rename(&older(number), &older(number + 1))?;
        }
        match self.log.older_files {
            0 => fs::remove_file(&self.log.path)?,
            _ => rename(&self.log.path, &older(1))?,
        }
        self.bytes = 0;
        Ok(())
    }
}

/// Renames a file if it exists.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Opens the file, which only its owner can read: it shows which pods communicate.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl OtlpCollector {
    /// Parses the address of a collector of logs, `http://HOST[:PORT][/PATH]`.
    pub fn parse_logs(url: &str) -> Result<Self, &'static str> {
        Self::parse(url, "/v1/logs")
    }

    /// Parses the address of a collector of metrics, `http://HOST[:PORT][/PATH]`.
    pub fn parse_metrics(url: &str) -> Result<Self, &'static str> {
        Self::parse(url, "/v1/metrics")
    }

    fn parse(url: &str, usual_path: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "expected http://HOST:PORT, as in http://127.0.0.1:4318";
        let rest = url.strip_prefix("http://").ok_or(EXPECTED)?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(rest) {
            return Err(EXPECTED);
        }
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:4318") };
        let path = if matches!(path, "" | "/") { usual_path } else { path };
        Ok(OtlpCollector { authority, path: path.to_owned() })
    }

    fn send(&self, body: &[u8]) -> io::Result<()> {
        let OtlpCollector { authority, path } = self;
        let address = authority.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, SEND_TIMEOUT)?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.set_read_timeout(Some(SEND_TIMEOUT))?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        match answer.split(' ').nth(1) {
            Some(code) if code.starts_with('2') => Ok(()),
            code => Err(io::Error::other(format!("status {}", code.unwrap_or("none")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_with_the_usual_port_and_path() {
        let parse = |url: &str| {
            OtlpCollector::parse_logs(url).map(|collector| collector.authority + &collector.path)
        };
        assert_eq!(parse("http://otel").as_deref(), Ok("otel:4318/v1/logs"));
        assert_eq!(parse("http://10.0.0.1:80/x/v1/logs").as_deref(), Ok("10.0.0.1:80/x/v1/logs"));
        assert_eq!(parse("http://[::1]:4318/").as_deref(), Ok("[::1]:4318/v1/logs"));
        let metrics = OtlpCollector::parse_metrics("http://otel").unwrap();
        assert_eq!(metrics.path, "/v1/metrics");
        for wrong in ["https://otel", "otel:4318", "http://", "http://a b", "http://u@h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_is_rotated_and_the_oldest_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows");
        let log = FlowLog { path: path.clone(), max_bytes: 1, older_files: 2 };
        let mut file = RotatedFile { log, file: None, bytes: 0 };
        for node in ["n1", "n2", "n3", "n4"] {
            let line = format!(
                r#"{{"schemaVersion":"weir.dev/flow/v1","node":"{node}","verdict":"allow","from":{{"others":true}},"to":{{"others":true}},"protocol":"TCP","policies":[],"firstSeen":"","lastSeen":"","connections":1,"sampling":{{"source":"conntrack","complete":true}}}}"#
            );
            file.write(&[serde_json::from_str(&line).unwrap()]).unwrap();
        }
        let node = |name: &str| {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            text.split('"').nth(7).unwrap().to_owned()
        };
        assert_eq!(["flows", "flows.1", "flows.2"].map(node), ["n4", "n3", "n2"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
