//! Tests how report files of a step are read, and which of them are part of the tree.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, SystemTime};

use proctor_core::model::drift::ChangeKind;
use proctor_core::model::plan::ReadOnly::{Strict, Tracked};
use proctor_core::model::plan::RelPath;
use proctor_core::record::evidence::ReportFault;
use proctor_snapshot::{LayerReports, LayerScan, ReportBaseline, TreeView};

use crate::repository::{FixtureLayer, FixtureRepo, kinds, open};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("report: reads only regular files of layer", Requirement::Nothing, reads_only_regular_files_of_layer),
    ("report: treats deleted report as missing", Requirement::Whiteouts, treats_deleted_report_as_missing),
    ("report: ignores copied-up files", Requirement::Nothing, ignores_copied_up_files),
    ("report: reads only files written since baseline", Requirement::Nothing, reads_only_files_written_since_baseline),
    ("report: excludes untracked reports from drift", Requirement::Nothing, excludes_untracked_reports_from_drift),
    ("report: records entries replaced by report", Requirement::Nothing, records_entries_replaced_by_report),
    ("report: does not change tree identity", Requirement::Nothing, reports_do_not_change_identity),
];

const LIMIT: u64 = 100;

fn path(text: &str) -> RelPath {
    RelPath::new(text).expect("a path")
}

type ReportReadResult = Result<Option<Vec<u8>>, ReportFault>;

fn read_in_layer(layer: &FixtureLayer, below: &[BorrowedFd<'_>], at: &str) -> ReportReadResult {
    LayerReports { upper: layer.open().as_fd(), below }.read(&path(at), LIMIT)
}

fn reads_only_regular_files_of_layer() {
    let layer = FixtureLayer::new();
    layer.write("out/r.xml", "<a/>").write("large", "x".repeat(101)).write("enough", "x".repeat(100)).fifo("pipe");
    layer.link("link", "out/r.xml").link("dir", "out").mkdir("empty").write("file", "x").write(".git/r.xml", "x");
    let found = |at: &str| read_in_layer(&layer, &[], at);
    assert_eq!(found("out/r.xml"), Ok(Some(b"<a/>".to_vec())));
    assert_eq!(found("enough").map(|bytes| bytes.map(|bytes| bytes.len())), Ok(Some(100)));
    for absent in ["absent", "out/absent", "file/below"] {
        assert_eq!(found(absent), Ok(None), "{absent}");
    }
    for (at, fault) in [
        ("link", ReportFault::SymbolicLink),
        ("dir/r.xml", ReportFault::SymbolicLink),
        ("pipe", ReportFault::NoRegularFile),
        ("empty", ReportFault::NoRegularFile),
        (".", ReportFault::NoRegularFile),
        ("large", ReportFault::TooLarge),
        (".git/r.xml", ReportFault::InGit),
    ] {
        assert_eq!(found(at), Err(fault), "{at}");
    }
}

fn treats_deleted_report_as_missing() {
    let layer = FixtureLayer::new();
    layer.whiteout("r.xml").whiteout("out");
    assert_eq!((read_in_layer(&layer, &[], "r.xml"), read_in_layer(&layer, &[], "out/r.xml")), (Ok(None), Ok(None)));
}

/// Sets the modification time of a file, as the kernel does when it copies a file up.
fn set_mtime(at: &std::path::Path, time: SystemTime) {
    fs::File::options().write(true).open(at).and_then(|file| file.set_modified(time)).expect("dates");
}

fn ignores_copied_up_files() {
    let (repo, earlier, layer) = (FixtureRepo::small(), FixtureLayer::new(), FixtureLayer::new());
    let yesterday = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    repo.write("r.xml", "old");
    layer.write("r.xml", "old");
    let (top, lower) = (open(&repo.top), earlier.open());
    let found = || read_in_layer(&layer, &[lower.as_fd(), top.as_fd()], "r.xml");
    set_mtime(&repo.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(Some(b"old".to_vec())), "the step rewrites the same bytes");
    set_mtime(&layer.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(None));
    layer.write("r.xml", "new");
    set_mtime(&layer.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(Some(b"new".to_vec())), "an old mtime alone does not exclude the report");
    // The original is the entry in the nearest layer.
    earlier.write("r.xml", "new");
    set_mtime(&earlier.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(None));
}

fn reads_only_files_written_since_baseline() {
    let cache = FixtureLayer::new();
    let dir = cache.open();
    let before = |at: &str| ReportBaseline::record(dir.as_fd(), &path(at));
    let absent = before("r.xml");
    cache.write("r.xml", "1");
    assert_eq!(absent.read_since(dir.as_fd(), &path("r.xml"), LIMIT), Ok(Some(b"1".to_vec())));
    let there = before("r.xml");
    assert_eq!(there.read_since(dir.as_fd(), &path("r.xml"), LIMIT), Ok(None));
    cache.write("r.xml", "22");
    assert_eq!(there.read_since(dir.as_fd(), &path("r.xml"), LIMIT), Ok(Some(b"22".to_vec())));
    cache.link("link", "r.xml");
    assert_eq!(absent.read_since(dir.as_fd(), &path("link"), LIMIT), Err(ReportFault::SymbolicLink));
}

fn scan_with_reports(layer: &FixtureLayer, view: &TreeView, declared: &[&str]) -> LayerScan {
    let (mut scan, declared) = (layer.scan(), declared.iter().map(|text| path(text)).collect::<Vec<_>>());
    scan.exclude_reports(&declared, view);
    scan
}

fn excludes_untracked_reports_from_drift() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("mine.xml", "untracked\n");
    let view = repo.view();
    for file in ["new.xml", "mine.xml", "README.md", "target/r.xml", "other.xml"] {
        layer.write(file, "<a/>\n");
    }
    layer.link("link.xml", "new.xml");
    let scan = scan_with_reports(&layer, &view, &["new.xml", "mine.xml", "README.md", "target/r.xml", "link.xml"]);
    let (created, modified) = (ChangeKind::Created, ChangeKind::Modified);
    let expected = [("README.md", modified), ("link.xml", created), ("other.xml", created)];
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Tracked)), expected.into());
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Strict)), expected.into());
}

fn records_entries_replaced_by_report() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("src", "<a/>\n");
    let scan = scan_with_reports(&layer, &repo.view(), &["src"]);
    assert_eq!(kinds(&repo.drift_from_scan(&layer, &scan, Tracked)), [("src/main.rs", ChangeKind::Deleted)].into());
}

fn reports_do_not_change_identity() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("out/mine.xml", "untracked\n").write("out/notes", "untracked too\n");
    let view = repo.view();
    layer
        .opaque("out")
        .write("out/mine.xml", "<a/>\n")
        .write("out/notes", "untracked too\n")
        .write("new.xml", "<a/>\n");
    let scan = scan_with_reports(&layer, &view, &["out/mine.xml", "new.xml"]);
    let with = view.with_layer(&scan, &repo.rules()).expect("applies");
    assert_eq!(with.id(), view.id());
    let without = view.with_layer(&layer.scan(), &repo.rules()).expect("applies");
    assert_ne!(without.id(), view.id());
}
