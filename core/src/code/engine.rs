//! Codes of the engine: the reasons why a run did not start.

use super::codes;

/// The reason why there is no run, without details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineCode {
    /// The spec is not valid.
    Spec,
    /// There is no spec.
    NoSpec,
    /// The spec cannot be read.
    UnreadableSpec,
    /// The spec was edited while the run started.
    SpecChanged,
    /// The plan is not the one that the caller expects.
    PlanChanged,
    /// The repository belongs to another user.
    NotTheOwner,
    /// A cache would hide files of the tree.
    CacheHidesTree,
    /// The repository borrows objects from a directory that steps cannot see.
    HiddenAlternate,
    /// The list of borrowed objects cannot be read.
    UnreadableAlternates,
    /// The tree cannot be read.
    Snapshot,
    /// The repository cannot be read.
    Git,
    /// Proctor's data in `changes/<id>/` or in the state directory cannot be written or read.
    Store,
    /// A sandbox is not available.
    Sandbox,
    /// The operator forbids runs with fewer controls.
    BestEffortForbidden,
    /// The machine cannot enforce all required controls.
    ControlsMissing,
    /// The state directory is inside the tree.
    StateInRepository,
    /// The run was interrupted before it began.
    Interrupted,
    /// An earlier command of the session changed the tree.
    SessionSpent,
    /// `--last-failed` was given, but no earlier run is recorded.
    NoEarlierRun,
    /// `--last-failed` was given with a changeset, whose evidence must cover the whole profile.
    PartialChangeset,
    /// `--last-failed` was given with a commit, but it works only for the worktree.
    PartialCommit,
    /// A bug in Proctor.
    Internal,
}

codes! { EngineCode;
    Spec, 201, "engine::spec",
        "The spec cannot be used; each thing that is wrong has a code of its own.",
        "A spec that is half understood would be half run.",
        "Mend what the diagnostics name.",
        "$ proctor validate";
    NoSpec, 202, "engine::no_spec",
        "The repository has no `spec/verification.yaml`.",
        "Without one nothing is checked, and nothing is no pass.",
        "Write one, or name the repository that has it.",
        "$ proctor init";
    UnreadableSpec, 203, "engine::unreadable_spec",
        "The spec is there and cannot be read, or a link leads out of the repository.",
        "What is verified must lie in the tree that is verified.",
        "See that it is a regular file that this user can read.",
        "$ ls -l spec/verification.yaml";
    SpecChanged, 204, "engine::spec_changed",
        "The spec was edited while the run was starting.",
        "The spec that was read must be the one that the snapshot covers.",
        "Run it again.",
        "$ proctor run";
    PlanChanged, 205, "engine::plan_changed",
        "The spec was edited between the request and the run.",
        "What was asked for is not what would run.",
        "Ask again.",
        "$ proctor run";
    NotTheOwner, 206, "engine::not_the_owner",
        "The repository belongs to another user.",
        "A repository's own files say what is run: those of others are not taken as yours.",
        "Name a repository of yours, or ask as its owner.",
        "$ proctor run --repo ~/src/project";
    CacheHidesTree, 207, "engine::cache_hides_tree",
        "A cache of a skill lies over files that the snapshot covers.",
        "A step would see the cache where the record says that it saw the tree.",
        "Name a directory that git ignores.",
        "skills:\n  verify.unit:\n    caches: [target]";
    HiddenAlternate, 208, "engine::hidden_alternate",
        "The repository borrows git objects from a directory that no step sees.",
        "Git in a step would find objects missing.",
        "Copy the objects, or have the operator show the directory.",
        "$ git repack -a -d && rm .git/objects/info/alternates";
    UnreadableAlternates, 209, "engine::unreadable_alternates",
        "The list of borrowed objects (`objects/info/alternates`) cannot be read.",
        "Whether steps would find every object is not known then.",
        "See that this user can read it.",
        "$ ls -l .git/objects/info/alternates";
    Snapshot, 210, "engine::snapshot",
        "The tree cannot be read from its beginning to its end.",
        "What cannot be read cannot be vouched for.",
        "Mend what the message names: rights on a file, a file that is none, a broken index.",
        "$ git status";
    Git, 211, "engine::git",
        "The repository, or the revision that was named, cannot be read as git has it.",
        "A guess would verify another tree than the one that was meant.",
        "Read the `hint:` line; `git rev-parse` says what a name means.",
        "$ git rev-parse --verify HEAD~2^{commit}";
    Store, 212, "engine::store",
        "Something of ours cannot be kept or read: in `changes/<id>/` or in the state directory.",
        "A result without its evidence is none.",
        "Mend what the message names: room, rights, a link in the way, a changeset that is not there.",
        "$ proctor run --state-dir /var/tmp/proctor";
    Sandbox, 213, "engine::sandbox",
        "No sandbox can be had on this machine.",
        "Nothing runs outside of one.",
        "`proctor doctor` does the whole set-up once and says where it ends, and how to mend that.",
        "$ proctor doctor";
    BestEffortForbidden, 214, "engine::best_effort_forbidden",
        "`--sandbox=best-effort` was asked for, and the operator does not allow it here.",
        "Who runs the machine decides how much less than everything is enough.",
        "Run without it, or have the operator allow it.",
        "allow_best_effort = true   # proctord.toml";
    ControlsMissing, 215, "engine::controls_missing",
        "The machine enforces less than the operator demands, so that nothing ran.",
        "A check that ran with less than is demanded would prove less than it says.",
        "Mend what is missing as the hints say, or accept less aloud.",
        "$ proctor doctor\n$ proctor run --sandbox=best-effort";
    StateInRepository, 216, "engine::state_in_repository",
        "The state directory lies below the repository.",
        "What we remember of runs must lie where no step and no checkout reaches it.",
        "Name another one.",
        "$ proctor run --state-dir ~/.local/state/proctor";
    Interrupted, 217, "engine::interrupted",
        "The run was interrupted before it began.",
        "Nothing was verified, and nothing is no pass.",
        "Run it again.",
        "$ proctor run";
    SessionSpent, 218, "engine::session_spent",
        "An earlier command of the session changed the tree that the session is of.",
        "The next command would run on another tree than the one that was looked at.",
        "Start a new session.",
        "$ proctor exec -- make check";
    Internal, 219, "engine::internal",
        "Proctor has made a mistake of its own.",
        "What it would say now cannot be relied on, so that it is no pass.",
        "Report it with the command that you ran.",
        "$ PROCTOR_LOG=debug proctor run";
    NoEarlierRun, 220, "engine::no_earlier_run",
        "Only what had not passed is to run again (`--last-failed`), and no run of this profile without a changeset is on \
         record for this repository.",
        "What has passed is not known, so that nothing could be left out.",
        "Run the whole profile once. A daemon and each `--state-dir` know their own runs only.",
        "$ proctor run\n$ proctor run --last-failed";
    PartialChangeset, 221, "engine::partial_changeset",
        "Only what had not passed is to run again (`--last-failed`), and the evidence is to be that of a changeset.",
        "Evidence of a changeset says that the whole profile holds on one tree; a part of it does not.",
        "Find what fails without the changeset, then run the whole profile for it.",
        "$ proctor run --last-failed\n$ proctor run --changeset 009_x";
    PartialCommit, 222, "engine::partial_commit",
        "Only what had not passed is to run again (`--last-failed`), and a commit is to be verified.",
        "A commit is verified as a whole; `--last-failed` is for the worktree on which somebody works.",
        "Leave one of the two out.",
        "$ proctor run --rev HEAD";
}
