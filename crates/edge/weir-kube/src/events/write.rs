use std::time::{Duration, Instant};

use k8s_openapi::{
    api::core::v1::{Event, EventSource},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use weir_runtime::Backoff;

use super::{
    Note,
    desk::{Desk, Outcome, Step, Verb},
};
use crate::{Access, ReadError};

/// How often to look whether something may be written now.
const LOOK: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(15);
/// What Events are called where access is granted.
const EVENTS: &str = "events";

/// The way to the API server.
pub(super) enum Reach {
    Client(Client),
    /// The client is made when it is needed, and anew when it no longer works.
    Access(Access, Option<Client>),
}

impl Reach {
    async fn client(&mut self) -> Result<Client, ReadError> {
        match self {
            Reach::Client(client) | Reach::Access(_, Some(client)) => Ok(client.clone()),
            Reach::Access(access, made) => Ok(made.insert(access.client().await?).clone()),
        }
    }

    fn renew(&mut self) {
        if let Reach::Access(_, made) = self {
            *made = None;
        }
    }
}

/// Why an attempt failed.
struct Failed {
    error: ReadError,
    then: Then,
}

enum Then {
    TryAgain,
    GiveUp,
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        Failed { error, then: Then::TryAgain }
    }
}

/// Writes what the desk decides.
pub(super) struct Writer {
    notes: mpsc::Receiver<Note>,
    reach: Reach,
    desk: Desk,
    component: String,
    instance: String,
    /// Whether it was logged that it does not work, or is too much.
    is_failing: bool,
    is_too_much: bool,
}

impl Writer {
    pub(super) fn new(
        notes: mpsc::Receiver<Note>,
        reach: Reach,
        component: &str,
        instance: &str,
    ) -> Self {
        Writer {
            notes,
            reach,
            desk: Desk::new(Instant::now()),
            component: component.into(),
            instance: instance.into(),
            is_failing: false,
            is_too_much: false,
        }
    }

    /// Goes on until nobody has anything to say any more.
    pub(super) async fn run(mut self) {
        loop {
            while let Some(step) = self.desk.step(Instant::now()) {
                let outcome = self.perform(&step).await;
                self.desk.settle(&step, outcome);
            }
            let note = match self.desk.is_waiting() {
                false => self.notes.recv().await,
                true => match timeout(LOOK, self.notes.recv()).await {
                    Ok(note) => note,
                    Err(_) => continue,
                },
            };
            let Some(note) = note else { return };
            self.take(note);
            while let Ok(note) = self.notes.try_recv() {
                self.take(note);
            }
        }
    }

    fn take(&mut self, note: Note) {
        let is_too_much = !self.desk.take(note, &self.component, Instant::now());
        if is_too_much && !self.is_too_much {
            tracing::warn!("too many Events at once; some are left out");
        }
        self.is_too_much = is_too_much;
    }

    /// Writes until there is an answer.
    async fn perform(&mut self, step: &Step) -> Outcome {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        loop {
            let failed = match timeout(ANSWER, self.attempt(step)).await {
                Ok(Ok(outcome)) => {
                    self.is_failing = false;
                    return outcome;
                }
                Ok(Err(failed)) => failed,
                Err(late) => ReadError::Unreachable(late.into()).into(),
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                let (error, hint) = (failed.error.text(), failed.error.hint());
                tracing::warn!(error, hint, "cannot write Events");
            }
            if let Then::GiveUp = failed.then {
                return Outcome::Refused;
            }
            self.reach.renew();
            sleep(backoff.next_delay()).await;
        }
    }

    async fn attempt(&mut self, step: &Step) -> Result<Outcome, Failed> {
        let namespace = step.note.regarding.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.reach.client().await?, namespace);
        let now = Time(Timestamp::now());
        let (verb, answer) = match step.verb {
            Verb::Create => {
                let event = self.event(step, namespace, now);
                ("create", events.create(&PostParams::default(), &event).await)
            }
            Verb::Patch => {
                let change = json!({"count": step.count, "lastTimestamp": now});
                let parameters = PatchParams::default();
                ("patch", events.patch(&step.name, &parameters, &Patch::Merge(&change)).await)
            }
        };
        let error = match answer {
            Ok(_) => return Ok(Outcome::Written),
            Err(error) => error,
        };
        let mut then = Then::TryAgain;
        if let kube::Error::Api(status) = &error {
            match step.verb {
                Verb::Create if status.is_already_exists() => return Ok(Outcome::Exists),
                Verb::Patch if status.is_not_found() => return Ok(Outcome::Gone),
                // Not known, or too busy: that passes. Anything else that is our fault does not.
                _ if !matches!(status.code, 401 | 408 | 429) && status.code < 500 => {
                    then = Then::GiveUp;
                }
                _ => (),
            }
        }
        Err(Failed { error: ReadError::from_kube(error, verb, EVENTS), then })
    }

    fn event(&self, step: &Step, namespace: &str, now: Time) -> Event {
        let Note { regarding, kind, reason, message } = &step.note;
        Event {
            metadata: ObjectMeta {
                name: Some(step.name.clone()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            involved_object: regarding.clone(),
            type_: Some(kind.word().into()),
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
