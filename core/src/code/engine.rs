//! Codes of the engine: the reasons why a run did not start.

use super::error_code::codes;

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
    /// The plan differs from the one that the caller expects.
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
    /// The spec is in a directory that the tree does not cover.
    SpecDirectory,
    /// A changeset was named for a spec in a subdirectory.
    ChangesetBelowTop,
    /// The request restricts the run to steps or files that do not exist, or in a contradictory way.
    Scope,
    /// The worktree cannot be watched for changes.
    Watch,
    /// A bug in Proctor.
    Internal,
}

codes! { EngineCode;
    Spec, 201, "engine::spec",
        "The spec is invalid; each problem has its own code.",
        "A partly understood spec would run only part of its checks.",
        "Fix the problems that the diagnostics name.",
        "$ proctor validate";
    NoSpec, 202, "engine::no_spec",
        "The repository has no `spec/verification.yaml`.",
        "Without a spec Proctor checks nothing, and that must not count as a pass.",
        "Write a spec, or name the repository that has one.",
        "$ proctor init";
    UnreadableSpec, 203, "engine::unreadable_spec",
        "The spec exists but cannot be read, or a link points outside the repository.",
        "The spec must be part of the tree that it verifies.",
        "Make it a regular file that this user can read.",
        "$ ls -l spec/verification.yaml";
    SpecChanged, 204, "engine::spec_changed",
        "The spec was edited while the run was starting.",
        "The snapshot must contain the same spec that Proctor read.",
        "Run it again.",
        "$ proctor run";
    PlanChanged, 205, "engine::plan_changed",
        "The spec was edited between the request and the start of the run.",
        "The run would not execute the plan that was requested.",
        "Send the request again.",
        "$ proctor run";
    NotTheOwner, 206, "engine::not_the_owner",
        "The repository belongs to another user.",
        "The files of a repository decide which commands run, so another user's files are not trusted.",
        "Name a repository that you own, or run the command as its owner.",
        "$ proctor run --repo ~/src/project";
    CacheHidesTree, 207, "engine::cache_hides_tree",
        "A cache of a skill overlaps files that the snapshot covers.",
        "A step would see the cache instead of the tree that the evidence describes.",
        "Name a directory that git ignores.",
        "skills:\n  verify.unit:\n    caches: [target]";
    HiddenAlternate, 208, "engine::hidden_alternate",
        "The repository borrows git objects from a directory that steps cannot see.",
        "Git would not find these objects inside a step.",
        "Copy the objects, or ask the operator to make the directory visible to steps.",
        "$ git repack -a -d && rm .git/objects/info/alternates";
    UnreadableAlternates, 209, "engine::unreadable_alternates",
        "The list of borrowed objects (`objects/info/alternates`) cannot be read.",
        "Proctor cannot determine whether steps would find every object.",
        "Make sure that this user can read the file.",
        "$ ls -l .git/objects/info/alternates";
    Snapshot, 210, "engine::snapshot",
        "The tree cannot be read completely.",
        "Proctor cannot verify files that it cannot read.",
        "Fix the cause that the message names: file permissions, a special file, a broken index.",
        "$ git status";
    Git, 211, "engine::git",
        "Git cannot read the repository or the given revision.",
        "A guess could verify the wrong tree.",
        "Read the `hint:` line; `git rev-parse` shows what a revision name resolves to.",
        "$ git rev-parse --verify HEAD~2^{commit}";
    Store, 212, "engine::store",
        "Proctor cannot read or write its files in `changes/<id>/` or in the state directory.",
        "A result without stored evidence is worthless.",
        "Fix the cause that the message names: disk space, permissions, a link, a missing changeset.",
        "$ proctor run --state-dir /var/tmp/proctor";
    Sandbox, 213, "engine::sandbox",
        "The sandbox cannot be set up on this machine.",
        "Proctor runs no step outside a sandbox.",
        "`proctor doctor` performs the complete set-up, shows where it fails, and suggests a fix.",
        "$ proctor doctor";
    BestEffortForbidden, 214, "engine::best_effort_forbidden",
        "The caller requested `--sandbox=best-effort`, but the operator does not allow it on this machine.",
        "The operator decides which missing controls are acceptable.",
        "Omit the option, or ask the operator to allow it.",
        "allow_best_effort = true   # proctord.toml";
    ControlsMissing, 215, "engine::controls_missing",
        "The machine enforces fewer controls than the operator requires, so nothing ran.",
        "A check that ran with fewer controls would prove less than its record claims.",
        "Fix the missing controls as the hints describe, or accept fewer controls explicitly.",
        "$ proctor doctor\n$ proctor run --sandbox=best-effort";
    StateInRepository, 216, "engine::state_in_repository",
        "The state directory is inside the repository.",
        "Steps and checkouts must not be able to change the state of runs.",
        "Use another state directory.",
        "$ proctor run --state-dir ~/.local/state/proctor";
    Interrupted, 217, "engine::interrupted",
        "The run was interrupted before it started.",
        "Nothing was verified, so the run is not a pass.",
        "Run it again.",
        "$ proctor run";
    SessionSpent, 218, "engine::session_spent",
        "An earlier command of the session changed the session's tree.",
        "The next command would run on a different tree from the one that the session verified.",
        "Start a new session.",
        "$ proctor exec -- make check";
    Internal, 219, "engine::internal",
        "Proctor detected a bug in itself.",
        "Its answer would not be reliable, so it reports no pass.",
        "Report the bug with the command that you ran.",
        "$ PROCTOR_LOG=debug proctor run";
    NoEarlierRun, 220, "engine::no_earlier_run",
        "`--last-failed` was given, but Proctor has no recorded run of this profile without a changeset for this \
         repository.",
        "Proctor does not know which skills passed, so it cannot leave any out.",
        "Run the whole profile once. A daemon and each `--state-dir` have only their own runs.",
        "$ proctor run\n$ proctor run --last-failed";
    PartialChangeset, 221, "engine::partial_changeset",
        "A run of a part of the profile or of the files cannot be combined with a changeset.",
        "Evidence of a changeset proves the whole profile on one tree; a partial run does not.",
        "Fix the failures without the changeset, then run the whole profile for it.",
        "$ proctor run --last-failed\n$ proctor run --changeset 009_x";
    PartialCommit, 222, "engine::partial_commit",
        "`--last-failed` cannot be combined with a commit.",
        "A commit is verified as a whole; `--last-failed` is for work in progress in the worktree.",
        "Omit one of the two options.",
        "$ proctor run --rev HEAD";
    SpecDirectory, 230, "engine::spec_directory",
        "The spec is in a directory whose files do not belong to the tree, or whose path is not UTF-8.",
        "The tree that a run verifies must contain its own spec.",
        "Move the directory `spec/` to another directory.",
        "$ git mv changes/009_x/verify/spec svc/spec";
    ChangesetBelowTop, 231, "engine::changeset_below_top",
        "A changeset was named, and the spec is in a subdirectory of the repository.",
        "The tree covers every file in a subdirectory, including its `changes/`. The evidence of a run would change the \
         tree that the run verified.",
        "Omit the changeset, or verify it with the spec at the top of the repository.",
        "$ proctor run --changeset 009_x --repo \"$(git rev-parse --show-toplevel)\"";
    Scope, 223, "engine::scope",
        "The steps or files to which the run is restricted do not exist, or contradict each other.",
        "A run that checks nothing, or something other than what was requested, would be misleading.",
        "Use the names that `proctor plan` lists, and paths inside the repository.",
        "$ proctor run verify.tests/pytest\n$ proctor run --changed main";
    Watch, 224, "engine::watch",
        "The worktree cannot be watched for changes.",
        "`--watch` would miss changes, and its last result would look current.",
        "Raise the limits of inotify that the message names, or run without `--watch`.",
        "$ sysctl fs.inotify.max_user_watches=524288";
}
