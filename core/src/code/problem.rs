//! Codes of failed requests to the daemon.

use super::error_code::codes;
use crate::api::ProblemType;

codes! { ProblemType;
    InvalidRequest, 501, "request::invalid",
        "The request is invalid: its body is not JSON, has an unknown field, or has an invalid value.",
        "A guess could run something other than what was requested.",
        "Read the detail; `schemas/openapi.json` describes every request.",
        "$ curl --unix-socket $SOCK http://p/v1/runs -H 'Content-Type: application/json' \\\n    -d '{\"repo\": \"/home/a/project\", \"profile\": \"pr\"}'";
    Forbidden, 502, "request::forbidden",
        "The caller has no permission for this request, for instance because the run belongs to another user.",
        "Users may use only their own repositories and runs.",
        "Send the request as the owner.",
        "$ ls -ld /home/a/project";
    NotFound, 503, "request::not_found",
        "The requested run, step, document or path does not exist.",
        "Proctor does not answer a request for a missing item with a different one.",
        "List the available ones.",
        "$ proctor status --all";
    MethodNotAllowed, 504, "request::method_not_allowed",
        "The path exists but does not support this method.",
        "Each operation has exactly one method.",
        "Use the method that the API documents.",
        "$ curl --unix-socket $SOCK -X DELETE http://p/v1/runs/20260102T030405Z-1";
    NotAcceptable, 525, "request::not_acceptable",
        "The client accepts none of the media types that the answer can have.",
        "The client could not interpret an answer in a different format.",
        "Send the `Accept` header from the hint.",
        "Accept: application/json, text/event-stream";
    RequestTimeout, 505, "request::timeout",
        "The body of the request arrived too slowly.",
        "A slow connection must not delay others.",
        "Send the request again without pauses.",
        "$ proctor run --daemon";
    Conflict, 506, "request::conflict",
        "The request conflicts with the current state: for instance, its idempotency key was used for a different request.",
        "The same key must mean the same request.",
        "Use a new key for a new request.",
        "Idempotency-Key: 5f6c2e";
    Gone, 507, "request::gone",
        "The requested item existed but has been deleted.",
        "The daemon keeps a limited amount of data.",
        "Run it again; the operator's configuration sets how much is kept.",
        "$ proctor run";
    TooLarge, 508, "request::too_large",
        "The body is larger than the limit.",
        "The size of requests is limited so that reading them stays cheap.",
        "Send a smaller request.",
        "$ proctor run --no-daemon";
    UnsupportedMediaType, 509, "request::media_type",
        "The content type of the body is not JSON.",
        "The daemon accepts only JSON.",
        "Send a `Content-Type` header.",
        "Content-Type: application/json";
    RangeNotSatisfiable, 510, "request::range",
        "The requested byte range starts after the end of the output.",
        "There is nothing to send.",
        "Use an offset inside the output.",
        "GET /v1/runs/20260102T030405Z-1/steps/0/stdout?offset=0";
    InvalidSpec, 511, "request::invalid_spec",
        "The spec of the repository is invalid; the diagnostics are in `spec`.",
        "A partly understood spec would run only part of its checks.",
        "Fix the problems that the diagnostics name.",
        "$ proctor validate";
    Unprocessable, 512, "request::unprocessable",
        "The repository, the spec or the operator does not allow the request.",
        "The daemon does not replace a request by a different one.",
        "Read the detail and the hint.",
        "$ proctor plan";
    TooManyRequests, 513, "request::too_many",
        "Too many runs are queued, in total or for this user.",
        "An unbounded queue would delay every caller.",
        "Wait until some runs end, or cancel them.",
        "$ proctor status";
    Interrupted, 514, "request::interrupted",
        "The run ended before it produced anything to record.",
        "Nothing was verified.",
        "Send the request again.",
        "$ proctor run";
    HeadTooLarge, 515, "request::head_too_large",
        "The head of the request is larger than the limit.",
        "The size of requests is limited so that reading them stays cheap.",
        "Send fewer or shorter headers.",
        "$ curl --unix-socket $SOCK http://p/healthz";
    Internal, 516, "request::internal",
        "An internal operation of the daemon failed.",
        "Its answer would not be reliable.",
        "Check the daemon's log, and report the bug.",
        "$ journalctl --user -u proctord";
    Unavailable, 517, "request::unavailable",
        "The machine cannot serve the request now: because of the sandbox, the disk, or a daemon that is shutting down.",
        "A run with fewer controls would prove less than its record claims.",
        "Read the detail; `proctor doctor` checks everything that a run needs.",
        "$ proctor doctor";
}
