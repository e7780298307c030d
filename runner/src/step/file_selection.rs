//! Chooses the files of a step among those that it sees before it starts.

use std::sync::Arc;

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::cache::{TransparentCache, merge_transparent_caches};
use proctor_core::model::outcome::{StartFault, passing_codes};
use proctor_core::model::plan::{FILES_PLACEHOLDER, PlannedSkill, PlannedStep, RelPath};
use proctor_core::record::evidence::{CheckedFiles, FileDependence, ResultOrigin, escape_output};
use proctor_core::reuse::StoredResult;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{FileBatches, Policy};
use proctor_snapshot::TreeView;

use crate::run::run_context::RunContext;
use crate::step::chosen_files::{FileSelectionError, choose_files, directory_prefix, may_have_lost_file};

/// Maximum size of a tree, in entries, for which a restricted run also determines the other files of its steps.
const MAX_COMPARED_ENTRIES: usize = 20_000;

/// The files of a step that has `files`.
pub(crate) struct StepFiles {
    files: Option<Arc<Vec<Vec<u8>>>>,
    restriction: Restriction,
    /// True if the command contains `{files}`.
    are_arguments: bool,
    parallel: u32,
    /// The files that need not be checked again; sorted.
    reused: Vec<Vec<u8>>,
    /// The end of the oldest execution that the passes of these files can come from.
    reused_executed_at: Option<String>,
    /// The other machines on which some of these files passed.
    origins: Vec<ResultOrigin>,
    /// The observation that contradicts `per_file`.
    dependence: Option<FileDependence>,
    /// The caches of the executions that passed the reused files.
    earlier_caches: Vec<TransparentCache>,
}

impl StepFiles {
    fn new(files: Option<Arc<Vec<Vec<u8>>>>, are_arguments: bool, parallel: u32) -> Self {
        Self {
            files,
            restriction: Restriction::None,
            are_arguments,
            parallel,
            reused: Vec::new(),
            reused_executed_at: None,
            origins: Vec::new(),
            dependence: None,
            earlier_caches: Vec::new(),
        }
    }

    /// Chooses the files on a blocking thread. Returns the result of the step if it has no files to check, or if they
    /// cannot be chosen.
    pub(crate) async fn choose(
        context: &Arc<RunContext>,
        view: &TreeView,
        (skill, step): (&PlannedSkill, &PlannedStep),
    ) -> Result<Self, FilesNotChosen> {
        let Some(rules) = step.files.clone() else {
            return Ok(Self::new(None, false, 1));
        };
        let not_chosen = |fault, reason| FilesNotChosen { fault, reason, checked_files: None };
        let are_arguments = step.cmd.words().iter().any(|word| word == FILES_PLACEHOLDER);
        let (parallel, shared, context, view) = (rules.parallel, context, Arc::clone(context), view.clone());
        let workdir = step.workdir.clone();
        let is_whole = context.files.is_none() && context.has_unchangeable_tree();
        let known = if is_whole { context.file_selections.known(&rules, &workdir, &view) } else { None };
        let read = move || {
            let (tree, scope) = (context.tree.repository.path(), context.files.as_deref());
            // The content of a tree that can change during a run may not be that of its snapshot.
            let choose = |scope| match context.has_unchangeable_tree() {
                true => context.file_selections.choose(&rules, &workdir, &view, scope, tree),
                false => choose_files(&rules, &workdir, &view, scope, tree).map(Arc::new),
            };
            let mut chosen = Self::new(Some(choose(scope)?), are_arguments, parallel);
            if scope.is_some() {
                let is_large = context.tree.snapshot.entries.len() > MAX_COMPARED_ENTRIES;
                let all = if is_large { None } else { Some(choose(None)?) };
                chosen.restrict(all, rules.per_file);
            }
            let has_lost = match scope {
                Some(scope) if !are_arguments => may_have_lost_file(&rules, &workdir, &view, (scope, tree))?,
                _ => false,
            };
            Ok::<_, FileSelectionError>((chosen, has_lost))
        };
        let chosen = match known {
            Some(known) => Ok(Ok((Self::new(Some(known), are_arguments, parallel), false))),
            None => tokio::task::spawn_blocking(read).await,
        };
        match chosen {
            Ok(Ok((chosen, has_lost))) if !chosen.chosen().is_empty() || has_lost => {
                let inputs = shared.input_filter(skill, step);
                if let Some(inputs) = inputs.map_err(|reason| not_chosen(StartFault::Internal, reason))? {
                    require_inputs(&inputs, &step.workdir, chosen.chosen().iter().map(Vec::as_slice))?;
                }
                Ok(chosen)
            }
            Ok(Ok((chosen, _))) => Err(chosen.no_files()),
            Ok(Err(error)) => Err(not_chosen(StartFault::Internal, error.to_string())),
            Err(error) => Err(not_chosen(StartFault::Internal, format!("its files cannot be chosen: {error}"))),
        }
    }

    /// Compares the files to which the run is restricted with `all` files of the step, if those are known.
    fn restrict(&mut self, all: Option<Arc<Vec<Vec<u8>>>>, per_file: bool) {
        self.restriction = match all {
            Some(all) if self.files.as_ref() == Some(&all) => Restriction::WithoutEffect,
            Some(all) if per_file => match self.files.replace(all) {
                Some(only) => Restriction::Open { only },
                None => Restriction::LeavesOut,
            },
            Some(_) | None => Restriction::LeavesOut,
        };
    }

    /// Returns whether the run leaves out files of the step that may have passed earlier.
    pub(crate) fn is_restriction_open(&self) -> bool {
        matches!(self.restriction, Restriction::Open { .. })
    }

    /// Returns whether every file to which the run is not restricted is among the reused ones.
    pub(crate) fn has_only_restricted_to_check(&self) -> bool {
        let Restriction::Open { only } = &self.restriction else { return true };
        self.to_check().all(|file| only.binary_search(file).is_ok())
    }

    /// Leaves out the files to which the run is not restricted. Returns the result of the step if no file remains.
    pub(crate) fn leave_out_others(&mut self) -> Result<(), FilesNotChosen> {
        if let Restriction::Open { only } = &self.restriction {
            self.files = Some(Arc::clone(only));
            self.restriction = Restriction::LeavesOut;
            self.set_reused(Vec::new(), None, Vec::new());
            if self.chosen().is_empty() {
                return Err(self.no_files());
            }
        }
        Ok(())
    }

    /// Returns whether the step leaves out the files to which the run is not restricted.
    pub(crate) fn leaves_out_others(&self) -> bool {
        matches!(self.restriction, Restriction::LeavesOut)
    }

    fn no_files(&self) -> FilesNotChosen {
        let checked_files = self.evidence(None).filter(|files| files.covers_all);
        FilesNotChosen {
            fault: StartFault::NoFiles,
            reason: "there is no file that it checks".to_owned(),
            checked_files,
        }
    }

    /// Returns the chosen files, relative to the work directory of the step.
    pub(crate) fn chosen(&self) -> &[Vec<u8>] {
        self.files.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    /// Sets the files that need not be checked again, and the end of the oldest execution that their passes can come from.
    /// `origins` are the other machines on which some of them passed.
    pub(crate) fn set_reused(&mut self, reused: Vec<Vec<u8>>, executed_at: Option<String>, origins: Vec<ResultOrigin>) {
        self.reused_executed_at = executed_at.filter(|_| !reused.is_empty());
        self.origins = if reused.is_empty() { Vec::new() } else { origins };
        self.reused = reused;
    }

    /// Sets the observation that contradicts `per_file`.
    pub(crate) fn set_dependence(&mut self, dependence: FileDependence) {
        self.dependence = Some(dependence);
    }

    /// Returns the observation that contradicts `per_file`.
    pub(crate) fn dependence(&self) -> Option<&FileDependence> {
        self.dependence.as_ref()
    }

    /// Sets the earlier results that the passes of the reused files come from.
    pub(crate) fn set_earlier_caches(&mut self, earlier: &[Arc<StoredResult>]) {
        for result in earlier {
            merge_transparent_caches(&mut self.earlier_caches, &result.transparent_caches);
        }
    }

    /// Returns the files that are to be checked, relative to the work directory of the step.
    pub(crate) fn to_check(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.chosen().iter().filter(|file| self.reused.binary_search(file).is_err())
    }

    /// Returns whether some of the files need not be checked again.
    pub(crate) fn has_reused(&self) -> bool {
        !self.reused.is_empty()
    }

    /// Returns the batches of files for the command of `policy`; none if the command does not contain `{files}`.
    pub(crate) fn batches(&self, step: &PlannedStep, policy: &Policy) -> FileBatches {
        if self.files.is_none() || !self.are_arguments {
            return FileBatches::default();
        }
        let files: Vec<Vec<u8>> = self.to_check().cloned().collect();
        const POINTER_BYTES: usize = 8;
        let words = policy.argv.words().iter().map(|word| word.len() + 1 + POINTER_BYTES);
        let env = policy.env.iter().map(|(name, value)| name.len() + value.len() + 2 + POINTER_BYTES);
        let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
        FileBatches::new(&files, self.parallel, words.chain(env).sum(), stack)
            .with_passing_codes(passing_codes(&step.expect_exit, step.fixes.is_some()))
    }

    pub(crate) fn evidence(&self, policy: Option<&Policy>) -> Option<CheckedFiles> {
        let files = self.files.as_ref()?;
        Some(CheckedFiles {
            count: files.len() as u64,
            sha256: paths_digest(files.iter()),
            batches: policy.map_or(0, |policy| u32::try_from(policy.files.len()).unwrap_or(u32::MAX)),
            reused: self.reused.len() as u64,
            reused_executed_at: self.reused_executed_at.clone(),
            dependence: self.dependence.clone(),
            transparent_caches: if self.reused.is_empty() { Vec::new() } else { self.earlier_caches.clone() },
            origins: self.origins.clone(),
            covers_all: self.restriction.covers_all(),
        })
    }
}

/// The effect on one step of a restriction to some files.
#[derive(Debug)]
enum Restriction {
    /// The run is not restricted.
    None,
    /// The run is restricted to all files of the step.
    WithoutEffect,
    /// The run is restricted to the files `only`. The step has other files, which are covered if they passed earlier.
    Open { only: Arc<Vec<Vec<u8>>> },
    /// The step leaves out files, or may do so.
    LeavesOut,
}

impl Restriction {
    /// Returns whether the step counts for all of its files although the run is restricted.
    fn covers_all(&self) -> bool {
        match self {
            Self::WithoutEffect | Self::Open { .. } => true,
            Self::None | Self::LeavesOut => false,
        }
    }
}

/// The reason why a step does not start.
pub(crate) struct FilesNotChosen {
    pub(crate) fault: StartFault,
    pub(crate) reason: String,
    /// The record of the files, if the step has no files in the whole tree.
    pub(crate) checked_files: Option<CheckedFiles>,
}

/// Refuses a file that a step is to check but does not see. Otherwise, the step would check a different set of files
/// from the recorded one.
///
/// # Errors
/// One of the files, which are relative to the work directory, is not an input.
pub(crate) fn require_inputs<'a>(
    inputs: &InputFilter,
    workdir: &RelPath,
    files: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(), FilesNotChosen> {
    let mut paths = files.into_iter().map(|file| path_in_tree(workdir, file));
    let Some(other) = paths.find(|path| !inputs.shows(path, false)) else { return Ok(()) };
    let reason = format!(
        "it checks `{}`, which is not one of its `inputs`; add the file to `inputs`, or exclude it in `files`",
        escape_output(&other)
    );
    Err(FilesNotChosen { fault: StartFault::NotAnInput, reason, checked_files: None })
}

/// Returns the path in the tree of a file that is named relative to a work directory.
pub(crate) fn path_in_tree(workdir: &RelPath, file: &[u8]) -> Vec<u8> {
    [&directory_prefix(workdir), file].concat()
}

/// Returns the sha256 of sorted paths, each followed by a NUL byte.
pub(crate) fn paths_digest<'a>(paths: impl IntoIterator<Item = &'a Vec<u8>>) -> Sha256Hex {
    let mut listed = Vec::new();
    for path in paths {
        listed.extend_from_slice(path);
        listed.push(0);
    }
    Sha256Hex::digest(&listed)
}

#[cfg(test)]
mod tests {
    use proctor_core::decision::input_filter::InputRules;

    use super::*;

    #[test]
    fn refuses_a_file_to_check_that_is_not_an_input() {
        let rules = InputRules {
            globs: vec!["svc/*.py".to_owned()],
            shown: Vec::new(),
            workdir: RelPath::new("svc").expect("a path"),
        };
        let filter = InputFilter::new(&rules).expect("globs");
        assert!(require_inputs(&filter, &rules.workdir, [&b"a.py"[..], b"b.py"]).is_ok());
        let refused = require_inputs(&filter, &rules.workdir, [&b"a.py"[..], b"deep/b.py"]).expect_err("refused");
        assert!(refused.fault == StartFault::NotAnInput && refused.reason.contains("`svc/deep/b.py`"));
    }
}
