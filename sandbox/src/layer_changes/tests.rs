//! Tests a round trip, and lists of a lying worker.
#![expect(clippy::disallowed_methods, reason = "tests use plain files")]

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::layer_change_error::MAX_DEPTH;
use super::*;
use crate::agent::LayerChangeKind;

const BOUNDS: LayerBounds = LayerBounds { entries: 1000, bytes: 10 << 20 };

fn open(dir: &Path) -> std::os::fd::OwnedFd {
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened")
}

fn read(dir: &Path, bounds: LayerBounds) -> Result<(Vec<LayerChange>, Vec<u8>), LayerChangeError> {
    let mut content = Vec::new();
    let changes = read_directory(open(dir).as_fd(), bounds, &|path| path == b"cache", &mut content)?;
    Ok((changes, content))
}

/// Fills a new directory; the directory that contains it must stay as it is.
fn fill(changes: &[LayerChange], content: &[u8]) -> (tempfile::TempDir, Result<(), LayerChangeError>) {
    let outer = tempfile::tempdir().expect("a directory");
    fs::create_dir(outer.path().join("upper")).expect("made");
    let upper = open(&outer.path().join("upper"));
    let filled = fill_directory(upper.as_fd(), None, changes, content, BOUNDS);
    let names: Vec<_> =
        fs::read_dir(outer.path()).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(names, ["upper"], "something was created outside of the layer");
    (outer, filled)
}

fn change(path: &[u8], kind: LayerChangeKind) -> LayerChange {
    LayerChange { path: path.to_vec(), kind }
}

fn file(path: &[u8], content: &[u8], offset: u64) -> LayerChange {
    let kind =
        LayerChangeKind::File { mode: 0o644, offset, bytes: content.len() as u64, sha256: Sha256Hex::digest(content) };
    change(path, kind)
}

fn directory(path: &[u8]) -> LayerChange {
    change(path, LayerChangeKind::Directory { mode: 0o755, opaque: false })
}

fn problem(changes: &[LayerChange], content: &[u8]) -> String {
    fill(changes, content).1.expect_err("the list is refused").to_string()
}

/// Returns the paths of the layer without its cache.
fn make_layer(dir: &Path) -> Vec<&'static str> {
    fs::create_dir_all(dir.join("a/b")).expect("made");
    fs::write(dir.join("a/b/file"), "content").expect("written");
    fs::write(dir.join("a/large"), vec![7; (3 << 17) + 1]).expect("written");
    fs::write(dir.join("empty"), "").expect("written");
    fs::set_permissions(dir.join("a/b/file"), fs::Permissions::from_mode(0o751)).expect("set");
    fs::set_permissions(dir.join("a/b"), fs::Permissions::from_mode(0o500)).expect("set");
    symlink("/etc/passwd", dir.join("a/link")).expect("made");
    fs::create_dir(dir.join("opaque")).expect("made");
    let opaque = open(&dir.join("opaque"));
    rustix::fs::fsetxattr(&opaque, "user.overlay.opaque", b"y", XattrFlags::empty()).expect("set");
    let top = open(dir);
    let mut paths = vec!["a", "a/b", "a/b/file", "a/large", "a/link", "empty", "fifo", "gone", "opaque"];
    match rustix::fs::mknodat(&top, "gone", FileType::CharacterDevice, Mode::empty(), 0) {
        // Our own sandbox permits no devices.
        Err(Errno::PERM) => paths.retain(|path| *path != "gone"),
        made => made.expect("made"),
    }
    rustix::fs::mknodat(&top, "fifo", FileType::Fifo, Mode::RUSR, 0).expect("made");
    fs::create_dir(dir.join("cache")).expect("made");
    fs::write(dir.join("cache/file"), "left out").expect("written");
    paths
}

#[test]
fn filled_layer_equals_the_layer_that_was_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = make_layer(dir.path());
    let (changes, content) = read(dir.path(), BOUNDS).expect("read");
    let paths: Vec<_> = changes.iter().map(|change| String::from_utf8_lossy(&change.path)).collect();
    assert_eq!(paths, expected);
    let (filled, result) = fill(&changes, &content);
    result.expect("filled");
    let upper = filled.path().join("upper");
    assert_eq!(read(&upper, BOUNDS).expect("read"), (changes, content));
    assert_eq!(fs::metadata(upper.join("a/b")).expect("a directory").mode() & 0o7777, 0o500);
    assert_eq!(fs::read(upper.join("a/b/file")).expect("read"), b"content");
}

#[test]
fn reads_content_from_a_file() {
    let stored = tempfile::NamedTempFile::new().expect("a file");
    fs::write(stored.path(), "xxcontent").expect("written");
    let outer = tempfile::tempdir().expect("a directory");
    let source = stored.reopen().expect("opened");
    fill_directory(open(outer.path()).as_fd(), None, &[file(b"f", b"content", 2)], &source, BOUNDS).expect("filled");
    assert_eq!(fs::read(outer.path().join("f")).expect("read"), b"content");
}

#[test]
fn creates_directories_that_the_list_omits() {
    let (dir, result) = fill(&[file(b"x/y/f", b"", 0)], b"");
    result.expect("filled");
    assert_eq!(fs::metadata(dir.path().join("upper/x/y")).expect("a directory").mode() & 0o7777, 0o755);
}

#[test]
fn refuses_paths_that_leave_the_layer() {
    for path in [&b".."[..], b"../f", b"a/../../f", b"/etc/f", b"./f", b".", b"", b"a//f", b"a/", b"a\0b"] {
        for kind in [LayerChangeKind::Deleted, LayerChangeKind::Directory { mode: 0o755, opaque: true }] {
            assert!(problem(&[change(path, kind)], b"").contains("relative path"), "{path:?}");
        }
    }
}

#[test]
fn refuses_entries_below_a_symbolic_link() {
    let link = change(b"a", LayerChangeKind::Symlink { target: b"..".to_vec() });
    assert!(problem(&[link.clone(), file(b"a/f", b"", 0)], b"").contains("not a directory"));
    assert!(problem(&[link, directory(b"a/d/e")], b"").contains("not a directory"));
    let target = change(b"a", LayerChangeKind::Symlink { target: b"x\0".to_vec() });
    assert!(problem(&[target], b"").contains("target"));
}

#[test]
fn refuses_entries_below_a_file() {
    assert!(problem(&[file(b"a", b"", 0), file(b"a/f", b"", 0)], b"").contains("not a directory"));
}

#[test]
fn refuses_entries_that_exist() {
    assert!(problem(&[directory(b"a"), directory(b"a")], b"").contains("twice"));
    let link = change(b"a", LayerChangeKind::Symlink { target: b"/etc/passwd".to_vec() });
    assert!(problem(&[link, file(b"a", b"", 0)], b"").contains("twice"));
    assert!(problem(&[file(b"a/f", b"", 0), directory(b"a")], b"").contains("twice"));
}

#[test]
fn refuses_wrong_content() {
    let mut changed = file(b"a", b"abc", 0);
    assert!(problem(&[changed.clone()], b"abd").contains("digest"));
    assert!(problem(&[changed.clone()], b"ab").contains("does not exist"));
    let LayerChangeKind::File { offset, .. } = &mut changed.kind else { panic!("a file") };
    *offset = u64::MAX - 1;
    assert!(problem(&[changed], b"abc").contains("range"));
}

#[test]
fn refuses_lists_beyond_the_bounds() {
    let upper = tempfile::tempdir().expect("a directory");
    let fill = |changes: &[LayerChange], bounds| {
        fill_directory(open(upper.path()).as_fd(), None, changes, &b"abcd"[..], bounds)
            .expect_err("refused")
            .to_string()
    };
    let few = LayerBounds { entries: 2, bytes: 7 };
    assert!(fill(&[directory(b"a"), directory(b"b"), directory(b"c")], few).contains("more than 2 files"));
    assert!(fill(&[directory(b"d/e/f")], few).contains("more than 2 files"), "directories that the list omits count");
    // The same bytes twice: a short content must not fill the disk.
    assert!(fill(&[file(b"g", b"abcd", 0), file(b"h", b"abcd", 0)], few).contains("more than 7 bytes"));
    let deep = [b"d/".repeat(MAX_DEPTH + 1), b"f".to_vec()].concat();
    assert!(problem(&[file(&deep, b"", 0)], b"").contains("levels deep"));
}

#[test]
fn drops_set_id_bits_and_refuses_devices() {
    let mut program = file(b"a", b"", 0);
    let LayerChangeKind::File { mode, .. } = &mut program.kind else { panic!("a file") };
    *mode = 0o106755;
    let shared = change(b"d", LayerChangeKind::Directory { mode: 0o7777, opaque: false });
    let (dir, result) = fill(&[program, shared], b"");
    result.expect("filled");
    let mode = |name: &str| fs::metadata(dir.path().join("upper").join(name)).expect("there").mode() & 0o7777;
    assert_eq!((mode("a"), mode("d")), (0o755, 0o1777));
    for file_type in [FileType::CharacterDevice, FileType::BlockDevice, FileType::RegularFile] {
        let device = change(b"a", LayerChangeKind::Special { file_type: file_type.as_raw_mode() });
        assert!(problem(&[device], b"").contains("neither a fifo nor a socket"));
    }
}

#[test]
fn reading_stops_at_the_bounds() {
    let dir = tempfile::tempdir().expect("a directory");
    make_layer(dir.path());
    let error = read(dir.path(), LayerBounds { entries: 4, ..BOUNDS }).expect_err("too many");
    assert!(matches!(error, LayerChangeError::TooManyEntries { limit: 4 }), "{error}");
    let error = read(dir.path(), LayerBounds { bytes: 1000, ..BOUNDS }).expect_err("too large");
    assert!(matches!(error, LayerChangeError::TooManyBytes { limit: 1000 }), "{error}");
}

#[test]
fn reading_knows_every_attribute() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "").expect("written");
    let set = |name: &str, value: &[u8]| {
        let opened = fs::File::open(dir.path().join("f")).expect("opened");
        rustix::fs::fsetxattr(&opened, name, value, XattrFlags::empty()).expect("set");
    };
    set("user.overlay.overlay.redirect", b"escaped");
    set("user.overlay.origin", b"x");
    assert!(matches!(read(dir.path(), BOUNDS).expect("read").0[0].kind, LayerChangeKind::File { .. }));
    set("user.overlay.whiteout", b"y");
    assert_eq!(read(dir.path(), BOUNDS).expect("read").0[0].kind, LayerChangeKind::Deleted);
    set("user.overlay.redirect", b"/elsewhere");
    let error = read(dir.path(), BOUNDS).expect_err("unknown").to_string();
    assert!(error.contains("user.overlay.redirect"), "{error}");
}
