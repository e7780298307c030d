//! Builds responses: JSON, text, bytes, and problems (RFC 9457).

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use proctor_core::api::{Problem, ProblemType};
use serde::Serialize;

/// Content type of JSON.
pub(super) const JSON_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/json");
/// Content type of JSON lines.
pub(super) const NDJSON_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/x-ndjson");
/// Content type of problems.
pub(super) const PROBLEM_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
/// Default value of `Retry-After` in seconds, for problems without an estimate.
const DEFAULT_RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
/// Prevents browsers from interpreting the output of steps as HTML.
const NOSNIFF: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
/// Prevents caching: runs change, and immutable data is cheap to request again.
const NO_STORE: (HeaderName, HeaderValue) = (http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// Initial capacity of a serialized answer, in bytes: most answers need no more.
const INITIAL_JSON_CAPACITY: usize = 2 << 10;

/// Result of a handler.
pub(super) type HandlerResult = Result<Response, Problem>;

/// Returns a response with the given content type and body.
pub(super) fn bytes_response(kind: HeaderValue, bytes: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(bytes.into()));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Returns a response with a value as JSON.
///
/// # Errors
/// The value cannot be serialized, which is a bug.
pub(super) fn json_response<T: Serialize>(status: StatusCode, value: &T) -> HandlerResult {
    let mut bytes = Vec::with_capacity(INITIAL_JSON_CAPACITY);
    serde_json::to_writer(&mut bytes, value).map_err(|error| {
        Problem::new(ProblemType::Internal, format!("the answer cannot be written as JSON: {error}"))
    })?;
    let mut response = bytes_response(JSON_CONTENT_TYPE, bytes);
    *response.status_mut() = status;
    Ok(response)
}

/// Returns the problem for a missing resource.
pub(super) fn not_found(detail: String) -> Problem {
    Problem::new(ProblemType::NotFound, detail)
}

/// Returns the response for a problem.
pub(crate) fn problem_response(problem: &Problem) -> Response {
    // Problems are always serializable.
    let mut response = bytes_response(PROBLEM_CONTENT_TYPE, serde_json::to_vec(problem).unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if matches!(problem.kind, ProblemType::TooManyRequests | ProblemType::Unavailable) {
        let value = problem.retry_after_s.map_or(DEFAULT_RETRY_AFTER, HeaderValue::from);
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// Adds the headers that all responses have.
pub(super) fn add_common_headers(headers: &mut HeaderMap) {
    for (name, value) in [NOSNIFF, NO_STORE] {
        headers.insert(name, value);
    }
}

/// Returns an empty response with status 204.
pub(super) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Returns an empty response that lists the allowed methods.
pub(super) fn allowed_methods(methods: Option<HeaderValue>) -> Response {
    let mut response = no_content();
    if let Some(methods) = methods {
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

/// Returns a complete response to a request that could not be parsed. It closes the connection.
pub(crate) fn raw_problem_response(problem: &Problem) -> Bytes {
    let body = serde_json::to_string(problem).unwrap_or_default();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    let (code, reason) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    let length = body.len();
    let later = match problem.kind {
        ProblemType::TooManyRequests | ProblemType::Unavailable => {
            format!("retry-after: {}\r\n", problem.retry_after_s.unwrap_or(1))
        }
        _ => String::new(),
    };
    format!(
        "HTTP/1.1 {code} {reason}\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
         {later}connection: close\r\n\r\n{body}"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_repeats_the_estimate_of_the_problem() {
        let header = |refusal: Problem| {
            let value = problem_response(&refusal).headers().get(RETRY_AFTER).cloned();
            value.map(|value| value.to_str().expect("digits").to_owned())
        };
        let refused = |kind| Problem::new(kind, "no worker");
        assert_eq!(header(refused(ProblemType::TooManyRequests).with_retry_after(17)).as_deref(), Some("17"));
        assert_eq!(header(refused(ProblemType::Unavailable)).as_deref(), Some("1"));
        assert_eq!(header(refused(ProblemType::NotFound).with_retry_after(17)), None);
    }
}
