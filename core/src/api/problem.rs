//! Errors as RFC 9457 has them (`application/problem+json`), with what our own callers need
//! beside: what to do, and the exit code that `proctor` ends with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::code::{Code, Coded as _};
use crate::spec::Diagnostic;
use crate::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE};

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What kind of problem.
    #[serde(rename = "type")]
    pub kind: ProblemType,
    /// The kind in words, the same for every problem of it.
    pub title: String,
    /// The code of the message, such as `P0202`; older logs lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The status code of HTTP.
    pub status: u16,
    /// What happened, and where.
    pub detail: String,
    /// What to do about it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What `proctor` exits with.
    pub exit_code: u8,
    /// The number of seconds after which the same request may succeed, where the daemon can estimate it. HTTP repeats
    /// it as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// What is wrong with the spec, where that is the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecProblem>,
}

/// Everything that is wrong with one spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecProblem {
    /// The file.
    pub file: String,
    /// Its text; empty where it is no text.
    pub source: String,
    /// What is wrong, sorted by where it stands.
    pub diagnostics: Vec<Diagnostic>,
}

macro_rules! problem_types {
    ($($(#[$doc:meta])* $variant:ident = $urn:literal, $status:literal, $exit:expr, $title:literal;)*) => {
        /// What kind of problem. A type never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ProblemType {
            $($(#[$doc])* #[serde(rename = $urn)] $variant,)*
        }

        impl ProblemType {
            /// Every type.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The status code of HTTP.
            pub fn status(self) -> u16 {
                match self {
                    $(Self::$variant => $status,)*
                }
            }

            /// In words.
            pub fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)*
                }
            }

            /// What `proctor` exits with, where nothing nearer to the cause says otherwise.
            pub fn exit_code(self) -> u8 {
                match self {
                    $(Self::$variant => $exit,)*
                }
            }
        }
    };
}

problem_types! {
    /// The request is none that can be read.
    InvalidRequest = "urn:proctor:problem:invalid-request", 400, EXIT_USAGE, "the request is not valid";
    /// The caller may not ask for this.
    Forbidden = "urn:proctor:problem:forbidden", 403, EXIT_USAGE, "not allowed";
    /// There is no such thing.
    NotFound = "urn:proctor:problem:not-found", 404, EXIT_USAGE, "not found";
    /// The path is there, and not for this method.
    MethodNotAllowed = "urn:proctor:problem:method-not-allowed", 405, EXIT_USAGE, "the method is not allowed";
    /// The client accepts no form in which the answer can be sent.
    NotAcceptable = "urn:proctor:problem:not-acceptable", 406, EXIT_USAGE, "no accepted form of an answer";
    /// The body took too long to come.
    RequestTimeout = "urn:proctor:problem:request-timeout", 408, EXIT_INCONCLUSIVE, "the request took too long";
    /// An idempotency key was used for another request.
    Conflict = "urn:proctor:problem:conflict", 409, EXIT_USAGE, "it contradicts what is there";
    /// It was there, and is kept no longer.
    Gone = "urn:proctor:problem:gone", 410, EXIT_INCONCLUSIVE, "it is kept no longer";
    /// The body is larger than any request.
    TooLarge = "urn:proctor:problem:too-large", 413, EXIT_USAGE, "the request is too large";
    /// The body is no JSON by its content type.
    UnsupportedMediaType = "urn:proctor:problem:unsupported-media-type", 415, EXIT_USAGE, "the content type is not supported";
    /// The output ends before the range of bytes begins.
    RangeNotSatisfiable = "urn:proctor:problem:range-not-satisfiable", 416, EXIT_USAGE, "there is nothing in that range";
    /// The spec cannot be used.
    InvalidSpec = "urn:proctor:problem:invalid-spec", 422, EXIT_USAGE, "the spec is not valid";
    /// The repository, the spec or the operator does not allow what was asked for.
    Unprocessable = "urn:proctor:problem:unprocessable", 422, EXIT_USAGE, "it cannot be done as asked";
    /// Too many runs or requests wait.
    TooManyRequests = "urn:proctor:problem:too-many-requests", 429, EXIT_INCONCLUSIVE, "too many requests wait";
    /// The run ended before there was anything to record.
    Interrupted = "urn:proctor:problem:interrupted", 409, EXIT_INTERRUPTED, "it was interrupted";
    /// The head of the request is larger than any.
    HeadTooLarge = "urn:proctor:problem:head-too-large", 431, EXIT_USAGE, "the head of the request is too large";
    /// Something of ours failed.
    Internal = "urn:proctor:problem:internal", 500, EXIT_INCONCLUSIVE, "proctor could not do its job";
    /// The machine does not allow a run.
    Unavailable = "urn:proctor:problem:unavailable", 503, EXIT_INCONCLUSIVE, "it cannot be done here and now";
}

impl Problem {
    /// A problem of `kind`; `detail` says what happened and where.
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

    /// The same, with what to do.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the same problem with the number of seconds after which a retry may succeed.
    #[must_use]
    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// The same, with the code of what is nearer to the cause.
    #[must_use]
    pub fn coded(self, code: Code) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The code of the message: that of its kind, where nothing nearer to the cause is known.
    pub fn code(&self) -> Code {
        self.code.unwrap_or_else(|| self.kind.code())
    }

    /// The same, with the exit code that the cause calls for.
    #[must_use]
    pub fn exiting(self, exit_code: u8) -> Self {
        Self { exit_code, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_reads_back() {
        for kind in ProblemType::ALL {
            let problem = Problem::new(*kind, "what").with_hint("do");
            let text = serde_json::to_string(&problem).expect("writes");
            assert!(text.contains("\"type\":\"urn:proctor:problem:"), "{text}");
            assert_eq!(serde_json::from_str::<Problem>(&text).expect("reads"), problem);
            assert!((400..600).contains(&problem.status) && problem.exit_code != 0, "{text}");
        }
    }
}
