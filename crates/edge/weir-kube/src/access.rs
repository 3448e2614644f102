use std::{
    env,
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

use crate::{ReadError, client};

/// How to reach an API server, and as whom. It is read again whenever that helps: files change, tokens end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    direct: Option<Direct>,
    warned: Warned,
}

/// Whether it was told that anybody could answer in the server's place. It is no part of how to reach it.
#[derive(Clone, Debug, Default)]
struct Warned(Arc<OnceLock<()>>);

impl PartialEq for Warned {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Warned {}

/// An API server without a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Direct {
    url: String,
    token: PathBuf,
    ca: Option<PathBuf>,
}

impl Access {
    /// The cluster of a kubeconfig, by default the user's own; or that of the pod we are in, if there is none.
    pub fn new(kubeconfig: Option<&Path>, context: Option<&str>) -> Self {
        let (kubeconfig, context) = (kubeconfig.map(Into::into), context.map(Into::into));
        Access { kubeconfig, context, ..Access::default() }
    }

    /// The cluster at an address, with a file that has the token and one that has the certificates to trust, if not those of the machine.
    pub fn direct(url: &str, token: &Path, ca: Option<&Path>) -> Self {
        let direct = Direct { url: url.into(), token: token.into(), ca: ca.map(Into::into) };
        Access { direct: Some(direct), ..Access::default() }
    }

    /// A client for it. What is asked with it may take for ever: a watch is silent for long.
    pub async fn client(&self) -> Result<Client, ReadError> {
        let config = self.config().await?;
        if config.accept_invalid_certs {
            self.warned.0.get_or_init(|| {
                tracing::warn!(
                    "the certificate of {} is not verified, as insecure-skip-tls-verify in the kubeconfig asks: whoever answers in its place is believed; set certificate-authority there instead",
                    config.cluster_url
                );
            });
        }
        client::build(config).map_err(ReadError::from_client)
    }

    async fn config(&self) -> Result<Config, ReadError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let kubeconfig = match (&self.direct, &self.kubeconfig) {
            (Some(direct), _) => Ok(direct.kubeconfig()),
            (None, Some(path)) => Kubeconfig::read_from(path),
            (None, None) => Kubeconfig::read(),
        };
        let is_asked_for = self.kubeconfig.is_some() || self.context.is_some();
        match kubeconfig {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|source| self.unusable(source)),
            Err(_) if !is_asked_for && is_in_cluster() => match account() {
                None => Config::incluster().map_err(|source| ReadError::Pod(source.into())),
                Some(folder) => {
                    let pod =
                        of_account(&folder).map_err(|source| ReadError::Pod(source.into()))?;
                    let config = Config::from_custom_kubeconfig(pod, &options).await;
                    config.map_err(|source| ReadError::Pod(source.into()))
                }
            },
            Err(source) => Err(self.unusable(source)),
        }
    }

    fn unusable(&self, source: KubeconfigError) -> ReadError {
        let path = match &self.kubeconfig {
            Some(path) => Some(path.clone()),
            None => env::var_os("KUBECONFIG").map(PathBuf::from),
        };
        match source {
            KubeconfigError::FindPath => ReadError::NoKubeconfig,
            KubeconfigError::ReadConfig(why, at)
                if path.is_none() && why.kind() == std::io::ErrorKind::NotFound =>
            {
                drop(at);
                ReadError::NoKubeconfig
            }
            source => ReadError::Kubeconfig { path, source: source.into() },
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

fn is_in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Where the files of the service account are, if not where Linux has them: on Windows, a process of the host finds what is mounted
/// into its container below a folder that the runtime names, or on the drive of the system.
fn account() -> Option<PathBuf> {
    let roots = [env::var_os("CONTAINER_SANDBOX_MOUNT_POINT"), env::var_os("SystemDrive")];
    let folders = roots.into_iter().flatten().map(|root| {
        // A drive alone, as in `C:`, is wherever somebody is on it.
        let root = format!("{}/", root.to_string_lossy().trim_end_matches(['/', '\\']));
        Path::new(&root).join("var/run/secrets/kubernetes.io/serviceaccount")
    });
    folders.into_iter().find(|folder| folder.join("token").exists())
}

/// The cluster of the pod we are in, with a service account whose files are in this folder. The token is read again when it ends.
fn of_account(folder: &Path) -> Result<Kubeconfig, KubeconfigError> {
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
    fn a_service_account_is_found_by_its_folder() {
        let config = of_account(Path::new("C:/hpc/account")).unwrap();
        let cluster = config.clusters[0].cluster.clone().unwrap();
        assert_eq!(cluster.certificate_authority.as_deref(), Some("C:/hpc/account/ca.crt"));
        let user = config.auth_infos[0].auth_info.clone().unwrap();
        assert_eq!(user.token_file.as_deref(), Some("C:/hpc/account/token"));
    }
}
