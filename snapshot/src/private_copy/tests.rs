//! Tests that a mirror contains the tree of the last update, after any changes of the work tree or of the mirror's
//! own files.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A work tree, and a directory for its mirror.
struct MirrorFixture {
    source: TempDir,
    state: TempDir,
}

impl MirrorFixture {
    fn new() -> Self {
        Self { source: TempDir::new().expect("a directory"), state: TempDir::new().expect("a directory") }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.source.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("makes the directory");
        fs::write(path, content).expect("writes");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.source.path().join(path)).expect("removes");
    }

    fn source(&self) -> OwnedFd {
        open_directory(self.source.path())
    }

    fn source_entries(&self) -> EntryTree {
        hash_tree(self.source().as_fd()).expect("reads the source")
    }

    fn open_mirror(&self) -> Mirror {
        Mirror::open(open_directory(self.state.path()), None).expect("opens")
    }

    fn update(&self, mirror: &mut Mirror) -> MirrorUpdate {
        mirror.update_from(self.source().as_fd(), (&self.source_entries(), &[]), None).expect("updates")
    }

    fn mirrored_path(&self, path: &str) -> PathBuf {
        self.state.path().join(TREE).join(path)
    }

    fn mtime(&self, path: &str) -> (i64, i64) {
        let found = self.mirrored_path(path).symlink_metadata().expect("path exists");
        (found.mtime(), found.mtime_nsec())
    }
}

fn open_directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty()).expect("opens the directory")
}

fn equal_update(copied: usize, bytes: u64) -> MirrorUpdate {
    MirrorUpdate::Equal { copied, bytes, copied_ignored: 0, ignored: Vec::new() }
}

#[test]
fn copies_content_kind_and_exec_bit() {
    let fixture = MirrorFixture::new();
    fixture.write("a/b/file", "one");
    fixture.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(fixture.source.path().join("run.sh"), fs::Permissions::from_mode(0o700))
        .expect("sets the mode");
    symlink("a/b", fixture.source.path().join("link")).expect("links");
    let mut mirror = fixture.open_mirror();
    assert_eq!(fixture.update(&mut mirror), equal_update(3, 16));
    assert_eq!(mirror.id(), fixture.source_entries().id());
    assert_eq!(fs::read_to_string(fixture.mirrored_path("a/b/file")).expect("reads"), "one");
    assert_eq!(fs::read_link(fixture.mirrored_path("link")).expect("reads"), Path::new("a/b"));
    // Modes depend on the identity alone.
    let mode = |path| fixture.mirrored_path(path).symlink_metadata().expect("path exists").mode() & 0o7777;
    assert_eq!((mode("run.sh"), mode("a/b/file"), mode("a")), (0o755, 0o644, 0o755));
}

#[test]
fn keeps_times_of_unchanged_files_and_advances_changed_ones() {
    let fixture = MirrorFixture::new();
    fixture.write("same", "1");
    fixture.write("other", "1");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    let (same, other) = (fixture.mtime("same"), fixture.mtime("other"));
    fixture.write("other", "2");
    // An edit that keeps the modification time must be found.
    let kept = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options()
        .write(true)
        .open(fixture.source.path().join("other"))
        .expect("opens")
        .set_modified(kept)
        .expect("dates");
    assert_eq!(fixture.update(&mut mirror), equal_update(1, 1));
    assert_eq!(fixture.mtime("same"), same);
    assert!(fixture.mtime("other").0 > other.0, "{:?} is not later than {other:?}", fixture.mtime("other"));
    // Restoring the old content is an edit too.
    let second = fixture.mtime("other");
    fixture.write("other", "1");
    fixture.update(&mut mirror);
    assert!(fixture.mtime("other").0 > second.0);
}

#[test]
fn replaces_files_by_directories_and_back() {
    let fixture = MirrorFixture::new();
    fixture.write("x", "file");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    fixture.remove("x");
    fixture.write("x/y/z", "below");
    fixture.update(&mut mirror);
    assert_eq!(fs::read_to_string(fixture.mirrored_path("x/y/z")).expect("reads"), "below");
    fs::remove_dir_all(fixture.source.path().join("x")).expect("removes");
    fixture.write("x", "file");
    fixture.update(&mut mirror);
    assert_eq!(fs::read_to_string(fixture.mirrored_path("x")).expect("reads"), "file");
    mirror.verify_all().expect("copy matches its record");
}

#[test]
fn reports_paths_that_changed_after_the_snapshot() {
    let fixture = MirrorFixture::new();
    for path in ["grown", "shorter", "same-size", "gone", "link", "fine"] {
        fixture.write(path, "12345");
    }
    let wanted = fixture.source_entries();
    fixture.write("grown", "123456");
    fixture.write("shorter", "1");
    fixture.write("same-size", "54321");
    fixture.remove("gone");
    fixture.remove("link");
    symlink("12345", fixture.source.path().join("link")).expect("links");
    let mut mirror = fixture.open_mirror();
    let update = mirror.update_from(fixture.source().as_fd(), (&wanted, &[]), None).expect("updates");
    let changed = ["gone", "grown", "link", "same-size", "shorter"].map(|path| path.as_bytes().to_vec());
    assert_eq!(update, MirrorUpdate::Changed(changed.to_vec()));
    assert_ne!(mirror.id(), wanted.id());
    for path in ["grown", "same-size", "link"] {
        assert!(fixture.mirrored_path(path).symlink_metadata().is_err(), "{path} still exists");
    }
    assert!(matches!(fixture.update(&mut mirror), MirrorUpdate::Equal { copied: 4, .. }));
    assert_eq!(mirror.id(), fixture.source_entries().id());
}

#[test]
fn follows_no_link_that_replaced_directory() {
    let fixture = MirrorFixture::new();
    fixture.write("dir/secret", "mine");
    let wanted = fixture.source_entries();
    let outside = TempDir::new().expect("a directory");
    fs::write(outside.path().join("secret"), "mine").expect("writes");
    fs::remove_dir_all(fixture.source.path().join("dir")).expect("removes");
    symlink(outside.path(), fixture.source.path().join("dir")).expect("links");
    let mut mirror = fixture.open_mirror();
    let update = mirror.update_from(fixture.source().as_fd(), (&wanted, &[]), None).expect("updates");
    assert_eq!(update, MirrorUpdate::Changed(vec![b"dir/secret".to_vec()]));
}

#[test]
fn reloads_record_when_reopened() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    fixture.write("b/c", "2");
    fixture.update(&mut fixture.open_mirror());
    let mut mirror = fixture.open_mirror();
    assert_eq!(mirror.id(), fixture.source_entries().id());
    assert_eq!(fixture.update(&mut mirror), equal_update(0, 0));
    fixture.write("a", "3");
    fixture.update(&mut mirror);
    drop(mirror);
    assert_eq!(fixture.open_mirror().id(), fixture.source_entries().id());
}

#[test]
fn examines_paths_of_interrupted_update() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    fixture.write("b", "1");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    mirror.record.begin(&[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]).expect("notes");
    drop(mirror);
    fs::remove_file(fixture.mirrored_path("a")).expect("removes");
    fs::write(fixture.mirrored_path("c"), "half").expect("writes");
    let mut mirror = fixture.open_mirror();
    assert_ne!(mirror.id(), fixture.source_entries().id());
    fixture.update(&mut mirror);
    assert_eq!(mirror.id(), fixture.source_entries().id());
    mirror.verify_all().expect("copy matches its record");
    assert!(!fixture.mirrored_path("c").exists());
}

#[test]
fn ignores_damaged_record() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    fixture.update(&mut fixture.open_mirror());
    fs::write(fixture.mirrored_path("a"), "2").expect("writes");
    for file in ["record", "journal"] {
        let path = fixture.state.path().join(file);
        let mut bytes = fs::read(&path).expect("reads");
        let at = bytes.len() / 2;
        bytes.get_mut(at).map(|byte| *byte ^= 1).unwrap_or_else(|| bytes.extend([0xff; 40]));
        fs::write(&path, bytes).expect("writes");
        let mut mirror = fixture.open_mirror();
        fixture.update(&mut mirror);
        assert_eq!(fs::read_to_string(fixture.mirrored_path("a")).expect("reads"), "1", "{file}");
        fs::write(fixture.mirrored_path("a"), "2").expect("writes");
    }
}

#[test]
fn torn_journal_keeps_later_updates() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    drop(mirror);
    let journal = fixture.state.path().join("journal");
    let mut bytes = fs::read(&journal).expect("reads");
    bytes.extend([200, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    fs::write(&journal, bytes).expect("writes");
    let mut mirror = fixture.open_mirror();
    fixture.write("a", "2");
    fixture.update(&mut mirror);
    drop(mirror);
    assert_eq!(fixture.open_mirror().id(), fixture.source_entries().id());
}

/// A truncated journal may lack the last updates only if it still names the paths that they changed.
#[test]
fn notices_every_bit_flip_and_truncation_of_journal() {
    let fixture = MirrorFixture::new();
    for path in ["a", "b", "c"] {
        fixture.write(path, "1");
    }
    fixture.update(&mut fixture.open_mirror());
    let files = ["record", "journal"].map(|name| fixture.state.path().join(name));
    let mut mirror = fixture.open_mirror();
    // Folds the first update into the record.
    mirror.record =
        CopyRecord::create(mirror.directory.as_fd(), COVERED_FILES, mirror.record.entries().clone()).expect("creates");
    let mut ends = vec![(0, mirror.id())];
    for path in ["a", "b"] {
        fixture.write(path, "2");
        fixture.update(&mut mirror);
        ends.push((fs::metadata(&files[1]).expect("stats").len(), mirror.id()));
    }
    drop(mirror);
    let [record, journal] = files.each_ref().map(|file| fs::read(file).expect("reads"));
    let load = |journal: &[u8]| {
        fs::write(&files[0], &record).expect("writes");
        fs::write(&files[1], journal).expect("writes");
        known_records::clear();
        CopyRecord::load(open_directory(fixture.state.path()).as_fd(), COVERED_FILES)
    };
    assert_eq!(load(&journal).expect("loads").entries().id(), ends[2].1);
    for at in 0..journal.len() * 8 {
        let mut damaged = journal.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(load(&damaged).is_none(), "{at}");
    }
    for length in 0..journal.len() {
        let loaded = load(&journal[..length]).expect("loads");
        let last = ends.iter().rev().find(|(end, _)| *end <= length as u64).expect("an end");
        assert_eq!(loaded.entries().id(), last.1, "{length}");
    }
}

#[test]
fn record_is_read_again_after_another_process_changed_it() {
    let fixture = MirrorFixture::new();
    let directory = open_directory(fixture.state.path());
    let load = || CopyRecord::load(directory.as_fd(), IGNORED_FILES).expect("loads");
    let found = ScannedEntry { kind: ScannedKind::File, ..ScannedEntry::MISSING };
    let paths = |record: &CopyRecord| record.entries().paths().collect::<Vec<_>>();
    CopyRecord::create(directory.as_fd(), IGNORED_FILES, EntryTree::from_leaves([])).expect("creates");
    let (one, mut other) = (load(), load());
    other.begin(&[b"a".to_vec()]).expect("begins");
    other.finish((1, 0), vec![(b"a".to_vec(), found)]).expect("finishes");
    // The other process keeps nothing in this one.
    std::mem::forget(other);
    drop(one);
    assert_eq!(paths(&load()), [b"a"]);
    assert_eq!(paths(&load()), [b"a"], "a record that is known");
}

#[test]
fn journal_keeps_distrust_of_stat_data() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    let directory = open_directory(fixture.state.path());
    let found = ScannedEntry { kind: ScannedKind::File, racy: true, ..ScannedEntry::MISSING };
    let mut record = CopyRecord::create(directory.as_fd(), IGNORED_FILES, EntryTree::from_leaves([])).expect("creates");
    record.begin(&[b"a".to_vec()]).expect("begins");
    record.finish((1, 0), vec![(b"a".to_vec(), found)]).expect("finishes");
    let loaded = CopyRecord::load(directory.as_fd(), IGNORED_FILES).expect("loads");
    assert_eq!(loaded.entries().leaf_at_path(b"a").map(|leaf| leaf.found), Some(found));
}

#[test]
fn finds_damage() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    mirror.verify_sample(8, 5).expect("copy matches its record");
    fs::write(fixture.mirrored_path("stray"), "x").expect("writes");
    assert!(matches!(mirror.verify_all(), Err(MirrorError::Damaged { .. })));
    fs::remove_file(fixture.mirrored_path("stray")).expect("removes");
    mirror.verify_all().expect("copy matches its record");
    fs::write(fixture.mirrored_path("a"), "2").expect("writes");
    assert!(matches!(mirror.verify_sample(8, 5), Err(MirrorError::Damaged { .. })));
}

#[test]
fn finds_stray_files_in_git_dir() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    let mut mirror = fixture.open_mirror();
    fixture.update(&mut mirror);
    fs::create_dir_all(fixture.mirrored_path(".git/hooks")).expect("makes");
    fs::write(fixture.mirrored_path(".git/HEAD"), "ref: refs/heads/main\n").expect("writes");
    mirror.verify_all().expect("copy matches its record");
    fs::write(fixture.mirrored_path(".git/hooks/post-checkout"), "#!/bin/sh\n").expect("writes");
    assert!(
        matches!(mirror.verify_all(), Err(MirrorError::Damaged { path, .. }) if path == ".git/hooks/post-checkout")
    );
    fs::remove_dir_all(fixture.mirrored_path(".git")).expect("removes");
    std::os::unix::fs::symlink("/", fixture.mirrored_path(".git")).expect("links");
    assert!(matches!(mirror.verify_all(), Err(MirrorError::Damaged { path, .. }) if path == ".git"));
}

#[test]
fn linked_mirror_changes_independently() {
    let fixture = MirrorFixture::new();
    fixture.write("a", "1");
    fixture.write("b/c", "1");
    let mut first = fixture.open_mirror();
    fixture.update(&mut first);
    let other = TempDir::new().expect("a directory");
    let mut second = first.link_into(open_directory(other.path())).expect("links");
    assert_eq!(second.id(), first.id());
    let inode = |path: &Path| path.symlink_metadata().expect("path exists").ino();
    assert_eq!(inode(&fixture.mirrored_path("b/c")), inode(&other.path().join("tree/b/c")));
    fixture.write("b/c", "2");
    fixture.update(&mut second);
    assert_eq!(fs::read_to_string(fixture.mirrored_path("b/c")).expect("reads"), "1");
    assert_eq!(fs::read_to_string(other.path().join("tree/b/c")).expect("reads"), "2");
    first.verify_all().expect("copy matches its record");
}

/// One edit of a work tree.
#[derive(Debug, Clone)]
enum WorktreeEdit {
    Write(usize, u8),
    Link(usize, u8),
    Executable(usize),
    Remove(usize),
}

const PATHS: [&str; 8] = ["a", "b", "d/a", "d/b", "d/e/a", "d/e", "f/g/h", "f"];

fn apply_edit(source: &Path, edit: &WorktreeEdit) {
    let at = |index: usize| source.join(PATHS[index]);
    let clear = |path: &Path| {
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir_all(path);
        for above in path.ancestors().skip(1).take_while(|above| *above != source) {
            if above.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
                let _ = fs::remove_file(above);
            }
        }
        fs::create_dir_all(path.parent().expect("a parent")).expect("makes the directory");
    };
    match edit {
        WorktreeEdit::Write(index, byte) => {
            clear(&at(*index));
            fs::write(at(*index), [*byte; 3]).expect("writes");
        }
        WorktreeEdit::Link(index, byte) => {
            clear(&at(*index));
            symlink(format!("to-{byte}"), at(*index)).expect("links");
        }
        WorktreeEdit::Executable(index) => {
            if at(*index).symlink_metadata().is_ok_and(|found| found.is_file()) {
                fs::set_permissions(at(*index), fs::Permissions::from_mode(0o755)).expect("sets the mode");
            }
        }
        WorktreeEdit::Remove(index) => {
            let _ = fs::remove_file(at(*index));
            let _ = fs::remove_dir_all(at(*index));
        }
    }
}

fn edits_strategy() -> impl Strategy<Value = Vec<Vec<WorktreeEdit>>> {
    let index = 0..PATHS.len();
    let one = prop_oneof![
        (index.clone(), 0..3_u8).prop_map(|(index, byte)| WorktreeEdit::Write(index, byte)),
        (index.clone(), 0..3_u8).prop_map(|(index, byte)| WorktreeEdit::Link(index, byte)),
        index.clone().prop_map(WorktreeEdit::Executable),
        index.prop_map(WorktreeEdit::Remove),
    ];
    prop::collection::vec(prop::collection::vec(one, 0..6), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn updated_mirror_equals_tree(rounds in edits_strategy(), reopened in any::<bool>()) {
        let fixture = MirrorFixture::new();
        let mut mirror = fixture.open_mirror();
        for round in &rounds {
            let before = fixture.source_entries();
            round.iter().for_each(|one| apply_edit(fixture.source.path(), one));
            let wanted = fixture.source_entries();
            let dates: Vec<_> = wanted.paths().map(|path| {
                let path = String::from_utf8(path).expect("plain");
                let is_same = before.get(path.as_bytes()) == wanted.get(path.as_bytes());
                let date = is_same.then(|| fixture.mtime(&path));
                (path, date)
            }).collect();
            if reopened {
                mirror = fixture.open_mirror();
            }
            let is_equal = matches!(fixture.update(&mut mirror), MirrorUpdate::Equal { .. });
            prop_assert!(is_equal);
            prop_assert_eq!(mirror.id(), wanted.id());
            mirror.verify_all().expect("copy matches its record");
            for (path, date) in dates {
                if let Some(date) = date {
                    prop_assert_eq!(fixture.mtime(&path), date);
                }
            }
        }
    }
}
