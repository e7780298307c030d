//! Tests how report files of a step are read, and which of them are part of the tree.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, SystemTime};

use proctor_core::drift::ChangeKind;
use proctor_core::evidence::ReportFault;
use proctor_core::plan::ReadOnly::{Strict, Tracked};
use proctor_core::plan::RelPath;
use proctor_snapshot::{InLayer, LayerScan, Mark, View};

use crate::repository::{Layer, Repo, kinds, open};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("report: a regular file of the layer and nothing else is read", Need::Nothing, read),
    ("report: what was deleted is not there", Need::Whiteouts, deleted),
    ("report: a copy of what stood below is none", Need::Nothing, copies),
    ("report: in a directory that stays, what was written since", Need::Nothing, since),
    ("report: untracked files are no drift, tracked ones are", Need::Nothing, drift),
    ("report: what it takes the place of is drift", Need::Nothing, in_place_of),
    ("report: the tree is the same with it", Need::Nothing, identity),
];

const LIMIT: u64 = 100;

fn path(text: &str) -> RelPath {
    RelPath::new(text).expect("a path")
}

type Read = Result<Option<Vec<u8>>, ReportFault>;

fn read_in(layer: &Layer, below: &[BorrowedFd<'_>], at: &str) -> Read {
    InLayer { upper: layer.open().as_fd(), below }.read(&path(at), LIMIT)
}

fn read() {
    let layer = Layer::new();
    layer.write("out/r.xml", "<a/>").write("large", "x".repeat(101)).write("enough", "x".repeat(100)).fifo("pipe");
    layer.link("link", "out/r.xml").link("dir", "out").mkdir("empty").write("file", "x").write(".git/r.xml", "x");
    let found = |at: &str| read_in(&layer, &[], at);
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

fn deleted() {
    let layer = Layer::new();
    layer.whiteout("r.xml").whiteout("out");
    assert_eq!((read_in(&layer, &[], "r.xml"), read_in(&layer, &[], "out/r.xml")), (Ok(None), Ok(None)));
}

/// Sets the modification time of a file, as the kernel does when it copies a file up.
fn date(at: &std::path::Path, time: SystemTime) {
    fs::File::options().write(true).open(at).and_then(|file| file.set_modified(time)).expect("dates");
}

fn copies() {
    let (repo, earlier, layer) = (Repo::small(), Layer::new(), Layer::new());
    let yesterday = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    repo.write("r.xml", "old");
    layer.write("r.xml", "old");
    let (top, lower) = (open(&repo.top), earlier.open());
    let found = || read_in(&layer, &[lower.as_fd(), top.as_fd()], "r.xml");
    date(&repo.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(Some(b"old".to_vec())), "the same bytes, written now");
    date(&layer.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(None));
    layer.write("r.xml", "new");
    date(&layer.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(Some(b"new".to_vec())), "a date says nothing by itself");
    // The original is the entry in the nearest layer.
    earlier.write("r.xml", "new");
    date(&earlier.at("r.xml"), yesterday);
    assert_eq!(found(), Ok(None));
}

fn since() {
    let cache = Layer::new();
    let dir = cache.open();
    let before = |at: &str| Mark::of(dir.as_fd(), &path(at));
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

fn aside(layer: &Layer, view: &View, declared: &[&str]) -> LayerScan {
    let (mut scan, declared) = (layer.scan(), declared.iter().map(|text| path(text)).collect::<Vec<_>>());
    scan.set_reports_aside(&declared, view);
    scan
}

fn drift() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("mine.xml", "untracked\n");
    let view = repo.view();
    for file in ["new.xml", "mine.xml", "README.md", "target/r.xml", "other.xml"] {
        layer.write(file, "<a/>\n");
    }
    layer.link("link.xml", "new.xml");
    let scan = aside(&layer, &view, &["new.xml", "mine.xml", "README.md", "target/r.xml", "link.xml"]);
    let (created, modified) = (ChangeKind::Created, ChangeKind::Modified);
    let expected = [("README.md", modified), ("link.xml", created), ("other.xml", created)];
    assert_eq!(kinds(&repo.drift_of(&layer, &scan, Tracked)), expected.into());
    assert_eq!(kinds(&repo.drift_of(&layer, &scan, Strict)), expected.into());
}

fn in_place_of() {
    let (repo, layer) = (Repo::small(), Layer::new());
    layer.write("src", "<a/>\n");
    let scan = aside(&layer, &repo.view(), &["src"]);
    assert_eq!(kinds(&repo.drift_of(&layer, &scan, Tracked)), [("src/main.rs", ChangeKind::Deleted)].into());
}

fn identity() {
    let (repo, layer) = (Repo::small(), Layer::new());
    repo.write("out/mine.xml", "untracked\n").write("out/notes", "untracked too\n");
    let view = repo.view();
    layer
        .opaque("out")
        .write("out/mine.xml", "<a/>\n")
        .write("out/notes", "untracked too\n")
        .write("new.xml", "<a/>\n");
    let scan = aside(&layer, &view, &["out/mine.xml", "new.xml"]);
    let with = view.apply(&scan, &repo.rules()).expect("applies");
    assert_eq!(with.id(), view.id());
    let without = view.apply(&layer.scan(), &repo.rules()).expect("applies");
    assert_ne!(without.id(), view.id());
}
