use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use weir_kube::{
    ApiClient, ApiError, EventType, KubeObject, NewEvent, ObjectId, Recorder, Resource, Revision,
    WireObject,
};

use crate::{
    condition::{self, Condition},
    lease::Leadership,
    report::ControllerReport,
    writes::Write,
};

/// A controller sends up to this many writes concurrently.
pub(crate) const MAX_CONCURRENT_WRITES: usize = 16;

/// The manager in `metadata.managedFields`.
const FIELD_MANAGER: &str = "weir";

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The object is not in the observed version. An event with the current version follows.
    #[error("another client changed the object concurrently")]
    Conflict,
    /// The API server rejected the object.
    #[error("the API server rejected the object: {0}")]
    Rejected(String),
    /// The request failed.
    #[error("{}; {}", .0.text(), .0.hint())]
    Failed(#[from] ApiError),
    /// This process is no longer the leader.
    #[error("this process is no longer the leader")]
    NotLeader,
}

/// Writes objects, but only while this process is the leader.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    client: ApiClient,
    leadership: Leadership,
    report: Arc<ControllerReport>,
    events: Recorder,
    controller: &'static str,
    /// Digests of updates that changed nothing, because the API server normalizes the object. They
    /// are not sent again.
    no_ops: Arc<Mutex<BTreeMap<(String, ObjectId), u64>>>,
}

impl Writer {
    pub(crate) fn new(
        client: ApiClient,
        leadership: Leadership,
        report: Arc<ControllerReport>,
        events: Recorder,
        controller: &'static str,
    ) -> Self {
        Writer { client, leadership, report, events, controller, no_ops: Arc::default() }
    }

    /// Sends a write. Returns the object as the API server stored it; `None` if it was deleted.
    pub(crate) async fn send(
        &self,
        resource: &Resource,
        version: &str,
        write: &Write,
    ) -> Result<Option<KubeObject>, WriteError> {
        let id = write.id();
        let key = (resource.name(), id.clone());
        if let Write::Update(object) = write
            && self.no_ops().get(&key) == Some(&digest(object))
        {
            return Ok(Some(object.clone()));
        }
        let verb = match write {
            Write::Create(_) => "create",
            Write::Update(_) => "update",
            Write::Delete(_) => "delete",
        };
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let stored = self.request(resource, verb, async |client| {
            let api = resource.api(client, version, &id.namespace);
            match write {
                Write::Create(object) => api.create(&params, object).await.map(Some),
                Write::Update(object) => api.replace(&id.name, &params, object).await.map(Some),
                Write::Delete(revision) => {
                    api.delete(&id.name, &exactly(revision)).await.map(|_| None)
                }
            }
        });
        let mut stored: Option<KubeObject> = stored.await?;
        if let Some(stored) = &mut stored {
            stored.complete(&resource.type_meta(version));
        }
        self.no_ops().remove(&key);
        if let (Write::Update(sent), Some(now)) = (write, &stored)
            && sent.metadata.resource_version == now.metadata.resource_version
        {
            self.no_ops().insert(key, digest(sent));
        }
        tracing::info!(controller = self.controller, "{verb} {} {id}", resource.kind);
        self.report.metrics.wrote(self.controller, resource.kind, verb);
        Ok(stored)
    }

    /// Sets a condition of an object, unless it is set already. Returns the object if it was
    /// written.
    pub(crate) async fn set_condition(
        &self,
        resource: &Resource,
        version: &str,
        object: &KubeObject,
        condition: &Condition,
    ) -> Result<Option<KubeObject>, WriteError> {
        let Some(conditions) = condition::merge(object, condition) else { return Ok(None) };
        let status = json!({"conditions": conditions});
        self.patch_status(resource, version, object, status).await.map(Some)
    }

    /// Patches fields of an object's status. Returns the object.
    pub(crate) async fn patch_status(
        &self,
        resource: &Resource,
        version: &str,
        object: &KubeObject,
        status: Value,
    ) -> Result<KubeObject, WriteError> {
        let id = ObjectId::from_object(object);
        // Only this version: a patch replaces the whole list of conditions, and other clients write
        // to it.
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": object.metadata.resource_version, "uid": object.metadata.uid},
            "status": status,
        }));
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let stored = self.request(resource, "patch", async |client| {
            let api = resource.api(client, version, &id.namespace);
            api.patch_status(&id.name, &params, &patch).await
        });
        let mut stored: KubeObject = stored.await?;
        stored.complete(&resource.type_meta(version));
        Ok(stored)
    }

    /// Publishes an Event about an object.
    pub(crate) fn publish(
        &self,
        about: &KubeObject,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
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
        self.events.publish(NewEvent { regarding, kind, reason, message });
    }

    fn no_ops(&self) -> MutexGuard<'_, BTreeMap<(String, ObjectId), u64>> {
        self.no_ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn request<T, F>(
        &self,
        resource: &Resource,
        verb: &'static str,
        send: impl FnOnce(kube::Client) -> F,
    ) -> Result<T, WriteError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        if self.leadership.is_expired() {
            return Err(WriteError::NotLeader);
        }
        match self.client.request(verb, &resource.name(), send).await {
            Err(ApiError::Missing { .. } | ApiError::Refused { code: 409, .. }) => {
                Err(WriteError::Conflict)
            }
            Err(ApiError::Refused { code: 400 | 422, message, .. }) => {
                Err(WriteError::Rejected(message))
            }
            answer => Ok(answer?),
        }
    }
}

/// Preconditions for the observed version: another object of the same name, or a newer version,
/// stays.
fn exactly(revision: &Revision) -> DeleteParams {
    let known = |text: &String| (!text.is_empty()).then(|| text.clone());
    let (uid, resource_version) = (known(&revision.uid), known(&revision.resource_version));
    DeleteParams::background().preconditions(Preconditions { resource_version, uid })
}

fn digest(object: &KubeObject) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_value(object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
