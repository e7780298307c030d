//! Finishes a run: it reads the tree once more, then writes the evidence, the status and the last event, in this
//! order. Each write is atomic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use proctor_core::decision::rerun::Rerun;
use proctor_core::decision::verdict::{self, InconclusiveDetail, InconclusiveReason, Verdict, VerdictInputs};
use proctor_core::model::drift::display_path;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{SkillName, TOOLCHAIN_ARTIFACT};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::Plan;
use proctor_core::model::tier::{self, Tier};
use proctor_core::record::evidence::{
    EvidenceIndex, SkillEvidence, StepEvidence, ToolchainEvidence, TreeSource, covered_scope, to_bytes,
};
use proctor_core::record::run_reuse::RunReuse;
use proctor_core::record::status::{self, ExternalIgnores, LastRun};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_snapshot::{FileContent, GitFacts, LayerEntry, Snapshot, SnapshotStore};
use tokio::sync::oneshot;

use crate::error::{EngineError, one_line};
use crate::run::evidence_builder::{self, RunFacts, TreeFacts};
use crate::run::request::PatchResult;
use crate::run::run_context::{RunContext, RunTree};
use crate::shared_results::SharedRun;
use crate::step::reuse::StepReuse;
use crate::step::skill_runner::SkillRun;
use crate::store::StoreError;
use crate::store::documents::{RunDocumentDir, StagedRun};

/// Maximum number of paths that a message names.
const MAX_NAMED_PATHS: usize = 10;

/// Everything that a run has observed.
pub(crate) struct RunObservations {
    pub(crate) toolchain: ToolchainEvidence,
    pub(crate) skills: Vec<SkillEvidence>,
    pub(crate) inconclusive_reasons: Vec<InconclusiveDetail>,
    /// The changes of the steps, if the request has `changes: patch`.
    pub(crate) patch: Option<PatchResult>,
    /// The tree after the run; `None` if it could not be read.
    pub(crate) tree_after: Option<SnapshotId>,
    /// True if the run is restricted to some files.
    is_restricted: bool,
}

impl RunObservations {
    /// Builds the records of the skills from the values that ran.
    pub(crate) fn new(
        facts: &RunFacts,
        tree: &TreeFacts,
        plan: &Plan,
        toolchain: ToolchainEvidence,
        runs: Vec<SkillRun>,
    ) -> Self {
        let is_restricted = plan.scope.as_ref().is_some_and(|scope| scope.files.is_some());
        let mut doubts = Vec::new();
        let mut skills = Vec::new();
        for (planned, run) in plan.skills.iter().zip(runs) {
            doubts.extend(run.inconclusive_reasons);
            let mut evidence =
                evidence_builder::skill_evidence(facts, tree, plan, planned, run.steps, run.snapshots, run.span);
            // Caches are not covered by the record's seal.
            evidence.measured.caches = run.caches;
            skills.push(evidence);
        }
        Self { toolchain, skills, inconclusive_reasons: doubts, patch: None, tree_after: None, is_restricted }
    }

    /// Returns the reuse of results in the run.
    pub(crate) fn reuse(&self, context: &RunContext, plan: &Plan) -> RunReuse {
        let steps = self.skills.iter().flat_map(|skill| &skill.steps);
        let remote = context.reuse.as_ref().and_then(StepReuse::shared).map(SharedRun::report);
        RunReuse { remote, ..RunReuse::new(context.reuse_conditions(plan), steps) }
    }

    pub(crate) fn verdict_facts(&self) -> VerdictInputs {
        VerdictInputs {
            outcomes: self.skills.iter().flat_map(|skill| &skill.steps).map(|step| step.outcome).collect(),
            inconclusive_reasons: self.inconclusive_reasons.iter().map(|detail| detail.doubt).collect(),
            is_restricted: self.is_restricted,
        }
    }

    /// Returns each step with its skill.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&SkillName, &StepEvidence)> {
        self.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| (&skill.skill, step)))
    }

    /// Returns a reason for an inconclusive result for each skill that passed with an effective tier above the caller's
    /// limit, for example because of a timeout before a retry. Such a pass is not valid for this caller.
    pub(crate) fn tier_violations(&self, max_tier: Tier) -> Vec<InconclusiveDetail> {
        let too_high =
            self.skills.iter().filter(|skill| skill.summary.outcome == Outcome::Passed && skill.tier > max_tier);
        let message = |skill: &SkillEvidence| {
            format!(
                "skill `{}` passed with tier {}, but this run accepts at most tier {max_tier}; use `--max-tier {}` to \
                    accept it",
                skill.skill, skill.tier, skill.tier
            )
        };
        too_high.map(|skill| InconclusiveReason::TierAboveLimit.with_message(message(skill))).collect()
    }

    /// Returns the highest effective tier of the run, including toolchain checks: a check that drifts raises its
    /// tier.
    pub(crate) fn tier(&self) -> Tier {
        let checks = evidence_builder::tier_reasons(self.toolchain.checks.iter().map(|check| &check.step));
        self.skills.iter().map(|skill| skill.tier).fold(tier::effective_tier(Tier::ONE, &checks), Tier::max)
    }
}

/// Content of the paths that were applied to the worktree (`None` if removed), so that they do not count as an edit
/// by the user.
pub(crate) type AppliedContent = BTreeMap<Vec<u8>, Option<Sha256Hex>>;

/// Returns the content that the applied layers left at each path; later layers win.
pub(crate) fn collect_applied(runs: &[SkillRun]) -> AppliedContent {
    let mut applied = AppliedContent::new();
    for (layer, paths) in runs.iter().flat_map(|run| &run.applied) {
        for path in paths {
            let content = match layer.scan.entries.get(path) {
                Some(LayerEntry::File { content: FileContent::Sha256(sha256), .. }) => Some(sha256.clone()),
                Some(LayerEntry::Symlink { target, .. }) => Some(Sha256Hex::digest(target)),
                _ => None,
            };
            applied.insert(path.clone(), content);
        }
    }
    applied
}

/// The result of reading the tree after the run.
pub(crate) struct TreeAfterRun {
    /// The reason why the run is inconclusive, if it is.
    pub(crate) inconclusive_reason: Option<InconclusiveDetail>,
    /// The tree after the run; `None` if it could not be read.
    pub(crate) tree: Option<SnapshotId>,
}

/// Reads the tree once more: if it was edited during the run, a step may have seen a mixture of old and new files.
pub(crate) async fn reread_tree(
    context: &Arc<RunContext>,
    worktrees: &Arc<SnapshotStore>,
    applied: AppliedContent,
) -> TreeAfterRun {
    let snapshots = match &context.tree.private_copy {
        // Nothing changes a private copy while a run holds it.
        Some(_) if context.space.is_in_memory() => return read_applied_worktree(context, worktrees, &applied).await,
        // Without namespaces, a step of the same user could change it. This run and the next one therefore read
        // every byte again.
        Some(copy) => {
            copy.discard_record();
            Arc::new(SnapshotStore::new(copy.helper.clone(), None))
        }
        None => Arc::clone(worktrees),
    };
    let context = Arc::clone(context);
    let work = tokio::task::spawn_blocking(move || {
        let repository = &context.tree.repository;
        if !repository.is_still_at_path()? {
            return Ok((vec![b".".to_vec()], None, None));
        }
        let now = snapshots.take(repository.path())?;
        let then = &context.tree.snapshot;
        // Copies share files through hard links, and each new link changes their stat data.
        let mut paths = if context.tree.private_copy.is_some() { then.difference(&now) } else { then.touched(&now) };
        paths.retain(|path| {
            let expected = applied.get(path);
            expected.is_none_or(|expected| now.entries.get(path).map(|entry| entry.sha256) != *expected)
        });
        let moved = moved_head_message(&context.tree, &now).or(changed_rules_message(&context.tree, &now));
        Ok::<_, EngineError>((paths, moved, Some(now.id.clone())))
    });
    let unreadable = |message: String| TreeAfterRun {
        inconclusive_reason: Some(InconclusiveReason::Internal.with_message(message)),
        tree: None,
    };
    match work.await {
        Ok(Ok((paths, moved, tree))) => {
            let changed = (!paths.is_empty()).then(|| changed_paths_message(&paths)).or(moved);
            let changed = changed.map(|message| InconclusiveReason::TreeChanged.with_message(message));
            TreeAfterRun { inconclusive_reason: changed, tree }
        }
        Ok(Err(error)) => unreadable(format!("the tree could not be checked after the run: {}", one_line(&error))),
        Err(error) => unreadable(format!("checking the tree after the run failed unexpectedly: {error}")),
    }
}

/// Returns the tree after a run over a private copy: that of the copy or, if changes were applied, that of the
/// worktree.
async fn read_applied_worktree(
    context: &Arc<RunContext>,
    snapshots: &Arc<SnapshotStore>,
    applied: &AppliedContent,
) -> TreeAfterRun {
    if applied.is_empty() {
        return TreeAfterRun { inconclusive_reason: None, tree: Some(context.tree.snapshot.id.clone()) };
    }
    let (snapshots, worktree) = (Arc::clone(snapshots), context.tree.worktree.path().to_path_buf());
    let taken = tokio::task::spawn_blocking(move || snapshots.take(&worktree)).await;
    let message = match taken {
        Ok(Ok(now)) => return TreeAfterRun { inconclusive_reason: None, tree: Some(now.id.clone()) },
        Ok(Err(error)) => one_line(&EngineError::from(error)),
        Err(error) => error.to_string(),
    };
    let message = format!("the worktree cannot be read after changes were applied to it: {message}");
    TreeAfterRun { inconclusive_reason: Some(InconclusiveReason::Internal.with_message(message)), tree: None }
}

/// Returns a message if ignore rules outside the tree changed: changes by steps may have been judged by the old or
/// the new rules.
fn changed_rules_message(tree: &RunTree, now: &Snapshot) -> Option<String> {
    let (then, now) = (&tree.snapshot.git.external_rules, &now.git.external_rules);
    let differing =
        then.iter().filter(|rules| !now.contains(rules)).chain(now.iter().filter(|rules| !then.contains(rules)));
    let changed: BTreeSet<&Path> = differing.map(|rules| rules.file.as_path()).collect();
    let named: Vec<String> = changed.iter().take(MAX_NAMED_PATHS).map(|path| format!("`{}`", path.display())).collect();
    let message = || format!("ignore rules were changed during the run: {}; run again", named.join(", "));
    (!changed.is_empty()).then(message)
}

/// Returns a message if HEAD differs from the record, even if all files are the same: a step that called git may
/// have seen either state.
fn moved_head_message(tree: &RunTree, now: &Snapshot) -> Option<String> {
    let (then, now) = (&tree.snapshot.git, &now.git);
    let is_shared = tree.source == TreeSource::SHARED;
    if !is_shared || (&then.head_commit, &then.branch) == (&now.head_commit, &now.branch) {
        return None;
    }
    let name = |git: &GitFacts| {
        let commit = git.head_commit.as_deref().unwrap_or("no commit");
        git.branch.as_deref().map_or_else(|| commit.to_owned(), |branch| format!("{commit} of `{branch}`"))
    };
    Some(format!("HEAD was moved during the run, from {} to {}; run again", name(then), name(now)))
}

fn changed_paths_message(paths: &[Vec<u8>]) -> String {
    let named: Vec<String> =
        paths.iter().take(MAX_NAMED_PATHS).map(|path| format!("`{}`", display_path(path))).collect();
    let more = match paths.len().saturating_sub(MAX_NAMED_PATHS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("the tree was edited during the run: {}{more}; run again", named.join(", "))
}

/// A recorded pass that can still be withdrawn. No other run writes its documents until the last clone is dropped.
#[derive(Clone)]
pub struct RevocablePass(Arc<dyn Fn() -> Result<(), StoreError> + Send + Sync>);

impl RevocablePass {
    /// Creates a pass that `take_back` withdraws.
    pub fn new(withdraw: impl Fn() -> Result<(), StoreError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(withdraw))
    }

    /// Replaces the pass by an inconclusive result, in the status file and in Proctor's own record. Because the record
    /// changes too, a saved copy of the status file cannot restore the pass. Callers use this when they cannot add the
    /// pass to their own record.
    ///
    /// # Errors
    /// The status file cannot be written and still shows the pass, or the record cannot be written.
    pub fn withdraw(&self) -> Result<(), StoreError> {
        (self.0)()
    }
}

impl fmt::Debug for RevocablePass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

/// Writes the run's documents durably, or returns why that failed. Before it publishes a pass, it sends the means
/// to withdraw it through `passed`, so that the receiver can withdraw it after any later failure.
pub(crate) async fn write_documents(
    context: &RunContext,
    documents: Arc<RunDocumentDir>,
    observed: &RunObservations,
    facts: &RunFacts,
    plan: &Plan,
    passed: oneshot::Sender<RevocablePass>,
) -> Option<InconclusiveDetail> {
    let failed = |error: StoreError| {
        let error = one_line(&EngineError::from(error));
        InconclusiveReason::Internal.with_message(format!("the evidence could not be written: {error}"))
    };
    let rerun = facts.rerun.as_ref().filter(|rerun| rerun.is_partial());
    // The skills that this run left out have the state of the newest recorded run, which may have ended in the
    // meantime.
    let after = |rerun: &Rerun| documents.newest_other_run(&facts.run_id, plan).unwrap_or(rerun.after.clone());
    let rerun = rerun.map(|rerun| Rerun { after: after(rerun), ..rerun.clone() });
    let last_run = |verdict: Verdict, evidence: EvidenceIndex| LastRun {
        version: status::VERSION,
        profile: plan.profile.clone(),
        outcome: verdict,
        timestamp: context.clock.now_text(),
        run_id: facts.run_id.clone(),
        tier: observed.tier(),
        snapshot: context.tree.snapshot.id.clone(),
        snapshot_after: observed.tree_after.clone(),
        source: context.tree.source.clone(),
        spec_sha256: plan.spec_sha256.clone(),
        reuse: (!evidence.is_empty()).then(|| observed.reuse(context, plan)),
        evidence,
        external_ignores: Some(external_ignores(&context.tree.snapshot)),
        unverified_inputs: context.unverified_inputs(),
        rerun: rerun.clone(),
        scope: covered_scope(plan.scope.as_ref(), observed.steps().map(|(_, step)| step)).cloned(),
    };
    let no_result = last_run(Verdict::Inconclusive, EvidenceIndex::new());
    let verdict = verdict::derive_verdict(&observed.verdict_facts());
    let published = match stage_documents(&documents, observed, &no_result, |index| last_run(verdict, index)) {
        Ok(staged) => staged.publish_evidence(),
        Err(error) => Err(error),
    };
    let (cited, conclusion) = match published {
        Ok(published) => published,
        Err(error) => {
            documents.record_no_result(&no_result);
            return Some(failed(error));
        }
    };
    for (file, sha256) in cited {
        context.emit(RunEvent::EvidenceWritten { file, sha256 }).await;
    }
    let pass = (verdict == Verdict::Passed).then(|| {
        let (documents, nothing) = (Arc::clone(&documents), no_result.clone());
        RevocablePass::new(move || documents.withdraw(&nothing))
    });
    // The receiver may be dropped: not every caller needs it.
    let _ = pass.clone().map(|pass| passed.send(pass));
    let error = conclusion.publish().err()?;
    match pass.map(|pass| pass.withdraw()) {
        None => documents.record_no_result(&no_result),
        Some(Ok(())) => {}
        // The status may be in place although its sync failed. Withdrawing it prevents a pass that was never
        // reported.
        Some(Err(error)) => {
            tracing::error!(run = %facts.run_id, %error, "the status file of a run that did not pass may report a pass");
        }
    }
    Some(failed(error))
}

/// Returns the hashes of the ignore rules outside the tree, for the record.
fn external_ignores(snapshot: &Snapshot) -> ExternalIgnores {
    let rules = snapshot.git.external_rules.iter();
    rules.map(|rules| (rules.name.clone(), rules.rules_sha256.clone())).collect()
}

/// Stages all documents, after the status has stopped citing the evidence that they overwrite.
fn stage_documents<'a>(
    documents: &'a RunDocumentDir,
    observed: &RunObservations,
    no_result: &LastRun,
    last_run: impl FnOnce(EvidenceIndex) -> LastRun,
) -> Result<StagedRun<'a>, StoreError> {
    documents.clear_citations(no_result)?;
    let toolchain = (TOOLCHAIN_ARTIFACT.to_owned(), to_bytes(&observed.toolchain));
    let skills = observed.skills.iter().map(|skill| (skill.skill.artifact(), to_bytes(skill)));
    let evidence: Vec<(String, Vec<u8>)> = std::iter::once(toolchain).chain(skills).collect();
    documents.stage(&evidence, last_run)
}

/// Returns the state of a run that has no result yet.
pub(crate) fn pending_run(context: &RunContext, facts: &RunFacts, plan: &Plan) -> LastRun {
    LastRun {
        version: status::VERSION,
        profile: plan.profile.clone(),
        outcome: Verdict::Inconclusive,
        timestamp: context.clock.now_text(),
        run_id: facts.run_id.clone(),
        tier: Tier::ONE,
        snapshot: context.tree.snapshot.id.clone(),
        snapshot_after: None,
        source: context.tree.source.clone(),
        spec_sha256: plan.spec_sha256.clone(),
        evidence: EvidenceIndex::new(),
        external_ignores: Some(external_ignores(&context.tree.snapshot)),
        unverified_inputs: context.tree.unverified.clone(),
        rerun: facts.rerun.clone().filter(Rerun::is_partial),
        scope: plan.scope.clone(),
        reuse: None,
    }
}
