use std::{io, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use weir_api::{Lowering, Tree};
use weir_model::{Object, Pod};

use crate::{Access, ApiClient, ApiError, PODS, WireObject, wire};

/// How long an answer may take: a CNI request waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads single pods, for callers that cannot wait for a watch event.
///
/// This needs the verb `get` on pods.
pub struct PodClient {
    runtime: Runtime,
    client: ApiClient,
}

impl PodClient {
    /// The pods of a cluster. This sends no request.
    pub fn new(access: Access) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(PodClient { runtime, client: ApiClient::new(access) })
    }

    /// Reads a pod; `None` if it does not exist. Blocks for up to 5 s.
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ApiError> {
        self.runtime.block_on(async {
            let answer = timeout(ANSWER_TIMEOUT, self.request(namespace, name)).await;
            let answer = answer.unwrap_or_else(|_| Err(ApiError::timed_out(ANSWER_TIMEOUT)));
            let object = answer.map_err(|error| self.client.locate(error))?;
            let Some(mut object) = object else { return Ok(None) };
            object.complete(&PODS.type_meta("v1"));
            match Lowering::default().object(&object) {
                (Some(Object::Pod(pod)), _) => Ok(Some(pod)),
                (_, findings) => Err(ApiError::Garbled {
                    resource: PODS.name(),
                    message: findings
                        .first()
                        .map_or("no pod".into(), |finding| finding.message.clone()),
                }),
            }
        })
    }

    async fn request(&self, namespace: &str, name: &str) -> Result<Option<Tree>, ApiError> {
        let (client, generation) = self.client.connect().await?;
        let answer = wire::pod(&client, namespace, name).await;
        if answer.as_ref().is_err_and(ApiError::is_about_access) {
            self.client.renew(generation);
        }
        answer
    }
}
