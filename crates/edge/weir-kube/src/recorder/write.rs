use std::time::{Duration, Instant};

use k8s_openapi::{
    api::core::v1::{Event, EventSource},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use weir_runtime::Backoff;

use super::{
    NewEvent,
    log::{EventLog, EventOutcome, EventWrite, Verb},
};
use crate::{ApiClient, ApiError};

/// The time between two checks whether a count is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The resource, as RBAC rules name it.
const EVENTS: &str = "events";

/// Sends the requests that the log decides on.
pub(super) struct EventWriter {
    events: mpsc::Receiver<NewEvent>,
    client: ApiClient,
    log: EventLog,
    component: String,
    instance: String,
    /// Whether the current failure is in the process log.
    is_failure_logged: bool,
    /// Whether the rate limit dropped the last Event.
    is_dropping: bool,
}

impl EventWriter {
    pub(super) fn new(
        events: mpsc::Receiver<NewEvent>,
        client: ApiClient,
        component: &str,
        instance: &str,
    ) -> Self {
        EventWriter {
            events,
            client,
            log: EventLog::new(Instant::now()),
            component: component.into(),
            instance: instance.into(),
            is_failure_logged: false,
            is_dropping: false,
        }
    }

    /// Runs until all senders are dropped.
    pub(super) async fn run(mut self) {
        loop {
            while let Some(write) = self.log.next_write(Instant::now()) {
                let outcome = self.send(&write).await;
                self.log.complete(&write, outcome);
            }
            let event = if self.log.is_waiting() {
                match timeout(CHECK_INTERVAL, self.events.recv()).await {
                    Ok(event) => event,
                    Err(_) => continue,
                }
            } else {
                self.events.recv().await
            };
            let Some(event) = event else { return };
            self.add(event);
            while let Ok(event) = self.events.try_recv() {
                self.add(event);
            }
        }
    }

    fn add(&mut self, event: NewEvent) {
        let is_dropped = !self.log.add(event, &self.component, Instant::now());
        if is_dropped && !self.is_dropping {
            tracing::warn!("the rate limit of Events is exhausted; some are dropped");
        }
        self.is_dropping = is_dropped;
    }

    /// Retries until the API server accepts or rejects the request.
    async fn send(&mut self, write: &EventWrite) -> EventOutcome {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        loop {
            let error = match self.try_send(write).await {
                Ok(()) => {
                    self.is_failure_logged = false;
                    return EventOutcome::Written;
                }
                Err(error) => error,
            };
            match (&error, write.verb) {
                (ApiError::Refused { code: 409, .. }, Verb::Create) => return EventOutcome::Exists,
                (ApiError::Missing { .. }, Verb::Patch) => return EventOutcome::Gone,
                _ => (),
            }
            if !std::mem::replace(&mut self.is_failure_logged, true) {
                tracing::warn!(error = error.text(), hint = error.hint(), "cannot write Events");
            }
            if !can_succeed_later(&error) {
                return EventOutcome::Rejected;
            }
            sleep(backoff.next_delay().max(error.retry_after().unwrap_or_default())).await;
        }
    }

    async fn try_send(&self, write: &EventWrite) -> Result<(), ApiError> {
        let namespace = write.event.regarding.namespace.as_deref().unwrap_or("default");
        let now = Time(Timestamp::now());
        let verb = match write.verb {
            Verb::Create => "create",
            Verb::Patch => "patch",
        };
        let sent = self.client.request(verb, EVENTS, async |client| {
            let events: Api<Event> = Api::namespaced(client, namespace);
            match write.verb {
                Verb::Create => {
                    let event = self.object(write, namespace, now);
                    events.create(&PostParams::default(), &event).await
                }
                Verb::Patch => {
                    let change = json!({"count": write.count, "lastTimestamp": now});
                    let params = PatchParams::default();
                    events.patch(&write.name, &params, &Patch::Merge(&change)).await
                }
            }
        });
        sent.await.map(|_| ())
    }

    fn object(&self, write: &EventWrite, namespace: &str, now: Time) -> Event {
        let NewEvent { regarding, kind, reason, message } = &write.event;
        Event {
            metadata: ObjectMeta {
                name: Some(write.name.clone()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            involved_object: regarding.clone(),
            type_: Some(kind.as_str().into()),
            reason: Some(reason.clone()),
            message: Some(message.clone()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.instance.clone()),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

/// Whether the same request can succeed later: the connection, the credentials or an overloaded API
/// server failed, and not the Event.
fn can_succeed_later(error: &ApiError) -> bool {
    match error {
        ApiError::Refused { code, .. } => matches!(code, 408 | 429) || *code >= 500,
        ApiError::Forbidden { .. } | ApiError::Missing { .. } | ApiError::Gone { .. } => false,
        _ => true,
    }
}
