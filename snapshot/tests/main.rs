//! The integration tests of this crate, which use real repositories and directories, in one binary.
//!
//! A test declares its requirements on the machine as a [`Need`]. If the machine does not meet them, the test is
//! reported as ignored, with the reason in its name.

mod again;
mod apply;
mod commit;
mod drift;
mod git_program;
mod ignore;
mod includes;
mod layer;
mod oracle;
mod overlay;
mod patch;
mod report;
mod repository;
mod snapshot;
mod view;

use libtest_mimic::{Arguments, Failed, Trial};

/// A requirement of a test on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    Whiteouts,
    OtherOwners,
    OverlayMounts,
    TimesTell,
    GitWithSha256,
    GitWithReftable,
    Python,
}

/// A test: its name, its requirement, and its function.
type Case = (&'static str, Need, fn());

fn main() {
    let arguments = Arguments::from_args();
    let cases = [
        snapshot::CASES,
        layer::CASES,
        view::CASES,
        overlay::CASES,
        drift::CASES,
        apply::CASES,
        again::CASES,
        again::mapped::CASES,
        again::stored::CASES,
        commit::CASES,
        patch::CASES,
        report::CASES,
        oracle::CASES,
        ignore::CASES,
    ]
    .concat();
    let trials = cases.into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial((name, need, body): Case) -> Trial {
    let (lacks, why) = match need {
        Need::Nothing => (false, ""),
        Need::Whiteouts => (!repository::can_make_whiteouts(), " [needs to make whiteouts, which a sandbox refuses]"),
        Need::OtherOwners => {
            (!repository::can_give_away(), " [needs to give files to others, as root of the machine can]")
        }
        Need::OverlayMounts => (!overlay::can_be_mounted(), " [needs root and overlay mounts with userxattr]"),
        Need::TimesTell => {
            (!again::times_tell(), " [needs a temporary directory on a disk, whose times tell of changes]")
        }
        Need::Python => (!repository::has_python(), " [needs python3]"),
        Need::GitWithSha256 => {
            (!repository::git_can(&["init", "--object-format=sha256", "-q", "."]), " [needs git with sha256]")
        }
        Need::GitWithReftable => {
            (!repository::git_can(&["init", "--ref-format=reftable", "-q", "."]), " [needs git with reftable]")
        }
    };
    let name = if lacks { format!("{name}{why}") } else { name.to_owned() };
    let run = move || {
        body();
        Ok::<(), Failed>(())
    };
    Trial::test(name, run).with_ignored_flag(lacks)
}
