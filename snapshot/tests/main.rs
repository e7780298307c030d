//! The integration tests of this crate, which use real repositories and directories, in one binary.
//!
//! A test declares its requirements on the machine as a [`Requirement`]. If the machine does not meet them, the test is
//! reported as ignored, with the reason in its name.

mod apply;
mod commit;
mod drift;
mod git_comparison;
mod git_objects;
mod git_program;
mod ignore;
mod includes;
mod incremental;
mod known_history;
mod layer;
mod overlay;
mod patch;
mod report;
mod repository;
mod snapshot;
mod view;
mod withheld;

use libtest_mimic::{Arguments, Failed, Trial};

/// A requirement of a test on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requirement {
    Nothing,
    Whiteouts,
    ChangeableOwners,
    OverlayMounts,
    ReliableTimestamps,
    GitWithSha256,
    GitWithReftable,
    Python,
}

/// Returns the size of a campaign: `small` in `make test`, and `full` in `make test-long`.
fn campaign_size<T>(small: T, full: T) -> T {
    #[expect(clippy::disallowed_methods, reason = "the command line selects the level")]
    let is_long = std::env::var("PROCTOR_TEST_LONG").is_ok_and(|value| value == "1");
    if is_long { full } else { small }
}

/// A test: its name, its requirement, and its function.
type SnapshotTestCase = (&'static str, Requirement, fn());

fn main() {
    let arguments = Arguments::from_args();
    let cases = [
        snapshot::CASES,
        layer::CASES,
        view::CASES,
        overlay::CASES,
        drift::CASES,
        withheld::CASES,
        apply::CASES,
        incremental::CASES,
        incremental::mapped_files::CASES,
        incremental::stored_snapshot::CASES,
        commit::CASES,
        patch::CASES,
        report::CASES,
        git_comparison::CASES,
        git_objects::CASES,
        ignore::CASES,
        known_history::CASES,
    ]
    .concat();
    let trials = cases.into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial((name, need, body): SnapshotTestCase) -> Trial {
    let (lacks, why) = match need {
        Requirement::Nothing => (false, ""),
        Requirement::Whiteouts => (!repository::can_make_whiteouts(), " [needs permission to create whiteouts]"),
        Requirement::ChangeableOwners => (!repository::can_change_owner(), " [needs permission to change file owners]"),
        Requirement::OverlayMounts => {
            (!overlay::can_mount_overlay(), " [needs root and overlay mounts with userxattr]")
        }
        Requirement::ReliableTimestamps => (
            !incremental::has_reliable_timestamps(),
            " [needs a temporary directory whose timestamps reveal every change]",
        ),
        Requirement::Python => (!repository::has_python(), " [needs python3]"),
        Requirement::GitWithSha256 => {
            (!repository::git_supports(&["init", "--object-format=sha256", "-q", "."]), " [needs git with sha256]")
        }
        Requirement::GitWithReftable => {
            (!repository::git_supports(&["init", "--ref-format=reftable", "-q", "."]), " [needs git with reftable]")
        }
    };
    let name = if lacks { format!("{name}{why}") } else { name.to_owned() };
    let run = move || {
        body();
        Ok::<(), Failed>(())
    };
    Trial::test(name, run).with_ignored_flag(lacks)
}
