//! Sends requests, and turns responses other than success into errors.

use std::time::Duration;

use futures::StreamExt;
use http::{HeaderName, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt;
use kube::{Client, api::GetParams, client::Body, core::Request};
use serde::Deserialize;

use super::protobuf::{Field, Fields, Malformed, message, number, user_text};
use crate::ApiError;

/// How long a list or a get may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest watch event, and the largest single object.
pub(super) const MAX_OBJECT_BYTES: usize = 64 << 20;
/// The largest error message that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

pub(super) async fn get<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
    name: &str,
    resource: &str,
) -> Result<T, ApiError> {
    let request = Request::new(path).get(name, &GetParams::default());
    parse(&answer(client, request, "get", resource, MAX_OBJECT_BYTES).await?, resource)
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
    resource: &str,
) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::Garbled {
        resource: resource.into(),
        message: error.to_string(),
    })
}

/// A request, if it could be built.
pub(super) type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Sends a request and reads the whole response.
pub(super) async fn answer(
    client: &Client,
    request: Built,
    verb: &'static str,
    resource: &str,
    max_bytes: usize,
) -> Result<Vec<u8>, ApiError> {
    let answer = async {
        let response = send(client, request, verb, resource).await?;
        body(response, max_bytes, verb, resource).await
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_| Err(ApiError::timed_out(ANSWER_TIMEOUT)))
}

/// Sends a request and returns a response of success. Any other response becomes an error with the
/// API server's code, message and Retry-After.
pub(super) async fn send(
    client: &Client,
    request: Built,
    verb: &'static str,
    resource: &str,
) -> Result<Response<Body>, ApiError> {
    let fail = |error| ApiError::from_kube(error, verb, resource);
    let request = request.map_err(kube::Error::BuildRequest).map_err(fail)?;
    let response = client.send(request.map(Body::from)).await.map_err(fail)?;
    let code = response.status();
    if code.is_success() {
        return Ok(response);
    }
    let retry_after = header(&response, RETRY_AFTER);
    let retry_after =
        retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let bytes = body(response, MAX_ERROR_BYTES, verb, resource).await.unwrap_or_default();
    let mut status = serde_json::from_slice::<ApiStatus>(&bytes).unwrap_or_else(|_| ApiStatus {
        message: String::from_utf8_lossy(&bytes).chars().take(200).collect(),
        ..ApiStatus::default()
    });
    if status.message.trim().is_empty() {
        status.message = code.canonical_reason().unwrap_or_default().into();
    }
    if code == StatusCode::NOT_FOUND
        && let Some(name) = status.absent_name()
    {
        return Err(ApiError::Absent { resource: resource.into(), name });
    }
    let retry_after = retry_after.or(status.retry_after());
    Err(ApiError::from_status(code.as_u16(), &status.message, verb, resource, retry_after))
}

async fn body(
    response: Response<Body>,
    max_bytes: usize,
    verb: &'static str,
    resource: &str,
) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut stream = response.into_body().into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| ApiError::from_kube(error, verb, resource))?;
        bytes.extend_from_slice(&chunk);
        if bytes.len() > max_bytes {
            return Err(too_large(resource, max_bytes));
        }
    }
    Ok(bytes)
}

pub(super) fn header(response: &Response<Body>, name: HeaderName) -> Option<&str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

pub(super) fn too_large(resource: &str, max_bytes: usize) -> ApiError {
    ApiError::TooLarge { resource: resource.into(), mebibytes: max_bytes >> 20 }
}

/// The part of `metav1.Status` that is reported.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    code: u16,
    reason: String,
    message: String,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    name: String,
    retry_after_seconds: u64,
}

impl ApiStatus {
    /// Reads the status of a watch. The numbers of the fields are those of `generated.proto` in
    /// k8s.io/apimachinery/pkg/apis/meta/v1.
    pub(super) fn from_protobuf(bytes: &[u8]) -> Result<Self, Malformed> {
        let (mut status, mut details) = (ApiStatus::default(), Details::default());
        Fields(bytes).each(|field, value| {
            match field {
                3 => status.message = user_text(value)?.into(),
                4 => status.reason = user_text(value)?.into(),
                5 => message(value)?.each(|field, value| {
                    match field {
                        1 => details.name = user_text(value)?.into(),
                        5 => details.retry_after_seconds = unsigned(value)?,
                        _ => (),
                    }
                    Ok(())
                })?,
                6 => status.code = unsigned(value)?,
                _ => (),
            }
            Ok(())
        })?;
        status.details = Some(details);
        Ok(status)
    }

    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// The name of the object that does not exist. The status of a path that is not served has none,
    /// nor has an error page of a proxy.
    fn absent_name(&self) -> Option<String> {
        let name = &self.details.as_ref()?.name;
        (self.reason == "NotFound" && !name.is_empty()).then(|| name.clone())
    }

    pub(super) fn into_error(self, verb: &'static str, resource: &str) -> ApiError {
        ApiError::from_status(self.code, &self.message, verb, resource, self.retry_after())
    }
}

fn unsigned<T: TryFrom<i64>>(value: Field<'_>) -> Result<T, Malformed> {
    T::try_from(number(value)?).map_err(|_| Malformed)
}
