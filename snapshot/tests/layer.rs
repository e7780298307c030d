//! Tests the entries that a scan finds in an upper directory.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use proctor_core::model::plan::ReadOnly::{Strict, Tracked};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_snapshot::{
    FileContent, IgnoredContent, LayerEntry, LayerScan, ScanBounds, ScanError, Snapshot, SparingRules, TreeView,
    conflicts, scan_layer, scan_layer_sparing,
};

use crate::git_program::UnsandboxedGit;
use crate::repository::{FixtureLayer, FixtureRepo, helper, kinds};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("layer: reads every kind of entry", Requirement::Nothing, reads_every_kind_of_entry),
    ("layer: reads whiteouts", Requirement::Whiteouts, reads_whiteouts),
    (
        "layer: reads opaque marks and ignores bookkeeping",
        Requirement::Nothing,
        reads_opaque_marks_and_ignores_bookkeeping,
    ),
    ("layer: rejects unknown marks", Requirement::Nothing, rejects_unknown_marks),
    ("layer: supports names of any bytes", Requirement::Nothing, supports_names_of_any_bytes),
    ("layer: grants owner access to entries", Requirement::Nothing, grants_owner_access_to_entries),
    ("layer: reads layer with inaccessible top", Requirement::Nothing, reads_layer_with_inaccessible_top),
    ("layer: does not hash file beyond bound", Requirement::Nothing, does_not_hash_file_beyond_bound),
    ("layer: bounds number of entries", Requirement::Nothing, bounds_number_of_entries),
    ("layer: bounds depth", Requirement::Nothing, bounds_depth),
    ("layer: spares new ignored directories", Requirement::Nothing, spares_new_ignored_directories),
    (
        "layer: spares directories in SHA-256 repository",
        Requirement::GitWithSha256,
        spares_directories_in_sha256_repository,
    ),
    ("layer: reads directories with covered paths", Requirement::Nothing, reads_directories_with_covered_paths),
    ("layer: queries rules only for many entries", Requirement::Nothing, queries_rules_only_for_many_entries),
];

fn reads_every_kind_of_entry() {
    let layer = FixtureLayer::new();
    layer.write("d/run", "x").chmod("d/run", 0o755).link("l", "/etc/passwd").fifo("p").mkdir("empty");
    let scan = layer.scan();
    let file = LayerEntry::File { executable: true, size: 1, content: FileContent::Sha256(Sha256Hex::digest(b"x")) };
    assert_eq!(scan.entries[&b"d/run"[..]], file);
    assert_eq!(scan.entries[&b"l"[..]], LayerEntry::Symlink { target: b"/etc/passwd".to_vec() });
    assert_eq!(scan.entries[&b"p"[..]], LayerEntry::Special);
    assert_eq!(scan.entries[&b"empty"[..]], LayerEntry::Directory { opaque: false });
    assert_eq!(scan.entries.len(), 5);
}

fn reads_whiteouts() {
    let layer = FixtureLayer::new();
    layer.whiteout("a/b").whiteout("c");
    let scan = layer.scan();
    assert_eq!((&scan.entries[&b"a/b"[..]], &scan.entries[&b"c"[..]]), (&LayerEntry::Whiteout, &LayerEntry::Whiteout));
}

fn reads_opaque_marks_and_ignores_bookkeeping() {
    let layer = FixtureLayer::new();
    layer.opaque("o").mkdir("p").xattr("p", "user.overlay.impure", "y").xattr("p", "user.overlay.origin", "");
    layer.xattr("p", "user.overlay.overlay.opaque", "y").xattr("p", "user.mine", "x");
    let scan = layer.scan();
    assert_eq!(scan.entries[&b"o"[..]], LayerEntry::Directory { opaque: true });
    assert_eq!(scan.entries[&b"p"[..]], LayerEntry::Directory { opaque: false });
}

fn rejects_unknown_marks() {
    for (name, value) in [("opaque", "x"), ("redirect", "/a"), ("metacopy", ""), ("whiteout", "y"), ("new", "1")] {
        let layer = FixtureLayer::new();
        layer.mkdir("d").xattr("d", &format!("user.overlay.{name}"), value);
        let error = scan_layer(layer.open().as_fd(), ScanBounds::default()).expect_err("must be refused");
        assert!(matches!(&error, ScanError::CannotDecode { path, .. } if path == "d"), "{error}");
    }
    let layer = FixtureLayer::new();
    layer.xattr(".", "user.overlay.opaque", "y");
    assert!(scan_layer(layer.open().as_fd(), ScanBounds::default()).is_err());
}

fn supports_names_of_any_bytes() {
    let layer = FixtureLayer::new();
    layer.write(b"\xff\n/\xfe", "x");
    assert!(layer.scan().entries.contains_key(&b"\xff\n/\xfe"[..]));
}

/// A later step must see these entries too.
fn grants_owner_access_to_entries() {
    let layer = FixtureLayer::new();
    layer.write("d/f", "x").write("d/kept", "x").chmod("d/f", 0).chmod("d/kept", 0o640).chmod("d", 0o020);
    let scan = layer.scan();
    assert!(matches!(scan.entries[&b"d/f"[..]], LayerEntry::File { executable: false, size: 1, .. }));
    let mode = |path: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(layer.at(path)).expect("stats").permissions().mode() & 0o777
    };
    assert_eq!(["d", "d/f", "d/kept"].map(mode), [0o520, 0o400, 0o640]);
}

fn reads_layer_with_inaccessible_top() {
    let layer = FixtureLayer::new();
    layer.write("f", "x");
    let top = rustix::fs::open(layer.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("opens");
    layer.chmod(".", 0);
    let scan = scan_layer(top.as_fd(), ScanBounds::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scan.entries.len(), 1);
}

fn does_not_hash_file_beyond_bound() {
    let layer = FixtureLayer::new();
    layer.write("big", "");
    let file = std::fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens");
    file.set_len(5 << 30).expect("grows");
    let entry = &layer.scan().entries[&b"big"[..]];
    let beyond = LayerEntry::File { executable: false, size: 5 << 30, content: FileContent::BeyondBound };
    assert_eq!(*entry, beyond);
}

fn bounds_number_of_entries() {
    let layer = FixtureLayer::new();
    layer.write("a", "").write("b", "").write("c", "");
    let bounds = ScanBounds { entries: 2, ..ScanBounds::default() };
    assert!(matches!(scan_layer(layer.open().as_fd(), bounds), Err(ScanError::TooManyEntries { limit: 2 })));
    let bounds = ScanBounds { total_bytes: 0, ..ScanBounds::default() };
    assert!(scan_layer(layer.open().as_fd(), bounds).is_ok());
}

fn bounds_depth() {
    let layer = FixtureLayer::new();
    layer.write(format!("{}f", "d/".repeat(250)), "x");
    assert_eq!(layer.scan().entries.len(), 251);
    layer.write(format!("{}f", "d/".repeat(260)), "x");
    let error = scan_layer(layer.open().as_fd(), ScanBounds::default()).expect_err("must be refused");
    assert!(matches!(error, ScanError::TooDeep { limit: 256 }), "{error}");
}

/// Makes a layer with enough files in each of these directories to make a query of the rules worthwhile.
fn layer_with_many_files(directories: &[&str]) -> FixtureLayer {
    let layer = FixtureLayer::new();
    for directory in directories {
        for n in 0..300 {
            layer.write(format!("{directory}/deep/{n}"), "x");
        }
    }
    layer
}

fn scan_sparing(layer: &FixtureLayer, view: &TreeView, ignored: &IgnoreQuery, content: IgnoredContent) -> LayerScan {
    let spare = SparingRules { view, ignored, content };
    scan_layer_sparing(layer.open().as_fd(), ScanBounds::default(), spare).unwrap_or_else(|error| panic!("{error}"))
}

fn spares_new_ignored_directories() {
    let (repo, layer) =
        (FixtureRepo::small(), layer_with_many_files(&["target", "pkg/target", "new/dir", "src/x.log"]));
    layer.write("src/main.rs", "edited\n").chmod("src/x.log/deep", 0);
    let (view, rules) = (repo.view(), repo.rules());
    let whole = scan_sparing(&layer, &view, &rules, IgnoredContent::Hashed);
    assert_eq!((&whole.entries, whole.ignored.len()), (&layer.scan().entries, 3));
    for content in [IgnoredContent::Listed, IgnoredContent::Skipped] {
        let scan = scan_sparing(&layer, &view, &rules, content);
        let spared: Vec<_> = scan.ignored.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        assert_eq!(spared, ["pkg/target", "src/x.log", "target"]);
        let inside = scan.entries.get(&b"target/deep/7"[..]);
        let listed = LayerEntry::File { executable: false, size: 1, content: FileContent::Spared };
        assert_eq!(inside, (content == IgnoredContent::Listed).then_some(&listed));
        assert_eq!(scan.entries[&b"target"[..]], LayerEntry::Directory { opaque: false });
        assert!(matches!(
            &scan.entries[&b"new/dir/deep/7"[..]],
            LayerEntry::File { content: FileContent::Sha256(_), .. }
        ));
        let (drift, of_whole) = (repo.drift_from_scan(&layer, &scan, Tracked), repo.drift(&layer, Tracked));
        assert_eq!(drift, of_whole);
        let after = |scan| view.with_layer(scan, &rules).expect("applies").id();
        assert_eq!(after(&scan), after(&whole));
        // Spared files were not read, so each of them counts as changed.
        let strict = repo.drift_from_scan(&layer, &scan, Strict);
        assert!(spared.iter().all(|path| kinds(&strict).contains_key(path.as_str())), "{strict:?}");
    }
    let listed = scan_sparing(&layer, &view, &rules, IgnoredContent::Listed);
    let other = FixtureLayer::new();
    other.write("target/deep/7", "y").write("target/other", "y");
    assert_eq!(conflicts(&[&listed], &[&other.scan()]), [b"target/deep/7".to_vec()]);
}

fn spares_directories_in_sha256_repository() {
    let repo = FixtureRepo::with_options(&["--object-format=sha256"]);
    repo.write("src/main.rs", "x").write(".gitignore", "target/\n*.log\n").commit();
    let layer = layer_with_many_files(&["target", "new", "src/x.log"]);
    let helper = helper().with_program(Arc::new(UnsandboxedGit));
    let view = TreeView::new(Arc::new(Snapshot::take(&repo.top, &helper).unwrap_or_else(|error| panic!("{error}"))));
    let rules = IgnoreQuery::new(helper, &repo.top);
    let scan = scan_sparing(&layer, &view, &rules, IgnoredContent::Skipped);
    assert_eq!(scan.ignored.iter().map(Vec::as_slice).collect::<Vec<_>>(), [&b"src/x.log"[..], b"target"]);
}

fn reads_directories_with_covered_paths() {
    let repo = FixtureRepo::small();
    repo.write("target/kept/x", "x").write("gone.log/x", "x").git(&["add", "-f", "target/kept/x", "gone.log/x"]);
    repo.commit();
    std::fs::remove_dir_all(repo.at("gone.log")).expect("removes");
    let layer = layer_with_many_files(&["target", "gone.log"]);
    layer.write("target/kept/x", "y").write("gone.log/x", "x");
    let (view, rules) = (repo.view(), repo.rules());
    let scan = scan_sparing(&layer, &view, &rules, IgnoredContent::Skipped);
    assert_eq!(scan.ignored.iter().map(Vec::as_slice).collect::<Vec<_>>(), [&b"gone.log/deep"[..], b"target/deep"]);
    let drift = repo.drift_from_scan(&layer, &scan, Tracked);
    assert_eq!(kinds(&drift).into_keys().collect::<Vec<_>>(), ["gone.log/x", "target/kept/x"]);
}

fn queries_rules_only_for_many_entries() {
    let repo = FixtureRepo::small();
    let layer = FixtureLayer::new();
    layer.write("target/x", "x").write("src/main.rs", "y\n");
    let nobody = IgnoreQuery::new(GitHelper::new("/nonexistent"), &repo.top);
    let view = repo.view();
    let scan = scan_sparing(&layer, &view, &nobody, IgnoredContent::Skipped);
    assert!(scan.ignored.is_empty() && scan.entries.contains_key(&b"target/x"[..]));
    let many = layer_with_many_files(&["target"]);
    let spare = SparingRules { view: &view, ignored: &nobody, content: IgnoredContent::Skipped };
    let error = scan_layer_sparing(many.open().as_fd(), ScanBounds::default(), spare)
        .expect_err("the git helper does not exist");
    assert!(matches!(error, ScanError::Git(_)), "{error}");
}
