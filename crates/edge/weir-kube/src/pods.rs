use std::{cell::RefCell, io, time::Duration};

use kube::Client;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use weir_api::Lowering;
use weir_model::{Object, Pod};

use crate::{Access, ReadError, kind::Kind, wire};

/// How long an answer may take: somebody waits for it, and others after.
const ANSWER: Duration = Duration::from_secs(5);

/// Reads single pods, for those who cannot wait until a watch tells of them.
///
/// This needs the verb `get` on pods.
pub struct Pods {
    runtime: Runtime,
    access: Access,
    client: RefCell<Option<Client>>,
}

impl Pods {
    /// The pods of a cluster. Nothing is asked yet.
    pub fn new(access: Access) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Pods { runtime, access, client: RefCell::default() })
    }

    /// A pod as it is now; `None` if there is none. Waits for the answer, though not for ever.
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ReadError> {
        let asked = async { timeout(ANSWER, self.ask(namespace, name)).await };
        let got = self.runtime.block_on(asked);
        let got = got.unwrap_or_else(|late| Err(ReadError::Unreachable(late.into())));
        if got.as_ref().is_err_and(ReadError::is_about_access) {
            self.client.take();
        }
        got
    }

    async fn ask(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ReadError> {
        let made = self.client.borrow().clone();
        let client = match made {
            Some(client) => client,
            None => {
                let new = self.access.client().await?;
                self.client.replace(Some(new.clone()));
                new
            }
        };
        let Some(mut node) = wire::pod(&client, namespace, name).await? else { return Ok(None) };
        Kind::Pod.name_it(&mut node);
        match Lowering::default().object(&node) {
            (Some(Object::Pod(pod)), _) => Ok(Some(pod)),
            (_, findings) => Err(ReadError::Garbled {
                resource: Kind::Pod.resource().into(),
                message: findings
                    .first()
                    .map_or("no pod".into(), |finding| finding.message.clone()),
            }),
        }
    }
}
