//! Implements `proctor run`, which runs a profile, shows the progress and reports the result.

pub(super) mod commit_range;
mod completed_run;
mod conflicting_options;
mod daemon_run;
mod patch_output;
mod run_backend;
mod run_watcher;
mod scope_request;
mod span_export;
mod watch_loop;

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::api::{ChangeDelivery, Reuse, RunSubmission, SkillFilter};
use proctor_core::decision::gate::{
    AgeLimits, GateRequirements, InputRequirement, MachineRequirement, UnattestedPolicy,
};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::event::RunEvent;
use proctor_core::model::plan::RelPath;
use proctor_core::model::run_scope::ScopeRequest;
use proctor_core::record::run_record::RunRecord;
use proctor_core::report::{ReportedCommit, ReportedRun};
use proctor_core::spec::OperatorConfig;
use proctor_runner::{
    CacheMode, ChangeHandling, Clock, CommitRef, NamedCommit, PriorRunRequest, RunRequest, RunSource, StagedCommit,
    StagedIndex, require_whole_profile,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{RunArgs, RunFormat};
use crate::caller::Caller;
use crate::daemon::{self, problem_error};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::human_report::{self, Detail, ReportOptions};
use crate::installation;
use crate::interrupt::{self, Interrupts, SignalEffect};
use crate::progress::last_lines::{self, LastLinesSender};
use crate::report_outputs::{ReportOutputs, ReportedResult, refusal};
use crate::runtime::{StartedRuntime, block_on};
use crate::screen::{self, Screen, TextLayout};
use completed_run::{RunFuture, check_agreement};
use conflicting_options::{is_range, reject_conflicting_options, skills_wanted};
use daemon_run::DaemonRun;
use run_backend::RunBackend;
use run_watcher::{AppliedPaths, RunWatcher};
use span_export::SpanExports;

pub(crate) use commit_range::{CommitRecord, RangeRecord};
pub(super) use completed_run::{CompletedRun, ReusedRun, print_result};

/// Capacity of the event channel; a run with a full channel waits for the screen.
const EVENT_CAPACITY: usize = 256;

/// Runs the profile. The exit code is that of the run, or of the worst run of a range.
///
/// # Errors
/// The run could not be carried out, or its record contradicts its result.
pub(crate) fn run(args: &RunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let mut reports = ReportOutputs::new(args.reports.format, screen)?;
    let result = verify(args, caller, &mut reports, screen);
    if let Err(error) = &result {
        reports.write_refusal(error, screen);
    }
    result
}

fn verify(args: &RunArgs, caller: &Caller, reports: &mut ReportOutputs, screen: &mut Screen) -> Result<u8, CliError> {
    reject_conflicting_options(args, caller)?;
    require_whole_profile(skills_wanted(args), args.changeset.as_ref(), args.rev.as_deref()).map_err(engine_error)?;
    reports.add_files(&args.reports.report, caller)?;
    let repo = installation::repository(&args.repo, caller)?;
    reports.set_repository(&repo, caller);
    let target =
        args.patch.as_deref().map(|file| patch_output::PatchDestination::prepare(file, &caller.cwd)).transpose()?;
    let operator = installation::operator(&args.backend.operator, caller)?;
    // The connection over which a daemon is found also sends it the run.
    let one_thread = StartedRuntime::one_thread()?;
    let found = one_thread.block_on(run_backend::find_daemon(args, &operator, &repo, caller, screen))?;
    let is_in_daemon = found.is_some();
    let work = async move {
        let backend = RunBackend::new(found, args, &operator, caller, screen)?;
        let mut runs = CommandRuns::with_backend(backend, &operator, args, (repo, Reuse::Never), reports, caller)?;
        runs.patch_target = target;
        let result = runs.run_all(operator, screen).await;
        runs.finish_exports(screen).await;
        result
    };
    if is_in_daemon { one_thread.block_on(work) } else { block_on(work) }
}

/// The tree to verify.
#[derive(Clone)]
pub(super) enum TreeSelection {
    /// The worktree in its current state.
    Worktree,
    /// The tree of a commit, named by its id; for a daemon any revision is accepted.
    Commit(String),
    /// The staged tree, as the commit that it would make. Only this process verifies it, never a daemon.
    Staged(CommitRef),
}

/// The runs of one command.
pub(super) struct CommandRuns<'a> {
    args: &'a RunArgs,
    caller: &'a Caller,
    reports: &'a mut ReportOutputs,
    backend: RunBackend,
    repo: PathBuf,
    /// The directory of the spec in the verified tree, if it is not that of `repo`.
    spec_dir: Option<RelPath>,
    cancel: CancellationToken,
    interrupts: Interrupts,
    /// Destination of the patch, if one was requested.
    patch_target: Option<patch_output::PatchDestination>,
    /// Controls whether the result of an earlier run may be reused.
    reuse: Reuse,
    /// The steps and files to which the runs are restricted.
    scope: ScopeRequest,
    /// Paths that steps of the current run have applied to the worktree.
    applied: AppliedPaths,
    exports: SpanExports,
}

impl<'a> CommandRuns<'a> {
    /// Prepares runs of a repository with the options in `args`, for a command that shows the results itself.
    ///
    /// # Errors
    /// A daemon is required and none responds, or something that a run needs is missing.
    pub(super) async fn open(
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut ReportOutputs,
        caller: &'a Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let operator = installation::operator(&args.backend.operator, caller)?;
        let found = run_backend::find_daemon(args, &operator, &repo, caller, screen).await?;
        let backend = RunBackend::new(found, args, &operator, caller, screen)?;
        Self::with_backend(backend, &operator, args, (repo, reuse), reports, caller)
    }

    fn with_backend(
        backend: RunBackend,
        operator: &OperatorConfig,
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut ReportOutputs,
        caller: &'a Caller,
    ) -> Result<Self, CliError> {
        let cancel = CancellationToken::new();
        let interrupts = Interrupts::listen(cancel.clone()).map_err(|error| CliError::Internal(error.to_string()))?;
        let exports = SpanExports::new(&backend, operator, caller);
        let scope = scope_request::from_args(&args.scope, &repo, &caller.cwd)?;
        Ok(Self {
            args,
            caller,
            reports,
            backend,
            repo,
            spec_dir: None,
            cancel,
            interrupts,
            patch_target: None,
            reuse,
            scope,
            applied: AppliedPaths::default(),
            exports,
        })
    }

    /// Prepares runs in this process, even if a daemon is running.
    ///
    /// # Errors
    /// Something that a run needs is missing.
    pub(super) fn in_process(
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut ReportOutputs,
        caller: &'a Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let operator = installation::operator(&args.backend.operator, caller)?;
        let backend =
            RunBackend::InProcess(Arc::new(engine::open(&args.backend.state, operator.clone(), caller, screen)?));
        Self::with_backend(backend, &operator, args, (repo, reuse), reports, caller)
    }

    /// Restricts the runs that follow.
    pub(super) fn set_scope(&mut self, scope: ScopeRequest) {
        self.scope = scope;
    }

    /// Selects the spec in a directory of the verified tree for the runs that follow; `None` selects that of the
    /// repository.
    pub(super) fn set_spec_dir(&mut self, spec_dir: Option<RelPath>) {
        self.spec_dir = spec_dir;
    }

    /// Returns the selected directory of the verified tree.
    pub(super) fn spec_dir(&self) -> Option<&RelPath> {
        self.spec_dir.as_ref()
    }

    /// Returns the path of the directory that contains `spec/`.
    pub(super) fn spec_root(&self) -> PathBuf {
        match &self.spec_dir {
            Some(directory) if !directory.is_repository() => self.repo.join(directory.as_str()),
            _ => self.repo.clone(),
        }
    }

    /// Returns the commit that an index would make. Only available for runs in this process.
    ///
    /// # Errors
    /// The index has conflicts, or cannot be read.
    pub(super) async fn staged_commit(&self, index: StagedIndex) -> Result<StagedCommit, CliError> {
        match &self.backend {
            RunBackend::InProcess(engine) => engine.staged_commit(&self.repo, index).await.map_err(engine_error),
            RunBackend::Daemon(_) => Err(CliError::Internal("staged changes cannot be sent to a daemon".to_owned())),
        }
    }

    /// Finds an earlier run whose result holds for the tree, if this process does the run. A daemon checks that
    /// itself as part of the request.
    async fn find_reusable_run(&self, tree: &TreeSelection) -> Option<ReusedRun> {
        let keeps_plan = !self.args.no_caches && !self.args.no_cache && !self.scope.changes_plan();
        let (RunBackend::InProcess(engine), Reuse::Verified, true) = (&self.backend, self.reuse, keeps_plan) else {
            return None;
        };
        let commit = match tree {
            TreeSelection::Worktree => return None,
            TreeSelection::Commit(id) => CommitRef::from(id),
            TreeSelection::Staged(commit) => commit.clone(),
        };
        let demands = GateRequirements {
            profile: self.args.profile.clone(),
            changeset: None,
            max_tier: self.args.max_tier,
            max_age: AgeLimits::default(),
            unattested: UnattestedPolicy::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: InputRequirement::Any,
            machines: MachineRequirement::Any,
        };
        let (engine, query) = (
            Arc::clone(engine),
            PriorRunRequest { repo: self.repo.clone(), spec_dir: self.spec_dir.clone(), commit, demands },
        );
        // If the search fails, the run simply takes place.
        let earlier = tokio::task::spawn_blocking(move || engine.find_prior_run(&query)).await.ok()??;
        Some(ReusedRun { run: earlier.run_id, ended: Some(earlier.ended_at) })
    }

    /// Checks whether cancellation was requested.
    pub(super) fn is_interrupted(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl CommandRuns<'_> {
    /// Returns the future that runs a tree and sends its events.
    fn run_future(
        &self,
        tree: TreeSelection,
        events: mpsc::Sender<RunEvent>,
        lines: Option<LastLinesSender>,
    ) -> Result<RunFuture, CliError> {
        let cancel = self.cancel.clone();
        Ok(match &self.backend {
            RunBackend::InProcess(engine) => {
                let (engine, mut request) = (Arc::clone(engine), self.request(tree));
                request.live = lines.map(last_lines::track_process);
                Box::pin(async move {
                    let ended = engine.run(request, events, cancel).await;
                    Ok(ended.map_err(|error| problem_error(engine.problem(&error)))?.into())
                })
            }
            RunBackend::Daemon(daemon) => {
                let remote = DaemonRun { client: daemon.client.clone(), submission: self.submission(tree)?, lines };
                Box::pin(remote.run(events, cancel))
            }
        })
    }

    fn request(&self, tree: TreeSelection) -> RunRequest {
        let source = match tree {
            TreeSelection::Worktree => RunSource::Worktree,
            TreeSelection::Commit(id) => RunSource::Commit { id, submodules: self.args.submodules },
            TreeSelection::Staged(commit) => RunSource::Staged(commit),
        };
        RunRequest {
            plan_sha256: None,
            run_id: None,
            repo: self.repo.clone(),
            spec_dir: self.spec_dir.clone(),
            source,
            profile: self.args.profile.clone(),
            changeset: self.args.changeset.clone(),
            max_tier: self.args.max_tier,
            sandbox: self.args.sandbox.sandbox,
            fail_fast: self.args.fail_fast,
            changes: if self.patch_target.is_some() { ChangeHandling::AsPatch } else { ChangeHandling::Apply },
            skills: skills_wanted(self.args),
            scope: self.scope.clone(),
            caches: if self.args.no_caches { CacheMode::Empty } else { CacheMode::Persistent },
            reuses_steps: !self.args.no_cache,
            live: None,
            trace: self.exports.tracing(),
        }
    }

    /// Builds the request for the run of a tree.
    fn submission(&self, tree: TreeSelection) -> Result<RunSubmission, CliError> {
        let rev = match tree {
            TreeSelection::Worktree => None,
            TreeSelection::Commit(rev) => Some(rev),
            TreeSelection::Staged(_) => {
                return Err(CliError::Internal("staged changes cannot be sent to a daemon".to_owned()));
            }
        };
        Ok(RunSubmission {
            repo: daemon::repo_utf8(&self.spec_root())?,
            profile: self.args.profile.clone(),
            changeset_id: self.args.changeset.clone(),
            submodules: self.args.submodules && rev.is_some(),
            rev,
            max_tier: self.args.max_tier,
            sandbox: self.args.sandbox.sandbox,
            fail_fast: self.args.fail_fast,
            changes: if self.patch_target.is_some() { ChangeDelivery::Patch } else { ChangeDelivery::Applied },
            reuse: self.reuse,
            skills: if self.args.last_failed { SkillFilter::NotPassed } else { SkillFilter::All },
            scope: self.scope.clone(),
            no_caches: self.args.no_caches,
            no_cache: self.args.no_cache,
            env: Some(self.caller.env.clone()),
        })
    }

    /// Runs a tree, shows the progress, and returns the record and the result.
    pub(super) async fn run_with_progress(
        &mut self,
        tree: TreeSelection,
        screen: &mut Screen,
    ) -> Result<(RunRecord, CompletedRun), CliError> {
        if let Some(known) = self.find_reusable_run(&tree).await {
            return Ok((RunRecord::default(), CompletedRun::from_reused_run(known)));
        }
        let (sender, events) = mpsc::channel(EVENT_CAPACITY);
        let shows_lines = screen.has_live_progress && self.args.detail() != Detail::Quiet;
        let (lines, printed) = shows_lines.then(last_lines::channel).unzip();
        let (work, began_ms) = (self.run_future(tree, sender, lines)?, Clock::system().now_ms());
        let mut watch = RunWatcher::new(self.reports, self.args.detail(), &mut self.interrupts, screen)
            .with_last_lines(printed)
            .with_applied_paths(self.applied.clone());
        let result = watch.run_to_end(work, events).await;
        watch.progress.clear();
        let mut record = watch.record;
        let report = result.map_err(|error| error.with_path_relative_to(&self.caller.cwd))?;
        record.add_inconclusive_reasons(&report.doubts);
        if let Some(signal) = self.interrupts.first_signal() {
            // The engine knows only that the run was cancelled; this function knows the signal.
            record.cancelled_by = Some(signal.to_owned());
        }
        self.exports.start_export(&record, began_ms, &self.spec_root());
        Ok((record, report))
    }

    /// Runs a tree without showing anything, and returns the record and the exit code.
    pub(super) async fn run_quietly(&mut self, tree: TreeSelection) -> Result<(RunRecord, u8), CliError> {
        if self.find_reusable_run(&tree).await.is_some() {
            return Ok((RunRecord::default(), 0));
        }
        let (sender, mut events) = mpsc::channel(EVENT_CAPACITY);
        let mut task = tokio::spawn(self.run_future(tree, sender, None)?);
        let (mut record, start, began_ms) = (RunRecord::default(), Instant::now(), Clock::system().now_ms());
        let mut open = true;
        let joined = loop {
            tokio::select! {
                event = events.recv(), if open => match event {
                    Some(event) => record.apply(event, start.elapsed()),
                    None => open = false,
                },
                joined = &mut task, if !open => break joined,
                effect = self.interrupts.next() => {
                    if effect == SignalEffect::ExitNow {
                        interrupt::exit_interrupted()
                    }
                }
            }
        };
        let ended = joined.map_err(|_| CliError::Internal("the engine stopped".to_owned()))??;
        record.add_inconclusive_reasons(&ended.doubts);
        self.exports.start_export(&record, began_ms, &self.spec_root());
        let code = if ended.reused.is_some() { 0 } else { check_agreement(&record, &ended)? };
        Ok((record, code))
    }

    /// Waits a limited time until the spans of all runs are sent.
    pub(super) async fn finish_exports(&mut self, screen: &mut Screen) {
        self.exports.finish(screen).await;
    }

    /// Renders the human-readable report.
    pub(super) async fn report_text(&self, record: &RunRecord, layout: TextLayout) -> String {
        let outputs = self.backend.report_source().fetch_outputs(record).await;
        let logs_options = match (&self.backend, &self.args.backend.state.state_dir) {
            (RunBackend::InProcess(_), Some(dir)) => format!(" --state-dir {}", installation::show(dir)),
            _ => String::new(),
        };
        let detail = self.args.detail();
        human_report::render_report(
            record,
            &ReportOptions { detail, layout, outputs: &outputs, logs_options: &logs_options },
        )
    }

    /// Carries out the requested run, or each run of a range.
    async fn run_all(&mut self, operator: OperatorConfig, screen: &mut Screen) -> Result<u8, CliError> {
        self.require_known_files(&operator).await?;
        if self.args.scope.watch {
            let engine = self.backend.engine(self.args, operator, self.caller)?;
            let watch = engine.watch_worktree(&self.repo).map_err(engine_error)?;
            return self.watch(watch, screen).await;
        }
        let Some(rev) = &self.args.rev else { return self.run_one(TreeSelection::Worktree, screen).await };
        if let (RunBackend::Daemon(_), false) = (&self.backend, is_range(rev)) {
            return self.run_one(TreeSelection::Commit(rev.clone()), screen).await;
        }
        let engine = self.backend.engine(self.args, operator, self.caller)?;
        let commits = engine.resolve_revision(&self.repo, rev).await.map_err(engine_error)?;
        match commits.as_slice() {
            [commit] if !is_range(rev) => self.run_one(TreeSelection::Commit(commit.id.clone()), screen).await,
            commits => self.run_range(commits, screen).await,
        }
    }

    /// Refuses a file of `--files` that neither the worktree nor git knows. A file that only the worktree lacks counts as
    /// deleted.
    async fn require_known_files(&self, operator: &OperatorConfig) -> Result<(), CliError> {
        let missing = scope_request::missing_files(&self.args.scope, &self.scope, &self.repo);
        if missing.is_empty() {
            return Ok(());
        }
        let engine = self.backend.engine(self.args, operator.clone(), self.caller)?;
        let commits = match &self.args.rev {
            Some(rev) => engine.resolve_revision(&self.repo, rev).await.map_err(engine_error)?,
            None => Vec::new(),
        };
        let paths = missing.iter().map(|missing| missing.path.clone()).collect();
        let unknown = engine.paths_unknown_to_git(&self.repo, paths, commits).await.map_err(engine_error)?;
        match missing.into_iter().find(|missing| unknown.contains(&missing.path)) {
            Some(missing) => Err(missing.to_error()),
            None => Ok(()),
        }
    }

    async fn run_one(&mut self, tree: TreeSelection, screen: &mut Screen) -> Result<u8, CliError> {
        let (record, report) = self.run_with_progress(tree, screen).await?;
        let exit_code = self.show_run(&record, &report, screen).await?;
        let json = screen::to_json_line(&record)?;
        let runs = [self.reports.build_reported_run(None, record, self.backend.report_source()).await];
        Ok(self.write_reports(ReportedResult { runs: &runs, left_out: 0, exit_code, json: &json }, screen))
    }

    /// Shows one run, and writes its patch if one was requested.
    async fn show_run(
        &mut self,
        record: &RunRecord,
        report: &CompletedRun,
        screen: &mut Screen,
    ) -> Result<u8, CliError> {
        let format = self.args.reports.format;
        let text = self.report_text(record, screen.layout()).await;
        let Some(target) = self.patch_target.take() else { return print_result(format, record, report, &text, screen) };
        let written = target.write(report.patch.as_ref(), screen);
        let code = if target.is_stdout() {
            screen.err(&text);
            check_agreement(record, report)?
        } else {
            print_result(format, record, report, &text, screen)?
        };
        let Err(error) = written else { return Ok(code) };
        screen.err(&error.render());
        Ok(if code == 0 { error.exit_code() } else { code })
    }

    /// Writes the reports and returns the exit code. A pass whose reports could not be written is inconclusive.
    fn write_reports(&mut self, result: ReportedResult<'_>, screen: &mut Screen) -> u8 {
        let is_written = self.reports.write_all(result, screen);
        if result.exit_code == 0 && !is_written { EXIT_INCONCLUSIVE } else { result.exit_code }
    }

    /// Runs each commit, oldest first. A commit that cannot be run at all does not stop the range.
    async fn run_range(&mut self, commits: &[NamedCommit], screen: &mut Screen) -> Result<u8, CliError> {
        let mut range = RangeRecord::default();
        let mut runs = Vec::new();
        for (index, commit) in commits.iter().enumerate() {
            let failed = range.commits.iter().any(|record| record.exit_code != 0);
            if self.cancel.is_cancelled() || failed && self.args.fail_fast {
                range.left_out = commits.len() - index;
                break;
            }
            let heading = commit_range::commit_heading(commit, index + 1, commits.len());
            match self.args.reports.format {
                RunFormat::Human => screen.out(&heading),
                _ => screen.err(&heading),
            }
            let ended = self.run_with_progress(TreeSelection::Commit(commit.id.clone()), screen).await;
            let named = ReportedCommit { id: commit.id.clone(), subject: commit.subject.clone() };
            runs.push(match &ended {
                Ok((record, _)) => {
                    self.reports.build_reported_run(Some(named), record.clone(), self.backend.report_source()).await
                }
                Err(error) => ReportedRun::new(Some(named), refusal(error)),
            });
            let text = match &ended {
                Ok((record, _)) => self.report_text(record, screen.layout()).await,
                Err(_) => String::new(),
            };
            range.commits.push(self.record_commit(commit, ended, &text, screen)?);
        }
        let codes: Vec<u8> = range.commits.iter().map(|record| record.exit_code).collect();
        range.exit_code = commit_range::worst_exit_code(&codes);
        let exit_code = commit_range::print_range(self.args.reports.format, &range, screen)?;
        let (json, left_out) = (screen::to_json_line(&range)?, range.left_out);
        Ok(self.write_reports(ReportedResult { runs: &runs, left_out, exit_code, json: &json }, screen))
    }

    /// Shows and records the result of one commit.
    fn record_commit(
        &mut self,
        commit: &NamedCommit,
        ended: Result<(RunRecord, CompletedRun), CliError>,
        text: &str,
        screen: &mut Screen,
    ) -> Result<CommitRecord, CliError> {
        let (id, subject) = (commit.id.clone(), commit.subject.clone());
        match ended {
            Ok((record, report)) => {
                let is_human = self.args.reports.format == RunFormat::Human;
                let shows = if is_human { RunFormat::Human } else { RunFormat::Jsonl };
                let exit_code = print_result(shows, &record, &report, text, screen)?;
                Ok(CommitRecord { commit: id, subject, exit_code, run: Some(record), error: None })
            }
            Err(error) => {
                screen.err(&error.render());
                self.reports.write_failed_start(&error, screen)?;
                let (exit_code, body) = (error.exit_code(), error.to_record());
                Ok(CommitRecord { commit: id, subject, exit_code, run: None, error: Some(body.error) })
            }
        }
    }
}
