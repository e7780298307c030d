//! Tests the entries that a scan finds in an upper directory.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use proctor_core::digest::Sha256Hex;
use proctor_core::plan::ReadOnly::{Strict, Tracked};
use proctor_snapshot::{
    FileContent, GitHelper, IgnoreQuery, IgnoredContent, LayerEntry, LayerScan, ScanBounds, ScanError, Snapshot, Spare,
    View, conflicts, scan_layer, scan_layer_sparing,
};

use crate::git_program::PlainGit;
use crate::repository::{Layer, Repo, helper, kinds};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("layer: every kind of entry", Need::Nothing, every_kind),
    ("layer: whiteouts", Need::Whiteouts, whiteouts),
    ("layer: opaque directories and bookkeeping", Need::Nothing, opaque_and_bookkeeping),
    ("layer: marks that cannot be decoded are errors", Need::Nothing, unknown_marks),
    ("layer: names of any bytes", Need::Nothing, names_of_any_bytes),
    ("layer: mode 000 hides nothing", Need::Nothing, mode_000_hides_nothing),
    ("layer: a sparse file beyond the bound is not hashed", Need::Nothing, sparse_file),
    ("layer: the number of entries is bounded", Need::Nothing, too_many),
    ("layer: the depth is bounded", Need::Nothing, too_deep),
    ("layer: new ignored directories are spared", Need::Nothing, spared),
    ("layer: they are spared in repositories that git alone reads", Need::GitWithSha256, spared_by_git),
    ("layer: where something covered lies nothing is spared", Need::Nothing, not_spared),
    ("layer: the rules are asked where it pays", Need::Nothing, asked_where_it_pays),
];

fn every_kind() {
    let layer = Layer::new();
    layer.write("d/run", "x").chmod("d/run", 0o755).link("l", "/etc/passwd").fifo("p").mkdir("empty");
    let scan = layer.scan();
    let file = LayerEntry::File { executable: true, size: 1, content: FileContent::Sha256(Sha256Hex::of(b"x")) };
    assert_eq!(scan.entries[&b"d/run"[..]], file);
    assert_eq!(scan.entries[&b"l"[..]], LayerEntry::Symlink { target: b"/etc/passwd".to_vec() });
    assert_eq!(scan.entries[&b"p"[..]], LayerEntry::Special);
    assert_eq!(scan.entries[&b"empty"[..]], LayerEntry::Directory { opaque: false });
    assert_eq!(scan.entries.len(), 5);
}

fn whiteouts() {
    let layer = Layer::new();
    layer.whiteout("a/b").whiteout("c");
    let scan = layer.scan();
    assert_eq!((&scan.entries[&b"a/b"[..]], &scan.entries[&b"c"[..]]), (&LayerEntry::Whiteout, &LayerEntry::Whiteout));
}

fn opaque_and_bookkeeping() {
    let layer = Layer::new();
    layer.opaque("o").mkdir("p").xattr("p", "user.overlay.impure", "y").xattr("p", "user.overlay.origin", "");
    layer.xattr("p", "user.overlay.overlay.opaque", "y").xattr("p", "user.mine", "x");
    let scan = layer.scan();
    assert_eq!(scan.entries[&b"o"[..]], LayerEntry::Directory { opaque: true });
    assert_eq!(scan.entries[&b"p"[..]], LayerEntry::Directory { opaque: false });
}

fn unknown_marks() {
    for (name, value) in [("opaque", "x"), ("redirect", "/a"), ("metacopy", ""), ("whiteout", "y"), ("new", "1")] {
        let layer = Layer::new();
        layer.mkdir("d").xattr("d", &format!("user.overlay.{name}"), value);
        let error = scan_layer(layer.open().as_fd(), ScanBounds::default()).expect_err("it is refused");
        assert!(matches!(&error, ScanError::CannotDecode { path, .. } if path == "d"), "{error}");
    }
    let layer = Layer::new();
    layer.xattr(".", "user.overlay.opaque", "y");
    assert!(scan_layer(layer.open().as_fd(), ScanBounds::default()).is_err());
}

fn names_of_any_bytes() {
    let layer = Layer::new();
    layer.write(b"\xff\n/\xfe", "x");
    assert!(layer.scan().entries.contains_key(&b"\xff\n/\xfe"[..]));
}

fn mode_000_hides_nothing() {
    let layer = Layer::new();
    layer.write("d/f", "x").chmod("d/f", 0).chmod("d", 0);
    let scan = layer.scan();
    assert!(matches!(scan.entries[&b"d/f"[..]], LayerEntry::File { executable: false, size: 1, .. }));
    let mode = |path: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(layer.at(path)).expect("stats").permissions().mode() & 0o777
    };
    assert_eq!(mode("d"), 0);
    layer.chmod("d", 0o755);
    assert_eq!(mode("d/f"), 0);
}

fn sparse_file() {
    let layer = Layer::new();
    layer.write("big", "");
    let file = std::fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens");
    file.set_len(5 << 30).expect("grows");
    let entry = &layer.scan().entries[&b"big"[..]];
    let beyond = LayerEntry::File { executable: false, size: 5 << 30, content: FileContent::BeyondBound };
    assert_eq!(*entry, beyond);
}

fn too_many() {
    let layer = Layer::new();
    layer.write("a", "").write("b", "").write("c", "");
    let bounds = ScanBounds { entries: 2, ..ScanBounds::default() };
    assert!(matches!(scan_layer(layer.open().as_fd(), bounds), Err(ScanError::TooManyEntries { limit: 2 })));
    let bounds = ScanBounds { total_bytes: 0, ..ScanBounds::default() };
    assert!(scan_layer(layer.open().as_fd(), bounds).is_ok());
}

fn too_deep() {
    let layer = Layer::new();
    layer.write(format!("{}f", "d/".repeat(250)), "x");
    assert_eq!(layer.scan().entries.len(), 251);
    layer.write(format!("{}f", "d/".repeat(260)), "x");
    let error = scan_layer(layer.open().as_fd(), ScanBounds::default()).expect_err("it is refused");
    assert!(matches!(error, ScanError::TooDeep { limit: 256 }), "{error}");
}

/// Makes a layer with enough files in each of these directories to make a query of the rules worthwhile.
fn built(directories: &[&str]) -> Layer {
    let layer = Layer::new();
    for directory in directories {
        for n in 0..300 {
            layer.write(format!("{directory}/deep/{n}"), "x");
        }
    }
    layer
}

fn sparing(layer: &Layer, view: &View, ignored: &IgnoreQuery, content: IgnoredContent) -> LayerScan {
    let spare = Spare { view, ignored, content };
    scan_layer_sparing(layer.open().as_fd(), ScanBounds::default(), spare).unwrap_or_else(|error| panic!("{error}"))
}

fn spared() {
    let (repo, layer) = (Repo::small(), built(&["target", "pkg/target", "new/dir", "src/x.log"]));
    layer.write("src/main.rs", "edited\n").chmod("src/x.log/deep", 0);
    let (view, rules) = (repo.view(), repo.rules());
    let whole = sparing(&layer, &view, &rules, IgnoredContent::Hashed);
    assert_eq!((&whole.entries, whole.ignored.len()), (&layer.scan().entries, 3));
    for content in [IgnoredContent::Listed, IgnoredContent::Skipped] {
        let scan = sparing(&layer, &view, &rules, content);
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
        let (drift, of_whole) = (repo.drift_of(&layer, &scan, Tracked), repo.drift(&layer, Tracked));
        assert_eq!(drift, of_whole);
        let after = |scan| view.apply(scan, &rules).expect("applies").id();
        assert_eq!(after(&scan), after(&whole));
        // Spared files were not read, so each of them counts as changed.
        let strict = repo.drift_of(&layer, &scan, Strict);
        assert!(spared.iter().all(|path| kinds(&strict).contains_key(path.as_str())), "{strict:?}");
    }
    let listed = sparing(&layer, &view, &rules, IgnoredContent::Listed);
    let other = Layer::new();
    other.write("target/deep/7", "y").write("target/other", "y");
    assert_eq!(conflicts(&[&listed], &[&other.scan()]), [b"target/deep/7".to_vec()]);
}

fn spared_by_git() {
    let repo = Repo::with_options(&["--object-format=sha256"]);
    repo.write("src/main.rs", "x").write(".gitignore", "target/\n*.log\n").commit();
    let layer = built(&["target", "new", "src/x.log"]);
    let helper = helper().with_program(Arc::new(PlainGit));
    let view = View::new(Arc::new(Snapshot::take(&repo.top, &helper).unwrap_or_else(|error| panic!("{error}"))));
    let rules = IgnoreQuery::new(helper, &repo.top);
    let scan = sparing(&layer, &view, &rules, IgnoredContent::Skipped);
    assert_eq!(scan.ignored.iter().map(Vec::as_slice).collect::<Vec<_>>(), [&b"src/x.log"[..], b"target"]);
}

fn not_spared() {
    let repo = Repo::small();
    repo.write("target/kept/x", "x").write("gone.log/x", "x").git(&["add", "-f", "target/kept/x", "gone.log/x"]);
    repo.commit();
    std::fs::remove_dir_all(repo.at("gone.log")).expect("removes");
    let layer = built(&["target", "gone.log"]);
    layer.write("target/kept/x", "y").write("gone.log/x", "x");
    let (view, rules) = (repo.view(), repo.rules());
    let scan = sparing(&layer, &view, &rules, IgnoredContent::Skipped);
    assert_eq!(scan.ignored.iter().map(Vec::as_slice).collect::<Vec<_>>(), [&b"gone.log/deep"[..], b"target/deep"]);
    let drift = repo.drift_of(&layer, &scan, Tracked);
    assert_eq!(kinds(&drift).into_keys().collect::<Vec<_>>(), ["gone.log/x", "target/kept/x"]);
}

fn asked_where_it_pays() {
    let repo = Repo::small();
    let layer = Layer::new();
    layer.write("target/x", "x").write("src/main.rs", "y\n");
    let nobody = IgnoreQuery::new(GitHelper::new("/nonexistent"), &repo.top);
    let view = repo.view();
    let scan = sparing(&layer, &view, &nobody, IgnoredContent::Skipped);
    assert!(scan.ignored.is_empty() && scan.entries.contains_key(&b"target/x"[..]));
    let many = built(&["target"]);
    let spare = Spare { view: &view, ignored: &nobody, content: IgnoredContent::Skipped };
    let error = scan_layer_sparing(many.open().as_fd(), ScanBounds::default(), spare).expect_err("nobody answers");
    assert!(matches!(error, ScanError::Git(_)), "{error}");
}
