use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use kube::{
    Client, Config,
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
        NamedCluster, NamedContext,
    },
};

use crate::{ApiError, client};

/// How to reach an API server: kubeconfig, or address and credentials.
///
/// Each new client reads the files again, because tokens and certificates expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    direct: Option<Direct>,
    warned: Warned,
}

/// Whether the warning about an unverified server certificate was logged. Clones share it, and
/// comparisons ignore it.
#[derive(Clone, Debug, Default)]
struct Warned(Arc<OnceLock<()>>);

impl PartialEq for Warned {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Warned {}

/// The parts of a kubeconfig that the caller gave directly.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Direct {
    url: String,
    token: PathBuf,
    ca: Option<PathBuf>,
}

impl Access {
    /// Access through a kubeconfig, by default the user's. If there is none and the process runs in a
    /// pod, access through the pod's service account.
    pub fn new(kubeconfig: Option<&Path>, context: Option<&str>) -> Self {
        let (kubeconfig, context) = (kubeconfig.map(Into::into), context.map(Into::into));
        Access { kubeconfig, context, ..Access::default() }
    }

    /// Access to the API server at a URL, with a token file. `ca` is a file of CA certificates that
    /// replaces the system's.
    pub fn direct(url: &str, token: &Path, ca: Option<&Path>) -> Self {
        let direct = Direct { url: url.into(), token: token.into(), ca: ca.map(Into::into) };
        Access { direct: Some(direct), ..Access::default() }
    }

    /// Reads the kubeconfig, if there is one, without connecting.
    pub fn check(&self) -> Result<(), ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(self.config()).map(|_| ())
    }

    /// Connects. The client has no request timeout, because a watch stays open for minutes. Also
    /// returns the server, as errors name it.
    pub(crate) async fn client(&self) -> Result<(Client, Arc<str>), ApiError> {
        let (mut config, context) = self.config().await?;
        trim_token(&mut config);
        if config.accept_invalid_certs {
            self.warned.0.get_or_init(|| {
                tracing::warn!(
                    "the certificate of {} is not verified, because the kubeconfig sets \
                     insecure-skip-tls-verify: any server at this address is trusted; set \
                     certificate-authority instead",
                    config.cluster_url
                );
            });
        }
        let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
        let server: Arc<str> = match context {
            Some(context) => format!("{} (context {context})", config.cluster_url).into(),
            None => config.cluster_url.to_string().into(),
        };
        let client = client::build(config, server.clone());
        Ok((client.map_err(|error| ApiError::from_client(error, plugin))?, server))
    }

    /// The configuration of a client, and the context that it is from.
    async fn config(&self) -> Result<(Config, Option<String>), ApiError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let kubeconfig = match (&self.direct, &self.kubeconfig) {
            (Some(direct), _) => Ok(direct.kubeconfig()),
            (None, Some(path)) => Kubeconfig::read_from(path),
            (None, None) => Kubeconfig::read(),
        };
        let is_explicit = self.kubeconfig.is_some() || self.context.is_some();
        match kubeconfig {
            Ok(kubeconfig) => {
                let context = self.context.clone().or(kubeconfig.current_context.clone());
                if let Some(context) = &context {
                    self.check_context(&kubeconfig, context)?;
                }
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                let config = config.map_err(|source| self.unusable(source))?;
                Ok((config, context.filter(|_| self.direct.is_none())))
            }
            Err(_) if !is_explicit && is_in_cluster() => {
                let config = match account_folder() {
                    None => Config::incluster().map_err(|source| ApiError::Pod(source.into())),
                    Some(folder) => {
                        let pod = account_kubeconfig(&folder)
                            .map_err(|source| ApiError::Pod(source.into()))?;
                        let config = Config::from_custom_kubeconfig(pod, &options).await;
                        config.map_err(|source| ApiError::Pod(source.into()))
                    }
                };
                Ok((config?, None))
            }
            Err(source) => Err(self.unusable(source)),
        }
    }

    fn check_context(&self, kubeconfig: &Kubeconfig, wanted: &str) -> Result<(), ApiError> {
        let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| &*context.name).collect();
        if names.contains(&wanted) {
            return Ok(());
        }
        let message = match names.as_slice() {
            [] => format!("it has no context {wanted}, and no other"),
            names => format!("it has no context {wanted}, only {}", names.join(", ")),
        };
        Err(ApiError::Kubeconfig { path: self.path(), source: message.into() })
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.kubeconfig {
            Some(path) => Some(path.clone()),
            None => env::var_os("KUBECONFIG").map(PathBuf::from),
        }
    }

    fn unusable(&self, source: KubeconfigError) -> ApiError {
        let path = self.path();
        match source {
            KubeconfigError::FindPath => ApiError::NoKubeconfig,
            KubeconfigError::ReadConfig(why, _)
                if path.is_none() && why.kind() == std::io::ErrorKind::NotFound =>
            {
                ApiError::NoKubeconfig
            }
            KubeconfigError::ReadConfig(why, _) => {
                ApiError::Kubeconfig { path, source: why.into() }
            }
            // The parser draws the line of an error below its message.
            source => {
                let message = source.to_string();
                let message = message.lines().next().unwrap_or_default();
                ApiError::Kubeconfig { path, source: message.into() }
            }
        }
    }
}

impl Direct {
    fn kubeconfig(&self) -> Kubeconfig {
        const NAME: &str = "direct";
        let text = |path: &Path| path.display().to_string();
        let cluster = Cluster {
            server: Some(self.url.clone()),
            certificate_authority: self.ca.as_deref().map(text),
            ..Cluster::default()
        };
        let user = AuthInfo { token_file: Some(text(&self.token)), ..AuthInfo::default() };
        let context =
            Context { cluster: NAME.into(), user: Some(NAME.into()), ..Context::default() };
        Kubeconfig {
            clusters: vec![NamedCluster {
                name: NAME.into(),
                cluster: Some(cluster),
                other: Default::default(),
            }],
            auth_infos: vec![NamedAuthInfo {
                name: NAME.into(),
                auth_info: Some(user),
                other: Default::default(),
            }],
            contexts: vec![NamedContext {
                name: NAME.into(),
                context: Some(context),
                other: Default::default(),
            }],
            current_context: Some(NAME.into()),
            ..Kubeconfig::default()
        }
    }
}

/// Replaces a token file by its text if there is white space around the token, which kube would send.
/// When the token expires, a new client reads the file again.
fn trim_token(config: &mut Config) {
    let auth = &mut config.auth_info;
    if let (None, Some(path)) = (&auth.token, &auth.token_file)
        && let Ok(text) = fs::read_to_string(path)
        && text != text.trim()
    {
        auth.token = Some(text.trim().to_owned().into());
    }
}

fn is_in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// The folder of the pod's service account on Windows; `None` on Linux, where kube finds it. A host
/// process container mounts its volumes below `CONTAINER_SANDBOX_MOUNT_POINT`, or on the system drive.
fn account_folder() -> Option<PathBuf> {
    let roots = [env::var_os("CONTAINER_SANDBOX_MOUNT_POINT"), env::var_os("SystemDrive")];
    let folders = roots.into_iter().flatten().map(|root| {
        // `C:` without a slash is the current folder of that drive.
        let root = format!("{}/", root.to_string_lossy().trim_end_matches(['/', '\\']));
        Path::new(&root).join("var/run/secrets/kubernetes.io/serviceaccount")
    });
    folders.into_iter().find(|folder| folder.join("token").exists())
}

/// A kubeconfig for the pod's service account in a folder. The client reads the token file again when
/// the token expires.
fn account_kubeconfig(folder: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let text = |name| env::var(name).unwrap_or_default();
    let (host, port) = (text("KUBERNETES_SERVICE_HOST"), text("KUBERNETES_SERVICE_PORT"));
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pod", "cluster": {
            "server": format!("https://{host}:{}", if port.is_empty() { "443" } else { &port }),
            "certificate-authority": folder.join("ca.crt"),
        }}],
        "users": [{"name": "pod", "user": {"tokenFile": folder.join("token")}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "current-context": "pod",
    });
    Kubeconfig::from_yaml(&config.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_is_read_from_its_folder() {
        let config = account_kubeconfig(Path::new("C:/hpc/account")).unwrap();
        let cluster = config.clusters[0].cluster.clone().unwrap();
        assert_eq!(cluster.certificate_authority.as_deref(), Some("C:/hpc/account/ca.crt"));
        let user = config.auth_infos[0].auth_info.clone().unwrap();
        assert_eq!(user.token_file.as_deref(), Some("C:/hpc/account/token"));
    }
}
