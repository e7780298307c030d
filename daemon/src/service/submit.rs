//! Turns a request into a run, or finds an existing run that answers it. The request is checked completely before it
//! is accepted, so that a run that cannot start is refused immediately.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{ChangesAsked, How, Problem, ProblemType, Reuse, RunSubmission, SkillsAsked, Submitted};
use proctor_core::cache::CacheTrust;
use proctor_core::canonical;
use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use proctor_core::enforcement::SandboxMode;
use proctor_core::event::RunEvent;
use proctor_core::gate::{Demands, MaxAge, RequiredInputs, Unattested};
use proctor_core::names::{ChangesetId, RunId};
use proctor_core::plan::{Network, Plan, ReadOnly};
use proctor_core::telemetry::{TraceContext, take_context};
use proctor_core::tier::Tier;
use proctor_runner::{
    CachesWanted, ChangesWanted, CommitAsked, CommitRef, Earlier, Engine, EngineError, GateRequest, RunRequest,
    RunSource, SkillsWanted, TOOL_VARIABLES, Tracing, UnderWay, commands, demand_whole, is_reusable, takes_env,
};

use super::{Service, apart};
use crate::caller::{Account, Caller, held_bytes};
use crate::history::{Key, NewRun};
use crate::queue::{Claim, Worktree};
use crate::runs::{Admission, Job, KeyTree, Last, Refused, RunKey, key_conflict};

/// Maximum length of an `Idempotency-Key` in bytes.
const MAX_KEY: usize = 255;
/// Time that a request waits until the tree of an active run is known. After that, it gets a separate run.
const MAX_LOOK: Duration = Duration::from_secs(10);

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
        key: Option<String>,
    ) -> Result<Submitted, Problem> {
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
        key: Option<String>,
        trace: Option<TraceContext>,
    ) -> Result<Submitted, Problem> {
        // The trace context is removed first, because it must not make two requests different.
        let of_env = submission.env.as_mut().and_then(take_context);
        let submitted = self.submitted(caller, submission, key, trace.or(of_env)).await;
        submitted.inspect_err(|problem| self.report_refusal(caller, problem))
    }

    /// Counts a refused request, and logs it if the daemon is the cause.
    pub(super) fn report_refusal(&self, caller: Caller, problem: &Problem) {
        self.metrics.not_submitted(problem);
        let is_ours = matches!(problem.kind, ProblemType::Unavailable | ProblemType::Internal);
        if is_ours && let Some(suppressed) = self.refusals.admit((caller.uid, problem.kind)) {
            tracing::warn!(uid = caller.uid, suppressed, "a run was not taken on: {}", problem.detail);
        }
    }

    async fn submitted(
        &self,
        caller: Caller,
        submission: RunSubmission,
        key: Option<String>,
        trace: Option<TraceContext>,
    ) -> Result<Submitted, Problem> {
        let sent = key.map(|text| sent_key(text, &submission)).transpose()?;
        if let Some(repeated) = self.repeated(caller, sent.as_ref()).await? {
            return Ok(repeated);
        }
        let wanted = self.prepared(caller, submission).await?;
        if let Some(id) = self.verified(caller, &wanted).await {
            return self.met_by(caller, How::Verified, id, sent).await;
        }
        let same_tree = self.same_tree(caller, &wanted).await;
        self.admitted(caller, wanted, same_tree, sent, trace).await
    }

    /// Returns the run that already belongs to the key.
    async fn repeated(&self, caller: Caller, sent: Option<&Key>) -> Result<Option<Submitted>, Problem> {
        let Some(sent) = sent.cloned() else { return Ok(None) };
        let text = sent.text.clone();
        let known = self.remembered(move |history| history.idempotent(caller.uid, &text)).await?;
        match known {
            None => Ok(None),
            Some((id, request)) if request == sent.request => {
                self.metrics.submitted(How::Repeated);
                let run = self.run(caller, &id).await?.view.clone();
                Ok(Some(Submitted { how: How::Repeated, run }))
            }
            Some((id, _)) => Err(key_conflict(&id)),
        }
    }

    /// Returns an existing run that answers the request, and assigns the key to it.
    async fn met_by(&self, caller: Caller, how: How, id: RunId, sent: Option<Key>) -> Result<Submitted, Problem> {
        let (met, how) = match sent {
            None => (id, how),
            Some(sent) => {
                let wanted = id.clone();
                let known = self.remembered(move |history| history.remember(caller.uid, &sent, &wanted)).await?;
                let how = if known == id { how } else { How::Repeated };
                (known, how)
            }
        };
        let run = self.run(caller, &met).await?.view.clone();
        if how == How::Verified {
            self.metrics.submitted(how);
        }
        Ok(Submitted { how, run })
    }

    /// Checks the request completely, except for the state of the tree.
    async fn prepared(&self, caller: Caller, mut submission: RunSubmission) -> Result<Wanted, Problem> {
        let _part = self.preparing.wait(caller).await;
        let (changeset, rev) = (submission.changeset_id.as_ref(), submission.rev.as_deref());
        demand_whole(skills_wanted(submission.skills), changeset, rev).map_err(|error| error.problem())?;
        let approve = self.operator().daemon.approve_tier2;
        let (engine, account, repo) = self.serving(caller, &submission.repo, submission.env.take()).await?;
        let commit = match &submission.rev {
            Some(rev) => Some(commit_of(&engine, &repo, rev).await?),
            None => None,
        };
        let look = Look { caller, submission, account, repo, engine, approve };
        apart(move || look.wanted(commit)).await?
    }

    /// Finds an earlier run of the same tree, spec and plan whose evidence is still valid and that may answer the
    /// request. If the search fails, a new run is started.
    async fn verified(&self, caller: Caller, wanted: &Wanted) -> Option<RunId> {
        if let KeyTree::Commit { id, submodules: false } = &wanted.key.tree {
            return self.commit_verified(caller, wanted, id).await;
        }
        if !wanted.reusable {
            return None;
        }
        let last = self.runs.last(wanted.key.clone()).await;
        if last.as_ref().is_some_and(|last| !last.passed) {
            return None;
        }
        let _part = self.preparing.wait(caller).await;
        let (repo, demands) = (wanted.repo.clone(), wanted.demands());
        let answer = wanted.engine.verified(GateRequest { repo, demands }).await;
        let unknown = |error: &EngineError| tracing::debug!(%error, "cannot determine whether the tree is verified");
        let run = answer.inspect_err(unknown).ok()??;
        let shown = self.run(caller, &run).await.ok()?;
        let toolchain_env = self.toolchain_env_of(&run).await;
        let is_met = wanted.key.is_met_by(&shown.view, toolchain_env.as_ref());
        (is_met && wanted.takes_no_more_than(last.as_ref(), &run)).then_some(run)
    }

    /// Like [`Self::verified`], for a commit: finds a run of the commit, or of a worktree or another commit with the
    /// same tree.
    async fn commit_verified(&self, caller: Caller, wanted: &Wanted, commit: &str) -> Option<RunId> {
        let last = self.runs.last(wanted.key.clone()).await;
        if !wanted.may_reuse || last.as_ref().is_some_and(|last| !last.passed) {
            return None;
        }
        let _part = self.preparing.wait(caller).await;
        let (repo, commit, demands) = (wanted.repo.clone(), CommitRef::from(commit), wanted.demands());
        let (engine, asked) = (Arc::clone(&wanted.engine), CommitAsked { repo, commit, demands });
        let answered = apart(move || engine.answered(&asked)).await.ok()?;
        let unknown = |error: &EngineError| tracing::debug!(%error, "cannot determine whether a commit is verified");
        let earlier = answered.inspect_err(unknown).ok()??;
        let shown = self.run(caller, &earlier.run_id).await.ok()?;
        let is_met = wanted.key.is_met_by_tree(&shown.view);
        let env_is_known = !takes_env(&earlier.plan) || {
            let of_worktree = self.runs.last(wanted.key_of_worktree(&earlier)).await;
            [last, of_worktree].into_iter().flatten().any(|last| last.run == earlier.run_id)
        };
        (is_met && env_is_known).then_some(earlier.run_id)
    }

    /// Returns the toolchain digest in the log of a run, if present.
    async fn toolchain_env_of(&self, id: &RunId) -> Option<Sha256Hex> {
        let id = id.clone();
        let (events, _) = self.remembered(move |history| history.events(&id, 0, 1)).await.ok()??;
        match events.into_iter().next()?.event {
            RunEvent::RunQueued { toolchain_env_sha256, .. } => toolchain_env_sha256,
            _ => None,
        }
    }

    /// Returns the active run with the same key that verifies the current tree and shows its steps the current ignored
    /// files.
    async fn same_tree(&self, caller: Caller, wanted: &Wanted) -> Option<RunId> {
        let live = self.runs.under_way(wanted.key.clone()).await?;
        if matches!(wanted.key.tree, KeyTree::Commit { .. }) {
            return Some(live.id().clone());
        }
        tokio::time::timeout(MAX_LOOK, live.tree_known()).await.ok()?;
        let _part = self.preparing.wait(caller).await;
        let shown = live.shown();
        let asked = UnderWay {
            repo: wanted.repo.clone(),
            profile: wanted.key.profile.clone(),
            snapshot: shown.view.snapshot.clone()?,
            source: shown.view.source.clone()?,
            unverified_sha256: shown.view.unverified_inputs_sha256.clone(),
        };
        wanted.engine.is_verifying(asked).await.ok()?.then(|| live.id().clone())
    }

    async fn admitted(
        &self,
        caller: Caller,
        wanted: Wanted,
        same_tree: Option<RunId>,
        sent: Option<Key>,
        trace: Option<TraceContext>,
    ) -> Result<Submitted, Problem> {
        let trace = Tracing::new(trace, self.telemetry.is_on());
        let admission = Admission { key: wanted.key.clone(), same_tree, job: wanted.into_job(sent.clone(), trace)? };
        match self.runs.admit(admission).await {
            Ok((How::Joined, live)) => self.met_by(caller, How::Joined, live.id().clone(), sent).await,
            Ok((how, live)) => Ok(Submitted { how, run: live.shown().view.clone() }),
            Err(Refused::KeyUsed(_)) => {
                let repeated = self.repeated(caller, sent.as_ref()).await?;
                repeated.ok_or_else(|| Problem::new(ProblemType::Conflict, "the key is being used for another request"))
            }
            Err(Refused::Problem(problem)) => Err(*problem),
        }
    }
}

fn sent_key(text: String, submission: &RunSubmission) -> Result<Key, Problem> {
    if text.is_empty() || text.len() > MAX_KEY || text.chars().any(char::is_control) {
        let detail = format!("an `Idempotency-Key` has 1 to {MAX_KEY} bytes and no control characters");
        return Err(Problem::new(ProblemType::InvalidRequest, detail));
    }
    Ok(Key { text, request: Sha256Hex::of(&canonical::to_vec(submission)) })
}

/// Resolves a revision that must name exactly one commit.
async fn commit_of(engine: &Engine, repo: &Path, rev: &str) -> Result<String, Problem> {
    let mut named = engine.resolve_revision(repo, rev).await.map_err(|error| error.problem())?;
    match (named.pop(), named.is_empty()) {
        (Some(commit), true) => Ok(commit.id),
        _ => {
            let detail = format!("`rev` must name one commit, and `{}` does not", display_path(rev.as_bytes()));
            Err(Problem::new(ProblemType::Unprocessable, detail)
                .with_hint("send a separate request for each commit of a range"))
        }
    }
}

/// Input for checking a request.
struct Look {
    caller: Caller,
    submission: RunSubmission,
    account: Account,
    repo: PathBuf,
    engine: Arc<Engine>,
    /// `true` if a changeset needs approval for anything above tier 1.
    approve: bool,
}

/// A checked request that can be accepted.
struct Wanted {
    key: RunKey,
    repo: PathBuf,
    engine: Arc<Engine>,
    submission: RunSubmission,
    /// Highest tier that may run.
    max_tier: Tier,
    worktree: Worktree,
    /// `true` if the request permits an earlier run as the answer.
    may_reuse: bool,
    /// `true` if the request, the plan and the tools permit an earlier run as the answer.
    reusable: bool,
    /// `true` if steps use variables of the caller.
    takes_env: bool,
    account: Account,
    held_bytes: usize,
}

impl Look {
    /// Checks the request. A commit contains its own spec, so its plan is not known here. Blocks on the disk.
    fn wanted(self, commit: Option<String>) -> Result<Wanted, Problem> {
        match commit {
            Some(id) => {
                let submodules = self.submission.submodules;
                self.with(KeyTree::Commit { id, submodules }, None, Worktree::Apart)
            }
            None => {
                let plan = self.plan()?;
                if !self.submission.skills.is_all() {
                    // The skills are selected when the run starts, because earlier runs are recorded by then.
                    self.engine.not_passed(&self.repo, plan.clone()).map_err(|error| error.problem())?;
                }
                let (tree, worktree) = (KeyTree::Worktree { plan_sha256: plan.digest() }, self.use_of(&plan));
                self.with(tree, Some(&plan), worktree)
            }
        }
    }

    fn with(self, tree: KeyTree, plan: Option<&Plan>, worktree: Worktree) -> Result<Wanted, Problem> {
        let max_tier = if self.approve { self.approved(plan)? } else { self.submission.max_tier };
        let whole = self.submission.changes == ChangesAsked::Applied && self.submission.skills.is_all();
        let reuse = self.submission.reuse == Reuse::Verified && whole && !self.submission.no_caches;
        let tools = plan.and_then(|plan| self.tools(plan));
        Ok(Wanted {
            reusable: reuse && tools.is_some() && plan.is_some_and(is_reusable),
            key: self.key(tree, plan, tools.as_ref()),
            max_tier,
            worktree,
            may_reuse: reuse,
            takes_env: plan.is_none_or(takes_env),
            held_bytes: held_bytes(&self.account.env),
            account: self.account,
            engine: self.engine,
            submission: self.submission,
            repo: self.repo,
        })
    }

    fn plan(&self) -> Result<Plan, Problem> {
        let planned = || {
            let file = self.engine.spec(&self.repo)?;
            self.engine.planned(&file, &self.submission.profile)
        };
        planned().map(|resolved| resolved.plan).map_err(|error: EngineError| error.problem())
    }

    /// Returns the digest of the tools that the run finds. If it cannot be determined, no earlier run is reused, and
    /// the run reports the reason.
    fn tools(&self, plan: &Plan) -> Option<Sha256Hex> {
        let found = self.engine.tools(&self.repo, plan);
        found.inspect_err(|error| tracing::debug!(%error, "cannot determine which tools a run finds")).ok()
    }

    fn use_of(&self, plan: &Plan) -> Worktree {
        match self.submission.changes == ChangesAsked::Applied && changes_the_tree(plan) {
            true => Worktree::Changes,
            false => Worktree::Reads,
        }
    }

    fn key(&self, tree: KeyTree, plan: Option<&Plan>, tools: Option<&Sha256Hex>) -> RunKey {
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
            no_caches: self.submission.no_caches,
            env: Sha256Hex::of(&canonical::to_vec(&taken(plan, &self.account))),
            toolchain_env: toolchain_env(&self.account, tools),
        }
    }

    /// Returns the highest tier that may run if the operator requires approval of changesets above tier 1. The plan
    /// of a commit is not known yet, so without approval the run of a commit is limited to tier 1.
    fn approved(&self, plan: Option<&Plan>) -> Result<Tier, Problem> {
        let submission = &self.submission;
        let Some(changeset) = &submission.changeset_id else { return Ok(submission.max_tier) };
        if self.engine.is_approved(&self.repo, changeset).map_err(|error| error.problem())? {
            return Ok(submission.max_tier);
        }
        let above = submission.sandbox == SandboxMode::BestEffort || plan.is_some_and(declares_more_than_one);
        match above {
            true => Err(not_approved(changeset)),
            false => Ok(submission.max_tier.min(Tier::ONE)),
        }
    }
}

impl Wanted {
    /// Returns whether steps got the same variables as they would get now. This is known only of `last`, a run of
    /// this daemon, because the values of variables are not recorded.
    fn takes_no_more_than(&self, last: Option<&Last>, earlier: &RunId) -> bool {
        !self.takes_env || last.is_some_and(|last| last.run == *earlier)
    }

    /// Returns what the gate must verify for an earlier run to be the answer.
    fn demands(&self) -> Demands {
        Demands {
            profile: self.key.profile.clone(),
            changeset: self.key.changeset.clone(),
            max_tier: self.key.max_tier,
            max_age: MaxAge::default(),
            unattested: Unattested::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: RequiredInputs::Any,
        }
    }

    /// Returns the key that a request for the worktree would have if the worktree had the tree of `earlier`.
    fn key_of_worktree(&self, earlier: &Earlier) -> RunKey {
        RunKey {
            tree: KeyTree::Worktree { plan_sha256: earlier.plan.digest() },
            env: Sha256Hex::of(&canonical::to_vec(&taken(Some(&earlier.plan), &self.account))),
            toolchain_env: earlier.toolchain_env.clone(),
            ..self.key.clone()
        }
    }

    fn into_job(self, sent: Option<Key>, trace: Tracing) -> Result<Job, Problem> {
        let id = self.engine.run_id().map_err(|error| error.problem())?;
        let submission = self.submission;
        let (source, plan_sha256) = match self.key.tree {
            KeyTree::Worktree { plan_sha256 } => (RunSource::Worktree, Some(plan_sha256)),
            KeyTree::Commit { id, submodules } => (RunSource::Commit { id, submodules }, None),
        };
        let changes = match submission.changes {
            ChangesAsked::Applied => ChangesWanted::Applied,
            ChangesAsked::Patch => ChangesWanted::AsPatch,
        };
        let asked = submission.asked(self.key.repo.clone());
        Ok(Job {
            new: NewRun {
                id: id.clone(),
                asked,
                uid: self.key.uid,
                key: sent,
                toolchain_env: self.key.toolchain_env,
                trace: trace.parent.clone(),
            },
            claim: Claim {
                repo: Arc::from(self.key.repo.as_str()),
                changeset: submission.changeset_id.clone(),
                worktree: self.worktree,
            },
            engine: self.engine,
            request: RunRequest {
                run_id: Some(id),
                repo: self.repo,
                source,
                profile: submission.profile,
                plan_sha256,
                changeset: submission.changeset_id,
                max_tier: self.max_tier,
                sandbox: submission.sandbox,
                fail_fast: submission.fail_fast,
                changes,
                skills: skills_wanted(submission.skills),
                caches: if submission.no_caches { CachesWanted::Empty } else { CachesWanted::Kept },
                live: None,
                trace,
            },
            held_bytes: self.held_bytes,
        })
    }
}

fn skills_wanted(asked: SkillsAsked) -> SkillsWanted {
    match asked {
        SkillsAsked::All => SkillsWanted::All,
        SkillsAsked::NotPassed => SkillsWanted::NotPassed,
    }
}

fn changes_the_tree(plan: &Plan) -> bool {
    commands(plan).any(|step| step.read_only == ReadOnly::Off)
}

/// Returns the variables that a run can take from its caller; all of them if the plan is not known yet.
fn taken<'a>(plan: Option<&Plan>, account: &'a Account) -> BTreeMap<&'a str, &'a str> {
    let is_taken = |name: &str| match plan {
        None => true,
        Some(plan) => {
            let allowed = commands(plan).any(|step| step.env_allowlist.iter().any(|allowed| allowed.as_str() == name));
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

fn declares_more_than_one(plan: &Plan) -> bool {
    plan.skills.iter().any(|skill| skill.declared_tier > Tier::ONE)
        || commands(plan).any(|s| s.network == Network::Allow)
}

fn not_approved(changeset: &ChangesetId) -> Problem {
    let detail = format!("the run is above tier 1, and the changeset `{changeset}` is not approved for that");
    Problem::new(ProblemType::Unprocessable, detail).with_hint(format!(
        "a person approves it by a file `changes/{changeset}/APPROVED`; the operator demands it by `daemon.approve_tier2`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::names::ProfileName;
    use proctor_core::spec::{self, Operator};

    fn plan(step: &str) -> Plan {
        let text = format!(
            "version: 1\nprofiles: {{ p: {{ include: [s] }} }}\n\
             skills: {{ s: {{ steps: [{{ name: a, cmd: make {step} }}] }} }}\n"
        );
        let spec = spec::read(text.as_bytes()).expect("a spec").spec;
        let (profile, sha256) = (ProfileName::new("p").expect("a name"), Sha256Hex::of(text.as_bytes()));
        spec::resolve(&spec, &profile, &Operator::default(), sha256, 1).expect("a plan").plan
    }

    /// Two callers whose variables differ in what steps or toolchain selection can use do not share a run.
    #[test]
    fn what_a_run_takes_of_its_caller() {
        let names = ["CARGO_HOME", "HOME", "OTHER", "PATH", "RUSTUP_HOME", "WORD"];
        let env = names.map(|name| (name.to_owned(), "/x".to_owned()));
        let account = Account { home: "/x".into(), env: env.into() };
        let of = |plan: Option<&Plan>| taken(plan, &account).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(of(Some(&plan(""))), "CARGO_HOME HOME PATH RUSTUP_HOME");
        assert_eq!(of(Some(&plan(", env_allowlist: [WORD]"))), "CARGO_HOME HOME PATH RUSTUP_HOME WORD");
        assert_eq!(of(None), names.join(" "), "a commit's plan is not known yet");
    }

    /// The recorded digest covers no variables that steps use.
    #[test]
    fn what_decides_which_toolchains_are_found() {
        let of = |home: &str, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            toolchain_env(&Account { home: home.into(), env }, None)
        };
        let usual = of("/h", &[("PATH", "/bin")]);
        assert_eq!(usual, of("/h", &[("HOME", "/h"), ("PATH", "/bin"), ("API_TOKEN", "1234")]));
        let others = [
            of("/other", &[("PATH", "/bin")]),
            of("/h", &[("PATH", "/opt/bin:/bin")]),
            of("/h", &[]),
            of("/h", &[("PATH", "/bin"), ("CARGO_HOME", "/c")]),
            of("/h", &[("PATH", "/bin"), ("RUSTUP_HOME", "/c")]),
        ];
        assert!(others.iter().all(|other| *other != usual));
        let account = Account { home: "/h".into(), env: BTreeMap::from([("PATH".into(), "/bin".into())]) };
        let found = |tools: &[u8]| toolchain_env(&account, Some(&Sha256Hex::of(tools)));
        assert!(found(b"old") != usual && found(b"old") != found(b"new"), "the same places, and other tools in them");
    }
}
