//! Why a run could not be had at all. A failing step is no error; neither is an inconclusive
//! run that left its record.

use std::error::Error as _;
use std::fmt::Display;
use std::path::PathBuf;

use proctor_core::api::{Problem, ProblemType, SpecProblem};
use proctor_core::code::{Code, Coded, CommandCode, EngineCode};
use proctor_core::enforcement::Control;
use proctor_core::names::{ChangesetId, ProfileName};
use proctor_core::spec::Diagnostic;
use proctor_core::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE};
use proctor_sandbox::SandboxError;
use proctor_snapshot::{GitError, MirrorError, SnapshotError};
use rustix::io::Errno;

use crate::store::{self, StoreError};

/// What separates a message from what to do about it, in the errors of our crates.
const HINT: &str = "\nhint: ";

/// Everything that is wrong with one spec.
#[derive(Debug, Clone)]
pub struct SpecProblems {
    /// The file.
    pub file: PathBuf,
    /// Its text; empty where it is no text.
    pub source: String,
    /// What is wrong, sorted by where it stands.
    pub diagnostics: Vec<Diagnostic>,
}

/// A control that is demanded and that this machine cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub control: Control,
    /// Why not, with the kernel's answer.
    pub reason: String,
    /// How to have it, where that is known.
    pub hint: Option<String>,
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The spec cannot be used.
    #[error("{} problems in `{}`", .0.diagnostics.len(), .0.file.display())]
    Spec(SpecProblems),
    /// There is no spec.
    #[error("there is no spec at `{}`; nothing was verified{HINT}`proctor init` generates one from the files of the repository; or name a repository that has one with `--repo`", .0.display())]
    NoSpec(PathBuf),
    /// The spec is there and cannot be read.
    #[error("cannot read the spec `{}`: {}", path.display(), unreadable(.source))]
    UnreadableSpec {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The spec that was read is not the one that the snapshot covers.
    #[error("the spec `{}` was edited while the run was starting{HINT}run again", .0.display())]
    SpecChanged(PathBuf),
    /// The plan is not the one that the caller knows.
    #[error("the spec `{}` was edited after the run was requested{HINT}send the request again", .0.display())]
    PlanChanged(PathBuf),
    /// The repository is not the caller's.
    #[error("the repository `{}` does not belong to user {owner}{HINT}name a repository of this user", path.display())]
    NotTheOwner {
        /// The repository.
        path: PathBuf,
        /// Whose it must be.
        owner: u32,
    },
    /// A cache lies over files of the tree: a step would see the cache, and what it passed
    /// would not be what is recorded.
    #[error(
        "the cache `{cache}` of the skill `{skill}` would hide `{hidden}`, which is part of the tree{HINT}name a directory that git ignores, such as `target`"
    )]
    CacheHidesTree {
        /// The skill.
        skill: String,
        /// The cache.
        cache: String,
        /// The first path in it that the snapshot covers.
        hidden: String,
    },
    /// The repository borrows objects from a directory that no step sees.
    #[error(
        "the repository borrows objects from `{}`, which steps cannot see{HINT}copy them with `git repack -a -d && rm .git/objects/info/alternates`, or ask the operator to list the directory in `tool_mounts`",
        .0.display()
    )]
    HiddenAlternate(PathBuf),
    /// The list of borrowed objects cannot be read.
    #[error("cannot read the list of borrowed objects below `{}`: {source}", path.display())]
    UnreadableAlternates {
        /// The git directory.
        path: PathBuf,
        /// The system's answer.
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
    /// Something of ours cannot be kept.
    #[error("{}", with_hint(.0, .0.hint()))]
    Store(#[from] StoreError),
    /// No sandbox can be had.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The operator wants nothing to run with less than is demanded.
    #[error(
        "the operator does not allow `--sandbox=best-effort` on this machine{HINT}run without it, or ask the operator to set `allow_best_effort = true` in `proctord.toml`"
    )]
    BestEffortForbidden,
    /// This machine enforces less than the operator demands; nothing ran.
    #[error("this machine cannot enforce the required sandbox controls, so nothing ran: {}{HINT}{}", named(.missing), mended(.missing, *.best_effort))]
    ControlsMissing {
        /// What is missing.
        missing: Vec<Missing>,
        /// Whether the operator lets a caller do with less.
        best_effort: bool,
    },
    /// The state directory lies in the tree that is verified.
    #[error("the state directory `{}` is inside the repository{HINT}choose another one with `--state-dir`", .0.display())]
    StateInRepository(PathBuf),
    /// The caller asked to end before there was anything to record.
    #[error("the run was interrupted before it started; nothing was verified{HINT}run again")]
    Interrupted,
    /// A command of a session changed the tree that the session is of.
    #[error("an earlier command of this session changed `{}`{HINT}start a new session", .0.display())]
    SessionSpent(PathBuf),
    /// Only what had not passed is to run, and no run of the profile is on record.
    #[error(
        "no run of the profile `{0}` without a changeset is recorded for this repository, so Proctor does not know which skills passed{HINT}run the whole profile once: `proctor run --profile {0}`"
    )]
    NoEarlierRun(ProfileName),
    /// Only what had not passed is to run, as evidence of a changeset.
    #[error(
        "a partial run is not evidence for the changeset `{0}`{HINT}omit one of the two options: `--last-failed` is for work in progress, `--changeset {0}` for the whole profile"
    )]
    PartialChangeset(ChangesetId),
    /// Only what had not passed is to run, of a commit.
    #[error(
        "a commit is verified as a whole, but `--last-failed` runs only part of the profile{HINT}omit one of the two options: `--last-failed` is for the worktree"
    )]
    PartialCommit,
    /// A command by itself asks for more than the operator allows.
    #[error("{0}{HINT}request less, or ask the operator to raise the limit in `proctord.toml`")]
    AboveCeiling(String),
    /// Our own mistake.
    #[error("{0}{HINT}this is a bug in Proctor; please report it")]
    Internal(String),
}

/// The system's words for a link that leaves the repository tell nobody what is wrong.
fn unreadable(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::CrossesDevices {
        format!("it leads out of the repository{HINT}put a real file there; what is verified must lie in the tree")
    } else {
        format!("{error}{HINT}see that it is a file that can be read, then run again")
    }
}

/// Whether the machine refused what is in order by itself, and may not do so again.
fn is_of_the_machine(error: &std::io::Error) -> bool {
    let codes = [Errno::IO, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// The first few with their reasons, the others by name.
fn named(missing: &[Missing]) -> String {
    const FEW: usize = 3;
    let few = if missing.len() > FEW { 1 } else { missing.len() };
    let (told, others) = missing.split_at(few);
    let name = |control: Control| format!("`{}`", control.as_str());
    let told: Vec<_> = told.iter().map(|missing| format!("{}: {}", name(missing.control), missing.reason)).collect();
    let others: Vec<_> = others.iter().map(|missing| name(missing.control)).collect();
    let and = if others.is_empty() { "" } else { "; and " };
    format!("{}{and}{}", told.join("; "), others.join(", "))
}

/// What to do, each thing once, and last how to do without.
fn mended(missing: &[Missing], best_effort: bool) -> String {
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

/// An error of our crates as one line: what to do follows what happened.
pub(crate) fn one_line(error: &impl Display) -> String {
    error.to_string().replace(HINT, "; ").replace('\n', " ")
}

impl Coded for EngineError {
    fn code(&self) -> Code {
        match self {
            // It is the caller's own words that ask for it.
            Self::AboveCeiling(_) => CommandCode::Usage.code(),
            other => other.kind().code(),
        }
    }
}

impl EngineError {
    /// Which of our errors it is, without its details.
    fn kind(&self) -> EngineCode {
        match self {
            Self::Spec(_) => EngineCode::Spec,
            Self::NoSpec(_) => EngineCode::NoSpec,
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
            Self::AboveCeiling(_) | Self::Internal(_) => EngineCode::Internal,
        }
    }

    /// What happened, without what to do about it.
    pub fn message(&self) -> String {
        let text = self.to_string();
        text.split(HINT).next().unwrap_or(&text).to_owned()
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let said = self.to_string().split_once(HINT).map(|(_, hint)| hint.replace(HINT, "; "));
        said.or_else(|| self.is_for_lack_of_descriptors().then(|| store::MORE_DESCRIPTORS.to_owned()))
    }

    fn is_for_lack_of_descriptors(&self) -> bool {
        let mut causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.any(|cause| cause.downcast_ref().is_some_and(store::lacks_descriptors))
    }

    /// The error as callers of the daemon get it.
    pub fn problem(&self) -> Problem {
        let kind = match self {
            Self::Spec(_) => ProblemType::InvalidSpec,
            Self::Interrupted => ProblemType::Interrupted,
            Self::Internal(_) => ProblemType::Internal,
            other if other.exit_code() == EXIT_USAGE || other.is_permanent() => ProblemType::Unprocessable,
            _ => ProblemType::Unavailable,
        };
        let mut problem = Problem::new(kind, self.message()).exiting(self.exit_code());
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

    /// Whether the same request fails again until somebody changes the repository, so that a client must not repeat
    /// it by itself.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Git(error) | Self::Snapshot(SnapshotError::Git(error)) => error.is_permanent(),
            Self::Snapshot(SnapshotError::Io { source, .. }) | Self::UnreadableAlternates { source, .. } => {
                !is_of_the_machine(source)
            }
            Self::HiddenAlternate(_) | Self::Store(StoreError::TooLarge { .. }) => true,
            _ => false,
        }
    }

    /// The exit code of the process: 2 where the caller can mend it by asking otherwise, 5
    /// where there is no honest answer.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnreadableSpec { source, .. } if is_of_the_machine(source) => EXIT_INCONCLUSIVE,
            Self::Spec(_)
            | Self::NoSpec(_)
            | Self::UnreadableSpec { .. }
            | Self::StateInRepository(_)
            | Self::NotTheOwner { .. }
            | Self::BestEffortForbidden
            | Self::NoEarlierRun(_)
            | Self::PartialChangeset(_)
            | Self::PartialCommit
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
            | Self::ControlsMissing { .. }
            | Self::Internal(_) => EXIT_INCONCLUSIVE,
        }
    }
}
