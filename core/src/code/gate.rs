//! Codes of the gate: the reasons against a pass.

use super::codes;
use crate::gate::GateCode;

codes! { GateCode;
    NothingRecorded, 301, "gate::nothing_recorded",
        "No run of this profile is on record for this repository.",
        "What never ran is not verified.",
        "Run the profile.",
        "$ proctor run --profile pr";
    RunUnderWay, 302, "gate::run_under_way",
        "A run holds the changeset at this moment.",
        "Its documents are being replaced.",
        "Wait for its end, then ask again.",
        "$ proctor gate --changeset 009_x";
    StatusUnreadable, 303, "gate::status_unreadable",
        "`05-status.json` cannot be read, or what is ours in it is not as we write it.",
        "What it cites cannot be known.",
        "Mend the file by hand, then run the profile.",
        "$ jq . changes/009_x/05-status.json";
    VersionUnknown, 304, "gate::version_unknown",
        "A document is in a format that this program does not know.",
        "What it says cannot be judged.",
        "Ask with the newer Proctor that wrote it, or run the profile with this one.",
        "$ proctor --version";
    CitesNothing, 305, "gate::cites_nothing",
        "The last run cites no evidence: it was ended while it wrote, or its pass was taken back.",
        "A verdict without evidence is a word.",
        "Run the profile again.",
        "$ proctor run";
    OtherProfile, 306, "gate::other_profile",
        "The last run is of another profile.",
        "It checked other things than those that are asked about.",
        "Run this profile.",
        "$ proctor run --profile release";
    OtherChangeset, 307, "gate::other_changeset",
        "The evidence is of another changeset.",
        "It was put here by somebody.",
        "Run the profile for this changeset.",
        "$ proctor run --changeset 009_x";
    OtherSpec, 308, "gate::other_spec",
        "The spec is not the one that was verified.",
        "Other checks may be asked for now.",
        "Run the profile again.",
        "$ proctor run";
    OtherPlan, 309, "gate::other_plan",
        "The same spec resolves to another plan today: the operator's config or Proctor has changed, or only a part of the profile ran.",
        "The limits, timeouts or controls of the run are not those that would hold now.",
        "Run the profile again.",
        "$ proctor run";
    TreeChanged, 310, "gate::tree_changed",
        "The tree is not the one that was verified.",
        "A pass is about bytes, and these are others.",
        "Look at the paths that are listed, then run the profile again.",
        "$ proctor run";
    ChangedByRun, 311, "gate::changed_by_run",
        "A `read_only: off` step of the run changed the tree while it was verified.",
        "Not every check saw the tree as it is now.",
        "Run again: once nothing is left to change, the tree stays as it is.",
        "$ proctor run";
    RunFailed, 312, "gate::run_failed",
        "The last run of this tree failed.",
        "A check speaks against it.",
        "Mend what failed, then run the profile again.",
        "$ proctor logs 20260102T030405Z-1 verify.lint/clippy";
    RunInconclusive, 313, "gate::run_inconclusive",
        "The last run has no honest answer.",
        "Inconclusive never passes a gate.",
        "Look why, then run the profile again.",
        "$ proctor status 20260102T030405Z-1";
    TierTooHigh, 314, "gate::tier_too_high",
        "The run's effective tier is above what is accepted.",
        "Drift, the network, a timeout or a missing control raised it.",
        "See `tier_reasons` in its evidence; accept it only where you mean that.",
        "$ proctor gate --max-tier 3";
    ControlMissing, 315, "gate::control_missing",
        "A control that the operator demands today was not enforced for a step.",
        "The run proves less than is demanded now.",
        "Run again on a machine that enforces it.",
        "$ proctor doctor";
    Stale, 316, "gate::stale",
        "The run is older than is accepted.",
        "What is outside of the tree, tools above all, may have changed since.",
        "Run the profile again, or accept an older run aloud.",
        "$ proctor gate --max-age 7d";
    FromTheFuture, 317, "gate::from_the_future",
        "The run ended in the future by this machine's clock.",
        "Its age cannot be told.",
        "Set the clock right, then run the profile again.",
        "$ timedatectl";
    TimeUnreadable, 318, "gate::time_unreadable",
        "The time of the run's end is no time.",
        "Its age cannot be told.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceMissing, 319, "gate::evidence_missing",
        "Evidence that must be there is not.",
        "What cannot be looked at proves nothing.",
        "Bring the file back from where it was kept, or run the profile again.",
        "$ git checkout -- changes/009_x/verify";
    EvidenceEdited, 320, "gate::evidence_edited",
        "Evidence is not what the status file cites.",
        "It was edited after the run.",
        "Run the profile again.",
        "$ proctor run --changeset 009_x";
    EvidenceUnreadable, 321, "gate::evidence_unreadable",
        "Evidence cannot be read, or is no document of ours.",
        "What cannot be read proves nothing.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceSealBroken, 322, "gate::evidence_seal_broken",
        "A document's own `sha256` is not that of its stable part.",
        "It was not written as it stands.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceForeign, 323, "gate::evidence_foreign",
        "Evidence is of another run than the one that cites it.",
        "Parts of several runs are not a run.",
        "Run the profile again.",
        "$ proctor run";
    EvidenceExtra, 324, "gate::evidence_extra",
        "There is evidence that the run does not cite.",
        "A reader could take it for a part of the run.",
        "Remove the file, or run the profile again.",
        "$ rm changes/009_x/verify/verify.old.json";
    EvidenceContradicts, 325, "gate::evidence_contradicts",
        "The evidence does not say what the status file says.",
        "One of them is not true.",
        "Run the profile again.",
        "$ proctor run";
    Unattested, 326, "gate::unattested",
        "The state directory does not know the run: only its own files vouch for it.",
        "Whoever can edit the evidence can edit the status that cites it.",
        "Run the profile here, or vouch for a run of another machine aloud.",
        "$ proctor gate --accept-unattested";
    RecordDiffers, 327, "gate::record_differs",
        "The status file does not say what it said when the run was written.",
        "It was edited since.",
        "Run the profile again.",
        "$ proctor run";
    Superseded, 328, "gate::superseded",
        "The state directory knows a newer run of the same tree.",
        "An older pass does not stand above a newer failure.",
        "Run the profile again.",
        "$ proctor run";
    RecordUnreadable, 329, "gate::record_unreadable",
        "The state directory's record of the run is not as we write it.",
        "It cannot vouch for anything.",
        "Run the profile again.",
        "$ proctor run";
    RunPartial, 330, "gate::run_partial",
        "The last run left skills of the profile out: it was asked to run only what had not passed (`--last-failed`).",
        "What was left out passed on another tree, or another day.",
        "Run the whole profile.",
        "$ proctor run";
    IgnoresChanged, 331, "gate::ignores_changed",
        "Ignore rules outside of the tree (`info/exclude`, `core.excludesFile`, `core.ignoreCase`) are not those of the run.",
        "The rules decide which new files belong to the tree, so other rules can hide a file that was never verified.",
        "Undo the change, or check the rules and run the profile again.",
        "$ cat .git/info/exclude && proctor run";
    IgnoresUnrecorded, 332, "gate::ignores_unrecorded",
        "There are ignore rules outside of the tree, and the run does not record which there were.",
        "An older Proctor did not record them, so it cannot be told whether they hide a file that was never verified.",
        "Run the profile again.",
        "$ proctor run";
    CacheTooWide, 333, "gate::cache_too_wide",
        "A skill began with a cache whose content comes from a wider scope than is accepted.",
        "A step takes what it finds in a cache for its own work, so that whoever filled the cache has a part in its result.",
        "Run the profile without caches, or accept that scope.",
        "$ proctor run --no-caches";
    InputsUnverified, 334, "gate::inputs_unverified",
        "The steps of the run could see files that its snapshot does not cover, and the caller accepts none (`--strict-inputs`).",
        "Ignored files are not part of the tree's identity, so the result can depend on content that no record verifies.",
        "Hide ignored files from steps with `ignored: hidden` in the spec and run over a private copy, or verify the commit.",
        "$ proctor run --rev HEAD && proctor gate --strict-inputs";
}
