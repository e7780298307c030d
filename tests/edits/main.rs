//! Property test over random edit scripts, for each method that detects a step's changes: the detected changes,
//! applied to the tree before the step, must give the tree after it. The test reads the tree after the step with its
//! own walk, and computes its identity as specified in docs/snapshot.md.
//!
//! The layers are real: the kernel writes them in an overlay, or the sandbox computes them from a copy.
//! `PROPTEST_CASES` sets the number of scripts for each method.

mod ground;
mod script;
mod tree;

use std::cell::RefCell;
use std::collections::BTreeSet;

use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::drift::ChangeKind::{self, Created, Deleted, ModeChanged, Modified, TypeChanged};
use proctor_core::drift::{Change, DriftMethod, EntryKind, StepDrift};
use proctor_core::plan::ReadOnly;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::ground::{Ground, Ran};
use crate::tree::{Leaf, Tree};

/// Number of scripts, unless `PROPTEST_CASES` sets it.
const SCRIPTS: u32 = 1_000;

fn main() {
    let arguments = Arguments::from_args();
    let trials = [DriftMethod::Layer, DriftMethod::Stat, DriftMethod::Rehash].map(trial);
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn trial(method: DriftMethod) -> Trial {
    let lacks = ground::unmet(method);
    let reason = lacks.map(|reason| format!(" (skipped: needs {reason})")).unwrap_or_default();
    let name = format!("edits::the_tree_after_is_the_tree_before_and_its_drift_by_{}{reason}", word(method));
    Trial::test(name, move || law(method).map_err(Failed::from)).with_ignored_flag(lacks.is_some())
}

fn word(method: DriftMethod) -> &'static str {
    match method {
        DriftMethod::Layer => "layer",
        DriftMethod::Stat => "stat",
        DriftMethod::Rehash => "rehash",
    }
}

fn law(method: DriftMethod) -> Result<(), String> {
    let ground = Ground::new(method);
    let mut config = Config { failure_persistence: None, ..Config::default() };
    // 256 is proptest's default; another value comes from `PROPTEST_CASES`.
    if config.cases == 256 {
        config.cases = SCRIPTS;
    }
    let seen = RefCell::new(BTreeSet::new());
    let run = TestRunner::new(config).run(&script::scripts(), |script| {
        let ran = ground.run(&script);
        seen.borrow_mut().extend(holds(&ground, &ran).map_err(TestCaseError::fail)?);
        Ok(())
    });
    let all = [Created, Modified, Deleted, ModeChanged, TypeChanged].into();
    if run.is_ok() && *seen.borrow() != all {
        return Err(format!("no script brought all kinds of changes about, only {seen:?}"));
    }
    run.map_err(|error| match error {
        TestError::Fail(reason, script) => format!("{reason}\nscript: {script:#?}"),
        TestError::Abort(reason) => reason.to_string(),
    })
}

/// Checks the law, and returns the kinds of the detected changes.
fn holds(ground: &Ground, ran: &Ran) -> Result<Vec<ChangeKind>, String> {
    let covered = |tree: &Tree| tree.only(|path| ground.covers(path));
    let (before, after) = (covered(&ground.before), covered(&ran.after));
    let (tracked, strict) = (ground.drift(ran, ReadOnly::Tracked), ground.drift(ran, ReadOnly::Strict));
    same("the covered paths", &applied(&before, &tracked), &after)?;
    same("all paths", &applied(&ground.before, &strict), &ran.after)?;
    match (ground.id_after(ran), after.id()) {
        (id, expected) if id == expected => Ok(tracked.changes.iter().map(|change| change.kind).collect()),
        (id, expected) => Err(format!("the identity is {id} instead of {expected}")),
    }
}

fn same(what: &str, found: &Tree, expected: &Tree) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}:\n{found:#?}\ninstead of\n{expected:#?}")) }
}

/// Applies the changes of a drift to a tree.
fn applied(before: &Tree, drift: &StepDrift) -> Tree {
    assert_eq!(drift.omitted, 0, "a script is short");
    let mut tree = before.clone();
    drift.changes.iter().for_each(|change| apply(&mut tree, change));
    tree
}

fn apply(tree: &mut Tree, change: &Change) {
    let path = change.path.as_bytes();
    let is_known = |side: &proctor_core::drift::Entry| side.kind != EntryKind::Directory;
    let before = change.before.as_ref().filter(|side| is_known(side)).map(Leaf::from);
    assert_eq!(tree.get(path), before.as_ref(), "what stood at {}", change.path);
    match change.after.as_ref().filter(|side| is_known(side)) {
        Some(after) => tree.put(path, Leaf::from(after)),
        None => tree.remove(path),
    }
}
