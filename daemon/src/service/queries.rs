//! Read-only requests and the doctor: plans, the gate, outputs, reports and patches.

use bytes::Bytes;
use proctor_core::api::{
    ChangeDelivery, DoctorAnswer, DoctorScope, GateQuery, PlanAnswer, PlanRequest, Problem, ProblemType, RunView,
    StepView, StreamView,
};
use proctor_core::decision::gate::{
    AgeLimits, GateAnswer, GateRequirements, InputRequirement, MachineRequirement, MaxAge, UnattestedPolicy,
};
use proctor_core::model::names::RunId;
use proctor_core::record::evidence::ReportEvidence;
use proctor_runner::{GateRequest, StoredPart};

use super::{MAX_PART, OutputId, OutputUnit, ReportId, Service, StdStream, run_blocking};
use crate::caller::Caller;
use crate::metrics::SqlCounts;

impl Service {
    /// Returns at most `limit` bytes (up to [`MAX_PART`]) of an output from `offset` on, and the total stored length.
    ///
    /// # Errors
    /// As [`Service::run`]; also if there is no such step, it has not started, or its output is no longer stored.
    pub async fn output(
        &self,
        caller: Caller,
        id: &RunId,
        output: OutputId,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        let source = self.output_source(caller, id, output).await?;
        self.output_part(&source, offset, limit.min(MAX_PART)).await
    }

    /// Returns at most `limit` bytes of a recorded output from `offset` on, and its total stored length.
    pub(super) async fn recorded_part(
        &self,
        stream: &StreamView,
        name: &str,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        let part = self.engine.read_output(stream.clone(), offset, limit).await;
        part.map_err(|error| error.problem())?.ok_or_else(|| no_longer_stored("output", name))
    }

    /// Returns at most `limit` bytes (up to [`MAX_PART`]) of a report of a step from `offset` on, and the total
    /// stored length.
    ///
    /// # Errors
    /// As [`Service::run`]; also if there is no such step, it has not ended, it declares or wrote no such report, or
    /// the report is no longer stored.
    pub async fn report(
        &self,
        caller: Caller,
        id: &RunId,
        requested: ReportId,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        let run = self.run(caller, id).await?;
        let step = usize::try_from(requested.n).ok().and_then(|n| run.view.steps.get(n));
        let step = step.ok_or_else(|| {
            no_step(id, OutputId { unit: OutputUnit::Step, n: requested.n, stream: StdStream::Stdout })
        })?;
        if step.outcome.is_none() {
            return Err(not_ended(id, step));
        }
        let report = step.found_reports.iter().find(|report| report.format == requested.format);
        let stream = report.and_then(StreamView::from_report).ok_or_else(|| no_report(step, requested, report))?;
        let part = self.engine.read_output(stream, offset, limit.min(MAX_PART)).await;
        let name = format!("{}/{}", step.skill, step.name);
        part.map_err(|error| error.problem())?.ok_or_else(|| no_longer_stored("report", &name))
    }

    /// Returns the changes that the steps of a run made, if the request has `changes: patch`.
    ///
    /// # Errors
    /// As [`Service::run`]; also if no patch was requested or it cannot be created.
    pub async fn patch(&self, caller: Caller, id: &RunId) -> Result<Bytes, Problem> {
        let run = self.run(caller, id).await?;
        let wanted = id.clone();
        let patch = self.query_history(move |history| history.patch(&wanted)).await?;
        patch.map(Bytes::from).ok_or_else(|| no_patch(&run.view))
    }

    /// Validates a spec and resolves one of its profiles.
    ///
    /// # Errors
    /// The spec is invalid, or the repository does not belong to the caller.
    pub async fn plan(&self, caller: Caller, request: PlanRequest) -> Result<PlanAnswer, Problem> {
        let _permit = self.preparation_limit.acquire(caller).await;
        let (engine, _, repo) = self.engine_for(caller, &request.repo, None).await?;
        run_blocking(move || {
            let file = engine.load_spec(&repo).map_err(|error| error.problem())?;
            let reading = file.parse().map_err(|error| error.problem())?;
            let resolve = |profile| engine.resolve(&file, &reading.spec, profile).map_err(|error| error.problem());
            let plan = request.profile.as_ref().map(resolve).transpose()?.map(|resolved| resolved.plan);
            Ok(PlanAnswer {
                spec_sha256: file.sha256.clone(),
                warnings: reading.warnings,
                profiles: reading.spec.profiles.keys().map(str::to_owned).collect(),
                plan_sha256: plan.as_ref().map(|plan| plan.digest()),
                plan,
            })
        })
        .await?
    }

    /// Reports whether a tree is verified. Runs nothing.
    ///
    /// # Errors
    /// The repository cannot be read or does not belong to the caller.
    pub async fn gate(&self, caller: Caller, request: GateQuery) -> Result<GateAnswer, Problem> {
        let _permit = self.preparation_limit.acquire(caller).await;
        let max_age = match request.max_age.as_deref().map(str::parse::<MaxAge>).transpose() {
            Ok(age) => AgeLimits::requested(age),
            Err(expected) => return Err(Problem::new(ProblemType::InvalidRequest, format!("`max_age`: {expected}"))),
        };
        let (engine, _, repo) = self.engine_for(caller, &request.repo, None).await?;
        let demands = GateRequirements {
            profile: request.profile,
            changeset: request.changeset_id,
            max_tier: request.max_tier,
            max_age,
            unattested: if request.accept_unattested { UnattestedPolicy::Accept } else { UnattestedPolicy::Refuse },
            max_cache_trust: request.max_cache_trust,
            inputs: InputRequirement::from_strict(request.strict_inputs),
            machines: MachineRequirement::from_flag(request.this_machine),
        };
        engine.gate(GateRequest { repo, demands }).await.map_err(|error| error.problem())
    }

    /// Returns the numbers of waiting and active requests.
    pub fn sql_counts(&self) -> SqlCounts {
        self.sql.queue.counts()
    }

    /// Sets up a complete sandbox for a repository once, and verifies its private copies if `scope` includes them.
    ///
    /// # Errors
    /// The repository does not belong to the caller, or its private copies cannot be accessed.
    pub async fn doctor(&self, caller: Caller, repo: &str, scope: DoctorScope) -> Result<DoctorAnswer, Problem> {
        let _permit = self.preparation_limit.acquire(caller).await;
        let (engine, _, repo) = self.engine_for(caller, repo, None).await?;
        let report = engine.doctor(&repo).await.map_err(|error| error.problem())?;
        let answer = report.answer(&self.operator(), engine.state_dir());
        let copies = match scope {
            DoctorScope::Machine => None,
            DoctorScope::MachineAndCopies => Some(engine.verify_copies(&repo).await.map_err(|error| error.problem())?),
        };
        let remote_cache = engine.check_remote_cache().await;
        let remote_executor = engine.check_remote_executor().await;
        Ok(DoctorAnswer { copies, remote_cache, remote_executor, ..answer })
    }
}

fn no_longer_stored(what: &str, name: &str) -> Problem {
    Problem::new(ProblemType::Gone, format!("the {what} of `{name}` is no longer stored")).with_hint("run it again")
}

fn no_report(step: &StepView, requested: ReportId, found: Option<&ReportEvidence>) -> Problem {
    let name = format!("`{}/{}`", step.skill, step.name);
    let detail = match found.and_then(ReportEvidence::problem) {
        Some(problem) => format!("{name}: {problem}"),
        None => format!("{name} wrote no {} report, or declares none", requested.format.as_str()),
    };
    Problem::new(ProblemType::NotFound, detail)
        .with_hint("`found_reports` of the step lists its reports; docs/spec.md describes supported reports")
}

pub(super) fn no_step(id: &RunId, output: OutputId) -> Problem {
    let unit = match output.unit {
        OutputUnit::Check => "toolchain check that has ended",
        OutputUnit::Step => "step",
    };
    Problem::new(ProblemType::NotFound, format!("the run `{id}` has no {unit} with the number {}", output.n))
}

fn no_patch(run: &RunView) -> Problem {
    let id = &run.id;
    if run.request.changes == ChangeDelivery::Applied {
        return Problem::new(ProblemType::NotFound, format!("no patch was requested for the run `{id}`"))
            .with_hint("request a run with `changes: patch`");
    }
    match run.verdict {
        None => Problem::new(ProblemType::NotFound, format!("the run `{id}` has not ended, so it has no patch yet"))
            .with_hint("wait for its end"),
        Some(_) => {
            let lost = || format!("the changes of the steps of the run `{id}` are not stored as a patch");
            Problem::new(ProblemType::Unprocessable, run.patch_refused.clone().unwrap_or_else(lost))
                .with_hint("its evidence lists the changes")
        }
    }
}

fn not_ended(id: &RunId, step: &StepView) -> Problem {
    let detail = format!("`{}/{}` of the run `{id}` has not ended, so it has no output yet", step.skill, step.name);
    Problem::new(ProblemType::NotFound, detail).with_hint("wait for its event `step_finished`")
}
