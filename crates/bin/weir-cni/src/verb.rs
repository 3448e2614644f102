//! The verbs of the specification.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cni_protocol::{Request, Waiting};

use crate::{
    ask::{Patience, ask},
    config::{Config, OnFailure, VERSIONS},
    error::{CONFIGURATION, CniError, ENVIRONMENT, LATER, NOT_JUDGED, UNAVAILABLE},
    pod::{Attached, Variable, needed},
    result,
};

/// How long an agent may take to hear what needs no work.
const BRIEF: Duration = Duration::from_secs(2);

/// What the runtime gets, if it gets anything.
pub(crate) fn answer(
    command: &str,
    input: &str,
    variable: Variable<'_>,
    talk: &mut dyn Write,
) -> Result<Option<Value>, CniError> {
    if command == "VERSION" {
        return Ok(Some(version(input)));
    }
    if !["ADD", "CHECK", "DEL", "GC", "STATUS"].contains(&command) {
        let what = format!("there is no command {command:?}");
        return Err(CniError::new(ENVIRONMENT, what, "CNI_COMMAND makes no sense"));
    }
    let config = Config::read(input)?;
    match command {
        "ADD" => add(config, variable, talk).map(Some),
        "CHECK" => check(&config, variable, talk).map(|()| None),
        "DEL" => del(&config, variable).map(|()| None),
        "GC" => gc(&config).map(|()| None),
        _ => status(&config).map(|()| None),
    }
}

fn version(input: &str) -> Value {
    let asked = serde_json::from_str::<Value>(input).unwrap_or(Value::Null);
    let version = asked["cniVersion"].as_str().unwrap_or(VERSIONS[VERSIONS.len() - 1]);
    json!({ "cniVersion": version, "supportedVersions": VERSIONS })
}

/// Waits until the pod's policies are in force, and passes on what the plugins before have done.
fn add(config: Config, variable: Variable<'_>, talk: &mut dyn Write) -> Result<Value, CniError> {
    let attached = Attached::read(variable)?;
    needed("CNI_NETNS", variable)?;
    match wait(Request::Add, &config, attached) {
        Ok(Ok(())) => (),
        Ok(Err(why)) => tolerate(&config, talk, unjudged(LATER, why))?,
        Err(failure) => tolerate(&config, talk, failure)?,
    }
    config.result.ok_or_else(unchained)
}

/// Whether the pod's policies are in force. An agent that says no is believed; one that is away may be tolerated.
fn check(config: &Config, variable: Variable<'_>, talk: &mut dyn Write) -> Result<(), CniError> {
    let attached = Attached::read(variable)?;
    match wait(Request::Check, config, attached) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(unjudged(NOT_JUDGED, why)),
        Err(failure) => tolerate(config, talk, failure),
    }
}

/// Tells the agent that an attachment is gone. It needs not know: it also hears when the pod is.
fn del(config: &Config, variable: Variable<'_>) -> Result<(), CniError> {
    let attachment = Attached::read(variable)?.attachment(&config.network, Vec::new());
    tell(config, Request::Del(attachment));
    Ok(())
}

/// Tells the agent which attachments are left.
fn gc(config: &Config) -> Result<(), CniError> {
    let Some(containers) = &config.left else {
        let why = "without it everything would be gone";
        return Err(CniError::new(CONFIGURATION, "cni.dev/valid-attachments is missing", why));
    };
    let (network, containers) = (config.network.clone(), containers.clone());
    tell(config, Request::Gc { network, containers });
    Ok(())
}

/// Whether pods can be added.
fn status(config: &Config) -> Result<(), CniError> {
    let until = Instant::now() + config.timeout.min(BRIEF);
    let unavailable = |why: String| CniError::new(UNAVAILABLE, "the weir agent is not ready", why);
    let answer = ask(&config.socket, Request::Status, until, Patience::Once);
    let heard = answer.map_err(|error| unavailable(silence(config, &error)))?;
    heard.map_err(unavailable)
}

/// The agent's word on a pod; an error of ours if there is none.
fn wait(
    request: fn(Waiting) -> Request,
    config: &Config,
    attached: Attached,
) -> Result<Result<(), String>, CniError> {
    let until = Instant::now() + config.timeout;
    let result = config.result.as_ref().ok_or_else(unchained)?;
    let addresses = result::addresses(result)?;
    if !attached.is_pod() {
        let what = "CNI_ARGS does not say which pod it is";
        return Err(CniError::new(
            ENVIRONMENT,
            what,
            "expected K8S_POD_NAMESPACE and K8S_POD_NAME",
        ));
    }
    let waiting = Waiting::new(attached.attachment(&config.network, addresses));
    ask(&config.socket, request(waiting), until, Patience::Persist).map_err(|error| {
        CniError::new(LATER, "the weir agent does not answer", silence(config, &error))
    })
}

/// Tells the agent something that it may miss.
fn tell(config: &Config, request: Request) {
    let until = Instant::now() + config.timeout.min(BRIEF);
    // Whoever is away has nothing to forget.
    _ = ask(&config.socket, request, until, Patience::Once);
}

/// Goes on without the agent, if the configuration says so.
fn tolerate(config: &Config, talk: &mut dyn Write, failure: CniError) -> Result<(), CniError> {
    match config.on_failure {
        OnFailure::Refuse => Err(failure),
        OnFailure::Allow => {
            // Runtimes log it, if they do.
            _ = writeln!(talk, "weir-cni: allowed all the same: {}", failure.line());
            Ok(())
        }
    }
}

fn unjudged(code: u32, why: String) -> CniError {
    CniError::new(code, "the pod's policies are not in force", why)
}

fn unchained() -> CniError {
    let why = "weir-cni makes no interface: it comes after a plugin that does";
    CniError::new(CONFIGURATION, "prevResult is missing", why)
}

fn silence(config: &Config, error: &std::io::Error) -> String {
    format!("{}: {error}", config.socket.display())
}
