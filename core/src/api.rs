//! What callers of the daemon send and get: the types of its HTTP API, of which the OpenAPI
//! document is made, and the folds over a run's events that answers are. No transport here.

#[cfg(test)]
mod body_tests;
mod doctor;
mod exec;
pub mod openapi;
pub mod operation;
mod problem;
mod request;
mod view;

pub use doctor::{CopyReport, CopyState, DoctorAnswer, DoctorFinding, DoctorScope, StepAccount};
pub use exec::{EXEC_PIECE, ExecEvent, ExecSubmission, OutputStream, bytes_of_hex};
pub use problem::{Problem, ProblemType, SpecProblem};
pub use request::{Asked, ChangesAsked, GateAsked, PlanAsked, Reuse, RunSubmission, SkillsAsked};
pub use view::{
    Health, HealthStatus, How, LoggedEvent, OutputEvent, PlanAnswer, Readiness, ReadinessStatus, RunCounts, RunPage,
    RunState, RunSummary, RunView, StepView, StreamView, Submitted, Watched, all_passed,
};

/// How many runs a page holds at most, and how many where the caller does not say.
pub const MAX_PAGE: u32 = 200;
