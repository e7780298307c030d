//! Tests of layers of steps that saw only some files of the tree.

use proctor_core::model::drift::ChangeKind;
use proctor_core::model::plan::ReadOnly::{Strict, Tracked};
use proctor_snapshot::LayerEntry;

use crate::repository::{FixtureLayer, FixtureRepo, kinds};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("withheld: created directory hides nothing", Requirement::Nothing, created_directory_hides_nothing),
    ("withheld: later step sees both directories", Requirement::OverlayMounts, later_step_sees_both_directories),
    ("withheld: keeps ignored files", Requirement::Nothing, keeps_ignored_files),
    ("withheld: finds modification of a file that was not seen", Requirement::Nothing, finds_modification),
    ("withheld: refuses removal of a seen directory", Requirement::Whiteouts, refuses_removal_of_seen_directory),
    ("withheld: refuses file in place of a directory", Requirement::Nothing, refuses_file_in_place_of_directory),
    ("withheld: removed files of earlier steps are no problem", Requirement::Whiteouts, accepts_removal_of_layer_files),
    ("withheld: finds deletion of inputs", Requirement::Whiteouts, finds_deletion_of_inputs),
];

/// Creates a repository in which `docs` has files that are not inputs.
fn repo_with_docs() -> FixtureRepo {
    let repo = FixtureRepo::small();
    repo.write("docs/a.md", "a\n").write("docs/deep/b.md", "b\n").commit();
    repo
}

fn created_directory_hides_nothing() {
    let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
    layer.opaque("docs").write("docs/out.log", "x");
    let scan = repo.scan_with_inputs(&layer, &[], "src/**").expect("a scan");
    assert_eq!(scan.entries[&b"docs"[..]], LayerEntry::Directory { opaque: false });
    assert!(repo.drift_from_scan(&layer, &scan, Tracked).is_empty(), "the withheld files are not deleted");
    assert_eq!(layer.scan().entries[&b"docs"[..]], LayerEntry::Directory { opaque: false }, "for later steps");
}

fn later_step_sees_both_directories() {
    let (repo, seen) = (repo_with_docs(), FixtureRepo::small());
    let script = "mkdir docs && echo mine > docs/out.log";
    let layer = FixtureLayer::from_script(&[&seen.top], script).expect("an overlay");
    let scan = repo.scan_with_inputs(&layer, &[], "src/**").expect("a scan");
    assert!(repo.drift_from_scan(&layer, &scan, Tracked).is_empty());
    let later = FixtureLayer::from_script(&[&layer.path(), &repo.top], "cat docs/a.md docs/out.log > seen");
    assert_eq!(std::fs::read_to_string(later.expect("an overlay").at("seen")).expect("reads"), "a\nmine\n");
}

fn keeps_ignored_files() {
    let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
    repo.write("target/old", "x");
    layer.opaque("target").write("target/new", "x");
    let scan = repo.scan_with_inputs(&layer, &[], "src/**").expect("a scan");
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Strict)), [("target/new", ChangeKind::Created)].into());
}

fn finds_modification() {
    let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
    layer.opaque("docs").write("docs/a.md", "other\n").write("docs/new.md", "x").write("README.md", "hello\n");
    let scan = repo.scan_with_inputs(&layer, &[], "src/**").expect("a scan");
    let expected = [("docs/a.md", ChangeKind::Modified), ("docs/new.md", ChangeKind::Created)];
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Tracked)), expected.into(), "README.md has the same content");
}

fn refuses_removal_of_seen_directory() {
    for (glob, is_created_again) in [("**/*.rs", false), ("**/*.rs", true), ("docs/a.md", false)] {
        let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
        if is_created_again {
            layer.opaque("docs")
        } else {
            layer.whiteout("docs")
        };
        let error = repo.scan_with_inputs(&layer, &[], glob).expect_err("must be refused").to_string();
        assert!(error.contains("the directory `docs`") && error.contains("hint:"), "{error}");
    }
}

fn refuses_file_in_place_of_directory() {
    let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
    layer.write("docs", "a file");
    let error = repo.scan_with_inputs(&layer, &[], "src/**").expect_err("must be refused").to_string();
    assert!(error.contains("the directory `docs`, which contains `docs/"), "{error}");
}

fn accepts_removal_of_layer_files() {
    let (repo, earlier, layer) = (repo_with_docs(), FixtureLayer::new(), FixtureLayer::new());
    earlier.write("target/x", "x").write("docs/extra.log", "x");
    layer.whiteout("target").whiteout("docs/extra.log");
    repo.scan_with_inputs(&layer, &[&earlier], "src/**").expect("only files of the earlier step are gone");
    let replaced = FixtureLayer::new();
    replaced.opaque("docs");
    repo.scan_with_inputs(&replaced, &[&earlier], "src/**").expect_err("the step saw a part of the directory");
}

fn finds_deletion_of_inputs() {
    let (repo, layer) = (repo_with_docs(), FixtureLayer::new());
    layer.whiteout("src");
    let scan = repo.scan_with_inputs(&layer, &[], "src/**").expect("everything below was seen");
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Tracked)), [("src/main.rs", ChangeKind::Deleted)].into());
}
