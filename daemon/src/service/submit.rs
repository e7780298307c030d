//! Turns a request into a run, or finds an existing run that answers it. The request is checked completely before it
//! is accepted, so that a run that cannot start is refused immediately.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{
    ChangeDelivery, Problem, ProblemType, Reuse, RunSubmission, SkillFilter, SubmissionOutcome, SubmittedRun,
};
use proctor_core::decision::gate::{
    AgeLimits, GateRequirements, InputRequirement, MachineRequirement, UnattestedPolicy,
};
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::drift::display_path;
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{ChangesetId, IdempotencyKey, RunId};
use proctor_core::model::plan::{Network, Plan, ReadOnly};
use proctor_core::model::tier::Tier;
use proctor_core::telemetry::{TraceContext, take_context};
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::{
    CacheMode, ChangeHandling, CommitRef, Engine, EngineError, GateRequest, PriorRunRequest, RunInProgress, RunRequest,
    RunSource, SkillSelection, TOOL_VARIABLES, TraceSettings, is_reusable, planned_commands, require_whole_profile,
    takes_caller_env,
};

use super::{Service, run_blocking};
use crate::caller::{Account, Caller, env_size, worktree_top};
use crate::history::{KeyedRequest, NewRun};
use crate::queue::{RepoClaim, WorktreeUse};
use crate::runs::{AdmissionRefusal, LastRunOfKey, RequestedTree, RunAdmission, RunJob, RunKey, key_conflict};

/// Time that a request waits until the tree of an active run is known. After that, it gets a separate run.
const TREE_TIMEOUT: Duration = Duration::from_secs(10);

impl Service {
    /// Starts a run, or returns an existing one that answers the request. `key` is the `Idempotency-Key` of the
    /// request: the same key of the same caller results in the same run.
    ///
    /// # Errors
    /// The repository does not belong to the caller, the spec is invalid, too many runs wait, the key was used for
    /// another request, or the daemon is shutting down.
    pub async fn submit(
        &self,
        caller: Caller,
        submission: RunSubmission,
        key: Option<IdempotencyKey>,
    ) -> Result<SubmittedRun, Problem> {
        self.submit_in_trace(caller, submission, key, None).await
    }

    /// Like [`Service::submit`], within a trace: `trace`, or else the one in the environment of the request.
    ///
    /// # Errors
    /// As [`Service::submit`].
    pub async fn submit_in_trace(
        &self,
        caller: Caller,
        mut submission: RunSubmission,
        key: Option<IdempotencyKey>,
        trace: Option<TraceContext>,
    ) -> Result<SubmittedRun, Problem> {
        // The trace context is removed first, because it must not make two requests different.
        let from_env = submission.env.as_mut().and_then(take_context);
        let submitted = self.submit_inner(caller, submission, key, trace.or(from_env)).await;
        submitted.inspect_err(|problem| self.report_refusal(caller, problem))
    }

    /// Counts a refused request, and logs it if the daemon is the cause.
    pub(super) fn report_refusal(&self, caller: Caller, problem: &Problem) {
        self.metrics.count_refused_submission(problem);
        let is_ours = matches!(problem.kind, ProblemType::Unavailable | ProblemType::Internal);
        if is_ours && let Some(suppressed) = self.refusal_throttle.admit((caller.uid, problem.kind)) {
            tracing::warn!(uid = caller.uid, suppressed, "a run was rejected: {}", problem.detail);
        }
    }

    async fn submit_inner(
        &self,
        caller: Caller,
        submission: RunSubmission,
        key: Option<IdempotencyKey>,
        trace: Option<TraceContext>,
    ) -> Result<SubmittedRun, Problem> {
        let idempotency_key = key.map(|key| keyed_request(key, &submission));
        if let Some(repeated) = self.find_repeated(caller, idempotency_key.as_ref()).await? {
            return Ok(repeated);
        }
        let checked = self.prepare(caller, submission).await?;
        if let Some(id) = self.find_verified(caller, &checked).await {
            return self.answer_with(caller, SubmissionOutcome::Verified, id, idempotency_key).await;
        }
        let same_tree = self.find_same_tree(caller, &checked).await;
        self.admit(caller, checked, same_tree, idempotency_key, trace).await
    }

    /// Returns the run that already belongs to the key.
    async fn find_repeated(
        &self,
        caller: Caller,
        idempotency_key: Option<&KeyedRequest>,
    ) -> Result<Option<SubmittedRun>, Problem> {
        let Some(sent) = idempotency_key.cloned() else { return Ok(None) };
        let key = sent.key.clone();
        let known = self.query_history(move |history| history.run_for_key(caller.uid, &key)).await?;
        match known {
            None => Ok(None),
            Some((id, request)) if request == sent.request_sha256 => {
                self.metrics.count_submission(SubmissionOutcome::Repeated);
                let run = self.run(caller, &id).await?.view.clone();
                Ok(Some(SubmittedRun { how: SubmissionOutcome::Repeated, run }))
            }
            Some((id, _)) => Err(key_conflict(&id)),
        }
    }

    /// Returns an existing run that answers the request, and assigns the key to it.
    async fn answer_with(
        &self,
        caller: Caller,
        how: SubmissionOutcome,
        id: RunId,
        idempotency_key: Option<KeyedRequest>,
    ) -> Result<SubmittedRun, Problem> {
        let (run_id, how) = match idempotency_key {
            None => (id, how),
            Some(sent) => {
                let wanted = id.clone();
                let known = self.query_history(move |history| history.assign_key(caller.uid, &sent, &wanted)).await?;
                let how = if known == id { how } else { SubmissionOutcome::Repeated };
                (known, how)
            }
        };
        let run = self.run(caller, &run_id).await?.view.clone();
        if how == SubmissionOutcome::Verified {
            self.metrics.count_submission(how);
        }
        Ok(SubmittedRun { how, run })
    }

    /// Checks the request completely, except for the state of the tree.
    async fn prepare(&self, caller: Caller, mut submission: RunSubmission) -> Result<CheckedRequest, Problem> {
        let _permit = self.preparation_limit.acquire(caller).await;
        let (changeset, rev) = (submission.changeset_id.as_ref(), submission.rev.as_deref());
        require_whole_profile(skills_wanted(submission.skills), changeset, rev).map_err(|error| error.problem())?;
        let approve = self.operator().daemon.approve_tier2;
        let (engine, account, repo) = self.engine_for(caller, &submission.repo, submission.env.take()).await?;
        let commit = match &submission.rev {
            Some(rev) => Some(resolve_commit(&engine, &repo, rev).await?),
            None => None,
        };
        let look = SubmissionCheck { caller, submission, account, repo, engine, requires_approval: approve };
        run_blocking(move || look.check(commit)).await?
    }

    /// Finds an earlier run of the same tree, spec and plan whose evidence is still valid and that may answer the
    /// request. If the search fails, a new run is started.
    async fn find_verified(&self, caller: Caller, checked: &CheckedRequest) -> Option<RunId> {
        if let RequestedTree::Commit { id, submodules: false } = &checked.key.tree {
            return self.find_verified_commit(caller, checked, id).await;
        }
        if !checked.is_reusable {
            return None;
        }
        let last = self.runs.find_last(checked.key.clone()).await;
        if last.as_ref().is_some_and(|last| !last.passed) {
            return None;
        }
        let _permit = self.preparation_limit.acquire(caller).await;
        let (repo, demands) = (checked.repo.clone(), checked.gate_demands());
        let answer = checked.engine.verified_run(GateRequest { repo, demands }).await;
        let unknown = |error: &EngineError| tracing::debug!(%error, "cannot determine whether the tree is verified");
        let run = answer.inspect_err(unknown).ok()??;
        let earlier_run = self.run(caller, &run).await.ok()?;
        let toolchain_env = self.logged_toolchain_env(&run).await;
        let is_met = checked.key.is_satisfied_by(&earlier_run.view, toolchain_env.as_ref());
        (is_met && checked.takes_same_env_as(last.as_ref(), &run)).then_some(run)
    }

    /// Like [`Self::find_verified`], for a commit: finds a run of the commit, or of a worktree or another commit with
    /// the same tree.
    async fn find_verified_commit(&self, caller: Caller, checked: &CheckedRequest, commit: &str) -> Option<RunId> {
        let last = self.runs.find_last(checked.key.clone()).await;
        if !checked.may_reuse || last.as_ref().is_some_and(|last| !last.passed) {
            return None;
        }
        let _permit = self.preparation_limit.acquire(caller).await;
        let (repo, commit, demands) = (checked.repo.clone(), CommitRef::from(commit), checked.gate_demands());
        let (engine, request) =
            (Arc::clone(&checked.engine), PriorRunRequest { repo, spec_dir: None, commit, demands });
        let earlier = run_blocking(move || engine.find_prior_run(&request)).await.ok()??;
        let earlier_run = self.run(caller, &earlier.run_id).await.ok()?;
        checked.key.is_satisfied_by_tree(&earlier_run.view).then_some(earlier.run_id)
    }

    /// Returns the toolchain digest in the log of a run, if present.
    async fn logged_toolchain_env(&self, id: &RunId) -> Option<Sha256Hex> {
        let id = id.clone();
        let (events, _) = self.query_history(move |history| history.events(&id, 0, 1)).await.ok()??;
        match events.into_iter().next()?.event {
            RunEvent::RunQueued { toolchain_env_sha256, .. } => toolchain_env_sha256,
            _ => None,
        }
    }

    /// Returns the active run with the same key that verifies the current tree and shows its steps the current ignored
    /// files.
    async fn find_same_tree(&self, caller: Caller, checked: &CheckedRequest) -> Option<RunId> {
        let live = self.runs.find_active(checked.key.clone()).await?;
        if matches!(checked.key.tree, RequestedTree::Commit { .. }) {
            return Some(live.id().clone());
        }
        tokio::time::timeout(TREE_TIMEOUT, live.wait_for_tree()).await.ok()?;
        let _permit = self.preparation_limit.acquire(caller).await;
        let current = live.current();
        let request = RunInProgress {
            repo: checked.repo.clone(),
            profile: checked.key.profile.clone(),
            snapshot: current.view.snapshot.clone()?,
            source: current.view.source.clone()?,
            unverified_sha256: current.view.unverified_inputs_sha256.clone(),
        };
        checked.engine.is_verifying(request).await.ok()?.then(|| live.id().clone())
    }

    async fn admit(
        &self,
        caller: Caller,
        checked: CheckedRequest,
        same_tree: Option<RunId>,
        idempotency_key: Option<KeyedRequest>,
        trace: Option<TraceContext>,
    ) -> Result<SubmittedRun, Problem> {
        let trace = TraceSettings::new(trace, self.telemetry.is_enabled());
        let admission = RunAdmission {
            key: checked.key.clone(),
            same_tree,
            job: checked.into_job(idempotency_key.clone(), trace)?,
        };
        match self.runs.admit(admission).await {
            Ok((SubmissionOutcome::Joined, live)) => {
                self.answer_with(caller, SubmissionOutcome::Joined, live.id().clone(), idempotency_key).await
            }
            Ok((how, live)) => Ok(SubmittedRun { how, run: live.current().view.clone() }),
            Err(AdmissionRefusal::KeyUsed(_)) => {
                let repeated = self.find_repeated(caller, idempotency_key.as_ref()).await?;
                repeated
                    .ok_or_else(|| Problem::new(ProblemType::Conflict, "the key is being used for a different request"))
            }
            Err(AdmissionRefusal::Problem(problem)) => Err(*problem),
        }
    }
}

fn keyed_request(key: IdempotencyKey, submission: &RunSubmission) -> KeyedRequest {
    KeyedRequest { key, request_sha256: Sha256Hex::digest(&canonical::to_vec(submission)) }
}

/// Resolves a revision that must name exactly one commit.
async fn resolve_commit(engine: &Engine, repo: &Path, rev: &str) -> Result<String, Problem> {
    let mut named = engine.resolve_revision(repo, rev).await.map_err(|error| error.problem())?;
    match (named.pop(), named.is_empty()) {
        (Some(commit), true) => Ok(commit.id),
        _ => {
            let detail = format!("`rev` must name one commit, but `{}` does not", display_path(rev.as_bytes()));
            Err(Problem::new(ProblemType::Unprocessable, detail)
                .with_hint("send a separate request for each commit of a range"))
        }
    }
}

/// Input for checking a request.
struct SubmissionCheck {
    caller: Caller,
    submission: RunSubmission,
    account: Account,
    repo: PathBuf,
    engine: Arc<Engine>,
    /// `true` if a changeset needs approval for anything above tier 1.
    requires_approval: bool,
}

/// A checked request that can be accepted.
struct CheckedRequest {
    key: RunKey,
    repo: PathBuf,
    engine: Arc<Engine>,
    submission: RunSubmission,
    /// Highest tier that may run.
    max_tier: Tier,
    worktree: WorktreeUse,
    /// `true` if the request permits an earlier run as the answer.
    may_reuse: bool,
    /// `true` if the request, the plan and the tools permit an earlier run as the answer.
    is_reusable: bool,
    /// `true` if steps use variables of the caller.
    takes_env: bool,
    request_bytes: usize,
}

impl SubmissionCheck {
    /// Checks the request. A commit contains its own spec, so its plan is not known here. Blocks on the disk.
    fn check(self, commit: Option<String>) -> Result<CheckedRequest, Problem> {
        match commit {
            Some(id) => {
                let submodules = self.submission.submodules;
                self.build(RequestedTree::Commit { id, submodules }, None, WorktreeUse::Unused)
            }
            None => {
                let plan = self.plan()?;
                if !self.submission.skills.is_all() {
                    // The skills are selected when the run starts, because earlier runs have been recorded at that
                    // time.
                    self.engine.select_not_passed(&self.repo, plan.clone()).map_err(|error| error.problem())?;
                }
                let (tree, worktree) =
                    (RequestedTree::Worktree { plan_sha256: plan.digest() }, self.worktree_use(&plan));
                self.build(tree, Some(&plan), worktree)
            }
        }
    }

    fn build(self, tree: RequestedTree, plan: Option<&Plan>, worktree: WorktreeUse) -> Result<CheckedRequest, Problem> {
        let max_tier = if self.requires_approval { self.approved_tier(plan)? } else { self.submission.max_tier };
        // A pass of the whole profile answers a request for some files, but not a request for fixes.
        let scope = &self.submission.scope;
        let whole = self.submission.changes == ChangeDelivery::Applied
            && self.submission.skills.is_all()
            && !scope.changes_plan();
        let is_cached = !self.submission.no_caches && !self.submission.no_cache;
        let reuse = self.submission.reuse == Reuse::Verified && whole && is_cached;
        let tools = plan.and_then(|plan| self.tools_digest(plan));
        Ok(CheckedRequest {
            is_reusable: reuse && tools.is_some() && plan.is_some_and(is_reusable),
            key: self.key(tree, plan, tools.as_ref()),
            max_tier,
            worktree,
            may_reuse: reuse,
            takes_env: plan.is_none_or(takes_caller_env),
            request_bytes: env_size(&self.account.env),
            engine: self.engine,
            submission: self.submission,
            repo: self.repo,
        })
    }

    fn plan(&self) -> Result<Plan, Problem> {
        let planned = || {
            let file = self.engine.load_spec(&self.repo)?;
            self.engine.parse_and_resolve(&file, &self.submission.profile)
        };
        planned().map(|resolved| resolved.plan).map_err(|error: EngineError| error.problem())
    }

    /// Returns the digest of the tools that the run finds. If it cannot be determined, no earlier run is reused, and
    /// the run reports the reason.
    fn tools_digest(&self, plan: &Plan) -> Option<Sha256Hex> {
        let found = self.engine.tools_digest(&self.repo, plan);
        found.inspect_err(|error| tracing::debug!(%error, "cannot determine which tools a run would use")).ok()
    }

    fn worktree_use(&self, plan: &Plan) -> WorktreeUse {
        let applies = self.submission.changes == ChangeDelivery::Applied;
        match applies && (self.submission.scope.fix || changes_the_tree(plan)) {
            true => WorktreeUse::Changes,
            false => WorktreeUse::Reads,
        }
    }

    fn key(&self, tree: RequestedTree, plan: Option<&Plan>, tools: Option<&Sha256Hex>) -> RunKey {
        RunKey {
            uid: self.caller.uid,
            repo: display_path(self.repo.as_os_str().as_encoded_bytes()),
            tree,
            profile: self.submission.profile.clone(),
            changeset: self.submission.changeset_id.clone(),
            max_tier: self.submission.max_tier,
            sandbox: self.submission.sandbox,
            fail_fast: self.submission.fail_fast,
            changes: self.submission.changes,
            skills: self.submission.skills,
            scope: self.submission.scope.clone(),
            no_caches: self.submission.no_caches,
            no_cache: self.submission.no_cache,
            env: Sha256Hex::digest(&canonical::to_vec(&caller_variables(plan, &self.account))),
            toolchain_env: toolchain_env(&self.account, tools),
            operator: Arc::new(self.engine.operator().clone()),
        }
    }

    /// Returns the highest tier that may run if the operator requires approval of changesets above tier 1. The plan
    /// of a commit is not known yet, so without approval the run of a commit is limited to tier 1.
    fn approved_tier(&self, plan: Option<&Plan>) -> Result<Tier, Problem> {
        let submission = &self.submission;
        let Some(changeset) = &submission.changeset_id else { return Ok(submission.max_tier) };
        if self.engine.is_approved(&self.repo, changeset).map_err(|error| error.problem())? {
            return Ok(submission.max_tier);
        }
        let above = submission.sandbox == SandboxMode::BestEffort || plan.is_some_and(declares_above_tier_one);
        match above {
            true => Err(not_approved(changeset)),
            false => Ok(submission.max_tier.min(Tier::ONE)),
        }
    }
}

impl CheckedRequest {
    /// Returns whether steps got the same variables as they would get now. This is known only of `last`, a run of
    /// this daemon, because the values of variables are not recorded.
    fn takes_same_env_as(&self, last: Option<&LastRunOfKey>, earlier: &RunId) -> bool {
        !self.takes_env || last.is_some_and(|last| last.run == *earlier)
    }

    /// Returns what the gate must verify for an earlier run to be the answer.
    fn gate_demands(&self) -> GateRequirements {
        GateRequirements {
            profile: self.key.profile.clone(),
            changeset: self.key.changeset.clone(),
            max_tier: self.key.max_tier,
            max_age: AgeLimits::default(),
            unattested: UnattestedPolicy::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: InputRequirement::Any,
            machines: MachineRequirement::Any,
        }
    }

    fn into_job(self, idempotency_key: Option<KeyedRequest>, trace: TraceSettings) -> Result<RunJob, Problem> {
        let id = self.engine.run_id().map_err(|error| error.problem())?;
        let submission = self.submission;
        let (source, plan_sha256) = match self.key.tree {
            RequestedTree::Worktree { plan_sha256 } => (RunSource::Worktree, Some(plan_sha256)),
            RequestedTree::Commit { id, submodules } => (RunSource::Commit { id, submodules }, None),
        };
        let changes = match submission.changes {
            ChangeDelivery::Applied => ChangeHandling::Apply,
            ChangeDelivery::Patch => ChangeHandling::AsPatch,
        };
        let request = submission.to_recorded(self.key.repo.clone());
        Ok(RunJob {
            new: NewRun {
                id: id.clone(),
                request,
                uid: self.key.uid,
                key: idempotency_key,
                toolchain_env: self.key.toolchain_env,
                trace: trace.parent.clone(),
            },
            claim: RepoClaim {
                // Specs in two directories of one repository share its worktree.
                repo: Arc::from(display_path(worktree_top(&self.repo).as_os_str().as_encoded_bytes())),
                changeset: submission.changeset_id.clone(),
                worktree: self.worktree,
            },
            engine: self.engine,
            request: RunRequest {
                run_id: Some(id),
                repo: self.repo,
                spec_dir: None,
                source,
                profile: submission.profile,
                plan_sha256,
                changeset: submission.changeset_id,
                max_tier: self.max_tier,
                sandbox: submission.sandbox,
                fail_fast: submission.fail_fast,
                changes,
                skills: skills_wanted(submission.skills),
                scope: submission.scope,
                caches: if submission.no_caches { CacheMode::Empty } else { CacheMode::Persistent },
                reuses_steps: !submission.no_cache,
                live: None,
                trace,
            },
            request_bytes: self.request_bytes,
        })
    }
}

fn skills_wanted(skills: SkillFilter) -> SkillSelection {
    match skills {
        SkillFilter::All => SkillSelection::All,
        SkillFilter::NotPassed => SkillSelection::NotPassed,
    }
}

fn changes_the_tree(plan: &Plan) -> bool {
    planned_commands(plan).any(|step| step.read_only == ReadOnly::Off)
}

/// Returns the variables that a run can take from its caller; all of them if the plan is not known yet.
fn caller_variables<'a>(plan: Option<&Plan>, account: &'a Account) -> BTreeMap<&'a str, &'a str> {
    let is_taken = |name: &str| match plan {
        None => true,
        Some(plan) => {
            let allowed =
                planned_commands(plan).any(|step| step.env_allowlist.iter().any(|allowed| allowed.as_str() == name));
            allowed || TOOL_VARIABLES.contains(&name)
        }
    };
    let env = account.env.iter().filter(|(name, _)| is_taken(name));
    env.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Returns the digest of the found `tools` and of the inputs that select them. It can be recorded without a salt,
/// because it covers only paths and file properties.
///
/// Variables that steps use may be secrets with few possible values, which a recorded digest would reveal. Their
/// digest stays in memory.
fn toolchain_env(account: &Account, tools: Option<&Sha256Hex>) -> Sha256Hex {
    proctor_runner::toolchain_env(&account.home, &account.env, tools)
}

fn declares_above_tier_one(plan: &Plan) -> bool {
    plan.skills.iter().any(|skill| skill.declared_tier > Tier::ONE)
        || planned_commands(plan).any(|s| s.network == Network::Allow)
}

fn not_approved(changeset: &ChangesetId) -> Problem {
    let detail = format!("the run is above tier 1, and the changeset `{changeset}` is not approved for it");
    Problem::new(ProblemType::Unprocessable, detail).with_hint(format!(
        "a person approves it with a file `changes/{changeset}/APPROVED`; the operator requires this with \
            `daemon.approve_tier2`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::model::names::ProfileName;
    use proctor_core::spec::{self, OperatorConfig};

    fn plan(step: &str) -> Plan {
        let text = format!(
            "version: 1\nprofiles: {{ p: {{ include: [s] }} }}\n\
             skills: {{ s: {{ steps: [{{ name: a, cmd: make {step} }}] }} }}\n"
        );
        let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
        let (profile, sha256) = (ProfileName::new("p").expect("a name"), Sha256Hex::digest(text.as_bytes()));
        spec::resolve(&spec, &profile, &OperatorConfig::default(), sha256, 1).expect("a plan").plan
    }

    /// Two callers whose variables differ in what steps or toolchain selection can use do not share a run.
    #[test]
    fn key_covers_variables_that_a_run_can_use() {
        let names = ["CARGO_HOME", "HOME", "OTHER", "PATH", "RUSTUP_HOME", "WORD"];
        let env = names.map(|name| (name.to_owned(), "/x".to_owned()));
        let account = Account { home: "/x".into(), env: env.into() };
        let variables =
            |plan: Option<&Plan>| caller_variables(plan, &account).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(variables(Some(&plan(""))), "CARGO_HOME HOME PATH RUSTUP_HOME");
        assert_eq!(variables(Some(&plan(", env_allowlist: [WORD]"))), "CARGO_HOME HOME PATH RUSTUP_HOME WORD");
        assert_eq!(variables(None), names.join(" "), "a commit's plan is not known yet");
    }

    /// The recorded digest covers no variables that steps use.
    #[test]
    fn toolchain_digest_covers_only_selection_inputs() {
        let digest = |home: &str, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            toolchain_env(&Account { home: home.into(), env }, None)
        };
        let usual = digest("/h", &[("PATH", "/bin")]);
        assert_eq!(usual, digest("/h", &[("HOME", "/h"), ("PATH", "/bin"), ("API_TOKEN", "1234")]));
        let others = [
            digest("/other", &[("PATH", "/bin")]),
            digest("/h", &[("PATH", "/opt/bin:/bin")]),
            digest("/h", &[]),
            digest("/h", &[("PATH", "/bin"), ("CARGO_HOME", "/c")]),
            digest("/h", &[("PATH", "/bin"), ("RUSTUP_HOME", "/c")]),
        ];
        assert!(others.iter().all(|other| *other != usual));
        let account = Account { home: "/h".into(), env: BTreeMap::from([("PATH".into(), "/bin".into())]) };
        let found = |tools: &[u8]| toolchain_env(&account, Some(&Sha256Hex::digest(tools)));
        assert!(found(b"old") != usual && found(b"old") != found(b"new"), "the same places, and other tools in them");
    }
}
