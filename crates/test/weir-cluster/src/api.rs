//! Blocking requests to the API server.

use futures::StreamExt;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::Access;

/// Why a request failed.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A blocking client.
pub(crate) struct Api {
    runtime: Runtime,
    client: Client,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    pub(crate) fn new(access: &Access) -> Result<Self, BoxError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(client(access))?;
        Ok(Api { runtime, client })
    }

    /// Sends a GET request. Returns the body as text.
    pub(crate) fn text(&self, path: &str) -> Result<String, kube::Error> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(kube::core::request::Error::BuildRequest);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.runtime.block_on(self.client.request_text(request))
    }

    /// Reads a list in pages of JSON and discards them.
    pub(crate) fn discard_pages(&self, path: &str, limit: usize) -> Result<(), BoxError> {
        let mut start = String::new();
        loop {
            let page = self.text(&format!("{path}?limit={limit}{start}"))?;
            let Some(token) = next_page(&page) else { return Ok(()) };
            start = format!("&continue={token}");
        }
    }

    /// Sends a GET request and discards the body. Reports the length of each part.
    pub(crate) fn discard(
        &self,
        path: &str,
        media: &'static str,
        mut on_bytes: impl FnMut(usize),
    ) -> Result<(), BoxError> {
        let request = http::Request::get(path)
            .header(ACCEPT, media)
            .header(ACCEPT_ENCODING, "gzip")
            .body(Body::empty())?;
        self.runtime.block_on(async {
            let response = self.client.send(request).await?;
            if !response.status().is_success() {
                return Err(response.status().to_string().into());
            }
            let mut stream = response.into_body().into_data_stream();
            while let Some(bytes) = stream.next().await {
                on_bytes(bytes?.len());
            }
            Ok(())
        })
    }

    /// Sends a request with a JSON body.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        self.runtime.block_on(send(&self.client, method, path, body))
    }

    /// Sends one request per body, up to 32 concurrently.
    pub(crate) fn send_all(
        &self,
        method: Method,
        requests: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<(), kube::Error> {
        const MAX_CONCURRENT: usize = 32;
        let mut requests = requests.into_iter();
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            loop {
                while tasks.len() < MAX_CONCURRENT {
                    let Some((path, body)) = requests.next() else { break };
                    let client = self.client.clone();
                    tasks.spawn(async move { send(&client, method, &path, &body).await });
                }
                match tasks.join_next().await {
                    None => return Ok(()),
                    Some(Ok(done)) => drop(done?),
                    Some(Err(error)) => return Err(kube::Error::Service(error.into())),
                }
            }
        })
    }
}

/// The token for the next page. The metadata of a list precedes its objects.
fn next_page(page: &str) -> Option<&str> {
    let (head, _) = page.split_once("\"items\":")?;
    let (_, rest) = head.split_once("\"continue\":\"")?;
    let (token, _) = rest.split_once('"')?;
    (!token.is_empty()).then_some(token)
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Creates an object in the collection.
    Post,
    /// Creates an object with dry run.
    DryPost,
    /// Applies a merge patch.
    Patch,
    /// Deletes the object.
    Delete,
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let request = match method {
        Method::Post | Method::DryPost => {
            let how = PostParams { dry_run: method == Method::DryPost, ..PostParams::default() };
            Request::new(path).create(&how, body.to_string().into_bytes())
        }
        Method::Patch => {
            let (folder, name, sub) = match name {
                "status" => {
                    let (folder, name) = folder.rsplit_once('/').unwrap_or(("", folder));
                    (folder, name, Some("status"))
                }
                name => (folder, name, None),
            };
            let (request, patch) = (Request::new(folder), Patch::Merge(body));
            match sub {
                None => request.patch(name, &PatchParams::default(), &patch),
                Some(sub) => request.patch_subresource(sub, name, &PatchParams::default(), &patch),
            }
        }
        Method::Delete => {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            Request::new(folder).delete(name, &now)
        }
    };
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

/// A client.
pub(crate) async fn client(access: &Access) -> Result<Client, BoxError> {
    Ok(Client::try_from(config(access).await?)?)
}

/// A client that passes every answer on, also 429, 503 and 504. Without a token, requests can have
/// their own.
pub(crate) async fn client_without_retries(access: &Access) -> Result<Client, BoxError> {
    let mut config = config(access).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn config(access: &Access) -> Result<Config, BoxError> {
    let user = if access.token.is_empty() { json!({}) } else { json!({"token": access.token}) };
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {
            "server": access.url,
            "certificate-authority-data": base64(&access.ca),
        }}],
        "users": [{"name": "test", "user": user}],
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig)?;
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_before_the_objects() {
        let page = |metadata: &str| {
            let items = r#"[{"metadata":{"annotations":{"a":"\"continue\":\"no\""}}}]"#;
            format!(r#"{{"kind":"PodList","metadata":{{{metadata}}},"items":{items}}}"#)
        };
        let first = page(r#""resourceVersion":"9","continue":"eyJ2","remainingItemCount":1"#);
        assert_eq!(next_page(&first), Some("eyJ2"));
        assert_eq!(next_page(&page(r#""resourceVersion":"9""#)), None);
    }
}
