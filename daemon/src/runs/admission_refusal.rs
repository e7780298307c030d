//! Reasons why a request gets no run.

use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::RunId;

/// Reason why no run serves a request.
#[derive(Debug, Clone)]
pub enum AdmissionRefusal {
    /// The request is refused.
    Problem(Box<Problem>),
    /// The `Idempotency-Key` belongs to this run, which has ended in the meantime.
    KeyUsed(RunId),
}

impl From<Problem> for AdmissionRefusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

/// Returns the problem for a task of the daemon that no longer answers.
pub(super) fn manager_gone() -> Problem {
    Problem::new(ProblemType::Internal, "an internal task of the daemon has stopped").with_hint("restart the daemon")
}
