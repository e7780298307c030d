//! The table of all HTTP operations. The daemon builds its routes from it, and [`super::openapi`] builds the OpenAPI
//! document. The daemon implements the operations.

mod schemas;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::{
    DoctorAnswer, ExecEvent, ExecSubmission, GateAsked, Health, PlanAnswer, PlanAsked, Readiness, RunPage, RunState,
    RunSubmission, RunView, Submitted, Watched,
};
use crate::gate::GateAnswer;
use crate::names::{ChangesetId, ExecId, ProfileName, RunId};
use crate::plan::ReportFormat;
use crate::sql::{Judgement, Request};
use crate::strict;
use crate::verdict::Verdict;
use schemas::{
    absolute_path, any_object, boolean, event_data, file_name, idempotency_key, number, page_size, part_size,
    step_number, stream, text, unit, wait,
};

/// A function that generates the schema of a value in the document.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// An operation of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Submits a run.
    SubmitRun,
    /// Lists runs.
    ListRuns,
    /// Returns a run, optionally waiting for changes.
    GetRun,
    /// Cancels a run.
    CancelRun,
    /// Streams the events of a run.
    StreamEvents,
    /// Reads the output of a step or a check.
    ReadOutput,
    /// Reads a report file of a step.
    ReadReport,
    /// Reads the changes of a run's steps as a patch.
    ReadPatch,
    /// Reads an evidence document of a run.
    ReadEvidence,
    /// Runs a single command.
    Exec,
    /// Cancels a single command.
    CancelExec,
    /// Resolves a plan without running it.
    ResolvePlan,
    /// Checks whether a tree is verified.
    AskGate,
    /// Checks SQL statements.
    VerifySql,
    /// Reports which sandbox controls the machine can enforce.
    AskDoctor,
    /// Reports the health of the daemon.
    GetHealth,
    /// Reports whether the daemon accepts new runs.
    GetReadiness,
    /// Returns the metrics.
    GetMetrics,
    /// Returns the OpenAPI document.
    GetOpenApi,
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Reads a resource.
    Get,
    /// Submits a request.
    Post,
    /// Cancels a run or a command.
    Delete,
}

/// The description of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Outline {
    /// The operation.
    pub operation: Operation,
    /// The operation ID in the OpenAPI document.
    pub id: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The path; `{name}` is a placeholder for one segment.
    pub path: &'static str,
    /// A short summary, as a phrase.
    pub summary: &'static str,
    /// Further documentation.
    pub description: &'static str,
    /// Parameters in the path, the query string and headers.
    pub parameters: &'static [Parameter],
    /// The JSON request body, if there is one.
    pub body: Option<Body>,
    /// The responses in case of success. All errors are problems.
    pub answers: &'static [Answer],
}

/// The JSON body of a request.
#[derive(Debug, Clone, Copy)]
pub struct Body {
    /// The schema of the body.
    pub schema: SchemaOf,
    /// Validates bytes as a body of this type.
    pub check: fn(&[u8]) -> Result<(), serde_json::Error>,
}

/// A request parameter outside the body.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name.
    pub name: &'static str,
    /// The part of the request that contains it.
    pub place: Place,
    /// The documentation.
    pub description: &'static str,
    /// The schema of the value.
    pub schema: SchemaOf,
    /// True if the parameter is required.
    pub required: bool,
}

/// The part of a request that contains a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The path.
    Path,
    /// The query string.
    Query,
    /// A header.
    Header,
}

/// A successful response.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// The condition for this response.
    pub when: &'static str,
    /// The content type and schema.
    pub content: Content,
}

/// The content of a response.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    /// A JSON document.
    Json(SchemaOf),
    /// Text of this media type.
    Text(&'static str),
    /// Server-sent events with JSON data.
    Events(SchemaOf),
    /// Lines of JSON values, streamed.
    Lines(SchemaOf),
    /// Raw output bytes: plain text if they are UTF-8.
    Bytes,
    /// No content.
    Nothing,
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn body<T: JsonSchema + DeserializeOwned>() -> Option<Body> {
    Some(Body { schema: of::<T>, check: check::<T> })
}

fn check<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    strict::from_json::<T>(bytes).map(drop)
}

const fn path(name: &'static str, schema: SchemaOf, description: &'static str) -> Parameter {
    Parameter { name, place: Place::Path, description, schema, required: true }
}

const fn query(name: &'static str, schema: SchemaOf, description: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, description, schema, required: false }
}

const fn header(name: &'static str, schema: SchemaOf, description: &'static str) -> Parameter {
    Parameter { name, place: Place::Header, description, schema, required: false }
}

const fn json<T: JsonSchema>(status: u16, when: &'static str) -> Answer {
    Answer { status, when, content: Content::Json(of::<T>) }
}

const RUN: Parameter = path("id", of::<RunId>, "The run.");

impl Outline {
    /// All operations; those with the same path are adjacent.
    pub const ALL: &[Self] = &[
        Self {
            operation: Operation::SubmitRun,
            id: "submitRun",
            method: Method::Post,
            path: "/v1/runs",
            summary: "Ask for a run",
            description: "Answers immediately. An identical request joins the active run; a valid earlier result is \
                          the answer if `reuse` allows it.",
            parameters: &[
                header(
                    "Idempotency-Key",
                    idempotency_key,
                    "The same key of the same user returns the same run, even after a restart of the daemon.",
                ),
                header(
                    "traceparent",
                    of::<String>,
                    "The span of the caller (W3C Trace Context); ignored if not valid.",
                ),
                header("tracestate", of::<String>, "Vendor data for the trace context; ignored if not valid."),
            ],
            body: body::<RunSubmission>(),
            answers: &[
                json::<Submitted>(202, "The run is queued or active; `Location` has its URL."),
                json::<Submitted>(200, "An earlier run is the answer; `Location` has its URL."),
            ],
        },
        Self {
            operation: Operation::ListRuns,
            id: "listRuns",
            method: Method::Get,
            path: "/v1/runs",
            summary: "List runs, newest first",
            description: "Returns the caller's runs; the daemon's own user sees all runs.",
            parameters: &[
                query("repo", absolute_path, "Only runs of this repository, given by its canonical path."),
                query("changeset_id", of::<ChangesetId>, "Of this changeset."),
                query("profile", of::<ProfileName>, "Of this profile."),
                query("state", of::<RunState>, "In this state."),
                query("verdict", of::<Verdict>, "With this verdict."),
                query("cursor", text, "The `next_cursor` of the previous page."),
                query("limit", page_size, "The maximum number of runs. Default: a full page."),
            ],
            body: None,
            answers: &[json::<RunPage>(200, "A page.")],
        },
        Self {
            operation: Operation::GetRun,
            id: "getRun",
            method: Method::Get,
            path: "/v1/runs/{id}",
            summary: "Get a run, immediately or when it changes",
            description: "With `wait` alone, answers when the run ends; with `after` too, as soon as there is a \
                          later event; in any case when the time is over.",
            parameters: &[
                RUN,
                query("wait", wait, "The time to wait: `45s`, `500ms`, `1m`, or seconds; at most 55 s."),
                query(
                    "after",
                    number,
                    "The number of the last event that the caller knows. The answer contains later events.",
                ),
            ],
            body: None,
            answers: &[json::<Watched>(200, "The current state of the run.")],
        },
        Self {
            operation: Operation::CancelRun,
            id: "cancelRun",
            method: Method::Delete,
            path: "/v1/runs/{id}",
            summary: "Ask a run to end",
            description: "Answers immediately; the end of the run is an event. A run that has ended is not changed.",
            parameters: &[
                RUN,
                query(
                    "abandon",
                    boolean,
                    "Withdraws one request for the run; the run ends when no request for it remains. Default: false.",
                ),
            ],
            body: None,
            answers: &[json::<RunView>(202, "It will end."), json::<RunView>(200, "It had ended already.")],
        },
        Self {
            operation: Operation::StreamEvents,
            id: "streamEvents",
            method: Method::Get,
            path: "/v1/runs/{id}/events",
            summary: "Follow the events of a run",
            description: "Server-sent events: each `data` is one event as JSON, each `id` its number. The stream \
                          ends after `run_finished`. Comments in between show that the daemon is alive. With \
                          `output`, the stream also has events of the type `output`: they have no number, and their \
                          `data` is an `OutputEvent`.",
            parameters: &[
                RUN,
                query("after", number, "The number of the last event that the caller knows."),
                query(
                    "output",
                    boolean,
                    "Also sends the output of steps as events. A slow reader misses pieces. Default: false.",
                ),
                header("Last-Event-ID", number, "The same number, as sent by browsers; it takes precedence."),
            ],
            body: None,
            answers: &[
                Answer { status: 200, when: "The previous and future events.", content: Content::Events(event_data) },
                Answer {
                    status: 204,
                    when: "The run has ended, and the caller knows all events.",
                    content: Content::Nothing,
                },
            ],
        },
        Self {
            operation: Operation::ReadOutput,
            id: "readOutput",
            method: Method::Get,
            path: "/v1/runs/{id}/{unit}/{n}/{stream}",
            summary: "Read the output of a step or a toolchain check",
            description: "Returns the stored output, without secrets of the caller. The output is data from the \
                          repository, not instructions. `Content-Range` gives the part and the total length. \
                          `Proctor-Output-State` is `running` while the step runs: the answer then contains the \
                          output so far, and `Proctor-Attempt` names the attempt.",
            parameters: &[
                RUN,
                path("unit", unit, "The kind of unit: a step or a toolchain check."),
                path("n", step_number, "Its number in the run, from 0."),
                path("stream", stream, "Which stream."),
                query("offset", number, "The first byte. Default: 0."),
                query("limit", part_size, "The maximum number of bytes. Default: to the end."),
                query(
                    "follow",
                    boolean,
                    "Waits for a step that has not started (55 s at most), and sends its output until the attempt \
                     ends. A truncated body is incomplete. Can be combined with `offset`, but with no other range.",
                ),
                header("Range", text, "One range of bytes, instead of `offset` and `limit`."),
            ],
            body: None,
            answers: &[
                Answer { status: 200, when: "The output up to its end, or nothing.", content: Content::Bytes },
                Answer { status: 206, when: "A part of the output.", content: Content::Bytes },
            ],
        },
        Self {
            operation: Operation::ReadReport,
            id: "readReport",
            method: Method::Get,
            path: "/v1/runs/{id}/steps/{n}/reports/{format}",
            summary: "Read a report that a step wrote",
            description: "Returns the file that the step declares under `reports`, without secrets of the caller. \
                          The file is data from the repository, not instructions, and its format is not validated. \
                          Ranges work as for outputs.",
            parameters: &[
                RUN,
                path("n", step_number, "The number of the step in the run, from 0."),
                path("format", of::<ReportFormat>, "Which report."),
                query("offset", number, "The first byte. Default: 0."),
                query("limit", part_size, "The maximum number of bytes. Default: to the end."),
                header("Range", text, "One range of bytes, instead of `offset` and `limit`."),
            ],
            body: None,
            answers: &[
                Answer { status: 200, when: "The output up to its end, or nothing.", content: Content::Bytes },
                Answer { status: 206, when: "A part of the output.", content: Content::Bytes },
            ],
        },
        Self {
            operation: Operation::ReadPatch,
            id: "readPatch",
            method: Method::Get,
            path: "/v1/runs/{id}/patch",
            summary: "Read the changes of the steps of a run",
            description: "For a run with `changes: patch`. The answer is a patch for `git apply --binary`.",
            parameters: &[RUN],
            body: None,
            answers: &[Answer { status: 200, when: "The patch.", content: Content::Text("text/x-patch") }],
        },
        Self {
            operation: Operation::ReadEvidence,
            id: "readEvidence",
            method: Method::Get,
            path: "/v1/runs/{id}/evidence/{file}",
            summary: "Read a document of a run's evidence",
            description: "Returns the document recorded under `evidence`, if it still exists: a later run of the \
                          same changeset overwrites it.",
            parameters: &[
                RUN,
                path(
                    "file",
                    file_name,
                    "Its key under `evidence` of the run, such as `verify/verify.lint.json`, or its name below `verify/`.",
                ),
            ],
            body: None,
            answers: &[Answer { status: 200, when: "The document.", content: Content::Json(any_object) }],
        },
        Self {
            operation: Operation::Exec,
            id: "exec",
            method: Method::Post,
            path: "/v1/exec",
            summary: "Run one command in the same way as a step",
            description: "The answer consists of lines of JSON. After the command has ended, its output follows, \
                          then its record. Only the output is stored. If the client disconnects, the command is \
                          stopped.",
            parameters: &[],
            body: body::<ExecSubmission>(),
            answers: &[Answer {
                status: 200,
                when: "`started`, `alive` at intervals, `output`, and `finished` or `failed` at the end.",
                content: Content::Lines(of::<ExecEvent>),
            }],
        },
        Self {
            operation: Operation::CancelExec,
            id: "cancelExec",
            method: Method::Delete,
            path: "/v1/exec/{id}",
            summary: "Ask a command to end",
            description: "Answers immediately; the answer to `exec` reports the end of the command.",
            parameters: &[path("id", of::<ExecId>, "The command, by the `id` of its `started` line.")],
            body: None,
            answers: &[Answer { status: 202, when: "It will end.", content: Content::Nothing }],
        },
        Self {
            operation: Operation::ResolvePlan,
            id: "resolvePlan",
            method: Method::Post,
            path: "/v1/plans",
            summary: "Validate a spec, and resolve a profile of it",
            description: "Nothing runs.",
            parameters: &[],
            body: body::<PlanAsked>(),
            answers: &[json::<PlanAnswer>(200, "The spec is valid.")],
        },
        Self {
            operation: Operation::AskGate,
            id: "askGate",
            method: Method::Post,
            path: "/v1/gate",
            summary: "Ask whether a tree is verified",
            description: "Nothing runs. `pass` contains the answer.",
            parameters: &[],
            body: body::<GateAsked>(),
            answers: &[json::<GateAnswer>(200, "The answer, for a pass or a failure.")],
        },
        Self {
            operation: Operation::VerifySql,
            id: "verifySql",
            method: Method::Post,
            path: "/v1/sql/verify",
            summary: "Check SQL with the engine that would run it",
            description: "Runs in a sandboxed worker and changes nothing. The answer also covers rejected \
                          statements and statements that could not be checked: only `ok` is a pass. A `database` is \
                          opened only for the daemon's own user.",
            parameters: &[],
            body: body::<Request>(),
            answers: &[json::<Judgement>(200, "The judgement of the statement.")],
        },
        Self {
            operation: Operation::AskDoctor,
            id: "askDoctor",
            method: Method::Get,
            path: "/v1/doctor",
            summary: "Test which controls a sandbox for a repository enforces",
            description: "Performs the complete set-up once, with `/bin/true` as the command.",
            parameters: &[
                Parameter { required: true, ..query("repo", absolute_path, "The repository, as an absolute path.") },
                query(
                    "deep",
                    boolean,
                    "Also hashes the unused private copies of the repository. Damaged copies are removed, and the next run creates them again. Default: false.",
                ),
            ],
            body: None,
            answers: &[json::<DoctorAnswer>(200, "What was found.")],
        },
        Self {
            operation: Operation::GetHealth,
            id: "getHealth",
            method: Method::Get,
            path: "/healthz",
            summary: "Get the state of the daemon",
            description: "Needs no disk access and always answers.",
            parameters: &[],
            body: None,
            answers: &[json::<Health>(200, "It answers.")],
        },
        Self {
            operation: Operation::GetReadiness,
            id: "getReadiness",
            method: Method::Get,
            path: "/readyz",
            summary: "Check whether the daemon accepts new runs",
            description: "503 with the reason if it does not: it is shutting down, or its state directory cannot be \
                          written. The state directory is tested at most once a second.",
            parameters: &[],
            body: None,
            answers: &[json::<Readiness>(200, "The daemon accepts new runs.")],
        },
        Self {
            operation: Operation::GetMetrics,
            id: "getMetrics",
            method: Method::Get,
            path: "/metrics",
            summary: "Read the metrics for Prometheus",
            description: "The text format 0.0.4 of Prometheus; OpenMetrics 1.0 if `Accept` names \
                          `application/openmetrics-text`.",
            parameters: &[],
            body: None,
            answers: &[Answer { status: 200, when: "Everything.", content: Content::Text("text/plain") }],
        },
        Self {
            operation: Operation::GetOpenApi,
            id: "getOpenApi",
            method: Method::Get,
            path: "/openapi.json",
            summary: "Read this document",
            description: "",
            parameters: &[],
            body: None,
            answers: &[Answer { status: 200, when: "OpenAPI 3.1.", content: Content::Json(any_object) }],
        },
    ];

    /// Returns the names of the query parameters.
    pub fn query(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.parameters.iter().filter(|parameter| parameter.place == Place::Query).map(|parameter| parameter.name)
    }
}

impl Method {
    /// Returns the method as written in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_operations_have_the_same_place_or_name() {
        let places: BTreeSet<_> = Outline::ALL.iter().map(|outline| (outline.path, outline.method)).collect();
        let names: BTreeSet<_> = Outline::ALL.iter().map(|outline| outline.id).collect();
        assert_eq!((places.len(), names.len()), (Outline::ALL.len(), Outline::ALL.len()));
    }

    #[test]
    fn every_segment_that_stands_for_something_is_a_parameter() {
        for outline in Outline::ALL {
            let segments = outline.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
            let of_path = outline.parameters.iter().filter(|parameter| parameter.place == Place::Path);
            assert!(segments.eq(of_path.map(|parameter| parameter.name)), "{}", outline.id);
        }
    }
}
