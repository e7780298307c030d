//! Tests the tree before a step, and conflicts between two skills.

use proctor_snapshot::{PathState, conflicts};

use crate::repository::{FixtureLayer, FixtureRepo};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("view: equals snapshot without layers", Requirement::Nothing, view_without_layers_equals_snapshot),
    (
        "view: ignored files and evidence change no identity",
        Requirement::Nothing,
        ignored_files_and_evidence_change_no_identity,
    ),
    ("view: reverted change restores identity", Requirement::Whiteouts, reverted_change_restores_identity),
    ("view: hidden paths stay hidden", Requirement::Whiteouts, hidden_paths_stay_hidden),
    ("view: oversized file yields distinct identity", Requirement::Nothing, oversized_file_yields_distinct_identity),
    ("view: finds conflicting files", Requirement::Nothing, finds_conflicting_files),
    ("view: finds conflicts with deletions", Requirement::Whiteouts, finds_conflicts_with_deletions),
];

fn view_without_layers_equals_snapshot() {
    let repo = FixtureRepo::small();
    let view = repo.view();
    assert_eq!(view.id(), view.base().id);
    assert!(view.difference(&repo.snapshot()).is_empty());
    assert_eq!(view.path_state(b"nothing"), PathState::Uncovered);
}

fn ignored_files_and_evidence_change_no_identity() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer
        .write("target/x", "x")
        .write("a.log", "x")
        .write("changes/a/verify/x.json", "x")
        .write("README.md", "hello\n");
    layer.mkdir("empty").write("changes/a/05-status.json", "x");
    let view = repo.view().with_layer(&layer.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.id(), view.base().id);
    assert!(matches!(view.path_state(b"target/x"), PathState::Entry(_)));
}

fn reverted_change_restores_identity() {
    let (repo, there, back) = (FixtureRepo::small(), FixtureLayer::new(), FixtureLayer::new());
    there.write("README.md", "x").whiteout("src").write("new/a", "x");
    back.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n").whiteout("new");
    let view = repo.view();
    let changed = view.with_layer(&there.scan(), &repo.rules()).expect("applies");
    assert_ne!(changed.id(), view.id());
    let paths: Vec<_> =
        changed.difference(view.base()).into_iter().map(|p| String::from_utf8_lossy(&p).into_owned()).collect();
    assert_eq!(paths, ["README.md", "new/a", "src/main.rs"]);
    assert_eq!(changed.with_layer(&back.scan(), &repo.rules()).expect("applies").id(), view.id());
}

fn hidden_paths_stay_hidden() {
    let (repo, gone, again) = (FixtureRepo::small(), FixtureLayer::new(), FixtureLayer::new());
    repo.write("target/deep/x", "x");
    gone.whiteout("src").whiteout("target");
    again.write("src/new.rs", "x");
    let view = repo.view().with_layer(&gone.scan(), &repo.rules()).expect("applies");
    let view = view.with_layer(&again.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.path_state(b"src/main.rs"), PathState::Absent);
    assert_eq!(view.path_state(b"target/deep/x"), PathState::Absent);
    assert!(matches!(view.path_state(b"src/new.rs"), PathState::Entry(_)));
}

fn oversized_file_yields_distinct_identity() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("big", "");
    std::fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens").set_len(5 << 30).expect("grows");
    let view = repo.view().with_layer(&layer.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.path_state(b"big"), PathState::Unhashed(5 << 30));
    assert_ne!(view.id(), view.base().id);
}

fn conflicting_paths(a: &FixtureLayer, b: &FixtureLayer) -> Vec<String> {
    let paths = conflicts(&[&a.scan()], &[&b.scan()]);
    assert_eq!(paths, conflicts(&[&b.scan()], &[&a.scan()]));
    paths.into_iter().map(|path| String::from_utf8(path).expect("text")).collect()
}

fn finds_conflicting_files() {
    let (a, b) = (FixtureLayer::new(), FixtureLayer::new());
    a.write("d/one", "x").write("same", "x").write("f", "x").mkdir("e");
    b.write("d/two", "x").write("same", "x").write("f/x", "x").mkdir("e");
    assert_eq!(conflicting_paths(&a, &b), ["f", "f/x", "same"]);
}

fn finds_conflicts_with_deletions() {
    let (a, b) = (FixtureLayer::new(), FixtureLayer::new());
    a.whiteout("d").opaque("o").write("o/x", "x").whiteout("w").opaque("q");
    b.write("d/x/y", "x").write("o/y", "x").whiteout("w").mkdir("q");
    assert_eq!(conflicting_paths(&a, &b), ["d", "d/x/y", "o/y", "w"]);
}
