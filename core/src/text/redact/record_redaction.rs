//! Lists the texts of records and events from which secrets are removed. The patterns without `..` make the compiler
//! demand a decision for each new field of a record.
//!
//! Names and paths of the spec, hashes and numbers are not changed. The code that reads output streams redacts them
//! ([`Redactor::redact_stream`], [`Redactor::redact_part`]).

use std::borrow::Cow;

use super::{MIN_SECRET_BYTES, REDACTION_MARK, Redactor};
use crate::api::{Problem, SpecProblem};
use crate::decision::verdict::InconclusiveDetail;
use crate::model::drift::{Change, Diff, StepDrift};
use crate::model::enforcement::{ControlState, Enforcement};
use crate::model::event::RunEvent;
use crate::model::leak::LeakedProcesses;
use crate::model::outcome::Termination;
use crate::model::plan::{Argv, PlannedStep};
use crate::record::evidence::{AttemptEvidence, DriftEvidence, StepEvidence};
use crate::spec::Diagnostic;

/// Length at which the kernel cuts the name of a process, in bytes (`TASK_COMM_LEN` without the NUL).
const MAX_PROCESS_NAME_BYTES: usize = 15;

impl Redactor {
    /// Removes secrets from `text`, in place.
    pub fn redact_in_place(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.redact_text(text) {
            *text = clean;
        }
    }

    /// Removes secrets from the evidence of a step, except from its streams and reports, which are redacted before they
    /// are stored.
    pub fn redact_step(&self, step: &mut StepEvidence) {
        if self.0.is_none() {
            return;
        }
        let StepEvidence {
            planned,
            outcome: _,
            termination,
            exit_code: _,
            duration_ms: _,
            stdout: _,
            stderr: _,
            enforcement,
            drift: DriftEvidence { method: _, found, applied },
            flaky: _,
            earlier_attempts,
            found_reports: _,
            env_names: _,
            resources: _,
            leaked,
        } = step;
        self.redact_planned_step(planned);
        self.redact_termination(termination);
        self.redact_enforcement(enforcement);
        self.redact_drift(found);
        self.redact_all(applied);
        leaked.iter_mut().for_each(|leaked| self.redact_leaked(leaked));
        for attempt in earlier_attempts {
            let AttemptEvidence { outcome: _, termination, duration_ms: _, stdout_sha256: _, stderr_sha256: _, leaked } =
                attempt;
            self.redact_termination(termination);
            leaked.iter_mut().for_each(|leaked| self.redact_leaked(leaked));
        }
    }

    /// Removes secrets from the messages of `reasons`.
    pub fn redact_reasons(&self, reasons: &mut [InconclusiveDetail]) {
        reasons.iter_mut().for_each(|InconclusiveDetail { doubt: _, message }| self.redact_in_place(message));
    }

    /// Removes secrets from the messages of an event. The evidence of steps in events is redacted when it is built.
    pub fn redact_event(&self, event: &mut RunEvent) {
        match event {
            RunEvent::SkillFinished { reason: text, .. }
            | RunEvent::Doubted { message: text, .. }
            | RunEvent::PatchRefused { reason: text } => self.redact_in_place(text),
            RunEvent::RunRefused { problem } => self.redact_problem(problem),
            RunEvent::RunQueued { .. }
            | RunEvent::RunStarted { .. }
            | RunEvent::CheckFinished { .. }
            | RunEvent::SkillStarted { .. }
            | RunEvent::StepStarted { .. }
            | RunEvent::StepTerminating { .. }
            | RunEvent::StepRetrying { .. }
            | RunEvent::StepFinished { .. }
            | RunEvent::Cancelling { .. }
            | RunEvent::EvidenceWritten { .. }
            | RunEvent::RunFinished { .. } => {}
        }
    }

    /// Removes secrets from a problem that a caller gets instead of a result. A spec that contains a secret is left
    /// out, because positions in its text would no longer be correct.
    pub fn redact_problem(&self, problem: &mut Problem) {
        self.redact_in_place(&mut problem.detail);
        self.redact_all(&mut problem.hint);
        let Some(SpecProblem { file, source, diagnostics }) = &mut problem.spec else { return };
        self.redact_in_place(file);
        if matches!(self.redact_text(source), Cow::Owned(_)) {
            source.clear();
        }
        for Diagnostic { code: _, severity: _, message, span: _, labels, hints } in diagnostics {
            self.redact_in_place(message);
            self.redact_all(labels.iter_mut().map(|label| &mut label.text));
            self.redact_all(hints);
        }
    }

    fn redact_all<'t>(&self, texts: impl IntoIterator<Item = &'t mut String>) {
        texts.into_iter().for_each(|text| self.redact_in_place(text));
    }

    fn redact_planned_step(&self, step: &mut PlannedStep) {
        let PlannedStep {
            name: _,
            cmd,
            sql: _,
            workdir: _,
            timeout_ms: _,
            grace_ms: _,
            network: _,
            read_only: _,
            env_allowlist: _,
            env,
            limits: _,
            retries: _,
            leaks: _,
            expect_exit: _,
            inputs: _,
            reports: _,
        } = step;
        let words = cmd.words().iter().map(|word| self.redact_text(word).into_owned()).collect();
        if let Ok(redacted) = Argv::new(words) {
            *cmd = redacted;
        }
        self.redact_all(env.values_mut());
    }

    fn redact_termination(&self, termination: &mut Termination) {
        if let Termination::NotStarted { reason, .. } = termination {
            self.redact_in_place(reason);
        }
    }

    fn redact_enforcement(&self, Enforcement(controls): &mut Enforcement) {
        for state in controls.values_mut() {
            match state {
                ControlState::NotRequested { reason: text } | ControlState::Enforced { mechanism: text } => {
                    self.redact_in_place(text);
                }
                ControlState::NotEnforced { reason, hint } => self.redact_all([reason].into_iter().chain(hint)),
            }
        }
    }

    /// Removes secrets from the names of processes, which the step chooses.
    fn redact_leaked(&self, leaked: &mut LeakedProcesses) {
        for name in leaked.first.iter_mut().map(|process| &mut process.name) {
            let begun = self.partial_secret_bytes(name.as_bytes());
            // The kernel may have cut a secret. Fewer bytes are often a part of an ordinary word.
            if name.len() >= MAX_PROCESS_NAME_BYTES && begun >= MIN_SECRET_BYTES {
                name.truncate(name.len() - begun);
                name.push_str(REDACTION_MARK);
            }
            self.redact_in_place(name);
        }
    }

    fn redact_drift(&self, drift: &mut StepDrift) {
        for Change { path, kind: _, before: _, after: _, diff } in &mut drift.changes {
            self.redact_in_place(path);
            match diff {
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
