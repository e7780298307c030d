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
use crate::record::evidence::{
    AttemptEvidence, DriftEvidence, FileDependence, InputEnforcement, RemoteExecution, StepEvidence, StepExecutor,
    WorkerEvidence, WorkerProgram,
};
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
            drift: DriftEvidence { method: _, found, applied, fixed, changed_tree: _ },
            flaky: _,
            earlier_attempts,
            found_reports: _,
            checked_files,
            input_enforcement,
            env_names: _,
            resources: _,
            leaked,
            reused: _,
            executor,
        } = step;
        self.redact_planned_step(planned);
        self.redact_termination(termination);
        self.redact_enforcement(enforcement);
        self.redact_drift(found);
        self.redact_drift(fixed);
        self.redact_all(applied);
        leaked.iter_mut().for_each(|leaked| self.redact_leaked(leaked));
        if let Some(FileDependence { checked, checked_count: _, read }) =
            checked_files.as_mut().and_then(|files| files.dependence.as_mut())
        {
            self.redact_all(checked);
            self.redact_in_place(read);
        }
        match input_enforcement {
            Some(InputEnforcement::Enforced { withheld, withheld_count: _, incomplete: _ }) => {
                self.redact_all(withheld);
            }
            Some(InputEnforcement::NotEnforced { reason }) => self.redact_in_place(reason),
            None => {}
        }
        if let Some(executor) = executor {
            self.redact_executor(executor);
        }
        for attempt in earlier_attempts {
            let AttemptEvidence { outcome: _, termination, duration_ms: _, stdout_sha256: _, stderr_sha256: _, leaked } =
                attempt;
            self.redact_termination(termination);
            leaked.iter_mut().for_each(|leaked| self.redact_leaked(leaked));
        }
    }

    fn redact_executor(&self, executor: &mut StepExecutor) {
        match executor {
            StepExecutor::LocalFallback { endpoint, reason } => {
                self.redact_in_place(endpoint);
                self.redact_in_place(reason);
            }
            StepExecutor::Remote(remote) => {
                let RemoteExecution {
                    endpoint,
                    instance,
                    action: _,
                    platform,
                    trusted: _,
                    repo,
                    no_git_objects,
                    worker,
                } = &mut **remote;
                let WorkerEvidence { architecture, kernel, os, processors: _, programs, toolchains } = worker;
                let texts = [endpoint, instance, repo, architecture, kernel, os];
                for text in texts.into_iter().chain(no_git_objects) {
                    self.redact_in_place(text);
                }
                platform.values_mut().chain(toolchains.values_mut().flatten()).for_each(|it| self.redact_in_place(it));
                for WorkerProgram { name, path, sha256: _ } in programs {
                    self.redact_in_place(name);
                    path.iter_mut().for_each(|path| self.redact_in_place(path));
                }
            }
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
            files: _,
            fix,
            fixes: _,
            inputs: _,
            reports: _,
        } = step;
        for command in [cmd].into_iter().chain(fix) {
            let words = command.words().iter().map(|word| self.redact_text(word).into_owned()).collect();
            if let Ok(redacted) = Argv::new(words) {
                *command = redacted;
            }
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
    use crate::api::ProblemType;
    use crate::decision::verdict::InconclusiveReason;
    use crate::model::drift::ChangeKind;
    use crate::model::enforcement::Control;
    use crate::model::leak::LeakedProcess;
    use crate::model::outcome::{Outcome, StartFault};
    use crate::model::withheld::WithheldPaths;
    use crate::spec::{Code, Span};
    use crate::text::canonical;
    use crate::text::digest::Sha256Hex;

    const SECRET: &str = "s3cr3t-value";

    fn redactor() -> Redactor {
        Redactor::from_environment([("A_TOKEN", SECRET)], |_| false)
    }

    fn recorded_step() -> StepEvidence {
        let log = include_str!("../../../../fixtures/logs/passed.jsonl");
        let finished_step = |line: &str| match serde_json::from_str(line).expect("an event") {
            RunEvent::StepFinished { step, .. } => Some(step),
            _ => None,
        };
        log.lines().find_map(finished_step).expect("a step")
    }

    /// Returns the number of redaction marks in a document, which must not contain the secret.
    fn count_marks(document: &impl serde::Serialize) -> usize {
        let written = String::from_utf8(canonical::to_vec(document)).expect("UTF-8");
        assert!(!written.contains(SECRET), "{written}");
        written.matches(REDACTION_MARK).count()
    }

    #[test]
    fn redacts_all_texts_of_a_step() {
        let mut step = recorded_step();
        step.planned.cmd = Argv::new(vec![SECRET.into(), format!("--key={SECRET}")]).expect("a command");
        step.planned.env = [("KEY".parse().expect("a name"), SECRET.into())].into();
        step.termination = Termination::NotStarted { reason: format!("no `{SECRET}`"), fault: StartFault::Internal };
        step.enforcement.record_not_requested(Control::Layer, SECRET);
        step.enforcement.record_enforced(Control::PrivateTmp, SECRET);
        step.enforcement.record_not_enforced_with_hint(Control::Landlock, SECRET, SECRET);
        step.leaked = Some(LeakedProcesses::new(1, vec![LeakedProcess::new(2, SECRET.as_bytes())]));
        step.earlier_attempts.push(AttemptEvidence {
            outcome: Outcome::Failed,
            termination: step.termination.clone(),
            duration_ms: 1,
            stdout_sha256: Sha256Hex::digest(b""),
            stderr_sha256: Sha256Hex::digest(b""),
            leaked: step.leaked.clone(),
        });
        step.drift.applied.push(SECRET.into());
        let withheld = WithheldPaths { listed: vec![format!("{SECRET}.txt")], count: 1 };
        step.input_enforcement = Some(InputEnforcement::enforced(Some(withheld)));
        for diff in [
            Diff::Whole { text: format!("+{SECRET}\n") },
            Diff::Truncated { text: format!("+{SECRET}\n"), omitted_lines: 1 },
            Diff::Omitted { reason: SECRET.into() },
            Diff::Binary,
        ] {
            let (path, kind) = (format!("a/{SECRET}"), ChangeKind::Created);
            step.drift.found.changes.push(Change { path, kind, before: None, after: None, diff });
        }
        redactor().redact_step(&mut step);
        assert_eq!(count_marks(&step), 20);
    }

    #[test]
    fn redacts_message_of_an_event() {
        let mut event =
            RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: format!("`{SECRET}` did not start") };
        redactor().redact_event(&mut event);
        assert_eq!(
            event,
            RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: "`[redacted]` did not start".into() }
        );
    }

    #[test]
    fn redacts_process_name_that_the_kernel_cut() {
        let redactor = Redactor::from_environment([("A_TOKEN", "tok-0123456789abcdef")], |_| false);
        let redacted = |comm: &str| {
            let mut leaked = LeakedProcesses::new(1, vec![LeakedProcess::new(2, comm.as_bytes())]);
            redactor.redact_leaked(&mut leaked);
            leaked.first.remove(0).name
        };
        assert_eq!(redacted("tok-0123456789a"), "[redacted]");
        assert_eq!(redacted("worker-tok-0123"), "worker-[redacted]");
        assert_eq!(["a-long-worker-t", "tok-012345"].map(redacted), ["a-long-worker-t", "tok-012345"]);
    }

    #[test]
    fn redacts_all_texts_of_a_problem() {
        let span = Span { start: 0, end: 1, line: 1, column: 1, file: 0 };
        let diagnostic = Diagnostic::error(Code::Empty, span, SECRET).label(span, SECRET).hint(SECRET);
        let (file, source) = (format!("/{SECRET}/spec"), format!("env: {{ KEY: {SECRET} }}"));
        let mut problem = Problem::new(ProblemType::InvalidSpec, SECRET).with_hint(SECRET);
        problem.spec = Some(SpecProblem { file, source, diagnostics: vec![diagnostic] });
        redactor().redact_problem(&mut problem);
        assert_eq!((count_marks(&problem), problem.spec.map(|spec| spec.source)), (6, Some(String::new())));
    }
}
