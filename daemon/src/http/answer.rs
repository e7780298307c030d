//! Answers: JSON, text, bytes, and problems as RFC 9457 has them.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use proctor_core::api::{Problem, ProblemType};
use serde::Serialize;

/// What JSON is called.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// What a problem is called.
pub(super) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The value of `Retry-After` where the problem has no estimate of its own, in seconds.
const LATER: HeaderValue = HeaderValue::from_static("1");
/// What a browser must not do with what steps printed: guess that it is a page.
const NOSNIFF: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
/// A run changes, and what is the same for ever is as quickly asked for.
const NO_STORE: (HeaderName, HeaderValue) = (http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// The capacity of an answer before its value is written, in bytes: most answers need no more.
const FIRST_JSON: usize = 2 << 10;

/// What a handler comes to.
pub(super) type Answer = Result<Response, Problem>;

/// Bytes of a content type.
pub(super) fn content(kind: HeaderValue, bytes: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(bytes.into()));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A value as JSON.
///
/// # Errors
/// It is none that can be written, which only a bug can make it.
pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let mut bytes = Vec::with_capacity(FIRST_JSON);
    serde_json::to_writer(&mut bytes, value).map_err(|error| {
        Problem::new(ProblemType::Internal, format!("the answer cannot be written as JSON: {error}"))
    })?;
    let mut response = content(JSON, bytes);
    *response.status_mut() = status;
    Ok(response)
}

/// Why there is no result.
pub(crate) fn problem(problem: &Problem) -> Response {
    // A problem has nothing in it that could not be written.
    let mut response = content(PROBLEM, serde_json::to_vec(problem).unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if matches!(problem.kind, ProblemType::TooManyRequests | ProblemType::Unavailable) {
        let value = problem.retry_after_s.map_or(LATER, HeaderValue::from);
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// What holds for every answer.
pub(super) fn guard(headers: &mut HeaderMap) {
    for (name, value) in [NOSNIFF, NO_STORE] {
        headers.insert(name, value);
    }
}

/// Success, and nothing else.
pub(super) fn nothing_more() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Which methods there are, and nothing else.
pub(super) fn nothing_but_methods(methods: Option<HeaderValue>) -> Response {
    let mut response = nothing_more();
    if let Some(methods) = methods {
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

/// An answer of our own where there is no request that could be read, as it goes over the wire; the
/// connection is closed behind it.
pub(crate) fn last_words(problem: &Problem) -> Bytes {
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
        let header = |of: Problem| {
            let value = problem(&of).headers().get(RETRY_AFTER).cloned();
            value.map(|value| value.to_str().expect("digits").to_owned())
        };
        let refused = |kind| Problem::new(kind, "no worker");
        assert_eq!(header(refused(ProblemType::TooManyRequests).retry_after(17)).as_deref(), Some("17"));
        assert_eq!(header(refused(ProblemType::Unavailable)).as_deref(), Some("1"));
        assert_eq!(header(refused(ProblemType::NotFound).retry_after(17)), None);
    }
}
