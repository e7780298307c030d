//! Codes of the gate: the reasons against a pass.

use super::error_code::codes;
use crate::decision::gate::GateCode;

codes! { GateCode;
    NothingRecorded, 301, "gate::nothing_recorded",
        "Proctor has no recorded run of this profile for this repository.",
        "A tree without a run is not verified.",
        "Run the profile.",
        "$ proctor run --profile pr";
    RunUnderWay, 302, "gate::run_under_way",
        "A run is using the changeset at the moment.",
        "The run is replacing the changeset's documents.",
        "Wait until the run ends, then repeat the command.",
        "$ proctor gate --changeset 009_x";
    StatusUnreadable, 303, "gate::status_unreadable",
        "`05-status.json` cannot be read, or Proctor's entries in it are malformed.",
        "Proctor cannot determine which evidence it cites.",
        "Fix the file in an editor, then run the profile.",
        "$ jq . changes/009_x/05-status.json";
    VersionUnknown, 304, "gate::version_unknown",
        "A document has a format version that this program does not support.",
        "Its content cannot be interpreted.",
        "Use the newer Proctor that wrote it, or run the profile with this one.",
        "$ proctor --version";
    CitesNothing, 305, "gate::cites_nothing",
        "The last run cites no evidence: it was interrupted while writing, or its pass was revoked.",
        "A verdict without evidence proves nothing.",
        "Run the profile again.",
        "$ proctor run";
    OtherProfile, 306, "gate::other_profile",
        "The last run used a different profile.",
        "It executed other checks than the requested profile has.",
        "Run this profile.",
        "$ proctor run --profile release";
    OtherChangeset, 307, "gate::other_changeset",
        "The evidence belongs to another changeset.",
        "It was copied into this changeset after its run.",
        "Run the profile for this changeset.",
        "$ proctor run --changeset 009_x";
    OtherSpec, 308, "gate::other_spec",
        "The spec differs from the spec that was verified.",
        "The current spec may require other checks.",
        "Run the profile again.",
        "$ proctor run";
    OtherPlan, 309, "gate::other_plan",
        "The same spec now resolves to a different plan: the operator's configuration or Proctor changed, or the run was partial.",
        "The run may have used other limits, timeouts or controls than a run would use now.",
        "Run the profile again.",
        "$ proctor run";
    TreeChanged, 310, "gate::tree_changed",
        "The tree differs from the tree that was verified.",
        "A pass is valid only for the exact bytes that were verified.",
        "Check the listed paths, then run the profile again.",
        "$ proctor run";
    ChangedByRun, 311, "gate::changed_by_run",
        "A `read_only: off` step of the run changed the tree while it was verified.",
        "Not every check saw the current tree.",
        "Run the profile again: the tree is stable once the step has nothing left to change.",
        "$ proctor run";
    RunFailed, 312, "gate::run_failed",
        "The last run of this tree failed.",
        "At least one check did not pass.",
        "Fix the failure, then run the profile again.",
        "$ proctor logs 20260102T030405Z-1 verify.lint/clippy";
    RunInconclusive, 313, "gate::run_inconclusive",
        "The last run was inconclusive.",
        "An inconclusive run never passes a gate.",
        "Find the reason in the run's status, then run the profile again.",
        "$ proctor status 20260102T030405Z-1";
    TierTooHigh, 314, "gate::tier_too_high",
        "The run's effective tier is higher than the accepted maximum.",
        "Drift, the network, a timeout or a missing control raised it.",
        "See `tier_reasons` in the evidence; raise the maximum only if you accept these reasons.",
        "$ proctor gate --max-tier 3";
    ControlMissing, 315, "gate::control_missing",
        "A control that the operator requires now was not enforced for a step.",
        "The run proves less than the operator requires now.",
        "Run again on a machine that enforces it.",
        "$ proctor doctor";
    Stale, 316, "gate::stale",
        "The run, or an earlier execution whose result it uses, is older than the accepted age.",
        "Anything outside the tree may have changed since, especially tools.",
        "Run the profile again, with `--no-cache` if the run used an old result, or accept an older run explicitly.",
        "$ proctor gate --max-age 7d";
    FromTheFuture, 317, "gate::from_the_future",
        "According to this machine's clock, the run ended in the future.",
        "The age of the run cannot be computed.",
        "Correct the clock, then run the profile again.",
        "$ timedatectl";
    TimeUnreadable, 318, "gate::time_unreadable",
        "The end time of the run is not a valid time.",
        "The age of the run cannot be computed.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceMissing, 319, "gate::evidence_missing",
        "Required evidence is missing.",
        "A missing document proves nothing.",
        "Restore the file from a copy, or run the profile again.",
        "$ git checkout -- changes/009_x/verify";
    EvidenceEdited, 320, "gate::evidence_edited",
        "The evidence differs from the evidence that the status file cites.",
        "It was edited after the run.",
        "Run the profile again.",
        "$ proctor run --changeset 009_x";
    EvidenceUnreadable, 321, "gate::evidence_unreadable",
        "Evidence cannot be read, or was not written by Proctor.",
        "An unreadable document proves nothing.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceSealBroken, 322, "gate::evidence_seal_broken",
        "The `sha256` in a document does not match the document's stable part.",
        "The document was edited after Proctor wrote it.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceForeign, 323, "gate::evidence_foreign",
        "The evidence belongs to a different run from the one that cites it.",
        "Parts of different runs do not prove one run.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceExtra, 324, "gate::evidence_extra",
        "The changeset contains evidence that the run does not cite.",
        "A reader could mistake it for part of the run.",
        "Remove the file, or run the profile again.",
        "$ rm changes/009_x/verify/verify.old.json";
    EvidenceContradicts, 325, "gate::evidence_contradicts",
        "The evidence contradicts the status file.",
        "One of the two is wrong.",
        "Run the profile again.",
        "$ proctor run";
    Unattested, 326, "gate::unattested",
        "The state directory has no record of the run; only the run's own files attest it.",
        "A person who can edit the evidence can also edit the status file that cites it.",
        "Run the profile here, or accept a run of another machine explicitly.",
        "$ proctor gate --accept-unattested";
    RecordDiffers, 327, "gate::record_differs",
        "The status file differs from the status that Proctor recorded when it wrote the run.",
        "The file was edited after the run.",
        "Run the profile again.",
        "$ proctor run";
    Superseded, 328, "gate::superseded",
        "The state directory has a record of a newer run of the same tree.",
        "An older pass does not override a newer failure.",
        "Run the profile again.",
        "$ proctor run";
    RecordUnreadable, 329, "gate::record_unreadable",
        "The state directory's record of the run is malformed.",
        "It cannot attest anything.",
        "Run the profile again.",
        "$ proctor run";
    RunPartial, 330, "gate::run_partial",
        "The last run was partial: `--last-failed` left skills of the profile out.",
        "The skipped skills passed on another tree, or at another time.",
        "Run the whole profile.",
        "$ proctor run";
    IgnoresChanged, 331, "gate::ignores_changed",
        "Ignore rules outside the tree (`info/exclude`, `core.excludesFile`, `core.ignoreCase`) differ from those of the run.",
        "The rules decide which new files belong to the tree, so other rules can hide a file that was never verified.",
        "Undo the change, or check the rules and run the profile again.",
        "$ cat .git/info/exclude && proctor run";
    IgnoresUnrecorded, 332, "gate::ignores_unrecorded",
        "There are ignore rules outside the tree, but the run did not record its own.",
        "An older Proctor did not record the rules, so they may hide a file that was never verified.",
        "Run the profile again.",
        "$ proctor run";
    CacheTooWide, 333, "gate::cache_too_wide",
        "A skill started with a cache whose content comes from a wider scope than the accepted one.",
        "Steps use the content of a cache, so every writer of the cache can influence the result.",
        "Run the profile without caches, or accept the wider scope.",
        "$ proctor run --no-caches";
    InputsUnverified, 334, "gate::inputs_unverified",
        "Steps of the run could see files that the snapshot does not cover, and `--strict-inputs` forbids that.",
        "Ignored files are not part of the tree's identity, so the result can depend on unverified content.",
        "Hide ignored files from steps with `ignored: hidden` in the spec and run over a private copy, or verify the commit.",
        "$ proctor run --rev HEAD && proctor gate --strict-inputs";
    OtherMachine, 335, "gate::other_machine",
        "Other machines executed steps of the run, and `--this-machine` or the operator's config forbids that.",
        "A worker of a cluster, or a machine whose shared result is used, reports its own result.",
        "Run the profile on this machine, without a remote executor and without cached results, or trust the workers or the key.",
        "$ proctor run --no-cache && proctor gate --this-machine";
}
