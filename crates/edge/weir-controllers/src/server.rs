use std::{
    future::Future,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Api, Client};
use weir_kube::{Access, ReadError};

use weir_kube::{Object, ObjectId, Resource};

/// How long an answer that is not a watch may take.
const ANSWER: Duration = Duration::from_secs(30);

/// An API server, reached by a client that all share and that is made anew when it no longer works.
#[derive(Clone, Debug)]
pub struct Server {
    access: Access,
    made: Arc<Mutex<Made>>,
}

#[derive(Default)]
struct Made {
    client: Option<Client>,
    count: u64,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client {}", self.count)
    }
}

impl Server {
    /// The server that somebody has access to.
    pub fn new(access: Access) -> Self {
        Server { access, made: Arc::default() }
    }

    /// Asks for something: the answer, or why there is none.
    pub async fn ask<T, F>(
        &self,
        verb: &'static str,
        resource: &str,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        match self.answer(ask).await? {
            Ok(answer) => Ok(answer),
            Err(error) => Err(ReadError::from_kube(error, verb, resource)),
        }
    }

    /// The same, with the answer as it came.
    pub(crate) async fn answer<T, F>(
        &self,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<Result<T, kube::Error>, ReadError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let (client, count) = self.client().await?;
        let answer = tokio::time::timeout(ANSWER, ask(client)).await.map_err(|_| {
            let seconds = ANSWER.as_secs();
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds} s"))
        });
        let is_its_own = match &answer {
            Err(_) => true,
            Ok(Ok(_)) => false,
            // An answer of the API server is no fault of the client, unless it does not know us.
            Ok(Err(kube::Error::Api(status))) => status.code == 401,
            Ok(Err(_)) => true,
        };
        if is_its_own {
            self.renew(count);
        }
        Ok(answer?)
    }

    /// The client, and which one it is.
    pub(crate) async fn client(&self) -> Result<(Client, u64), ReadError> {
        if let Made { client: Some(client), count } = &*self.made() {
            return Ok((client.clone(), *count));
        }
        let client = self.access.client().await?;
        let mut made = self.made();
        made.count += 1;
        made.client = Some(client.clone());
        Ok((client, made.count))
    }

    /// The client no longer works. If another was made in the meantime, that one stays.
    pub(crate) fn renew(&self, count: u64) {
        let mut made = self.made();
        if made.count == count {
            made.client = None;
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an object is, or all of its kind if the id is empty.
pub(crate) fn api(
    client: Client,
    resource: &Resource,
    version: &str,
    id: &ObjectId,
) -> Api<Object> {
    let resource = resource.api_resource(version);
    match &*id.namespace {
        "" => Api::all_with(client, &resource),
        namespace => Api::namespaced_with(client, namespace, &resource),
    }
}
