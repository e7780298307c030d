//! Defines the errors for which there is no run at all. A failing step is not an error, and neither is an
//! inconclusive run with a record.

use std::error::Error as _;
use std::fmt::Display;
use std::path::PathBuf;

use proctor_core::api::{Problem, ProblemType, SpecProblem};
use proctor_core::code::{Coded, CommandCode, EngineCode, ErrorCode};
use proctor_core::decision::step_selection::SelectionError;
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE};
use proctor_core::model::enforcement::Control;
use proctor_core::model::names::{ChangesetId, ProfileName};
use proctor_core::spec::Diagnostic;
use proctor_git::error::GitError;
use proctor_sandbox::SandboxError;
use proctor_snapshot::{MirrorError, SnapshotError};
use rustix::io::Errno;

use crate::store::{self, StoreError};

/// Separates the message from the hint in the errors of our crates.
const HINT: &str = "\nhint: ";

/// The problems of one spec.
#[derive(Debug, Clone)]
pub struct SpecProblems {
    /// The file.
    pub file: PathBuf,
    /// The text of the file; empty if it is not valid text.
    pub source: String,
    /// The problems, sorted by position.
    pub diagnostics: Vec<Diagnostic>,
}

/// A required control that this machine cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingControl {
    /// The control.
    pub control: Control,
    /// The reason, with the kernel's error.
    pub reason: String,
    /// How to enable the control, if known.
    pub hint: Option<String>,
}

/// The reason why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The spec is invalid.
    #[error("{} problems in `{}`", .0.diagnostics.len(), .0.file.display())]
    Spec(SpecProblems),
    /// There is no spec.
    #[error("there is no spec at `{}`; nothing was verified{HINT}`proctor init` generates one from the files of the repository; or name a repository that has one with `--repo`", .0.display())]
    NoSpec(PathBuf),
    /// The tree of a commit has no spec.
    #[error(
        "{tree} has no `{path}`; nothing was verified{HINT}commit a spec; `proctor init` generates one from the files of the repository"
    )]
    NoSpecInCommit {
        /// The commit, or the staged changes.
        tree: String,
        /// The path of the spec in the repository.
        path: String,
    },
    /// The spec exists but cannot be read.
    #[error("cannot read the spec `{}`: {}", path.display(), unreadable_spec_reason(.source))]
    UnreadableSpec {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The spec that was read differs from the one in the snapshot.
    #[error("the spec `{}` was edited while the run was starting{HINT}run again", .0.display())]
    SpecChanged(PathBuf),
    /// The plan differs from the one that the caller expects.
    #[error("the spec `{}` was edited after the run was requested{HINT}send the request again", .0.display())]
    PlanChanged(PathBuf),
    /// The repository does not belong to the required owner.
    #[error("the repository `{}` does not belong to user {owner}{HINT}name a repository of this user", path.display())]
    NotTheOwner {
        /// The repository.
        path: PathBuf,
        /// User id of the required owner.
        owner: u32,
    },
    /// A cache would cover files of the tree: a step would see the cache instead of the recorded files.
    #[error(
        "the cache `{cache}` of the skill `{skill}` would hide `{hidden}`, which is part of the tree{HINT}name a directory that git ignores, such as `target`"
    )]
    CacheHidesTree {
        /// The skill.
        skill: String,
        /// The cache.
        cache: String,
        /// The first path in the cache's directory that the snapshot covers.
        hidden: String,
    },
    /// The repository borrows objects from a directory that steps cannot see.
    #[error(
        "the repository borrows objects from `{}`, which steps cannot access{HINT}copy them with `git repack -a -d && \
            rm .git/objects/info/alternates`, or ask the operator to list the directory in `tool_mounts`",
        .0.display()
    )]
    HiddenAlternate(PathBuf),
    /// The list of borrowed objects cannot be read.
    #[error("cannot read the list of borrowed objects below `{}`: {source}", path.display())]
    UnreadableAlternates {
        /// The git directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The tree cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The private copy of the tree cannot be made.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The repository cannot be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the state directory or the changeset cannot be read or written.
    #[error("{}", with_hint(.0, .0.hint()))]
    Store(#[from] StoreError),
    /// No sandbox can be created.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The operator does not allow runs with fewer controls than required.
    #[error(
        "the operator does not allow `--sandbox=best-effort` on this machine{HINT}run without it, or ask the operator to set `allow_best_effort = true` in `proctord.toml`"
    )]
    BestEffortForbidden,
    /// This machine enforces less than the operator requires; nothing ran.
    #[error("this machine cannot enforce the required sandbox controls, so nothing ran: {}{HINT}{}", format_missing(.missing), format_hints(.missing, *.best_effort))]
    ControlsMissing {
        /// The missing controls.
        missing: Vec<MissingControl>,
        /// True if the operator allows runs with fewer controls.
        best_effort: bool,
    },
    /// The state directory is inside the tree to verify.
    #[error("the state directory `{}` is inside the repository{HINT}choose another one with `--state-dir`", .0.display())]
    StateInRepository(PathBuf),
    /// The caller cancelled the run before there was anything to record.
    #[error("the run was interrupted before it started; nothing was verified{HINT}run again")]
    Interrupted,
    /// An earlier command of a session changed the session's tree.
    #[error("an earlier command of this session changed `{}`{HINT}start a new session", .0.display())]
    SessionSpent(PathBuf),
    /// The request is for the skills that have not passed, but no run of the profile is recorded.
    #[error(
        "no run of the profile `{0}` without a changeset is recorded for this repository, so Proctor does not know which skills passed{HINT}run the whole profile once: `proctor run --profile {0}`"
    )]
    NoEarlierRun(ProfileName),
    /// The request is for the skills that have not passed, as evidence of a changeset.
    #[error(
        "a partial run is not evidence for the changeset `{0}`{HINT}omit one of the two options: `--last-failed` is for work in progress, `--changeset {0}` for the whole profile"
    )]
    PartialChangeset(ChangesetId),
    /// The request is for the skills that have not passed, of a commit.
    #[error(
        "a commit is verified as a whole, but `--last-failed` runs only part of the profile{HINT}omit one of the two options: `--last-failed` is for the worktree"
    )]
    PartialCommit,
    /// The spec is in a directory whose files the tree does not cover, or whose path is not UTF-8.
    #[error(
        "no spec in `{}` can be verified: a tree covers no evidence of changesets, and the path of a spec is UTF-8{HINT}move the spec to another directory", .0.display()
    )]
    SpecDirectory(PathBuf),
    /// The request is for a changeset, with a spec in a subdirectory.
    #[error(
        "the spec in `{directory}` has no changesets, so it cannot be verified for the changeset `{changeset}`{HINT}omit `--changeset`, or verify the changeset with the spec at the top of the repository"
    )]
    ChangesetBelowTop {
        /// The changeset.
        changeset: ChangesetId,
        /// The directory of the spec.
        directory: String,
    },
    /// The request is for a part of the profile or of the files, as evidence of a changeset.
    #[error(
        "a restricted run is not evidence for the changeset `{0}`{HINT}omit one of the two: `--changeset {0}` is for the whole profile over all files"
    )]
    RestrictedChangeset(ChangesetId),
    /// The request restricts the files in two ways.
    #[error("a run is restricted to changed files or to named files, not to both{HINT}omit one of the two")]
    TwoFileScopes,
    /// The request names a replaced commit without `changed_since`.
    #[error(
        "a replaced commit counts only for a run of a commit that is restricted to changed files{HINT}name the commit and `changed_since`, or omit `replaced_commit`"
    )]
    ReplacedCommitAlone,
    /// A path to which a run is restricted is not inside the repository.
    #[error("`{0}` is not a path in the repository{HINT}name paths relative to the top of the repository")]
    ScopePath(String),
    /// Fixes are requested for a commit.
    #[error("fixes are applied to the worktree, but the request is for a commit{HINT}omit the revision")]
    FixOfCommit,
    /// The request selects no step of the profile, or a step that does not exist.
    #[error("{}", with_hint(.0, Some(.0.hint())))]
    Selection(#[from] SelectionError),
    /// The worktree cannot be watched.
    #[error("the worktree cannot be watched: {}{HINT}{}", .0, watch_hint(.0))]
    Watch(#[source] std::io::Error),
    /// The watched worktree is no longer at its path.
    #[error("the worktree `{}` was moved, replaced or removed{HINT}run again in its present directory", .0.display())]
    WatchedTreeGone(PathBuf),
    /// A single command asks for more than the operator allows.
    #[error("{0}{HINT}request less, or ask the operator to raise the limit in `proctord.toml`")]
    AboveCeiling(String),
    /// A bug in Proctor.
    #[error("{0}{HINT}this is a bug in Proctor; please report it")]
    Internal(String),
}

/// Describes why a spec cannot be read. For a link that leaves the repository, the system's error would not explain
/// the problem.
fn unreadable_spec_reason(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::CrossesDevices {
        format!(
            "it leads out of the repository{HINT}replace it by a regular file; verified files must be inside the tree"
        )
    } else {
        format!("{error}{HINT}make sure that it is a readable regular file, then run again")
    }
}

/// Returns what to do if a worktree cannot be watched.
fn watch_hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        // The limits of inotify(7).
        Some(code) if code == Errno::NOSPC.raw_os_error() => {
            "the kernel allows this user no more watches: raise `sysctl fs.inotify.max_user_watches`"
        }
        Some(code) if code == Errno::MFILE.raw_os_error() => {
            "this user watches too much already: end other watchers, or raise `sysctl fs.inotify.max_user_instances`"
        }
        _ => "run without `--watch`",
    }
}

/// Returns whether the error is a temporary shortage or fault of the machine, so a retry may succeed.
fn is_machine_fault(error: &std::io::Error) -> bool {
    let codes = [Errno::IO, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Formats up to three missing controls with their reasons. Of more than three, only the first gets its reason.
fn format_missing(missing: &[MissingControl]) -> String {
    const MAX_EXPLAINED: usize = 3;
    let few = if missing.len() > MAX_EXPLAINED { 1 } else { missing.len() };
    let (detailed, others) = missing.split_at(few);
    let name = |control: Control| format!("`{}`", control.as_str());
    let details: Vec<_> =
        detailed.iter().map(|missing| format!("{}: {}", name(missing.control), missing.reason)).collect();
    let others: Vec<_> = others.iter().map(|missing| name(missing.control)).collect();
    let and = if others.is_empty() { "" } else { "; and " };
    format!("{}{and}{}", details.join("; "), others.join(", "))
}

/// Formats the hints, each one once, and last how to run without the controls.
fn format_hints(missing: &[MissingControl], best_effort: bool) -> String {
    let mut hints: Vec<&str> = Vec::new();
    for hint in missing.iter().filter_map(|missing| missing.hint.as_deref()) {
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    if best_effort {
        hints.push("or accept a run with fewer controls, which its evidence records, with `--sandbox=best-effort`");
    }
    hints.push("`proctor doctor` shows what this machine enforces");
    hints.join("; ")
}

fn with_hint(message: impl Display, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{message}{HINT}{hint}"),
        None => message.to_string(),
    }
}

/// Formats an error of our crates in one line, message before hint.
pub(crate) fn one_line(error: &impl Display) -> String {
    error.to_string().replace(HINT, "; ").replace('\n', " ")
}

impl Coded for EngineError {
    fn code(&self) -> ErrorCode {
        match self {
            // The caller's own arguments request the value.
            Self::AboveCeiling(_) => CommandCode::Usage.code(),
            other => other.engine_code().code(),
        }
    }
}

impl EngineError {
    /// Returns the kind of the error, without its details.
    fn engine_code(&self) -> EngineCode {
        match self {
            Self::Spec(_) => EngineCode::Spec,
            Self::NoSpec(_) | Self::NoSpecInCommit { .. } => EngineCode::NoSpec,
            Self::UnreadableSpec { .. } => EngineCode::UnreadableSpec,
            Self::SpecChanged(_) => EngineCode::SpecChanged,
            Self::PlanChanged(_) => EngineCode::PlanChanged,
            Self::NotTheOwner { .. } => EngineCode::NotTheOwner,
            Self::CacheHidesTree { .. } => EngineCode::CacheHidesTree,
            Self::HiddenAlternate(_) => EngineCode::HiddenAlternate,
            Self::UnreadableAlternates { .. } => EngineCode::UnreadableAlternates,
            Self::Snapshot(_) | Self::Mirror(_) => EngineCode::Snapshot,
            Self::Git(_) => EngineCode::Git,
            Self::Store(_) => EngineCode::Store,
            Self::Sandbox(_) => EngineCode::Sandbox,
            Self::BestEffortForbidden => EngineCode::BestEffortForbidden,
            Self::ControlsMissing { .. } => EngineCode::ControlsMissing,
            Self::StateInRepository(_) => EngineCode::StateInRepository,
            Self::Interrupted => EngineCode::Interrupted,
            Self::SessionSpent(_) => EngineCode::SessionSpent,
            Self::NoEarlierRun(_) => EngineCode::NoEarlierRun,
            Self::PartialChangeset(_) => EngineCode::PartialChangeset,
            Self::PartialCommit => EngineCode::PartialCommit,
            Self::SpecDirectory(_) => EngineCode::SpecDirectory,
            Self::ChangesetBelowTop { .. } => EngineCode::ChangesetBelowTop,
            Self::RestrictedChangeset(_) => EngineCode::PartialChangeset,
            Self::Watch(_) | Self::WatchedTreeGone(_) => EngineCode::Watch,
            Self::TwoFileScopes
            | Self::ReplacedCommitAlone
            | Self::ScopePath(_)
            | Self::FixOfCommit
            | Self::Selection(_) => EngineCode::Scope,
            Self::AboveCeiling(_) | Self::Internal(_) => EngineCode::Internal,
        }
    }

    /// Returns the message without the hint.
    pub fn message(&self) -> String {
        let text = self.to_string();
        text.split(HINT).next().unwrap_or(&text).to_owned()
    }

    /// Returns the hint.
    pub fn hint(&self) -> Option<String> {
        let own_hint = self.to_string().split_once(HINT).map(|(_, hint)| hint.replace(HINT, "; "));
        own_hint.or_else(|| self.lacks_descriptors().then(|| store::DESCRIPTOR_HINT.to_owned()))
    }

    fn lacks_descriptors(&self) -> bool {
        let mut causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.any(|cause| cause.downcast_ref().is_some_and(store::lacks_descriptors))
    }

    /// Converts the error to the form that the daemon sends to clients.
    pub fn problem(&self) -> Problem {
        let kind = match self {
            Self::Spec(_) => ProblemType::InvalidSpec,
            Self::Interrupted => ProblemType::Interrupted,
            Self::Internal(_) => ProblemType::Internal,
            other if other.exit_code() == EXIT_USAGE || other.is_permanent() => ProblemType::Unprocessable,
            _ => ProblemType::Unavailable,
        };
        let mut problem = Problem::new(kind, self.message()).with_exit_code(self.exit_code());
        problem.hint = self.hint();
        problem.code = Some(self.code());
        if let Self::Spec(problems) = self {
            problem.spec = Some(SpecProblem {
                file: problems.file.display().to_string(),
                source: problems.source.clone(),
                diagnostics: problems.diagnostics.clone(),
            });
        }
        problem
    }

    /// Returns whether the same request fails again until the user changes the repository, so a client must not retry
    /// it automatically.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Git(error) | Self::Snapshot(SnapshotError::Git(error)) => error.is_permanent(),
            Self::Snapshot(SnapshotError::Io { source, .. }) | Self::UnreadableAlternates { source, .. } => {
                !is_machine_fault(source)
            }
            Self::HiddenAlternate(_) | Self::Store(StoreError::TooLarge { .. }) => true,
            _ => false,
        }
    }

    /// Returns the exit code of the process: 2 if the user can fix the problem by changing the request or its
    /// input, a separate code for an interruption, and 5 for all other errors.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnreadableSpec { source, .. } if is_machine_fault(source) => EXIT_INCONCLUSIVE,
            Self::Spec(_)
            | Self::NoSpec(_)
            | Self::NoSpecInCommit { .. }
            | Self::UnreadableSpec { .. }
            | Self::StateInRepository(_)
            | Self::NotTheOwner { .. }
            | Self::BestEffortForbidden
            | Self::NoEarlierRun(_)
            | Self::PartialChangeset(_)
            | Self::PartialCommit
            | Self::SpecDirectory(_)
            | Self::ChangesetBelowTop { .. }
            | Self::RestrictedChangeset(_)
            | Self::TwoFileScopes
            | Self::ReplacedCommitAlone
            | Self::ScopePath(_)
            | Self::FixOfCommit
            | Self::Selection(_)
            | Self::AboveCeiling(_)
            | Self::CacheHidesTree { .. } => EXIT_USAGE,
            Self::Git(
                GitError::NotARepository { .. }
                | GitError::BelowTop { .. }
                | GitError::Revision { .. }
                | GitError::Submodule { .. }
                | GitError::Missing { .. },
            )
            | Self::Snapshot(SnapshotError::Git(GitError::NotARepository { .. } | GitError::BelowTop { .. })) => {
                EXIT_USAGE
            }
            Self::Store(
                StoreError::NoChangeset { .. }
                | StoreError::Symlink { .. }
                | StoreError::Status { .. }
                | StoreError::NotState { .. },
            ) => EXIT_USAGE,
            Self::Interrupted => EXIT_INTERRUPTED,
            Self::SpecChanged(_)
            | Self::PlanChanged(_)
            | Self::HiddenAlternate(_)
            | Self::UnreadableAlternates { .. }
            | Self::Snapshot(_)
            | Self::Mirror(_)
            | Self::Git(_)
            | Self::Store(_)
            | Self::Sandbox(_)
            | Self::SessionSpent(_)
            | Self::Watch(_)
            | Self::WatchedTreeGone(_)
            | Self::ControlsMissing { .. }
            | Self::Internal(_) => EXIT_INCONCLUSIVE,
        }
    }
}
