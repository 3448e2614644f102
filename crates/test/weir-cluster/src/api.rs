//! Blocking requests to the API server.

use kube::{
    Client, Config,
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
        let request = Request::new(path).list(&kube::api::ListParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.runtime.block_on(self.client.request_text(request))
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

/// A client. Without a token, requests can have their own.
pub(crate) async fn client(access: &Access) -> Result<Client, BoxError> {
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
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
