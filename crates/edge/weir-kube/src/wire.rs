//! Requests and answers.

use std::{
    io,
    time::{Duration, SystemTime},
};

use futures::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    api::{GetParams, ListParams, WatchParams},
    core::Request,
};
use weir_api::document::{self, Entry, Tree, Value};

use crate::{ReadError, kind::Kind};

/// How long an answer that is not a watch may take.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a watch may take to open.
const OPENING: Duration = Duration::from_secs(15);
/// How long a watch goes on, at most. The API server ends it.
const WATCH_SECONDS: u32 = 290;

/// A page of a list, still as text.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) text: String,
}

/// What a page says beside its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The version of the whole list.
    pub(crate) version: String,
    /// What to ask the next page with; `None` if this is the last.
    pub(crate) more: Option<String>,
}

impl Page {
    /// Asks for a page: the first, or the one after.
    pub(crate) async fn get(
        client: &Client,
        kind: Kind,
        size: u32,
        after: Option<&str>,
    ) -> Result<Self, ReadError> {
        Page::at(client, &kind.path(), kind.resource(), size, after).await
    }

    /// The same for what is at a path.
    pub(crate) async fn at(
        client: &Client,
        path: &str,
        resource: &str,
        size: u32,
        after: Option<&str>,
    ) -> Result<Self, ReadError> {
        let mut params = ListParams::default().limit(size);
        if let Some(token) = after {
            params = params.continue_token(token);
        }
        let request = Request::new(path).list(&params);
        let answer = answer(client, request, "list", resource).await?;
        Ok(Page { text: answer })
    }

    /// Hands over its objects one by one.
    pub(crate) fn each(&self, kind: Kind, each: impl FnMut(Tree)) -> Result<Rest, ReadError> {
        self.each_of(kind.resource(), each)
    }

    fn each_of(&self, resource: &str, each: impl FnMut(Tree)) -> Result<Rest, ReadError> {
        let rest = document::items(self.text.as_bytes(), each).map_err(|error| {
            ReadError::Garbled { resource: resource.into(), message: error.message }
        })?;
        rest_of(resource, &rest)
    }

    /// What it says beside its objects.
    pub(crate) fn rest(&self, resource: &str) -> Result<Rest, ReadError> {
        self.each_of(resource, drop)
    }
}

fn rest_of(resource: &str, list: &Tree) -> Result<Rest, ReadError> {
    let text = |key: &str| {
        let text = list.path(&["metadata", key]).and_then(Tree::text);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    // Without it this may be any text, and no list that is complete.
    let version = text("resourceVersion").ok_or_else(|| ReadError::Garbled {
        resource: resource.into(),
        message: "the list has no resourceVersion".into(),
    })?;
    Ok(Rest { version, more: text("continue") })
}

/// What happened to an object.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Put(Tree),
    Removed(Tree),
    Bookmark(Tree),
}

impl Seen {
    /// The version that the watch has come to.
    pub(crate) fn version(&self) -> Option<String> {
        let (Seen::Put(tree) | Seen::Removed(tree) | Seen::Bookmark(tree)) = self;
        let text = tree.path(&["metadata", "resourceVersion"]).and_then(Tree::text)?;
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// When the object was written, by the API server's clock and to the second, if it says so.
    pub(crate) fn written(&self) -> Option<SystemTime> {
        let Seen::Put(tree) = self else { return None };
        let managed = tree.path(&["metadata", "managedFields"]).map_or(&[][..], Tree::items);
        let times = managed.iter().filter_map(|one| one.get("time"));
        let times = times.chain(tree.path(&["metadata", "creationTimestamp"]));
        let times = times.filter_map(|time| time.text()?.parse::<Timestamp>().ok());
        times.max().map(SystemTime::from)
    }

    fn read(kind: Kind, line: &[u8]) -> Result<Self, ReadError> {
        let garbled = |message: &str| ReadError::Garbled {
            resource: kind.resource().into(),
            message: message.into(),
        };
        let (mut roots, _, error) = document::documents(line);
        if let Some(error) = error {
            return Err(garbled(&error.message));
        }
        let root = roots.pop().ok_or_else(|| garbled("an empty event"))?;
        let what = root.get("type").and_then(Tree::text).unwrap_or_default().to_owned();
        let Value::Map(entries) = root.value else { return Err(garbled("no event")) };
        let object = entries.into_iter().find(|entry| &*entry.key == "object");
        let Entry { value: object, .. } =
            object.ok_or_else(|| garbled("an event without object"))?;
        match &*what {
            "ADDED" | "MODIFIED" => Ok(Seen::Put(object)),
            "DELETED" => Ok(Seen::Removed(object)),
            "BOOKMARK" => Ok(Seen::Bookmark(object)),
            "ERROR" => {
                let code = match object.get("code").map(|code| &code.value) {
                    Some(Value::Int(code, _)) => u16::try_from(*code).unwrap_or_default(),
                    _ => 0,
                };
                let message = object.get("message").and_then(Tree::text).unwrap_or_default();
                Err(ReadError::status(code, message.into(), "watch", kind.resource().into()))
            }
            other => Err(garbled(&format!("an event of the type {other:?}"))),
        }
    }
}

/// A watch that is open.
pub(crate) struct Events<R> {
    kind: Kind,
    reader: R,
    line: Vec<u8>,
}

/// Opens a watch that goes on from a version.
pub(crate) async fn watch(
    client: &Client,
    kind: Kind,
    version: &str,
) -> Result<Events<impl AsyncBufRead + Unpin + use<>>, ReadError> {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let request = Request::new(kind.path()).watch(&params, version);
    let request = request.map_err(kube::Error::BuildRequest);
    let request = request.map_err(|error| ReadError::answer(error, "watch", kind))?;
    let opened = tokio::time::timeout(OPENING, client.request_stream(request)).await;
    let reader = opened.map_err(|_| too_late(OPENING))?;
    let reader = reader.map_err(|error| ReadError::answer(error, "watch", kind))?;
    Ok(Events { kind, reader, line: Vec::new() })
}

impl<R: AsyncBufRead + Unpin> Events<R> {
    /// The next event; `None` if the watch has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Seen>, ReadError> {
        loop {
            self.line.clear();
            let length = self.reader.read_until(b'\n', &mut self.line).await?;
            // A line that is cut off is the end, too: it comes again.
            if length == 0 || !self.line.ends_with(b"\n") {
                return Ok(None);
            }
            if !self.line.trim_ascii().is_empty() {
                return Seen::read(self.kind, &self.line).map(Some);
            }
        }
    }
}

/// Asks for a pod; `None` if there is none.
pub(crate) async fn pod(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Tree>, ReadError> {
    // Whoever asks says what it was told; no pod has a name that leads elsewhere.
    let is_odd = |byte: u8| !byte.is_ascii_alphanumeric() && !b"-.".contains(&byte);
    if [namespace, name].iter().any(|text| text.is_empty() || text.bytes().any(is_odd)) {
        return Ok(None);
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let request = Request::new(path).get(name, &GetParams::default());
    let text = match answer(client, request, "get", Kind::Pod.resource()).await {
        Err(ReadError::Missing { .. }) => return Ok(None),
        text => text?,
    };
    let (mut roots, _, error) = document::documents(text.as_bytes());
    match error {
        None => Ok(roots.pop()),
        Some(error) => Err(ReadError::Garbled {
            resource: Kind::Pod.resource().into(),
            message: error.message,
        }),
    }
}

/// What the API server knows about a kind that can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    /// There is none, or none that ever worked.
    None,
    /// It is there, and has the version that we read.
    Served,
    /// It is there, in other versions only.
    Other,
}

/// Looks up the definition of a kind in the store: what the API server serves lags behind it, most of all after a start.
pub(crate) async fn definition(client: &Client, kind: Kind) -> Result<Definition, ReadError> {
    const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = Request::new(path).get(kind.resource(), &GetParams::default());
    let text = match answer(client, request, "get", DEFINITIONS).await {
        Err(ReadError::Missing { .. }) => return Ok(Definition::None),
        text => text?,
    };
    let root = document::documents(text.as_bytes()).0.pop().unwrap_or_else(|| Tree::null(1));
    let conditions = root.path(&["status", "conditions"]).map_or(&[][..], Tree::items);
    let is_established = conditions.iter().any(|one| {
        let text = |key| one.get(key).and_then(Tree::text);
        text("type") == Some("Established") && text("status") == Some("True")
    });
    if !is_established {
        return Ok(Definition::None);
    }
    let version = kind.version().rsplit('/').next().unwrap_or_default();
    let versions = root.path(&["spec", "versions"]).map_or(&[][..], Tree::items);
    let is_served = versions.iter().any(|one| {
        let served =
            one.get("served").is_some_and(|served| matches!(served.value, Value::Bool(true, _)));
        served && one.get("name").and_then(Tree::text) == Some(version)
    });
    Ok(if is_served { Definition::Served } else { Definition::Other })
}

/// Whether the API server says that it serves a kind, which everybody may ask.
pub(crate) async fn is_served(
    client: &Client,
    version: &str,
    resource: &str,
) -> Result<bool, ReadError> {
    let path = format!("/apis/{version}");
    let request = Request::new(path).list(&ListParams::default());
    let text = match answer(client, request, "get", resource).await {
        Err(ReadError::Missing { .. }) => return Ok(false),
        text => text?,
    };
    let root = document::documents(text.as_bytes()).0.pop().unwrap_or_else(|| Tree::null(1));
    let resources = root.get("resources").map_or(&[][..], Tree::items);
    let plural = resource.split('.').next();
    Ok(resources.iter().any(|one| one.get("name").and_then(Tree::text) == plural))
}

/// A request, if it could be built.
type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

async fn answer(
    client: &Client,
    request: Built,
    verb: &'static str,
    resource: &str,
) -> Result<String, ReadError> {
    let fail = |error| ReadError::about(error, verb, resource);
    let request = request.map_err(kube::Error::BuildRequest).map_err(fail)?;
    match tokio::time::timeout(ANSWER, client.request_text(request)).await {
        Ok(answer) => answer.map_err(fail),
        Err(_) => Err(too_late(ANSWER)),
    }
}

fn too_late(time: Duration) -> ReadError {
    let seconds = time.as_secs();
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds} s")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a watch tells, until it ends.
    fn told(text: &str) -> Result<Vec<Seen>, ReadError> {
        let mut events = Events { kind: Kind::Pod, reader: text.as_bytes(), line: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(seen) = events.next().await? {
                all.push(seen);
            }
            Ok(all)
        })
    }

    const POD: &str = r#"{"metadata":{"name":"web","resourceVersion":"7"}}"#;

    #[test]
    fn a_watch_is_read_line_by_line_and_a_line_that_is_cut_off_is_its_end() {
        let event = |what: &str| format!("{{\"type\":\"{what}\",\"object\":{POD}}}\n");
        let text = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"].map(event).concat();
        let all = told(&format!("{text}\n{}", &text[..30])).unwrap();
        assert_eq!(all.len(), 4);
        assert!(matches!(all[0], Seen::Put(_)) && matches!(all[1], Seen::Put(_)));
        assert!(matches!(all[2], Seen::Removed(_)) && matches!(all[3], Seen::Bookmark(_)));
        // A watch goes on from a bookmark as from anything else.
        assert!(all.iter().all(|seen| seen.version().as_deref() == Some("7")));
    }

    #[test]
    fn what_an_api_server_says_instead_of_an_event_is_an_error() {
        let status = |code: u16| {
            format!(
                "{{\"type\":\"ERROR\",\"object\":{{\"code\":{code},\"message\":\"too old\"}}}}\n"
            )
        };
        assert!(matches!(told(&status(410)), Err(ReadError::Gone { .. })));
        assert!(matches!(told(&status(401)), Err(ReadError::Unauthorized)));
        assert!(matches!(told(&status(500)), Err(ReadError::Refused { .. })));
        for garbled in ["<html>\n", "{}\n", "[]\n", "{\"type\":\"ADDED\"}\n", "{\"object\":{}}\n"] {
            let said = told(garbled);
            assert!(matches!(said, Err(ReadError::Garbled { .. })), "{garbled}: {said:?}");
        }
    }

    #[test]
    fn an_object_was_written_when_the_last_of_its_managers_did() {
        let pod = |times: &str| {
            let text = format!(
                "{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{{\"creationTimestamp\":\"2020-01-01T00:00:00Z\",\"managedFields\":[{times}]}}}}}}\n"
            );
            told(&text).unwrap()[0].written()
        };
        let at = |text: &str| Some(SystemTime::from(text.parse::<Timestamp>().unwrap()));
        assert_eq!(pod(""), at("2020-01-01T00:00:00Z"));
        let two =
            r#"{"time":"2020-01-01T00:00:09Z"},{"time":"2020-01-01T00:00:05Z"},{"time":7},{}"#;
        assert_eq!(pod(two), at("2020-01-01T00:00:09Z"));
    }
}
