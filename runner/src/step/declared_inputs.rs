//! Restricts the tree of a step to its `inputs`, and records whether that was enforced.

use std::path::Path;

use proctor_core::decision::input_filter::{InputFilter, InputRules};
use proctor_core::model::enforcement::Control;
use proctor_core::model::outcome::{StartFault, Termination};
use proctor_core::model::plan::{Inputs, PlannedSkill, PlannedStep, RelPath};
use proctor_core::model::trace::NoTrace;
use proctor_core::record::evidence::{InputEnforcement, escape_output};
use proctor_sandbox::{GitDirs, Policy};
use proctor_snapshot::TreeView;

use crate::run::run_context::RunContext;
use crate::step::attempt::AttemptResult;

/// The reason why no step of a run sees only its inputs.
const NOT_STRICT: &str = "controls of the sandbox may be missing (`--sandbox=best-effort`)";

/// Returns the files of the tree that a step sees; `None` if it sees all of them. Git directories, caches and needed paths
/// are always shown.
pub(crate) fn input_rules(
    skill: Option<&PlannedSkill>,
    step: &PlannedStep,
    repo: &Path,
    git: &GitDirs,
) -> Option<InputRules> {
    let Inputs::Globs(globs) = &step.inputs else { return None };
    let nested = git.nested.iter().flat_map(|nested| [&nested.git, &nested.objects]);
    let git = [&git.worktree_git, &git.common].into_iter().flatten().chain(nested);
    let git = git.filter_map(|path| RelPath::new(path.strip_prefix(repo).ok()?.to_str()?).ok());
    let needed = skill.into_iter().flat_map(|skill| skill.needs_paths.iter().map(|needed| &needed.path));
    let caches = skill.into_iter().flat_map(|skill| &skill.caches);
    let shown = caches.chain(needed).cloned().chain(git).collect();
    Some(InputRules { globs: globs.clone(), shown, workdir: step.workdir.clone() })
}

impl RunContext {
    /// Returns the files of the tree that a step sees, if it does not see all of them; `None` if the step has no `inputs`,
    /// or if they are not enforced in this run.
    pub(crate) fn input_rules(&self, skill: Option<&PlannedSkill>, step: &PlannedStep) -> Option<InputRules> {
        let paths = self.tree.paths();
        input_rules(skill, step, &paths.repo, &paths.git).filter(|_| !self.may_lack_namespaces())
    }

    /// Returns the files of the tree that a step sees, ready for matching.
    ///
    /// # Errors
    /// A pattern is not a glob, although the spec was checked.
    pub(crate) fn input_filter(&self, skill: &PlannedSkill, step: &PlannedStep) -> Result<Option<InputFilter>, String> {
        let filter = self.input_rules(Some(skill), step).as_ref().map(InputFilter::new).transpose();
        filter.map_err(|error| format!("a pattern of its `inputs` is not a glob: {error}"))
    }

    /// Replaces the reason why a command did not start, if its program is a file of the tree that the step does not see.
    pub(crate) fn explain_withheld_program(
        &self,
        (skill, step): (&PlannedSkill, &PlannedStep),
        tree: &TreeView,
        termination: &mut Termination,
    ) {
        let Termination::NotStarted { reason, fault: StartFault::ProgramMissing } = termination else { return };
        let Ok(Some(inputs)) = self.input_filter(skill, step) else { return };
        let Some(path) = program_in_tree(step) else { return };
        if !inputs.shows(path.as_bytes(), false) && tree.path_state(path.as_bytes()).kind().is_some() {
            *reason = format!(
                "its program `{}` is not one of its `inputs`; add it to `inputs`",
                escape_output(path.as_bytes())
            );
        }
    }

    /// Returns whether the request accepts a run without the namespaces that a view needs.
    fn may_lack_namespaces(&self) -> bool {
        self.host_view.tolerated.contains(Control::MountNamespace)
    }

    /// Returns whether the last attempt of a step saw only its inputs; `None` if the step has none, or did not run.
    /// `failed_view` is the reason why it ran without a view, if an earlier attempt made the view fail.
    pub(crate) fn input_enforcement(
        &self,
        policy: Option<&Policy>,
        step: &PlannedStep,
        result: &AttemptResult,
        failed_view: Option<&str>,
    ) -> Option<InputEnforcement> {
        let has_run = !matches!(result.termination, Termination::NotStarted { .. });
        let policy = policy.filter(|_| has_run && step.inputs != Inputs::Tree)?;
        let not_enforced = |reason: &str| Some(InputEnforcement::NotEnforced { reason: reason.to_owned() });
        match (&policy.inputs, policy.view, &result.view) {
            (None, ..) => not_enforced(NOT_STRICT),
            (Some(_), ..) if result.is_remote() => Some(InputEnforcement::enforced(None)),
            (Some(_), false, _) => not_enforced(failed_view.unwrap_or("the step ran without a view")),
            (Some(_), true, Some(Err(NoTrace::Unavailable { message }))) => not_enforced(message),
            (Some(_), true, Some(_)) => Some(InputEnforcement::enforced(result.withheld.clone())),
            (Some(_), true, None) => None,
        }
    }
}

/// Returns the path in the tree of the program of a step; `None` if the command names it without a directory, or outside of
/// the tree.
fn program_in_tree(step: &PlannedStep) -> Option<String> {
    let program = step.cmd.program();
    if program.starts_with('/') || !program.contains('/') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in step.workdir.as_str().split('/').chain(program.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use proctor_sandbox::NestedGit;

    use super::*;

    #[test]
    fn git_directories_and_the_work_directory_are_shown() {
        let step = PlannedStep {
            inputs: Inputs::Globs(vec!["src/**".to_owned()]),
            workdir: RelPath::new("svc").expect("a path"),
            ..crate::test_support::step("s", &["true"])
        };
        let nested = NestedGit { git: "/r/vendor/lib/.git".into(), objects: "/elsewhere/objects".into() };
        let git = GitDirs { worktree_git: Some("/r/.git".into()), common: None, nested: vec![nested] };
        let rules = input_rules(None, &step, Path::new("/r"), &git).expect("rules");
        let shown: Vec<&str> = rules.shown.iter().map(RelPath::as_str).collect();
        assert_eq!((shown, rules.workdir.as_str()), (vec![".git", "vendor/lib/.git"], "svc"));
        assert!(
            InputFilter::new(&rules).expect("globs").shows(b"vendor/lib", true),
            "the mount point of a git directory"
        );
        let all = PlannedStep { inputs: Inputs::Tree, ..step };
        assert_eq!(input_rules(None, &all, Path::new("/r"), &git), None);
    }

    #[test]
    fn finds_programs_of_the_tree() {
        let path = |workdir: &str, program: &str| {
            let workdir = RelPath::new(workdir).expect("a path");
            program_in_tree(&PlannedStep { workdir, ..crate::test_support::step("s", &[program]) })
        };
        assert_eq!(path(".", "./run.sh").as_deref(), Some("run.sh"));
        assert_eq!(path("svc/a", "../bin//x").as_deref(), Some("svc/bin/x"));
        assert_eq!([path(".", "sh"), path(".", "/bin/sh"), path(".", "../x")], [None, None, None]);
    }
}
