//! Codes of failed requests to the daemon.

use super::codes;
use crate::api::ProblemType;

codes! { ProblemType;
    InvalidRequest, 501, "request::invalid",
        "The request is none that can be read: a body that is no JSON, a field that is not known, a bad value.",
        "A guess at what was meant could run something else.",
        "Read the detail; `schemas/openapi.json` has every request.",
        "$ curl --unix-socket $SOCK http://p/v1/runs -H 'Content-Type: application/json' \\\n    -d '{\"repo\": \"/home/a/project\", \"profile\": \"pr\"}'";
    Forbidden, 502, "request::forbidden",
        "The caller may not ask for this: the repository or the run is another user's, say.",
        "A daemon does for each user only what is theirs.",
        "Ask as the owner.",
        "$ ls -ld /home/a/project";
    NotFound, 503, "request::not_found",
        "There is no such thing: a run, a step, a document, a path.",
        "Another one would not be what was asked for.",
        "List what there is.",
        "$ proctor status --all";
    MethodNotAllowed, 504, "request::method_not_allowed",
        "The path is there, and not for this method.",
        "Each operation has one method.",
        "Use the method that the API describes.",
        "$ curl --unix-socket $SOCK -X DELETE http://p/v1/runs/20260102T030405Z-1";
    NotAcceptable, 525, "request::not_acceptable",
        "The client accepts none of the media types that the answer can have.",
        "An answer in another form would not be understood.",
        "Send the `Accept` header that the hint names.",
        "Accept: application/json, text/event-stream";
    RequestTimeout, 505, "request::timeout",
        "The body of the request took too long to come.",
        "No connection may hold others up.",
        "Send it again, at once.",
        "$ proctor run --daemon";
    Conflict, 506, "request::conflict",
        "The request contradicts what is there: its idempotency key was used for another one, say.",
        "The same key means the same request.",
        "Use a new key for a new request.",
        "Idempotency-Key: 5f6c2e";
    Gone, 507, "request::gone",
        "It was there, and is kept no longer.",
        "What is kept is bounded.",
        "Run it again; the operator's config says how much is kept.",
        "$ proctor run";
    TooLarge, 508, "request::too_large",
        "The body is larger than any request.",
        "What is read is bounded before it costs anything.",
        "Send less.",
        "$ proctor run --no-daemon";
    UnsupportedMediaType, 509, "request::media_type",
        "The body is no JSON by its content type.",
        "Nothing else is read.",
        "Say what it is.",
        "Content-Type: application/json";
    RangeNotSatisfiable, 510, "request::range",
        "The output ends before the range of bytes that was asked for begins.",
        "There is nothing to send.",
        "Ask from an offset that lies in it.",
        "GET /v1/runs/20260102T030405Z-1/steps/0/stdout?offset=0";
    InvalidSpec, 511, "request::invalid_spec",
        "The spec of the repository cannot be used; the diagnostics are in `spec`.",
        "A spec that is half understood would be half run.",
        "Mend what the diagnostics name.",
        "$ proctor validate";
    Unprocessable, 512, "request::unprocessable",
        "The repository, the spec or the operator does not allow what was asked for.",
        "It cannot be done as asked, and is not done otherwise.",
        "Read the detail and the hint.",
        "$ proctor plan";
    TooManyRequests, 513, "request::too_many",
        "Too many runs wait already, in all or of this user.",
        "A queue without a bound helps nobody.",
        "Wait for some to end, or cancel them.",
        "$ proctor status";
    Interrupted, 514, "request::interrupted",
        "The run ended before there was anything to record.",
        "Nothing was verified.",
        "Ask again.",
        "$ proctor run";
    HeadTooLarge, 515, "request::head_too_large",
        "The head of the request is larger than any.",
        "What is read is bounded before it costs anything.",
        "Send fewer or shorter headers.",
        "$ curl --unix-socket $SOCK http://p/healthz";
    Internal, 516, "request::internal",
        "Something of ours failed.",
        "What it would say cannot be relied on.",
        "Look at the daemon's log, and report it.",
        "$ journalctl --user -u proctord";
    Unavailable, 517, "request::unavailable",
        "The machine does not allow it here and now: the sandbox, the disk, or a daemon that is ending.",
        "A run with less would prove less than it says.",
        "Read the detail; `proctor doctor` looks at what a run needs.",
        "$ proctor doctor";
}
