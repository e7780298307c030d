//! Identifies the tools of a run, so that the run answers a later request only if that request would use the same tools.

use std::path::{Path, PathBuf};

use proctor_core::model::plan::Plan;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::StepUser;

use super::Engine;
use super::prior_result::{is_reusable, tool_search_error};
use crate::error::EngineError;
use crate::host::tool_search::{FoundTools, ToolSearch};
use crate::run::run_context::{HostView, RunContext};
use crate::step::reuse::StepReuse;
use crate::store::documents::RunDocumentDir;

/// The tools of a run, at one time.
#[derive(Debug)]
pub(super) struct RunTools {
    digest: Sha256Hex,
}

/// The tools that a run over a worktree finds.
pub(super) struct WorktreeTools {
    pub(super) tools: FoundTools,
    /// The canonical path of the worktree.
    pub(super) repo: PathBuf,
    /// The host as the steps see it.
    pub(super) host_view: HostView,
}

impl Engine {
    /// Returns the tools that a run finds when it starts; `None` if the search fails, or if the run was accepted with
    /// different tools.
    pub(super) fn tools_at_start(
        &self,
        context: &RunContext,
        (plan, plan_sha256): (&Plan, &Sha256Hex),
    ) -> Option<RunTools> {
        let repo = &context.tree.seen_at;
        let digest = match self.admission_findings.current_tools(repo, context.host_view.reader, plan_sha256) {
            Some(digest) => digest,
            None => self.known_tools(context, plan)?,
        };
        let accepted = self.admission_findings.tools(repo, plan_sha256);
        let is_same = accepted.is_none_or(|accepted| match accepted.is_any_in_tree {
            false => accepted.digest == digest,
            true if accepted.is_current => true,
            // A program in the private copy of the tree has a different identity.
            true => self.worktree_tools(repo, plan).is_ok_and(|found| found.tools.digest == accepted.digest),
        });
        is_same.then_some(RunTools { digest })
    }

    /// Returns what identifies the tools of a run in its record.
    pub(super) fn recorded_tools(&self, tools: &RunTools) -> Sha256Hex {
        self.toolchain_env(&self.with_cluster(tools.digest.clone()))
    }

    /// Decides after the last step whether the run answers later requests. It does not if the tools have changed by its
    /// end, since the steps may have used the changed ones; nor if a step looked at the commits, the branches or the
    /// index, which are not part of the tree; nor if a file of the host changed while a step ran, or shortly before.
    pub(super) fn confirm_tools(
        &self,
        context: &RunContext,
        documents: &RunDocumentDir,
        plan: &Plan,
        tools: Option<RunTools>,
    ) {
        let Some(RunTools { digest }) = tools.filter(|_| is_reusable(plan)) else { return };
        documents.set_observed_results(context.run_reads.results());
        let has_young_inputs = context.reuse.as_ref().is_some_and(StepReuse::has_young_inputs);
        if context.run_reads.may_depend_on_commit() || has_young_inputs {
            tracing::debug!(has_young_inputs, "the run answers no later request, because of what its steps read");
            documents.forget_toolchain_env();
        } else if self.known_tools(context, plan) != Some(digest) {
            tracing::debug!("the tools changed during the run, so it answers no later request");
            documents.forget_toolchain_env();
        }
    }

    /// Returns the digest of the programs that the commands of a plan find over the tree of a run; `None` if the search
    /// fails.
    fn known_tools(&self, context: &RunContext, plan: &Plan) -> Option<Sha256Hex> {
        let found = self.search_tools(context, plan);
        found.inspect_err(|error| tracing::debug!(%error, "cannot determine which tools a run would use")).ok()
    }

    /// Returns the digest of the programs that the commands of a plan find over the tree of a run.
    ///
    /// # Errors
    /// The search fails.
    pub(super) fn search_tools(&self, context: &RunContext, plan: &Plan) -> std::io::Result<Sha256Hex> {
        let tree = &context.tree;
        let user = StepUser::choose(self.launcher.host(), &tree.repository.facts).map_err(std::io::Error::other)?;
        let search = ToolSearch {
            host_view: &context.host_view,
            repo: &tree.seen_at,
            tree: tree.repository.path(),
            committed: None,
            covered: Some(&tree.snapshot),
            host: self.launcher.host(),
            reader: self.reader(user),
        };
        Ok(search.find(plan)?.digest)
    }

    /// Returns the tools that a run of a plan over the worktree finds.
    ///
    /// # Errors
    /// The repository cannot be read, or the search fails.
    pub(super) fn worktree_tools(&self, repo: &Path, plan: &Plan) -> Result<WorktreeTools, EngineError> {
        let repository = self.open_repository(repo)?;
        let (host_view, user) = self.host_view_over(&repository)?;
        let (host, repo) = (self.launcher.host(), repository.path());
        let (committed, covered, reader) = (None, None, self.reader(user));
        let search = ToolSearch { host_view: &host_view, repo, tree: repo, committed, covered, host, reader };
        let tools = search.find(plan).map_err(|error| tool_search_error(&error))?;
        Ok(WorktreeTools { tools, repo: repo.to_owned(), host_view })
    }
}
