//! Codes of the reasons why a run is inconclusive.

use super::error_code::codes;
use crate::decision::verdict::InconclusiveReason;

codes! { InconclusiveReason;
    Toolchain, 401, "run::toolchain",
        "A toolchain check failed: a tool is missing or has the wrong version.",
        "Results from the wrong tool prove nothing about the tree, so no skill was started.",
        "Install the required tool, or ask the operator to make it visible to steps (`tool_mounts`).",
        "toolchains:\n  rust: { required: [{ cmd: [\"cargo\", \"--version\"], version: \">=1.80\" }] }";
    TreeChanged, 402, "run::tree_changed",
        "The tree was edited during the run.",
        "Not every check saw the same bytes.",
        "Run again without editing the tree, or verify a commit in a separate checkout.",
        "$ proctor run --rev HEAD";
    Interrupted, 403, "run::interrupted",
        "The run was interrupted: by Ctrl-C, a signal, or the shutdown of the daemon.",
        "Not every check finished.",
        "Run it again.",
        "$ proctor run";
    Sandbox, 404, "run::sandbox",
        "The sandbox could not be set up as the operator requires.",
        "A step that ran with fewer controls would prove less than its record claims.",
        "Fix the cause that the message names.",
        "$ proctor doctor";
    TierAboveLimit, 405, "run::tier_above_limit",
        "A skill was left out because its tier is above the tier that the caller may run.",
        "Part of the profile did not run.",
        "Allow a higher tier if you accept it, or approve the changeset where the operator requires that.",
        "$ proctor run --max-tier 2";
    LayerConflict, 406, "run::layer_conflict",
        "Two skills that a third skill needs changed the same path.",
        "Proctor cannot decide which of the two versions the third skill should see.",
        "Make one of the two need the other, or write to different paths.",
        "test: { needs: [build-a, build-b] }\nbuild-b: { needs: [build-a] }";
    ApplyFailed, 407, "run::apply_failed",
        "A change of a `read_only: off` step could not be applied to the worktree.",
        "The tree does not match the tree that the step produced.",
        "Make sure that the files are writable and are not edited during a run.",
        "$ git status";
    ChangedCommit, 411, "run::changed_commit",
        "A `read_only: off` step changed files of a commit.",
        "Proctor does not change commits, so the steps after it saw other files than those of the commit.",
        "Run the step on the worktree, and commit its changes; or let it only check the files.",
        "$ proctor run\n$ git commit --all --amend --no-edit";
    NeededPath, 409, "run::needed_path",
        "A path that a skill needs, and that no commit contains, is not available.",
        "Without it, the result of the skill would say nothing about the tree, so the skill was not started.",
        "Update the worktree to the lock files of the commit, or let Proctor prepare the path with a command.",
        "needs_paths: [{ path: node_modules, prepare: { cmd: [npm, ci], network: allow } }]";
    RemoteExecution, 410, "run::remote_execution",
        "A step passed on a worker of a cluster, and the operator has not declared that workers are trusted.",
        "A worker reports its own result. Nothing that this machine observes proves that the report is true.",
        "If the cluster's workers are yours, trust them in the operator's config; otherwise run the step on this machine.",
        "[remote_executor]\nendpoint = \"grpcs://cluster.example.com:8980\"\ntrust_workers = true";
    Internal, 408, "run::internal",
        "An internal operation failed: evidence could not be written, a helper process died, or similar.",
        "The result would not be reliable.",
        "Read the message; unless it names disk space or permissions, report it as a bug.",
        "$ PROCTOR_LOG=debug proctor run";
}
