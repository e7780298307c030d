//! Property test over random edit scripts, for each method that detects a step's changes: the detected changes,
//! applied to the tree before the step, must give the tree after it. The test reads the tree after the step with its
//! own walk, and computes its identity as specified in docs/snapshot.md.
//!
//! The layers are real: the kernel writes them in an overlay, or the sandbox computes them from a copy.
//! `PROPTEST_CASES` sets the number of scripts for each method.

mod drift_fixture;
mod script;
mod tree;

use std::cell::RefCell;
use std::collections::BTreeSet;

use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::model::drift::ChangeKind::{self, Created, Deleted, ModeChanged, Modified, TypeChanged};
use proctor_core::model::drift::{Change, DriftMethod, EntryKind, StepDrift};
use proctor_core::model::plan::ReadOnly;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::drift_fixture::{DriftFixture, ScriptRun};
use crate::tree::{ListedLeaf, TreeListing};

/// Number of scripts, unless `PROPTEST_CASES` sets it.
const DEFAULT_SCRIPTS: u32 = 1_000;

fn main() {
    let arguments = Arguments::from_args();
    let trials = [DriftMethod::Layer, DriftMethod::Stat, DriftMethod::Rehash].map(trial);
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn trial(method: DriftMethod) -> Trial {
    let missing = drift_fixture::missing_requirement(method);
    let reason = missing.map(|reason| format!(" (skipped: needs {reason})")).unwrap_or_default();
    let name = format!("edits::drift_reproduces_the_tree_after_a_step_by_{}{reason}", method_name(method));
    Trial::test(name, move || check_law(method).map_err(Failed::from)).with_ignored_flag(missing.is_some())
}

fn method_name(method: DriftMethod) -> &'static str {
    match method {
        DriftMethod::Layer => "layer",
        DriftMethod::Stat => "stat",
        DriftMethod::Rehash => "rehash",
    }
}

fn check_law(method: DriftMethod) -> Result<(), String> {
    let fixture = DriftFixture::new(method);
    let mut config = Config { failure_persistence: None, ..Config::default() };
    // 256 is proptest's default; another value comes from `PROPTEST_CASES`.
    if config.cases == 256 {
        config.cases = DEFAULT_SCRIPTS;
    }
    let seen_kinds = RefCell::new(BTreeSet::new());
    let run = TestRunner::new(config).run(&script::edit_scripts(), |script| {
        let ran = fixture.run_script(&script);
        seen_kinds.borrow_mut().extend(check_script(&fixture, &ran).map_err(TestCaseError::fail)?);
        Ok(())
    });
    let all = [Created, Modified, Deleted, ModeChanged, TypeChanged].into();
    if run.is_ok() && *seen_kinds.borrow() != all {
        return Err(format!("no script brought all kinds of changes about, only {seen_kinds:?}"));
    }
    run.map_err(|error| match error {
        TestError::Fail(reason, script) => format!("{reason}\nscript: {script:#?}"),
        TestError::Abort(reason) => reason.to_string(),
    })
}

/// Checks the law, and returns the kinds of the detected changes.
fn check_script(fixture: &DriftFixture, script_run: &ScriptRun) -> Result<Vec<ChangeKind>, String> {
    let covered = |tree: &TreeListing| tree.filter_paths(|path| fixture.covers(path));
    let (before, after) = (covered(&fixture.before), covered(&script_run.after));
    let (tracked, strict) =
        (fixture.detect_drift(script_run, ReadOnly::Tracked), fixture.detect_drift(script_run, ReadOnly::Strict));
    expect_equal("the covered paths", &apply_drift(&before, &tracked), &after)?;
    expect_equal("all paths", &apply_drift(&fixture.before, &strict), &script_run.after)?;
    match (fixture.identity_after(script_run), after.identity()) {
        (id, expected) if id == expected => Ok(tracked.changes.iter().map(|change| change.kind).collect()),
        (id, expected) => Err(format!("the identity is {id} instead of {expected}")),
    }
}

fn expect_equal(what: &str, found: &TreeListing, expected: &TreeListing) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}:\n{found:#?}\ninstead of\n{expected:#?}")) }
}

/// Applies the changes of a drift to a tree.
fn apply_drift(before: &TreeListing, drift: &StepDrift) -> TreeListing {
    assert_eq!(drift.omitted, 0, "a script is short");
    let mut tree = before.clone();
    drift.changes.iter().for_each(|change| apply_change(&mut tree, change));
    tree
}

fn apply_change(tree: &mut TreeListing, change: &Change) {
    let path = change.path.as_bytes();
    let is_leaf = |side: &proctor_core::model::drift::Entry| side.kind != EntryKind::Directory;
    let before = change.before.as_ref().filter(|side| is_leaf(side)).map(ListedLeaf::from);
    assert_eq!(tree.leaf(path), before.as_ref(), "what stood at {}", change.path);
    match change.after.as_ref().filter(|side| is_leaf(side)) {
        Some(after) => tree.insert(path, ListedLeaf::from(after)),
        None => tree.remove(path),
    }
}
