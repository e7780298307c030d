//! Implements `proctor run`, which runs a profile, shows the progress and reports the result.

mod export;
mod patch;
pub(super) mod range;
mod remote;
mod watch;
mod way;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use proctor_core::api::{Reuse, StreamView};
use proctor_core::cache::CacheTrust;
use proctor_core::event::RunEvent;
use proctor_core::gate::{Demands, MaxAge, RequiredInputs, Unattested};
use proctor_core::names::RunId;
use proctor_core::record::RunRecord;
use proctor_core::report::{ReportedCommit, ReportedRun};
use proctor_core::spec::Operator;
use proctor_core::verdict::{Doubt, EXIT_INCONCLUSIVE, Verdict};
use proctor_daemon::service::{OutputOf, Unit};
use proctor_runner::{
    CachesWanted, ChangesWanted, Clock, CommitAsked, CommitRef, NamedCommit, Patch, RunReport, RunRequest, RunSource,
    SkillsWanted, StagedIndex, demand_whole, takes_env,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{RunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::logs;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::interrupt::{self, Asked, Interrupts};
use crate::progress::last_lines::{self, LinesSender};
use crate::report::outputs::{Fetched, MAX_BYTES, Outputs, WantedStream};
use crate::report::{self, Detail, View};
use crate::reports::{Reports, Told, refusal};
use crate::screen::{self, Room, Screen};
use export::Exports;
use remote::Remote;
use watch::Watch;
use way::Way;

pub(crate) use range::{CommitRecord, RangeRecord};

/// Capacity of the event channel; a run with a full channel waits for the screen.
const EVENTS: usize = 256;

/// Runs the profile. The exit code is that of the run, or of the worst run of a range.
///
/// # Errors
/// The run could not be carried out, or its record contradicts its result.
pub(crate) async fn run(args: &RunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let mut reports = Reports::new(args.reports.format, screen)?;
    let done = verify(args, caller, &mut reports, screen).await;
    if let Err(error) = &done {
        reports.refused(error, screen);
    }
    done
}

async fn verify(args: &RunArgs, caller: &Caller, reports: &mut Reports, screen: &mut Screen) -> Result<u8, CliError> {
    refuse_contradictions(args, caller)?;
    demand_whole(skills_wanted(args), args.changeset.as_ref(), args.rev.as_deref()).map_err(engine_error)?;
    reports.find(&args.reports.report, caller)?;
    let repo = installation::repository(&args.repo, caller)?;
    reports.of_repository(&repo, caller);
    let target = args.patch.as_deref().map(|file| patch::Target::find(file, &caller.cwd)).transpose()?;
    let operator = installation::operator(&args.way.operator, caller)?;
    let mut runs = Runs::open(args, (repo, Reuse::Never), reports, caller, screen).await?;
    runs.target = target;
    let done = runs.all(operator, screen).await;
    runs.exported(screen).await;
    done
}

/// The tree to verify.
#[derive(Clone)]
pub(super) enum Tree {
    /// The worktree in its current state.
    Worktree,
    /// The tree of a commit, named by its id; for a daemon any revision is accepted.
    Commit(String),
    /// The staged tree, as the commit that it would make. Only this process verifies it, never a daemon.
    Staged {
        /// The commit's id.
        id: String,
        /// The index.
        index: StagedIndex,
    },
}

/// The result of a run, from a daemon or from this process.
#[derive(Debug)]
pub(super) struct Ended {
    verdict: Verdict,
    exit_code: u8,
    /// Reasons for an inconclusive verdict that no event reported.
    doubts: Vec<(Doubt, String)>,
    /// Changes of the steps, if a patch was requested.
    patch: Option<Patch>,
    /// The earlier run whose result was reused. In that case nothing ran and there are no events.
    pub(super) known: Option<Known>,
}

/// An earlier run.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Id of the run.
    pub run: RunId,
    /// Time of its end, if known.
    pub ended: Option<String>,
}

impl Ended {
    /// Returns the result of an earlier run that passed.
    fn known(known: Known) -> Self {
        Self { verdict: Verdict::Passed, exit_code: 0, doubts: Vec::new(), patch: None, known: Some(known) }
    }
}

impl From<RunReport> for Ended {
    fn from(report: RunReport) -> Self {
        let RunReport { verdict, exit_code, doubts, patch, .. } = report;
        Self { verdict, exit_code, doubts, patch, known: None }
    }
}

/// The future that carries out a run.
type Work = Pin<Box<dyn Future<Output = Result<Ended, CliError>> + Send>>;

fn is_range(rev: &str) -> bool {
    rev.contains("..")
}

fn skills_wanted(args: &RunArgs) -> SkillsWanted {
    if args.last_failed { SkillsWanted::NotPassed } else { SkillsWanted::All }
}

/// Rejects combinations of options that contradict each other.
fn refuse_contradictions(args: &RunArgs, caller: &Caller) -> Result<(), CliError> {
    let usage = |message: &str, hint: &str| Err(CliError::Usage { message: message.into(), hint: hint.into() });
    let of_range = args.rev.as_deref().is_some_and(is_range);
    if of_range && args.changeset.is_some() {
        return usage("a range has a result for each commit, and a changeset holds one", "name its last commit alone");
    }
    if of_range && args.patch.is_some() {
        return usage("`--patch` writes the changes of one run, and a range has many", "name one commit");
    }
    let to_stdout = args.patch.as_deref().is_some_and(patch::is_stdout);
    if to_stdout && args.reports.format != RunFormat::Human {
        return usage("`--patch -` and `--format` both write to standard output", "name a file for the patch");
    }
    // Patch content comes from a step, and a terminal would obey escape sequences in it.
    if to_stdout && caller.stdout_is_terminal {
        return usage("a patch is not written to a terminal as it is", "name a file, or `-` with a pipe behind it");
    }
    Ok(())
}

/// The runs of one command.
pub(super) struct Runs<'a> {
    args: &'a RunArgs,
    caller: &'a Caller,
    reports: &'a mut Reports,
    way: Way,
    repo: PathBuf,
    cancel: CancellationToken,
    interrupts: Interrupts,
    /// Destination of the patch, if one was requested.
    target: Option<patch::Target>,
    /// Controls whether the result of an earlier run may be reused.
    reuse: Reuse,
    exports: Exports,
}

impl<'a> Runs<'a> {
    /// Prepares runs of a repository with the options in `args`, for a command that shows the results itself.
    ///
    /// # Errors
    /// A daemon is required and none responds, or something that a run needs is missing.
    pub(super) async fn open(
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut Reports,
        caller: &'a Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let operator = installation::operator(&args.way.operator, caller)?;
        let way = Way::choose(args, operator.clone(), &repo, caller, screen).await?;
        Self::by(way, &operator, args, (repo, reuse), reports, caller)
    }

    fn by(
        way: Way,
        operator: &Operator,
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut Reports,
        caller: &'a Caller,
    ) -> Result<Self, CliError> {
        let cancel = CancellationToken::new();
        let interrupts = Interrupts::listen(cancel.clone()).map_err(|error| CliError::Internal(error.to_string()))?;
        let exports = Exports::new(&way, operator, caller);
        Ok(Self { args, caller, reports, way, repo, cancel, interrupts, target: None, reuse, exports })
    }

    /// Prepares runs in this process, even if a daemon is running.
    ///
    /// # Errors
    /// Something that a run needs is missing.
    pub(super) fn here(
        args: &'a RunArgs,
        (repo, reuse): (PathBuf, Reuse),
        reports: &'a mut Reports,
        caller: &'a Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let operator = installation::operator(&args.way.operator, caller)?;
        let way = Way::Here(Arc::new(engine::open(&args.way.state, operator.clone(), caller, screen)?));
        Self::by(way, &operator, args, (repo, reuse), reports, caller)
    }

    /// Returns the commit that an index would make. Only available for runs in this process.
    ///
    /// # Errors
    /// The index has conflicts, or cannot be read.
    pub(super) async fn staged(&self, index: StagedIndex) -> Result<NamedCommit, CliError> {
        match &self.way {
            Way::Here(engine) => engine.staged(&self.repo, index).await.map_err(engine_error),
            Way::Daemon(_) => Err(CliError::Internal("staged changes cannot be sent to a daemon".to_owned())),
        }
    }

    /// Finds an earlier run whose result holds for the tree, if this process does the run. A daemon checks that
    /// itself as part of the request.
    async fn known(&self, tree: &Tree) -> Option<Known> {
        let (Way::Here(engine), Reuse::Verified, false) = (&self.way, self.reuse, self.args.no_caches) else {
            return None;
        };
        let commit = match tree {
            Tree::Worktree => return None,
            Tree::Commit(id) => CommitRef::from(id),
            Tree::Staged { id, index } => CommitRef { id: id.clone(), staged: Some(index.clone()) },
        };
        let demands = Demands {
            profile: self.args.profile.clone(),
            changeset: None,
            max_tier: self.args.max_tier,
            max_age: MaxAge::default(),
            unattested: Unattested::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: RequiredInputs::Any,
        };
        let (engine, asked) = (Arc::clone(engine), CommitAsked { repo: self.repo.clone(), commit, demands });
        // If the search fails, the run simply takes place.
        let earlier = tokio::task::spawn_blocking(move || engine.answered(&asked)).await.ok()?.ok()??;
        // The values of environment variables are not recorded, so a run that depended on them cannot be reused.
        let is_told = !takes_env(&earlier.plan);
        is_told.then_some(Known { run: earlier.run_id, ended: Some(earlier.ended) })
    }

    /// Checks whether cancellation was requested.
    pub(super) fn are_interrupted(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl Runs<'_> {
    /// Returns the future that runs a tree and sends its events.
    fn work(&self, tree: Tree, events: mpsc::Sender<RunEvent>, lines: Option<LinesSender>) -> Result<Work, CliError> {
        let cancel = self.cancel.clone();
        Ok(match &self.way {
            Way::Here(engine) => {
                let (engine, mut request) = (Arc::clone(engine), self.request(tree));
                request.live = lines.map(last_lines::of_process);
                Box::pin(async move { Ok(engine.run(request, events, cancel).await.map_err(engine_error)?.into()) })
            }
            Way::Daemon(daemon) => {
                let remote = Remote { client: daemon.client.clone(), submission: self.submission(tree)?, lines };
                Box::pin(remote.run(events, cancel))
            }
        })
    }

    fn request(&self, tree: Tree) -> RunRequest {
        let source = match tree {
            Tree::Worktree => RunSource::Worktree,
            Tree::Commit(id) => RunSource::Commit { id, submodules: self.args.submodules },
            Tree::Staged { id, index } => RunSource::Staged { id, index },
        };
        RunRequest {
            plan_sha256: None,
            run_id: None,
            repo: self.repo.clone(),
            source,
            profile: self.args.profile.clone(),
            changeset: self.args.changeset.clone(),
            max_tier: self.args.max_tier,
            sandbox: self.args.sandbox.sandbox,
            fail_fast: self.args.fail_fast,
            changes: if self.target.is_some() { ChangesWanted::AsPatch } else { ChangesWanted::Applied },
            skills: skills_wanted(self.args),
            caches: if self.args.no_caches { CachesWanted::Empty } else { CachesWanted::Kept },
            live: None,
            trace: self.exports.tracing(),
        }
    }

    /// Runs a tree, shows the progress, and returns the record and the result.
    pub(super) async fn follow(&mut self, tree: Tree, screen: &mut Screen) -> Result<(RunRecord, Ended), CliError> {
        if let Some(known) = self.known(&tree).await {
            return Ok((RunRecord::default(), Ended::known(known)));
        }
        let (sender, events) = mpsc::channel(EVENTS);
        let shows_lines = screen.live && self.args.detail() != Detail::Quiet;
        let (lines, printed) = shows_lines.then(last_lines::channel).unzip();
        let (work, began_ms) = (self.work(tree, sender, lines)?, Clock::system().now_ms());
        let mut watch = Watch::new(self.reports, self.args.detail(), &mut self.interrupts, screen).showing(printed);
        let result = watch.follow(work, events).await;
        watch.progress.clear();
        let mut record = watch.record;
        let report = result.map_err(|error| error.with_paths_from(&self.caller.cwd))?;
        record.add_doubts(&report.doubts);
        if let Some(signal) = self.interrupts.first() {
            // The engine knows only that the run was cancelled; the signal is known here.
            record.cancelled_by = Some(signal.to_owned());
        }
        self.exports.ended(&record, began_ms, &self.repo);
        Ok((record, report))
    }

    /// Runs a tree without showing anything, and returns the record and the exit code.
    pub(super) async fn quietly(&mut self, tree: Tree) -> Result<(RunRecord, u8), CliError> {
        if self.known(&tree).await.is_some() {
            return Ok((RunRecord::default(), 0));
        }
        let (sender, mut events) = mpsc::channel(EVENTS);
        let mut task = tokio::spawn(self.work(tree, sender, None)?);
        let (mut record, start, began_ms) = (RunRecord::default(), Instant::now(), Clock::system().now_ms());
        let mut open = true;
        let joined = loop {
            tokio::select! {
                event = events.recv(), if open => match event {
                    Some(event) => record.apply(event, start.elapsed()),
                    None => open = false,
                },
                joined = &mut task, if !open => break joined,
                asked = self.interrupts.next() => {
                    if asked == Asked::ToLeave {
                        interrupt::leave()
                    }
                }
            }
        };
        let ended = joined.map_err(|_| CliError::Internal("the engine stopped".to_owned()))??;
        record.add_doubts(&ended.doubts);
        self.exports.ended(&record, began_ms, &self.repo);
        let code = if ended.known.is_some() { 0 } else { agreed(&record, &ended)? };
        Ok((record, code))
    }

    /// Waits a limited time until the spans of all runs are sent.
    pub(super) async fn exported(&mut self, screen: &mut Screen) {
        self.exports.finish(screen).await;
    }

    /// Renders the human-readable report.
    pub(super) async fn text(&self, record: &RunRecord, room: Room) -> String {
        let outputs = Outputs::fetch(record, |wanted| self.fetch(record, wanted)).await;
        let logs_options = match (&self.way, &self.args.way.state.state_dir) {
            (Way::Here(_), Some(dir)) => format!(" --state-dir {}", installation::show(dir)),
            _ => String::new(),
        };
        let detail = self.args.detail();
        report::report(record, &View { detail, room, outputs: &outputs, logs_options: &logs_options })
    }

    /// Fetches the beginning of an output from the daemon or from the local store.
    fn fetch(&self, record: &RunRecord, wanted: WantedStream) -> Fetched<'_> {
        let id = record.started.as_ref().map(|started| started.run_id.clone());
        Box::pin(async move {
            match &self.way {
                Way::Here(engine) => {
                    let part = engine.output(StreamView::from(&wanted.stream), 0, MAX_BYTES).await.ok()??;
                    Some(part.0.bytes)
                }
                Way::Daemon(daemon) => {
                    let of = OutputOf { unit: Unit::Step, n: wanted.n, stream: wanted.stdio };
                    logs::beginning(&daemon.client, &id?, of, MAX_BYTES).await
                }
            }
        })
    }

    /// Carries out the requested run, or each run of a range.
    async fn all(&mut self, operator: Operator, screen: &mut Screen) -> Result<u8, CliError> {
        let Some(rev) = &self.args.rev else { return self.one(Tree::Worktree, screen).await };
        if let (Way::Daemon(_), false) = (&self.way, is_range(rev)) {
            return self.one(Tree::Commit(rev.clone()), screen).await;
        }
        let engine = self.way.engine(self.args, operator, self.caller)?;
        let commits = engine.resolve_revision(&self.repo, rev).await.map_err(engine_error)?;
        match commits.as_slice() {
            [commit] if !is_range(rev) => self.one(Tree::Commit(commit.id.clone()), screen).await,
            commits => self.range(commits, screen).await,
        }
    }

    async fn one(&mut self, tree: Tree, screen: &mut Screen) -> Result<u8, CliError> {
        let (record, report) = self.follow(tree, screen).await?;
        let exit_code = self.shown(&record, &report, screen).await?;
        let json = screen::json(&record)?;
        let runs = [self.reports.run(None, record, self.way.keeper()).await];
        Ok(self.written(Told { runs: &runs, left_out: 0, exit_code, json: &json }, screen))
    }

    /// Shows one run, and writes its patch if one was requested.
    async fn shown(&mut self, record: &RunRecord, report: &Ended, screen: &mut Screen) -> Result<u8, CliError> {
        let format = self.args.reports.format;
        let text = self.text(record, screen.room()).await;
        let Some(target) = self.target.take() else { return finish(format, record, report, &text, screen) };
        let written = target.write(report.patch.as_ref(), screen);
        let code = if target.is_stdout() {
            screen.err(&text);
            agreed(record, report)?
        } else {
            finish(format, record, report, &text, screen)?
        };
        let Err(error) = written else { return Ok(code) };
        screen.err(&error.render());
        Ok(if code == 0 { error.exit_code() } else { code })
    }

    /// Writes the reports and returns the exit code. A pass whose reports could not be written is inconclusive.
    fn written(&mut self, told: Told<'_>, screen: &mut Screen) -> u8 {
        let is_written = self.reports.write(told, screen);
        if told.exit_code == 0 && !is_written { EXIT_INCONCLUSIVE } else { told.exit_code }
    }

    /// Runs each commit, oldest first. A commit that cannot be run at all does not stop the range.
    async fn range(&mut self, commits: &[NamedCommit], screen: &mut Screen) -> Result<u8, CliError> {
        let mut range = RangeRecord::default();
        let mut runs = Vec::new();
        for (index, commit) in commits.iter().enumerate() {
            let failed = range.commits.iter().any(|record| record.exit_code != 0);
            if self.cancel.is_cancelled() || failed && self.args.fail_fast {
                range.left_out = commits.len() - index;
                break;
            }
            let heading = range::heading(commit, index + 1, commits.len());
            match self.args.reports.format {
                RunFormat::Human => screen.out(&heading),
                _ => screen.err(&heading),
            }
            let ended = self.follow(Tree::Commit(commit.id.clone()), screen).await;
            let named = ReportedCommit { id: commit.id.clone(), subject: commit.subject.clone() };
            runs.push(match &ended {
                Ok((record, _)) => self.reports.run(Some(named), record.clone(), self.way.keeper()).await,
                Err(error) => ReportedRun { commit: Some(named), came_to: refusal(error), files: Vec::new() },
            });
            let text = match &ended {
                Ok((record, _)) => self.text(record, screen.room()).await,
                Err(_) => String::new(),
            };
            range.commits.push(self.told(commit, ended, &text, screen)?);
        }
        let codes: Vec<u8> = range.commits.iter().map(|record| record.exit_code).collect();
        range.exit_code = range::worst(&codes);
        let exit_code = range::finish(self.args.reports.format, &range, screen)?;
        let (json, left_out) = (screen::json(&range)?, range.left_out);
        Ok(self.written(Told { runs: &runs, left_out, exit_code, json: &json }, screen))
    }

    /// Shows and records the result of one commit.
    fn told(
        &mut self,
        commit: &NamedCommit,
        ended: Result<(RunRecord, Ended), CliError>,
        text: &str,
        screen: &mut Screen,
    ) -> Result<CommitRecord, CliError> {
        let (id, subject) = (commit.id.clone(), commit.subject.clone());
        match ended {
            Ok((record, report)) => {
                let is_human = self.args.reports.format == RunFormat::Human;
                let shows = if is_human { RunFormat::Human } else { RunFormat::Jsonl };
                let exit_code = finish(shows, &record, &report, text, screen)?;
                Ok(CommitRecord { commit: id, subject, exit_code, run: Some(record), error: None })
            }
            Err(error) => {
                screen.err(&error.render());
                self.reports.no_run(&error, screen)?;
                let (exit_code, body) = (error.exit_code(), error.record());
                Ok(CommitRecord { commit: id, subject, exit_code, run: None, error: Some(body.error) })
            }
        }
    }
}

/// Shows the result and returns the exit code.
pub(super) fn finish(
    format: RunFormat,
    record: &RunRecord,
    report: &Ended,
    text: &str,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    match format {
        RunFormat::Human => {
            if screen.live {
                screen.err("\n");
            }
            screen.out(text);
        }
        RunFormat::Json => screen.out_json(record)?,
        // The other formats are written together with the report files, when the exit code is known.
        _ => {}
    }
    agreed(record, report)
}

/// Returns the exit code if the last shown event agrees with the engine's result.
fn agreed(record: &RunRecord, report: &Ended) -> Result<u8, CliError> {
    let shown = record.finished.as_ref().map(|finished| (finished.verdict, finished.exit_code));
    if shown == Some((report.verdict, report.exit_code)) {
        return Ok(report.exit_code);
    }
    Err(CliError::Internal(format!(
        "the run ended with {} ({}), and its last event says {shown:?}",
        report.verdict.as_str(),
        report.exit_code
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::finished;
    use proctor_core::tier::Tier;

    fn report(verdict: Verdict, exit_code: u8) -> Ended {
        Ended { verdict, exit_code, doubts: Vec::new(), patch: None, known: None }
    }

    #[test]
    fn a_verdict_that_was_not_shown_is_no_pass() {
        let mut record = RunRecord::default();
        let passed = report(Verdict::Passed, 0);
        assert_eq!(agreed(&record, &passed).expect_err("no last event").exit_code(), 5);
        record.apply(finished(Verdict::Passed, Tier::ONE, 0), std::time::Duration::ZERO);
        assert_eq!(agreed(&record, &passed).expect("the same"), 0);
        assert_eq!(agreed(&record, &report(Verdict::Failed, 1)).expect_err("another verdict").exit_code(), 5);
    }
}
