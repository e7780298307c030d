//! Errors in the format of RFC 9457 (`application/problem+json`), with additional members for Proctor's clients: a
//! hint, and the exit code of `proctor`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::code::error_code::{Coded as _, ErrorCode};
use crate::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE};
use crate::spec::Diagnostic;

/// The reason why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The type of the problem.
    #[serde(rename = "type")]
    pub kind: ProblemType,
    /// A short description of the type, the same for all problems of this type.
    pub title: String,
    /// The code of the message, such as `P0202`; absent in older logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The HTTP status code.
    pub status: u16,
    /// The error and its context.
    pub detail: String,
    /// How to fix the problem, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The exit code of `proctor`.
    pub exit_code: u8,
    /// Number of seconds after which the same request may succeed, if the daemon can estimate it. The `Retry-After`
    /// header has the same value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// The diagnostics of the spec, if the problem is an invalid spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecProblem>,
}

/// An invalid spec and its diagnostics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecProblem {
    /// Path of the spec file.
    pub file: String,
    /// Content of the file; empty if it is not text.
    pub source: String,
    /// The diagnostics, sorted by position.
    pub diagnostics: Vec<Diagnostic>,
}

macro_rules! problem_types {
    ($($(#[$doc:meta])* $variant:ident = $urn:literal, $status:literal, $exit:expr, $title:literal;)*) => {
        /// The type of a problem. The meaning of a type never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ProblemType {
            $($(#[$doc])* #[serde(rename = $urn)] $variant,)*
        }

        impl ProblemType {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the HTTP status code.
            pub fn status(self) -> u16 {
                match self {
                    $(Self::$variant => $status,)*
                }
            }

            /// Returns the short description.
            pub fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)*
                }
            }

            /// Returns the default exit code of `proctor`; a more specific cause can set another.
            pub fn exit_code(self) -> u8 {
                match self {
                    $(Self::$variant => $exit,)*
                }
            }
        }
    };
}

problem_types! {
    /// The request is malformed.
    InvalidRequest = "urn:proctor:problem:invalid-request", 400, EXIT_USAGE, "the request is not valid";
    /// The caller has no permission for the request.
    Forbidden = "urn:proctor:problem:forbidden", 403, EXIT_USAGE, "not allowed";
    /// The resource does not exist.
    NotFound = "urn:proctor:problem:not-found", 404, EXIT_USAGE, "not found";
    /// The path does not support the method.
    MethodNotAllowed = "urn:proctor:problem:method-not-allowed", 405, EXIT_USAGE, "the method is not allowed";
    /// The client accepts none of the available content types.
    NotAcceptable = "urn:proctor:problem:not-acceptable", 406, EXIT_USAGE, "no acceptable content type";
    /// The body was not received in time.
    RequestTimeout = "urn:proctor:problem:request-timeout", 408, EXIT_INCONCLUSIVE, "the request took too long";
    /// The idempotency key was used for a different request.
    Conflict = "urn:proctor:problem:conflict", 409, EXIT_USAGE, "the request conflicts with the current state";
    /// The resource existed but is no longer stored.
    Gone = "urn:proctor:problem:gone", 410, EXIT_INCONCLUSIVE, "it is no longer stored";
    /// The body exceeds the size limit.
    TooLarge = "urn:proctor:problem:too-large", 413, EXIT_USAGE, "the request is too large";
    /// The content type of the body is not JSON.
    UnsupportedMediaType = "urn:proctor:problem:unsupported-media-type", 415, EXIT_USAGE, "the content type is not supported";
    /// The requested range starts after the end of the output.
    RangeNotSatisfiable = "urn:proctor:problem:range-not-satisfiable", 416, EXIT_USAGE, "there is nothing in that range";
    /// The spec is invalid.
    InvalidSpec = "urn:proctor:problem:invalid-spec", 422, EXIT_USAGE, "the spec is not valid";
    /// The repository, the spec or the operator does not allow the request.
    Unprocessable = "urn:proctor:problem:unprocessable", 422, EXIT_USAGE, "the request cannot be fulfilled";
    /// Too many runs or requests are waiting.
    TooManyRequests = "urn:proctor:problem:too-many-requests", 429, EXIT_INCONCLUSIVE, "too many requests are waiting";
    /// The run ended before there was anything to record.
    Interrupted = "urn:proctor:problem:interrupted", 409, EXIT_INTERRUPTED, "it was interrupted";
    /// The head of the request exceeds the size limit.
    HeadTooLarge = "urn:proctor:problem:head-too-large", 431, EXIT_USAGE, "the head of the request is too large";
    /// Proctor had an internal error.
    Internal = "urn:proctor:problem:internal", 500, EXIT_INCONCLUSIVE, "internal error";
    /// The machine does not allow a run.
    Unavailable = "urn:proctor:problem:unavailable", 503, EXIT_INCONCLUSIVE, "temporarily unavailable";
}

impl Problem {
    /// Creates a problem of type `kind`; `detail` describes the error and its context.
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self {
            kind,
            title: kind.title().to_owned(),
            code: Some(kind.code()),
            status: kind.status(),
            detail: detail.into(),
            hint: None,
            exit_code: kind.exit_code(),
            retry_after_s: None,
            spec: None,
        }
    }

    /// Sets the hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Sets the number of seconds after which a retry may succeed.
    #[must_use]
    pub fn with_retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Sets a more specific code.
    #[must_use]
    pub fn with_code(self, code: ErrorCode) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns the code of the message; the default is the code of the type.
    pub fn code(&self) -> ErrorCode {
        self.code.unwrap_or_else(|| self.kind.code())
    }

    /// Sets the exit code.
    #[must_use]
    pub fn with_exit_code(self, exit_code: u8) -> Self {
        Self { exit_code, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_round_trip_through_json() {
        for kind in ProblemType::ALL {
            let problem = Problem::new(*kind, "what").with_hint("do");
            let text = serde_json::to_string(&problem).expect("writes");
            assert!(text.contains("\"type\":\"urn:proctor:problem:"), "{text}");
            assert_eq!(serde_json::from_str::<Problem>(&text).expect("reads"), problem);
            assert!((400..600).contains(&problem.status) && problem.exit_code != 0, "{text}");
        }
    }
}
