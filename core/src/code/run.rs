//! Codes of the reasons why a run is inconclusive.

use super::codes;
use crate::verdict::Doubt;

codes! { Doubt;
    Toolchain, 401, "run::toolchain",
        "A toolchain check does not hold: a tool is not there, or has another version.",
        "What a check says with the wrong tool says nothing of the tree, so that no skill was started.",
        "Install what the check demands, or let the operator show it to steps (`tool_mounts`).",
        "toolchains:\n  rust: { required: [{ cmd: [\"cargo\", \"--version\"], version: \">=1.80\" }] }";
    TreeChanged, 402, "run::tree_changed",
        "The tree was edited while the run was under way.",
        "Not every check saw the same bytes.",
        "Run again and leave the tree alone meanwhile, or verify a commit apart from it.",
        "$ proctor run --rev HEAD";
    Interrupted, 403, "run::interrupted",
        "The run was interrupted: by Ctrl-C, a signal, or the end of the daemon.",
        "Not every check ran to its end.",
        "Run it again.",
        "$ proctor run";
    Sandbox, 404, "run::sandbox",
        "The sandbox could not be had as the operator demands it.",
        "A step that ran with less would prove less than it says.",
        "Mend what is missing.",
        "$ proctor doctor";
    TierAboveLimit, 405, "run::tier_above_limit",
        "A skill is above the tier that the caller may run, and was left out.",
        "A part of the profile did not run.",
        "Allow a higher tier where you mean that, or approve the changeset where the operator demands it.",
        "$ proctor run --max-tier 2";
    LayerConflict, 406, "run::layer_conflict",
        "Two skills that a third one needs touched the same path.",
        "Which of the two contents the third should see is not known.",
        "Let one of them need the other, or write to different paths.",
        "test: { needs: [build-a, build-b] }\nbuild-b: { needs: [build-a] }";
    ApplyFailed, 407, "run::apply_failed",
        "A change of a `read_only: off` step could not be applied to the worktree.",
        "The tree is not as the step left it.",
        "See that nobody edits those files meanwhile and that they can be written.",
        "$ git status";
    Internal, 408, "run::internal",
        "Something of ours failed: evidence could not be written, a helper ended, and the like.",
        "An answer could not be relied on.",
        "Read the message; where it is no matter of room or rights, report it.",
        "$ PROCTOR_LOG=debug proctor run";
}
