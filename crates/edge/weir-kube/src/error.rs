use std::{error::Error, io, path::PathBuf, sync::Arc, time::Duration};

/// Any other error.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// In the message of the API server if a request names a version that it has not reached.
const VERSION_TOO_LARGE: &str = "Too large resource version";

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There is no kubeconfig, and the process does not run in a pod.
    #[error("there is no kubeconfig")]
    NoKubeconfig,
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        /// The path; `None` for the user's default kubeconfig.
        path: Option<PathBuf>,
        /// The cause.
        source: BoxError,
    },
    /// The process runs in a pod without a usable service account.
    #[error("cannot use the service account of this pod")]
    Pod(#[source] BoxError),
    /// The credentials could not be loaded.
    #[error("cannot get credentials for the API server")]
    Credentials(#[source] BoxError),
    /// The API server did not answer.
    #[error("cannot reach the API server")]
    Unreachable(#[source] BoxError),
    /// The API server did not answer in time.
    #[error(
        "cannot reach the API server: {}no answer within {} s",
        server.as_ref().map(|server| format!("{server}: ")).unwrap_or_default(),
        after.as_secs()
    )]
    TimedOut {
        /// Its address; `None` if not known yet.
        server: Option<Arc<str>>,
        /// The timeout.
        after: Duration,
    },
    /// The API server rejected the credentials.
    #[error("the API server does not accept the credentials")]
    Unauthorized,
    /// The API server denied the request.
    #[error("not allowed to {verb} {resource}")]
    Forbidden {
        /// The verb, as RBAC rules name it.
        verb: &'static str,
        /// The plural and the group.
        resource: String,
    },
    /// The API server has no such path: it does not serve the resource, or is no API server.
    #[error("the API server has no {resource}")]
    Missing {
        /// The plural and the group.
        resource: String,
    },
    /// The API server serves the resource, and has no object of this name.
    #[error("there is no {name} in {resource}")]
    Absent {
        /// The plural and the group.
        resource: String,
        /// The name of the object.
        name: String,
    },
    /// The resourceVersion or continue token of the request has expired.
    #[error("the API server no longer has the requested version of {resource}")]
    Gone {
        /// The plural and the group.
        resource: String,
    },
    /// The API server answered with any other status.
    #[error("the API server cannot {verb} {resource}: {code}: {message}")]
    Refused {
        /// The verb, as RBAC rules name it.
        verb: &'static str,
        /// The plural and the group.
        resource: String,
        /// The HTTP status code.
        code: u16,
        /// The API server's message.
        message: String,
        /// The wait that the API server demands before the next request.
        retry_after: Option<Duration>,
    },
    /// The response is not what the Kubernetes API specifies.
    #[error("the API server's answer about {resource} cannot be read: {message}")]
    Garbled {
        /// The plural and the group.
        resource: String,
        /// The defect.
        message: String,
    },
    /// The response exceeds the limit for its kind.
    #[error("the API server's answer about {resource} is larger than {mebibytes} MiB")]
    TooLarge {
        /// The plural and the group.
        resource: String,
        /// The limit.
        mebibytes: usize,
    },
    /// A watch delivered no event and no bookmark.
    #[error("the watch of {resource} delivered nothing for {} s", after.as_secs_f64())]
    Silent {
        /// The plural and the group.
        resource: String,
        /// The time without an event.
        after: Duration,
    },
    /// Watches end much earlier than requested.
    #[error("the API server ends each watch of {resource} early")]
    Ended {
        /// The plural and the group.
        resource: String,
    },
    /// The API server's latest version is older than one that it has sent before.
    #[error("the resource versions of {resource} went back, as after a restore of etcd")]
    Reverted {
        /// The plural and the group.
        resource: String,
    },
}

impl ApiError {
    /// Suggests a fix.
    pub fn hint(&self) -> String {
        match self {
            ApiError::NoKubeconfig => "set --kubeconfig PATH or KUBECONFIG".into(),
            ApiError::Kubeconfig { .. } => {
                "check it with `kubectl config view`, and --kubeconfig and --context".into()
            }
            ApiError::Pod(_) => "set automountServiceAccountToken: true for the pod".into(),
            ApiError::Credentials(_) => {
                "check the token file, or the files and programs named in `users` of the kubeconfig"
                    .into()
            }
            ApiError::Unreachable(_) | ApiError::TimedOut { .. } => {
                "check that the cluster is up, and check its address and CA certificate".into()
            }
            ApiError::Unauthorized => "log in again, or check the token or certificate".into(),
            ApiError::Forbidden { verb, resource } => {
                let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
                format!(
                    "grant it with a ClusterRole: apiGroups [\"{group}\"], resources [\"{name}\"], verbs [\"{verb}\"]"
                )
            }
            ApiError::Missing { .. } => {
                "check that the CRD is installed and that the address is a Kubernetes API server"
                    .into()
            }
            ApiError::Absent { .. } => "check the name".into(),
            ApiError::Gone { .. } => "try again".into(),
            ApiError::Refused { .. } | ApiError::Garbled { .. } | ApiError::TooLarge { .. } => {
                "try again; if the error persists, check the log of the API server".into()
            }
            ApiError::Silent { .. } | ApiError::Ended { .. } => {
                "check the API server and any proxy or load balancer in front of it".into()
            }
            ApiError::Reverted { .. } => {
                "all objects are listed again; if the error persists, check etcd".into()
            }
        }
    }

    /// The error and its cause on one line.
    pub fn text(&self) -> String {
        match self.source() {
            None => self.to_string(),
            Some(cause) => format!("{self}: {cause}"),
        }
    }

    /// An error from building a client, with the program of the kubeconfig that gets credentials.
    pub(crate) fn from_client(error: kube::Error, plugin: Option<String>) -> Self {
        let cause = innermost(&error);
        ApiError::Credentials(match plugin {
            Some(plugin) => format!("{plugin}: {cause}").into(),
            None => cause,
        })
    }

    /// An error of kube's typed client, with the request that it answers.
    pub(crate) fn from_kube(error: kube::Error, verb: &'static str, resource: &str) -> Self {
        match error {
            kube::Error::Api(status) => {
                let seconds = status.details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                ApiError::from_status(status.code, &status.message, verb, resource, retry_after)
            }
            kube::Error::Auth(source) => ApiError::Credentials(source.into()),
            error => ApiError::Unreachable(innermost(&error)),
        }
    }

    /// The error for a status of the API server.
    pub(crate) fn from_status(
        code: u16,
        message: &str,
        verb: &'static str,
        resource: &str,
        retry_after: Option<Duration>,
    ) -> Self {
        let resource = resource.to_owned();
        match code {
            401 => ApiError::Unauthorized,
            403 => ApiError::Forbidden { verb, resource },
            404 => ApiError::Missing { resource },
            410 => ApiError::Gone { resource },
            504 if message.contains(VERSION_TOO_LARGE) => ApiError::Reverted { resource },
            _ => {
                let message = one_line(message);
                ApiError::Refused { verb, resource, code, message, retry_after }
            }
        }
    }

    /// A timeout. The code that sends requests does not know the server, which
    /// [`with_server`](ApiError::with_server) adds.
    pub(crate) fn timed_out(after: Duration) -> Self {
        ApiError::TimedOut { server: None, after }
    }

    /// The same error; a timeout names the server.
    pub(crate) fn with_server(self, server: Option<Arc<str>>) -> Self {
        match self {
            ApiError::TimedOut { after, .. } => ApiError::TimedOut { server, after },
            error => error,
        }
    }

    /// Whether a new client could help, because it reads the kubeconfig, credentials and
    /// certificates again.
    pub(crate) fn is_about_access(&self) -> bool {
        matches!(
            self,
            ApiError::NoKubeconfig
                | ApiError::Kubeconfig { .. }
                | ApiError::Pod(_)
                | ApiError::Unauthorized
                | ApiError::Unreachable(_)
                | ApiError::TimedOut { .. }
                | ApiError::Credentials(_)
        )
    }

    /// The wait that the API server demands before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the API server is overloaded or restarting, so that the same request can succeed
    /// later.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, ApiError::Refused { code: 429 | 503 | 504, .. })
    }
}

impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> Self {
        ApiError::Unreachable(innermost(&error))
    }
}

/// The last error of the chain. The others only state that there is a cause.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> BoxError {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string()).into()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
