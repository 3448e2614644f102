use std::{error::Error, io, path::PathBuf};

use crate::kind::Kind;

/// Any other error.
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

/// Why a cluster could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no kubeconfig, and we are in no pod.
    #[error("there is no kubeconfig")]
    NoKubeconfig,
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        /// Where it is, if it is not the user's own.
        path: Option<PathBuf>,
        /// Why.
        source: Cause,
    },
    /// We are in a pod, and it has no account.
    #[error("cannot use the service account of this pod")]
    Pod(#[source] Cause),
    /// Who we are could not be shown.
    #[error("cannot get credentials for the API server")]
    Credentials(#[source] Cause),
    /// The API server does not answer.
    #[error("cannot reach the API server")]
    Unreachable(#[source] Cause),
    /// The API server does not know us.
    #[error("the API server does not accept the credentials")]
    Unauthorized,
    /// The API server knows us and says no.
    #[error("the API server forbids to {verb} {resource}")]
    Forbidden {
        /// What we may not do.
        verb: &'static str,
        /// With what, in the plural and with its group.
        resource: String,
    },
    /// There is no such thing, or not any more.
    #[error("the API server has no {resource}")]
    Missing {
        /// What.
        resource: String,
    },
    /// What we want to go on from is too long ago.
    #[error("the API server no longer knows what {resource} were")]
    Gone {
        /// What.
        resource: String,
    },
    /// Any other answer than the one we asked for.
    #[error("the API server cannot {verb} {resource}: {message}")]
    Refused {
        /// What it cannot do.
        verb: &'static str,
        /// With what.
        resource: String,
        /// In its own words.
        message: String,
    },
    /// The answer makes no sense.
    #[error("the API server's answer about {resource} cannot be read: {message}")]
    Garbled {
        /// What it is about.
        resource: String,
        /// What is wrong with it.
        message: String,
    },
}

impl ReadError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            ReadError::NoKubeconfig => "name a cluster with --kubeconfig PATH or KUBECONFIG".into(),
            ReadError::Kubeconfig { .. } => {
                "check it with `kubectl config view`, and --kubeconfig and --context".into()
            }
            ReadError::Pod(_) => "let the pod mount the token of its service account".into(),
            ReadError::Credentials(_) => {
                "check the token's file, or the `users` of the kubeconfig: files, and programs that must be installed".into()
            }
            ReadError::Unreachable(_) => {
                "check that the cluster is up, and the address and the certificates to trust that were given for it".into()
            }
            ReadError::Unauthorized => "log in again, or check the token or certificate".into(),
            ReadError::Forbidden { verb, resource } => {
                let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
                format!(
                    "grant it by a ClusterRole: apiGroups [\"{group}\"], resources [\"{name}\"], verbs [\"{verb}\"]"
                )
            }
            ReadError::Missing { .. } => "check that this is a Kubernetes cluster".into(),
            ReadError::Gone { .. } => "try again".into(),
            ReadError::Refused { .. } | ReadError::Garbled { .. } => {
                "try again; if it stays so, look at the log of the API server".into()
            }
        }
    }

    /// With the cause, in one line.
    pub fn text(&self) -> String {
        match self.source() {
            None => self.to_string(),
            Some(cause) => format!("{self}: {cause}"),
        }
    }

    /// An error of making a client.
    pub(crate) fn client(error: kube::Error) -> Self {
        ReadError::Credentials(innermost(error))
    }

    /// An error of an answer about a kind.
    pub(crate) fn answer(error: kube::Error, verb: &'static str, kind: Kind) -> Self {
        ReadError::about(error, verb, kind.resource())
    }

    /// An error of an answer about anything.
    pub fn about(error: kube::Error, verb: &'static str, resource: &str) -> Self {
        let resource = resource.to_owned();
        match error {
            kube::Error::Api(status) => {
                ReadError::status(status.code, status.message, verb, resource)
            }
            kube::Error::Auth(source) => ReadError::Credentials(source.into()),
            error => ReadError::Unreachable(innermost(error)),
        }
    }

    /// What a status of the API server means.
    pub fn status(code: u16, message: String, verb: &'static str, resource: String) -> Self {
        match code {
            401 => ReadError::Unauthorized,
            403 => ReadError::Forbidden { verb, resource },
            404 => ReadError::Missing { resource },
            410 => ReadError::Gone { resource },
            _ => ReadError::Refused { verb, resource, message: one_line(&message) },
        }
    }

    /// Whether a new client could help: credentials and certificates may have changed.
    pub fn is_about_access(&self) -> bool {
        matches!(
            self,
            ReadError::Unauthorized | ReadError::Unreachable(_) | ReadError::Credentials(_)
        )
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        ReadError::Unreachable(innermost(error))
    }
}

/// The error at the end of the chain: those before it only say that there is one.
fn innermost(error: impl Error + Send + Sync + 'static) -> Cause {
    let mut cause: &dyn Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string()).into()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
