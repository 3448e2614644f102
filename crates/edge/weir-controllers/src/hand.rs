use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use weir_kube::{Events, Note, NoteKind, ReadError};

use crate::{
    Condition, Id, Object, Resource, Server, Step, Term, condition, follow::tidy, report::Report,
    server::api,
};

/// Who writes, as managed fields name it.
const MANAGER: &str = "weir";

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It is not as we thought it was. It comes again as it is.
    #[error("it was changed by others at the same time")]
    Conflict,
    /// The API server does not take such an object.
    #[error("the API server refuses it: {0}")]
    Refused(String),
    /// There was no answer, or another one.
    #[error("{}; {}", .0.text(), .0.hint())]
    Failed(#[from] ReadError),
    /// Another process is in charge now.
    #[error("another process is in charge")]
    Over,
}

/// Does what was decided, and only while this process is in charge.
#[derive(Clone, Debug)]
pub struct Hand {
    server: Server,
    term: Term,
    report: Arc<Report>,
    events: Events,
    controller: &'static str,
    /// Updates that changed nothing: the API server says the same in other words.
    idle: Arc<Mutex<BTreeMap<(String, Id), u64>>>,
}

impl Hand {
    pub(crate) fn new(
        server: Server,
        term: Term,
        report: Arc<Report>,
        events: Events,
        controller: &'static str,
    ) -> Self {
        Hand { server, term, report, events, controller, idle: Arc::default() }
    }

    /// Takes a step. Returns the object as it is now, if it is there.
    pub async fn perform(
        &self,
        resource: &Resource,
        version: &str,
        step: &Step,
    ) -> Result<Option<Object>, WriteError> {
        let (id, key) = (Id::of(step.object()), (resource.name(), Id::of(step.object())));
        let digest = digest(step.object());
        if matches!(step, Step::Update(_)) && self.idle().get(&key) == Some(&digest) {
            return Ok(Some(step.object().clone()));
        }
        let verb = match step {
            Step::Create(_) => "create",
            Step::Update(_) => "update",
            Step::Delete(_) => "delete",
        };
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let done = self.write(resource, verb, async |client| {
            let api = api(client, resource, version, &id);
            match step {
                Step::Create(object) => api.create(&params, object).await.map(Some),
                Step::Update(object) => api.replace(&id.name, &params, object).await.map(Some),
                Step::Delete(object) => {
                    api.delete(&id.name, &this_very(object)).await.map(|_| None)
                }
            }
        });
        let done: Option<Object> = done.await?;
        let done = done.map(|object| tidy(object, resource, version));
        self.idle().remove(&key);
        if let (Step::Update(sent), Some(now)) = (step, &done)
            && sent.metadata.resource_version == now.metadata.resource_version
        {
            self.idle().insert(key, digest);
        }
        tracing::info!(controller = self.controller, "{verb} {} {id}", resource.kind);
        self.report.metrics.wrote(self.controller, resource.kind, verb);
        Ok(done)
    }

    /// Says how it goes on an object's status, if that is not what it says already. Returns the object if it was written.
    pub async fn say(
        &self,
        resource: &Resource,
        version: &str,
        object: &Object,
        condition: &Condition,
    ) -> Result<Option<Object>, WriteError> {
        let Some(conditions) = condition::with(object, condition) else { return Ok(None) };
        let status = json!({"conditions": conditions});
        self.put_status(resource, version, object, status).await.map(Some)
    }

    /// Writes these fields of an object's status. Returns the object.
    pub async fn put_status(
        &self,
        resource: &Resource,
        version: &str,
        object: &Object,
        status: Value,
    ) -> Result<Object, WriteError> {
        let id = Id::of(object);
        // In this very version: a list is replaced as a whole, and others write to it, too.
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": object.metadata.resource_version, "uid": object.metadata.uid},
            "status": status,
        }));
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let done = self.write(resource, "patch", async |client| {
            api(client, resource, version, &id).patch_status(&id.name, &params, &patch).await
        });
        Ok(tidy(done.await?, resource, version))
    }

    /// Says something about an object, where `kubectl get events` shows it.
    pub fn note(&self, about: &Object, kind: NoteKind, reason: &str, message: impl Into<String>) {
        let types = about.types.clone().unwrap_or_default();
        let regarding = ObjectReference {
            api_version: Some(types.api_version),
            kind: Some(types.kind),
            namespace: about.metadata.namespace.clone(),
            name: about.metadata.name.clone(),
            uid: about.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        let (reason, message) = (reason.to_owned(), message.into());
        self.events.publish(Note { regarding, kind, reason, message });
    }

    fn idle(&self) -> MutexGuard<'_, BTreeMap<(String, Id), u64>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write<T, F>(
        &self,
        resource: &Resource,
        verb: &'static str,
        ask: impl FnOnce(kube::Client) -> F,
    ) -> Result<T, WriteError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        if self.term.is_over() {
            return Err(WriteError::Over);
        }
        match self.server.answer(ask).await? {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(WriteError::Conflict)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                Err(WriteError::Refused(status.message))
            }
            Err(error) => Err(ReadError::from_kube(error, verb, &resource.name()).into()),
        }
    }
}

/// Deletes nothing that has only the same name, or has changed.
fn this_very(object: &Object) -> DeleteParams {
    let (uid, resource_version) =
        (object.metadata.uid.clone(), object.metadata.resource_version.clone());
    DeleteParams::background().preconditions(Preconditions { resource_version, uid })
}

fn digest(object: &Object) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
