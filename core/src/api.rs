//! The types of the daemon's HTTP API, from which the OpenAPI document is generated, and functions that compute
//! responses from the events of a run. Independent of the transport.

mod ask_event;
#[cfg(test)]
mod body_tests;
mod doctor;
mod exec;
mod logged_run;
pub mod openapi;
pub mod operation;
mod problem;
mod request;
mod view;

pub use ask_event::AskEvent;
pub use doctor::{
    CopyReport, CopyState, DoctorAnswer, DoctorFinding, DoctorScope, RemoteCacheCheck, RemoteExecutorCheck, StepAccount,
};
pub use exec::{ExecEvent, ExecSubmission, MAX_EXEC_OUTPUT_CHUNK, OutputStream, decode_hex};
pub use logged_run::LoggedRun;
pub use problem::{Problem, ProblemType, SpecProblem};
pub use request::{ChangeDelivery, GateQuery, PlanRequest, RecordedRequest, Reuse, RunSubmission, SkillFilter};
pub use view::{
    Health, HealthStatus, LoggedEvent, OutputEvent, PlanAnswer, Readiness, ReadinessStatus, RunCounts, RunPage,
    RunState, RunSummary, RunView, RunWithEvents, StepView, StreamView, SubmissionOutcome, SubmittedRun,
    all_passed_message,
};

/// Maximum number of runs on a page, and the number if the caller sets none.
pub const MAX_PAGE: u32 = 200;
