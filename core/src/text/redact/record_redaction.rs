//! Removes secrets from the texts of records and events. Names, hashes and numbers are not changed; the code that reads
//! output streams redacts them.

use std::borrow::Cow;

use super::Redactor;
use crate::api::Problem;
use crate::model::drift::{Diff, StepDrift};
use crate::model::event::RunEvent;
use crate::model::outcome::Termination;
use crate::model::plan::{Argv, PlannedStep};
use crate::record::evidence::StepEvidence;

impl Redactor {
    /// Removes secrets from `text`, in place.
    pub fn redact_in_place(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.redact_text(text) {
            *text = clean;
        }
    }

    /// Removes secrets from the evidence of a step.
    pub fn redact_step(&self, step: &mut StepEvidence) {
        if self.0.is_none() {
            return;
        }
        self.redact_planned_step(&mut step.planned);
        self.redact_termination(&mut step.termination);
        self.redact_drift(&mut step.drift.found);
        step.drift.applied.iter_mut().for_each(|path| self.redact_in_place(path));
        step.earlier_attempts.iter_mut().for_each(|attempt| self.redact_termination(&mut attempt.termination));
    }

    /// Removes secrets from an event.
    pub fn redact_event(&self, event: &mut RunEvent) {
        match event {
            RunEvent::CheckFinished { check } => self.redact_step(&mut check.step),
            RunEvent::StepFinished { step, .. } => self.redact_step(step),
            RunEvent::SkillFinished { reason: text, .. } | RunEvent::Doubted { message: text, .. } => {
                self.redact_in_place(text);
            }
            RunEvent::PatchRefused { reason } => self.redact_in_place(reason),
            RunEvent::RunRefused { problem } => self.redact_problem(problem),
            RunEvent::RunQueued { .. }
            | RunEvent::RunStarted { .. }
            | RunEvent::SkillStarted { .. }
            | RunEvent::StepStarted { .. }
            | RunEvent::StepTerminating { .. }
            | RunEvent::StepRetrying { .. }
            | RunEvent::Cancelling { .. }
            | RunEvent::EvidenceWritten { .. }
            | RunEvent::RunFinished { .. } => {}
        }
    }

    /// Removes secrets from a problem that a caller gets instead of a result.
    pub fn redact_problem(&self, problem: &mut Problem) {
        self.redact_in_place(&mut problem.detail);
        problem.hint.iter_mut().for_each(|hint| self.redact_in_place(hint));
    }

    fn redact_planned_step(&self, step: &mut PlannedStep) {
        let words = step.cmd.words().iter().map(|word| self.redact_text(word).into_owned()).collect();
        if let Ok(cmd) = Argv::new(words) {
            step.cmd = cmd;
        }
        step.env.values_mut().for_each(|value| self.redact_in_place(value));
    }

    fn redact_termination(&self, termination: &mut Termination) {
        if let Termination::NotStarted { reason, .. } = termination {
            self.redact_in_place(reason);
        }
    }

    fn redact_drift(&self, drift: &mut StepDrift) {
        for change in &mut drift.changes {
            self.redact_in_place(&mut change.path);
            match &mut change.diff {
                Diff::Whole { text } | Diff::Truncated { text, .. } | Diff::Omitted { reason: text } => {
                    self.redact_in_place(text);
                }
                Diff::Binary | Diff::None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::verdict::InconclusiveReason;

    #[test]
    fn redacts_all_texts_of_a_record() {
        let redactor = Redactor::from_environment([("A_TOKEN", "s3cr3t-value")], |_| false);
        let mut event =
            RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: "`s3cr3t-value` did not start".into() };
        redactor.redact_event(&mut event);
        assert_eq!(
            event,
            RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: "`[redacted]` did not start".into() }
        );
        let mut drift = StepDrift::default();
        for diff in [
            Diff::Whole { text: "+s3cr3t-value\n".into() },
            Diff::Truncated { text: "+s3cr3t-value\n".into(), omitted_lines: 1 },
            Diff::Omitted { reason: "s3cr3t-value".into() },
            Diff::Binary,
        ] {
            let (path, kind) = ("a/s3cr3t-value".to_owned(), crate::model::drift::ChangeKind::Created);
            drift.changes.push(crate::model::drift::Change { path, kind, before: None, after: None, diff });
        }
        redactor.redact_drift(&mut drift);
        let written = String::from_utf8(crate::text::canonical::to_vec(&drift)).expect("UTF-8");
        assert_eq!((written.contains("s3cr3t"), written.matches("[redacted]").count()), (false, 7));
    }
}
