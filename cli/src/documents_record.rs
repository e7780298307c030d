//! Converts the documents of a run to the events of its record, for reports without a daemon. The documents contain no
//! times of single steps, so the steps follow each other with their durations, in the order of the documents.

use std::path::Path;
use std::time::Duration;

use proctor_core::decision::compare::RunDocuments;
use proctor_core::decision::verdict::{EXIT_FAILED, EXIT_INCONCLUSIVE, Verdict};
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::event::{PlannedOutline, RunEvent};
use proctor_core::record::evidence::{Measured, SkillEvidence};

use crate::installation::show;

/// Returns the events, each with its time since the start.
pub(crate) fn events(run: &RunDocuments, dir: &Path) -> Vec<(RunEvent, Duration)> {
    let mut timeline = Timeline::default();
    timeline.events.push((started(run), Duration::ZERO));
    for check in run.toolchain.iter().flat_map(|toolchain| &toolchain.checks) {
        timeline.advance(check.step.duration_ms);
        timeline.add(RunEvent::CheckFinished { check: check.clone() });
    }
    run.skills.iter().for_each(|skill| timeline.add_skill(skill));
    for (file, sha256) in &run.last_run.evidence {
        timeline.add(RunEvent::EvidenceWritten { file: file.clone(), sha256: sha256.clone() });
    }
    let duration_ms = u64::try_from(timeline.now.as_millis()).unwrap_or(u64::MAX);
    timeline.add(RunEvent::RunFinished {
        verdict: run.last_run.outcome,
        tier: run.last_run.tier,
        exit_code: exit_code(run),
        duration_ms,
        evidence_dir: Some(show(dir)),
        reuse: run.last_run.reuse.clone(),
    });
    timeline.events
}

/// Returns the exit code of the run.
pub(crate) fn exit_code(run: &RunDocuments) -> u8 {
    let worst = || run.skills.iter().map(|skill| skill.summary.overall_exit_code);
    match run.last_run.outcome {
        Verdict::Passed => 0,
        Verdict::Inconclusive => EXIT_INCONCLUSIVE,
        Verdict::Failed => worst().find(|code| !matches!(*code, 0 | EXIT_INCONCLUSIVE)).unwrap_or(EXIT_FAILED),
    }
}

fn started(run: &RunDocuments) -> RunEvent {
    let (skill, toolchain) = (run.skills.first(), run.toolchain.as_ref());
    let measured: Option<&Measured> = skill.map(|skill| &skill.measured).or(toolchain.map(|checks| &checks.measured));
    let plan = skill.map(|skill| &skill.plan_sha256).or(toolchain.map(|checks| &checks.plan_sha256));
    let outline = |skill: &SkillEvidence| PlannedOutline {
        skill: skill.skill.clone(),
        steps: skill.steps.iter().map(|step| step.planned.name.clone()).collect(),
    };
    RunEvent::RunStarted {
        run_id: run.last_run.run_id.clone(),
        at: measured.map_or_else(|| run.last_run.timestamp.clone(), |measured| measured.started_at.clone()),
        profile: run.last_run.profile.clone(),
        changeset_id: skill.and_then(|skill| skill.changeset_id.clone()),
        spec_sha256: run.last_run.spec_sha256.clone(),
        plan_sha256: plan.unwrap_or(&run.last_run.spec_sha256).clone(),
        snapshot: run.last_run.snapshot.clone(),
        source: run.last_run.source.clone(),
        git: skill.map(|skill| skill.repo_git.clone()).or(toolchain.map(|checks| checks.repo_git.clone())),
        unverified_inputs_sha256: run.last_run.unverified_inputs.as_ref().map(|inputs| inputs.sha256.clone()),
        sandbox: skill.map(|skill| skill.sandbox).unwrap_or(SandboxMode::Strict),
        checks: toolchain.map_or(0, |checks| u32::try_from(checks.checks.len()).unwrap_or(u32::MAX)),
        skills: run.skills.iter().map(outline).collect(),
        rerun: run.last_run.rerun.clone(),
        scope: skill.and_then(|skill| skill.scope.clone()),
    }
}

#[derive(Default)]
struct Timeline {
    events: Vec<(RunEvent, Duration)>,
    now: Duration,
}

impl Timeline {
    fn add(&mut self, event: RunEvent) {
        self.events.push((event, self.now));
    }

    fn advance(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    fn add_skill(&mut self, evidence: &SkillEvidence) {
        let skill = &evidence.skill;
        self.add(RunEvent::SkillStarted { skill: skill.clone() });
        for step in &evidence.steps {
            let (name, timeout_ms) = (step.planned.name.clone(), step.planned.timeout_ms);
            if step.was_started() {
                let attempt = u32::try_from(step.earlier_attempts.len() + 1).unwrap_or(u32::MAX);
                let skill = skill.clone();
                self.add(RunEvent::StepStarted { skill, step: name, attempt, timeout_ms, expected_ms: None });
            }
            self.advance(step.duration_ms);
            self.add(RunEvent::StepFinished { skill: skill.clone(), step: step.clone() });
        }
        let (outcome, tier, reason) = (evidence.summary.outcome, evidence.tier, String::new());
        self.add(RunEvent::SkillFinished { skill: skill.clone(), outcome, tier, reason });
    }
}
