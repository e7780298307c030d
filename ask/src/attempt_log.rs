//! Collects the attempts of a loop: their results, the repeated statements, and the best attempt.

use std::collections::HashSet;

use proctor_core::sql::{AskAttempt, AttemptOutcome, Judgement, SqlSeverity, SqlVerdict, TokenCounts};

use crate::statement_key::statement_key;

/// The attempts of a loop.
#[derive(Debug, Default)]
pub(crate) struct AttemptLog {
    pub(crate) attempts: Vec<AskAttempt>,
    pub(crate) tokens: TokenCounts,
    /// The statements that were rejected or failed.
    tried: HashSet<String>,
    /// The best attempt with its judgement.
    best: Option<(u32, Judgement)>,
}

impl AttemptLog {
    /// Returns whether a statement was already rejected, or already failed.
    pub(crate) fn is_repeated(&self, statement: &str) -> bool {
        self.tried.contains(&statement_key(statement))
    }

    /// Adds an attempt, with the judgement of its statement.
    pub(crate) fn push(&mut self, attempt: AskAttempt, judgement: Option<Judgement>) {
        self.tokens = self.tokens.plus(attempt.tokens);
        if let Some(statement) = &attempt.statement {
            self.tried.insert(statement_key(statement));
        }
        if let Some(judgement) = judgement.filter(|judgement| judgement.verdict != SqlVerdict::Error) {
            let is_better = attempt.outcome == AttemptOutcome::Answered
                || self.best.as_ref().is_none_or(|(_, best)| badness(&judgement) <= badness(best));
            if is_better {
                self.best = Some((attempt.number, judgement));
            }
        }
        self.attempts.push(attempt);
    }

    /// Returns the attempts, their tokens, and the best one.
    pub(crate) fn into_parts(self) -> (Vec<AskAttempt>, TokenCounts, Option<(u32, Judgement)>) {
        (self.attempts, self.tokens, self.best)
    }
}

/// Returns a number that is lower for a better judgement: its errors.
fn badness(judgement: &Judgement) -> usize {
    judgement.diagnostics.iter().filter(|found| found.severity == SqlSeverity::Error).count()
}
