//! The commands of the CNI specification.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_cni_protocol::{Request, Waiting};

use crate::{
    config::{Config, OnFailure, VERSIONS},
    error::{CONFIGURATION, CniError, ENVIRONMENT, NOT_IN_FORCE, TRY_AGAIN_LATER, UNAVAILABLE},
    pod::{Interface, Variable, required},
    request::{self, Retry},
    result,
};

/// The timeout of requests that the agent answers without work.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a command and returns the answer for the runtime, if it has one.
pub(crate) fn answer(
    command: &str,
    input: &str,
    variable: Variable<'_>,
    messages: &mut dyn Write,
) -> Result<Option<Value>, CniError> {
    if command == "VERSION" {
        return Ok(Some(version(input)));
    }
    if !["ADD", "CHECK", "DEL", "GC", "STATUS"].contains(&command) {
        let what = format!("unknown command {command:?}");
        return Err(CniError::new(ENVIRONMENT, what, "CNI_COMMAND is invalid"));
    }
    let config = Config::parse(input)?;
    match command {
        "ADD" => add(config, variable, messages).map(Some),
        "CHECK" => check(&config, variable, messages).map(|()| None),
        "DEL" => del(&config, variable).map(|()| None),
        "GC" => gc(&config).map(|()| None),
        _ => status(&config).map(|()| None),
    }
}

fn version(input: &str) -> Value {
    let request = serde_json::from_str::<Value>(input).unwrap_or(Value::Null);
    let version = request["cniVersion"].as_str().unwrap_or(VERSIONS[VERSIONS.len() - 1]);
    json!({ "cniVersion": version, "supportedVersions": VERSIONS })
}

/// Waits until the rules of the pod are in force, and returns the result of the previous plugins.
fn add(
    config: Config,
    variable: Variable<'_>,
    messages: &mut dyn Write,
) -> Result<Value, CniError> {
    let interface = Interface::from_environment(variable)?;
    required("CNI_NETNS", variable)?;
    match wait(Request::Add, &config, interface) {
        Ok(Ok(())) => (),
        Ok(Err(why)) => apply_on_failure(&config, messages, not_in_force(TRY_AGAIN_LATER, why))?,
        Err(failure) => apply_on_failure(&config, messages, failure)?,
    }
    config.result.ok_or_else(unchained)
}

/// Checks that the rules of the pod are in force. `onFailure` applies only if the agent is
/// unreachable.
fn check(
    config: &Config,
    variable: Variable<'_>,
    messages: &mut dyn Write,
) -> Result<(), CniError> {
    let interface = Interface::from_environment(variable)?;
    match wait(Request::Check, config, interface) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(not_in_force(NOT_IN_FORCE, why)),
        Err(failure) => apply_on_failure(config, messages, failure),
    }
}

/// Notifies the agent that an attachment was removed. The notification may get lost: the agent also
/// learns from its source that the pod is gone.
fn del(config: &Config, variable: Variable<'_>) -> Result<(), CniError> {
    let interface = Interface::from_environment(variable)?;
    notify(config, Request::Del(interface.attachment(&config.network, Vec::new(), Vec::new())));
    Ok(())
}

/// Notifies the agent of the attachments that still exist.
fn gc(config: &Config) -> Result<(), CniError> {
    let Some(containers) = &config.valid_containers else {
        let why = "without it the agent would forget all pods";
        return Err(CniError::new(CONFIGURATION, "cni.dev/valid-attachments is missing", why));
    };
    let (network, containers) = (config.network.clone(), containers.clone());
    notify(config, Request::Gc { network, containers });
    Ok(())
}

/// Checks that the agent can handle new pods.
fn status(config: &Config) -> Result<(), CniError> {
    let deadline = Instant::now() + config.timeout.min(SHORT_TIMEOUT);
    let unavailable = |why: String| CniError::new(UNAVAILABLE, "the weir agent is not ready", why);
    let answer = request::send(&config.socket, Request::Status, deadline, Retry::Never);
    let answer = answer.map_err(|error| unavailable(describe(config, &error)))?;
    answer.map_err(unavailable)
}

/// The answer of the agent about a pod, or an error if there is none.
fn wait(
    request: fn(Waiting) -> Request,
    config: &Config,
    interface: Interface,
) -> Result<Result<(), String>, CniError> {
    let deadline = Instant::now() + config.timeout;
    let result = config.result.as_ref().ok_or_else(unchained)?;
    let (addresses, links) = (result::addresses(result)?, result::host_interfaces(result));
    if !interface.is_pod() {
        let what = "CNI_ARGS does not name the pod";
        return Err(CniError::new(
            ENVIRONMENT,
            what,
            "expected K8S_POD_NAMESPACE and K8S_POD_NAME",
        ));
    }
    let waiting = Waiting::new(interface.attachment(&config.network, addresses, links));
    request::send(&config.socket, request(waiting), deadline, Retry::UntilDeadline).map_err(
        |error| {
            CniError::new(
                TRY_AGAIN_LATER,
                "the weir agent does not answer",
                describe(config, &error),
            )
        },
    )
}

/// Sends a notification that may get lost.
fn notify(config: &Config, request: Request) {
    let deadline = Instant::now() + config.timeout.min(SHORT_TIMEOUT);
    // An agent that does not run has no state to update.
    _ = request::send(&config.socket, request, deadline, Retry::Never);
}

/// Applies `onFailure` to a failure.
fn apply_on_failure(
    config: &Config,
    messages: &mut dyn Write,
    failure: CniError,
) -> Result<(), CniError> {
    match config.on_failure {
        OnFailure::Refuse => Err(failure),
        OnFailure::Allow => {
            // Some runtimes log this.
            _ = writeln!(messages, "weir-cni: pod allowed by onFailure: {}", failure.line());
            Ok(())
        }
    }
}

fn not_in_force(code: u32, why: String) -> CniError {
    CniError::new(code, "the pod's policies are not in force", why)
}

fn unchained() -> CniError {
    let why = "weir-cni creates no interface: it must follow a plugin that does";
    CniError::new(CONFIGURATION, "prevResult is missing", why)
}

fn describe(config: &Config, error: &std::io::Error) -> String {
    format!("{}: {error}", config.socket.display())
}
