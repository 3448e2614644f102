use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::ReadError;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How to reach an API server, and as whom. It is read again whenever that helps: files change, tokens end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

impl Access {
    /// The cluster of a kubeconfig, by default the user's own; or that of the pod we are in, if there is none.
    pub fn new(kubeconfig: Option<&Path>, context: Option<&str>) -> Self {
        Access { kubeconfig: kubeconfig.map(Into::into), context: context.map(Into::into) }
    }

    /// A client for it. What is asked with it may take for ever: a watch is silent for long.
    pub async fn client(&self) -> Result<Client, ReadError> {
        let mut config = self.config().await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = None;
        Client::try_from(config).map_err(ReadError::client)
    }

    async fn config(&self) -> Result<Config, ReadError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let is_asked_for = self.kubeconfig.is_some() || self.context.is_some();
        match kubeconfig {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|source| self.unusable(source)),
            Err(_) if !is_asked_for && is_in_cluster() => {
                Config::incluster().map_err(|source| ReadError::Pod(source.into()))
            }
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

fn is_in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}
