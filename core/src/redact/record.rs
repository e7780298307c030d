//! Removes secrets from the texts of records and events. Names, hashes and numbers are not changed; the code that reads
//! output streams redacts them.

use std::borrow::Cow;

use super::Redactor;
use crate::api::Problem;
use crate::drift::{Diff, StepDrift};
use crate::event::RunEvent;
use crate::evidence::StepEvidence;
use crate::outcome::Termination;
use crate::plan::{Argv, PlannedStep};

impl Redactor {
    /// Removes secrets from `text`, in place.
    pub fn clean(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.text(text) {
            *text = clean;
        }
    }

    /// Removes secrets from the evidence of a step.
    pub fn clean_step(&self, step: &mut StepEvidence) {
        if self.0.is_none() {
            return;
        }
        self.clean_planned(&mut step.planned);
        self.clean_termination(&mut step.termination);
        self.clean_drift(&mut step.drift.found);
        step.drift.applied.iter_mut().for_each(|path| self.clean(path));
        step.earlier_attempts.iter_mut().for_each(|attempt| self.clean_termination(&mut attempt.termination));
    }

    /// Removes secrets from an event.
    pub fn clean_event(&self, event: &mut RunEvent) {
        match event {
            RunEvent::CheckFinished { check } => self.clean_step(&mut check.step),
            RunEvent::StepFinished { step, .. } => self.clean_step(step),
            RunEvent::SkillFinished { reason: text, .. } | RunEvent::Doubted { message: text, .. } => self.clean(text),
            RunEvent::PatchRefused { reason } => self.clean(reason),
            RunEvent::RunRefused { problem } => self.clean_problem(problem),
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
    pub fn clean_problem(&self, problem: &mut Problem) {
        self.clean(&mut problem.detail);
        problem.hint.iter_mut().for_each(|hint| self.clean(hint));
    }

    fn clean_planned(&self, step: &mut PlannedStep) {
        let words = step.cmd.words().iter().map(|word| self.text(word).into_owned()).collect();
        if let Ok(cmd) = Argv::new(words) {
            step.cmd = cmd;
        }
        step.env.values_mut().for_each(|value| self.clean(value));
    }

    fn clean_termination(&self, termination: &mut Termination) {
        if let Termination::NotStarted { reason, .. } = termination {
            self.clean(reason);
        }
    }

    fn clean_drift(&self, drift: &mut StepDrift) {
        for change in &mut drift.changes {
            self.clean(&mut change.path);
            match &mut change.diff {
                Diff::Whole { text } | Diff::Truncated { text, .. } | Diff::Omitted { reason: text } => {
                    self.clean(text);
                }
                Diff::Binary | Diff::None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Doubt;

    #[test]
    fn no_text_of_a_record_keeps_a_secret() {
        let redactor = Redactor::of([("A_TOKEN", "s3cr3t-value")], |_| false);
        let mut event = RunEvent::Doubted { doubt: Doubt::Internal, message: "`s3cr3t-value` did not start".into() };
        redactor.clean_event(&mut event);
        assert_eq!(event, RunEvent::Doubted { doubt: Doubt::Internal, message: "`[redacted]` did not start".into() });
        let mut drift = StepDrift::default();
        for diff in [
            Diff::Whole { text: "+s3cr3t-value\n".into() },
            Diff::Truncated { text: "+s3cr3t-value\n".into(), omitted_lines: 1 },
            Diff::Omitted { reason: "s3cr3t-value".into() },
            Diff::Binary,
        ] {
            let (path, kind) = ("a/s3cr3t-value".to_owned(), crate::drift::ChangeKind::Created);
            drift.changes.push(crate::drift::Change { path, kind, before: None, after: None, diff });
        }
        redactor.clean_drift(&mut drift);
        let written = String::from_utf8(crate::canonical::to_vec(&drift)).expect("UTF-8");
        assert_eq!((written.contains("s3cr3t"), written.matches("[redacted]").count()), (false, 7));
    }
}
