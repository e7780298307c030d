//! Tests that a mirror contains the ignored files of the last update in addition to the covered ones.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::super::{MirrorUpdate, TREE, hash_tree};
use super::*;
use crate::entries::{DirectoryScanState, IgnoreStatus};
use crate::read_permissions::StepRights;

/// A work tree with covered and ignored files, and a directory for its mirror.
struct IgnoredFixture {
    source: TempDir,
    state: TempDir,
    ignored: Vec<Vec<u8>>,
}

fn open_directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty()).expect("opens the directory")
}

fn all_ignored() -> IgnoredSelection<'static> {
    IgnoredSelection { except: &[], rights: None, max_entries: 1_000, max_bytes: 1 << 20 }
}

impl IgnoredFixture {
    fn new(ignored: &[&str]) -> Self {
        let ignored = ignored.iter().map(|path| path.as_bytes().to_vec()).collect();
        Self { source: TempDir::new().expect("a directory"), state: TempDir::new().expect("a directory"), ignored }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.source.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("makes the directory");
        fs::write(&path, content).expect("writes");
        // Old enough for its stat data to be trusted.
        let file = fs::File::options().write(true).open(&path).expect("opens");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)).expect("dates");
    }

    /// Returns the entries of all files that are not ignored.
    fn covered(&self) -> EntryTree {
        let everything = hash_tree(open_directory(self.source.path()).as_fd()).expect("reads the source");
        let is_ignored =
            |path: &[u8]| self.ignored.iter().any(|ignored| path == *ignored || paths::is_below(path, ignored));
        let tracked = |path: &[u8]| path.ends_with(b".tracked");
        let kept = everything.paths().filter(|path| tracked(path) || !is_ignored(path));
        let leaf =
            |path: Vec<u8>| everything.leaf_at_path(&path).map(|leaf| leaf.found).map(|found| (path, true, found));
        EntryTree::from_leaves(kept.filter_map(leaf))
    }

    fn mirror(&self) -> Mirror {
        Mirror::open(open_directory(self.state.path()), None).expect("opens")
    }

    fn try_update(&self, mirror: &mut Mirror, wanted: Option<&IgnoredSelection<'_>>) -> MirrorUpdate {
        self.try_update_to(&self.covered(), mirror, wanted)
    }

    fn try_update_to(
        &self,
        covered: &EntryTree,
        mirror: &mut Mirror,
        wanted: Option<&IgnoredSelection<'_>>,
    ) -> MirrorUpdate {
        let source = open_directory(self.source.path());
        mirror.update_from(source.as_fd(), (covered, &self.ignored), wanted).expect("updates")
    }

    fn update(&self, mirror: &mut Mirror) -> Vec<IgnoredInput> {
        match self.try_update(mirror, Some(&all_ignored())) {
            MirrorUpdate::Equal { ignored, .. } => ignored,
            other => panic!("{other:?}"),
        }
    }

    fn read_mirrored(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.state.path().join(TREE).join(path)).ok()
    }
}

#[test]
fn shows_ignored_files_with_their_modes_and_times() {
    let fixture = IgnoredFixture::new(&[".env", "node_modules"]);
    fixture.write("src/a.js", "covered");
    fixture.write(".env", "KEY=1");
    fixture.write("node_modules/b/run", "#!/bin/sh");
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(fixture.source.path().join(".env"), mode(0o600)).expect("sets the mode");
    fs::set_permissions(fixture.source.path().join("node_modules/b/run"), mode(0o755)).expect("sets the mode");
    symlink("b/run", fixture.source.path().join("node_modules/link")).expect("links");
    fs::create_dir(fixture.source.path().join("node_modules/empty")).expect("makes");
    let mut mirror = fixture.mirror();
    let inputs = fixture.update(&mut mirror);
    assert_eq!(fixture.read_mirrored(".env").as_deref(), Some("KEY=1"));
    assert_eq!(fixture.read_mirrored("node_modules/link").as_deref(), Some("#!/bin/sh"));
    let found = |path: &str| fixture.state.path().join(TREE).join(path).symlink_metadata().expect("path exists");
    assert_eq!((found(".env").mode() & 0o777, found("node_modules/b/run").mode() & 0o777), (0o600, 0o755));
    assert_eq!((found(".env").mtime(), found("node_modules/empty").is_dir()), (1_000, true));
    // The identity contains only the covered files.
    assert_eq!(mirror.id(), fixture.covered().id());
    mirror.verify_all().expect("ignored files do not count as damage");
    let summary: Vec<_> = inputs.iter().map(|input| (input.path.as_slice(), input.kind, input.files)).collect();
    assert_eq!(summary, [(&b".env"[..], IgnoredInputKind::File, 1), (b"node_modules", IgnoredInputKind::Directory, 3)]);
    assert_eq!(inputs[0].sha256, Some(Sha256Hex::digest(b"KEY=1")));
    assert_eq!(inputs[0].bytes, 5);
}

#[test]
fn empty_directories_are_inputs() {
    let fixture = IgnoredFixture::new(&["d/x", "out"]);
    for path in ["src/a", "d/x", "out/y"] {
        fixture.write(path, "1");
    }
    for path in ["bare/inner", "src/bare", "d/bare", "out/bare", "submodule", "changes/009_x", "changes/.x"] {
        fs::create_dir_all(fixture.source.path().join(path)).expect("makes");
    }
    // The directories that a snapshot searches without finding a covered file.
    let state = DirectoryScanState {
        stat: FileStat { ino: 1, ..FileStat::default() },
        ignore_status: IgnoreStatus::Searched,
        ..DirectoryScanState::default()
    };
    let searched =
        ["bare", "bare/inner", "changes", "changes/.x", "changes/009_x", "d", "d/bare", "src/bare", "submodule"];
    let searched = searched.map(|path| (path.as_bytes().to_vec(), state));
    let covered =
        fixture.covered().with_leaves(vec![(b"submodule".to_vec(), true, ScannedEntry::MISSING)], searched.into());
    let mut mirror = fixture.mirror();
    let update = mirror.update_from(
        open_directory(fixture.source.path()).as_fd(),
        (&covered, &fixture.ignored),
        Some(&all_ignored()),
    );
    let MirrorUpdate::Equal { ignored, .. } = update.expect("updates") else { panic!("the tree changed") };
    let found: Vec<_> = ignored.iter().map(|input| (input.path.as_slice(), input.files)).collect();
    let expected: [(&[u8], u64); 6] =
        [(b"d/x", 1), (b"out", 2), (b"bare", 1), (b"changes/.x", 1), (b"d/bare", 1), (b"src/bare", 1)];
    assert_eq!(found, expected, "`d` exists because of `d/x`, and `changes` because of changesets");
    assert!(ignored.iter().all(|input| input.sha256.is_some()), "{ignored:?}");
}

#[test]
fn permissions_of_files_count() {
    let fixture = IgnoredFixture::new(&[".env", "out"]);
    for path in ["a", ".env", "out/x"] {
        fixture.write(path, "1");
    }
    let mut mirror = fixture.mirror();
    let mut of = |path: &str, mode| {
        fs::set_permissions(fixture.source.path().join(path), fs::Permissions::from_mode(mode)).expect("sets the mode");
        let inputs = fixture.update(&mut mirror);
        inputs.into_iter().map(|input| (input.sha256, input.permissions)).collect::<Vec<_>>()
    };
    let usual = of(".env", 0o644);
    assert!(usual.iter().all(|(_, permissions)| permissions.is_none()));
    let private = of(".env", 0o600);
    assert_eq!(private[0], (usual[0].0.clone(), Some(Sha256Hex::digest(b"600 .env\0"))));
    let program = of("out/x", 0o755);
    assert_eq!(program[1].1, Some(Sha256Hex::digest(b"755 out/x\0")));
    assert_eq!(of("out/x", 0o644), private);
}

#[test]
fn updates_changed_added_and_removed_files() {
    let fixture = IgnoredFixture::new(&["out"]);
    fixture.write("a", "covered");
    fixture.write("out/one", "1");
    fixture.write("out/two", "2");
    let mut mirror = fixture.mirror();
    let first = fixture.update(&mut mirror);
    assert_eq!(fixture.update(&mut mirror), first);
    fixture.write("out/one", "other");
    fixture.write("out/three/deep", "3");
    fs::remove_file(fixture.source.path().join("out/two")).expect("removes");
    // A new `Mirror` reads the record from its files, as another process would.
    let second = fixture.update(&mut fixture.mirror());
    assert_ne!(second[0].sha256, first[0].sha256);
    assert_eq!(fixture.read_mirrored("out/one").as_deref(), Some("other"));
    assert_eq!(
        (fixture.read_mirrored("out/two"), fixture.read_mirrored("out/three/deep").as_deref()),
        (None, Some("3"))
    );
    // A file replaces a directory, and a directory replaces the file.
    fs::remove_dir_all(fixture.source.path().join("out")).expect("removes");
    fixture.write("out", "a file");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    assert_eq!(fixture.read_mirrored("out").as_deref(), Some("a file"));
    fs::remove_file(fixture.source.path().join("out")).expect("removes");
    fs::create_dir(fixture.source.path().join("out")).expect("makes");
    fixture.update(&mut mirror);
    fixture.write("out/in", "4");
    fixture.update(&mut mirror);
    assert_eq!(fixture.read_mirrored("out/in").as_deref(), Some("4"));
    mirror.verify_all().expect("whole");
}

#[test]
fn finds_damage_of_ignored_files() {
    let fixture = IgnoredFixture::new(&["out"]);
    fixture.write("out/one", "1");
    fs::create_dir_all(fixture.source.path().join("out/empty")).expect("makes");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    mirror.verify_all().expect("whole");
    let shown = |path: &str| fixture.state.path().join(TREE).join(path);
    let damaged = |mirror: &Mirror| match mirror.verify_all() {
        Err(MirrorError::Damaged { path, .. }) => path,
        other => panic!("{other:?}"),
    };
    fs::write(shown("out/one"), "2").expect("writes");
    assert_eq!(damaged(&mirror), "out/one");
    fs::remove_file(shown("out/one")).expect("removes");
    assert_eq!(damaged(&mirror), "out/one");
    fs::write(shown("out/one"), "1").expect("writes");
    fs::remove_dir(shown("out/empty")).expect("removes");
    assert_eq!(damaged(&mirror), "out/empty");
}

#[test]
fn moves_files_between_covered_and_ignored() {
    let mut fixture = IgnoredFixture::new(&["x"]);
    fixture.write("x", "text");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    fixture.ignored.clear();
    assert!(fixture.update(&mut mirror).is_empty());
    assert_eq!((mirror.id(), fixture.read_mirrored("x").as_deref()), (fixture.covered().id(), Some("text")));
    fixture.ignored.push(b"x".to_vec());
    assert_eq!(fixture.update(&mut mirror).len(), 1);
    assert_eq!((mirror.id(), fixture.read_mirrored("x").as_deref()), (fixture.covered().id(), Some("text")));
    mirror.verify_all().expect("whole");
}

#[test]
fn nested_ignored_paths_form_one_input() {
    let fixture = IgnoredFixture::new(&[".venv", ".venv/.gitignore", ".venv-x"]);
    fixture.write("a", "covered");
    fixture.write(".venv/.gitignore", "*");
    fixture.write(".venv-x", "another");
    let inputs = fixture.update(&mut fixture.mirror());
    assert_eq!(inputs.iter().map(|input| input.path.as_slice()).collect::<Vec<_>>(), [&b".venv"[..], b".venv-x"]);
    assert_eq!(fixture.read_mirrored(".venv/.gitignore").as_deref(), Some("*"));
}

#[test]
fn omits_excepted_and_unselected_files() {
    let fixture = IgnoredFixture::new(&["out", "target"]);
    fixture.write("a", "covered");
    fixture.write("out/kept.tracked", "covered too");
    fixture.write("out/x", "1");
    fixture.write("target/y", "2");
    let mut mirror = fixture.mirror();
    let except = [RelPath::new("target").expect("a path")];
    let wanted = IgnoredSelection { except: &except, ..all_ignored() };
    assert!(
        matches!(fixture.try_update(&mut mirror, Some(&wanted)), MirrorUpdate::Equal { ignored, .. } if ignored.len() == 1)
    );
    assert_eq!((fixture.read_mirrored("out/x").as_deref(), fixture.read_mirrored("target/y")), (Some("1"), None));
    assert!(matches!(fixture.try_update(&mut mirror, None), MirrorUpdate::Equal { ignored, .. } if ignored.is_empty()));
    assert_eq!(
        (fixture.read_mirrored("out/x"), fixture.read_mirrored("out/kept.tracked").as_deref()),
        (None, Some("covered too"))
    );
    mirror.verify_all().expect("whole");
}

#[test]
fn leaves_out_inputs_beyond_bounds() {
    let fixture = IgnoredFixture::new(&["out", "small", "zero"]);
    fixture.write("a", "covered");
    (0..10).for_each(|number| fixture.write(&format!("out/{number}"), "0123456789"));
    fixture.write("small", "1");
    fixture.write("zero", "");
    let mut mirror = fixture.mirror();
    for wanted in
        [IgnoredSelection { max_entries: 10, ..all_ignored() }, IgnoredSelection { max_bytes: 99, ..all_ignored() }]
    {
        let update = fixture.try_update(&mut mirror, Some(&wanted));
        let MirrorUpdate::Equal { ignored, .. } = update else { panic!("{update:?}") };
        assert!(
            ignored[0].left_out.is_some_and(|omitted| omitted.count == 0) && ignored[0].sha256.is_none(),
            "{ignored:?}"
        );
        assert_eq!((fixture.read_mirrored("out/1"), fixture.read_mirrored("small").as_deref()), (None, Some("1")));
    }
    let wanted = IgnoredSelection { max_entries: 13, max_bytes: 101, ..all_ignored() };
    assert!(
        matches!(fixture.try_update(&mut mirror, Some(&wanted)), MirrorUpdate::Equal { ignored, .. } if ignored[0].files == 10)
    );
    assert_eq!(fixture.read_mirrored("out/1").as_deref(), Some("0123456789"));
}

#[test]
fn leaves_out_files_that_steps_may_not_read() {
    let fixture = IgnoredFixture::new(&["out"]);
    fixture.write("a", "covered");
    fixture.write("out/open", "1");
    fixture.write("out/closed", "2");
    // Without root's rights, the test itself cannot read the file afterwards.
    let covered = fixture.covered();
    fs::set_permissions(fixture.source.path().join("out/closed"), fs::Permissions::from_mode(0o000)).expect("closes");
    rustix::fs::mknodat(
        open_directory(&fixture.source.path().join("out")),
        "fifo",
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .expect("makes a fifo");
    let found = fixture.source.path().metadata().expect("path exists");
    let rights = Some(StepRights { uid: found.uid(), gid: found.gid() });
    let wanted = IgnoredSelection { rights, ..all_ignored() };
    let mut mirror = fixture.mirror();
    let MirrorUpdate::Equal { ignored, .. } = fixture.try_update_to(&covered, &mut mirror, Some(&wanted)) else {
        panic!("not equal")
    };
    assert_eq!(ignored[0].left_out.map(|omitted| omitted.count), Some(2));
    assert_eq!((fixture.read_mirrored("out/open").as_deref(), fixture.read_mirrored("out/closed")), (Some("1"), None));
}

#[test]
fn removes_files_of_interrupted_update() {
    let fixture = IgnoredFixture::new(&["out"]);
    fixture.write("a", "covered");
    fixture.write("out/x", "1");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    // The state after the process ended between the copy and the update of the record.
    mirror.ignored.begin(&[b"out/stray".to_vec(), b"out/x".to_vec()]).expect("notes");
    fs::write(fixture.state.path().join(TREE).join("out/stray"), "half").expect("writes");
    drop(mirror);
    let mut mirror = fixture.mirror();
    assert_eq!(fixture.read_mirrored("out/stray"), None);
    fixture.update(&mut mirror);
    assert_eq!(fixture.read_mirrored("out/x").as_deref(), Some("1"));
    mirror.verify_all().expect("whole");
}

#[test]
fn interrupted_update_keeps_covered_file() {
    let mut fixture = IgnoredFixture::new(&["x"]);
    fixture.write("x", "text");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    fixture.ignored.clear();
    fixture.update(&mut mirror);
    // The state after the process ended when the covered file was copied, but the ignored one was still recorded.
    mirror.ignored.begin(&[b"x".to_vec()]).expect("notes");
    drop(mirror);
    let mirror = fixture.mirror();
    assert_eq!((mirror.id(), fixture.read_mirrored("x").as_deref()), (fixture.covered().id(), Some("text")));
    mirror.verify_all().expect("whole");
}

#[test]
fn linked_mirror_contains_same_ignored_files() {
    let fixture = IgnoredFixture::new(&["out"]);
    fixture.write("a", "covered");
    fixture.write("out/x", "1");
    let mut first = fixture.mirror();
    fixture.update(&mut first);
    let other = TempDir::new().expect("a directory");
    let mut second = first.link_into(open_directory(other.path())).expect("links");
    assert_eq!(fs::read_to_string(other.path().join(TREE).join("out/x")).expect("reads"), "1");
    fixture.write("out/x", "2");
    fixture.update(&mut second);
    assert_eq!(fixture.read_mirrored("out/x").as_deref(), Some("1"), "a run still uses the first directory");
    assert_eq!(fs::read_to_string(other.path().join(TREE).join("out/x")).expect("reads"), "2");
}

/// Updates a mirror, and runs `act` on the worktree between the survey of the ignored files and their copy.
fn update_with_concurrent_change(
    fixture: &IgnoredFixture,
    wanted: &IgnoredSelection<'_>,
    act: impl FnOnce(),
) -> Vec<IgnoredInput> {
    let (source, covered, mut mirror) = (open_directory(fixture.source.path()), fixture.covered(), fixture.mirror());
    let held = (mirror.ignored.entries(), RacyFiles::Hash);
    let survey = IgnoredSurvey::examine(source.as_fd(), (&covered, &fixture.ignored), wanted, held).expect("examined");
    mirror.remove_ignored(&survey).expect("removes");
    assert!(mirror.update_covered(source.as_fd(), &covered).expect("copies").is_ok());
    act();
    mirror.copy_ignored(source.as_fd(), survey, wanted).expect("copies")
}

#[test]
fn reports_file_removed_during_copy() {
    let fixture = IgnoredFixture::new(&["out", "single"]);
    for path in ["a", "out/x", "out/y", "single"] {
        fixture.write(path, "1");
    }
    let inputs = update_with_concurrent_change(&fixture, &all_ignored(), || {
        fs::remove_file(fixture.source.path().join("out/x")).expect("removes");
        fs::remove_file(fixture.source.path().join("single")).expect("removes");
    });
    assert_eq!((inputs[0].files, inputs[0].left_out.map(|omitted| omitted.count)), (1, Some(1)), "{inputs:?}");
    assert_eq!((&inputs[1].sha256, inputs[1].left_out.map(|omitted| omitted.count)), (&None, Some(0)), "{inputs:?}");
}

#[test]
fn growing_files_share_remaining_bytes() {
    let fixture = IgnoredFixture::new(&["first", "second"]);
    for path in ["a", "first", "second"] {
        fixture.write(path, "0123456789");
    }
    let wanted = IgnoredSelection { max_bytes: 25, ..all_ignored() };
    let inputs = update_with_concurrent_change(&fixture, &wanted, || {
        fixture.write("first", "0123456789+++++");
        fixture.write("second", "0123456789+");
    });
    let lengths = ["first", "second"].map(|path| fixture.read_mirrored(path).map(|content| content.len()));
    assert_eq!(lengths, [Some(15), None], "{inputs:?}");
    assert!(inputs[1].left_out.is_some_and(|omitted| omitted.reason == OmissionReason::GrewDuringCopy), "{inputs:?}");
    // The next update examines the sizes again, so it also copies the second file.
    let mut mirror = fixture.mirror();
    let update = fixture.try_update(&mut mirror, Some(&IgnoredSelection { max_bytes: 26, ..all_ignored() }));
    assert!(
        matches!(update, MirrorUpdate::Equal { ignored, .. } if ignored.iter().all(|input| input.left_out.is_none()))
    );
    assert_eq!(fixture.read_mirrored("second").as_deref(), Some("0123456789+"));
}

#[test]
fn keeps_empty_repository_directory() {
    let fixture = IgnoredFixture::new(&["sub/x"]);
    fixture.write("a", "covered");
    fixture.write("sub/x", "1");
    let gitlink = ScannedEntry { kind: ScannedKind::Gitlink, sha256: [7; 32], ..ScannedEntry::MISSING };
    let covered =
        fixture.covered().with_leaves(vec![(b"sub".to_vec(), true, gitlink)], std::collections::HashMap::new());
    let mut mirror = fixture.mirror();
    let mut update = || {
        let source = open_directory(fixture.source.path());
        mirror.update_from(source.as_fd(), (&covered, &fixture.ignored), Some(&all_ignored())).expect("updates")
    };
    update();
    assert_eq!(fixture.read_mirrored("sub/x").as_deref(), Some("1"));
    fs::remove_file(fixture.source.path().join("sub/x")).expect("removes");
    update();
    assert!(fixture.state.path().join(TREE).join("sub").is_dir());
    mirror.verify_all().expect("whole");
}

#[test]
fn reports_current_inputs_without_changes() {
    let fixture = IgnoredFixture::new(&["out", ".env"]);
    for path in ["a", "out/x", ".env"] {
        fixture.write(path, "1");
    }
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    drop(mirror);
    let now = || {
        let (source, covered) = (open_directory(fixture.source.path()), fixture.covered());
        let inputs = Mirror::current_inputs_of(
            Some(open_directory(fixture.state.path()).as_fd()),
            source.as_fd(),
            (&covered, &fixture.ignored),
            &all_ignored(),
        );
        inputs.expect("looks").expect("few")
    };
    let before = now();
    assert_eq!(before.len(), 2);
    fixture.write(".env", "1");
    assert_eq!(now(), before, "the content is the same");
    fixture.write(".env", "2");
    assert_ne!(now(), before);
    fixture.write("out/new", "");
    assert_eq!(now()[0].files, 2);
    assert_eq!((fixture.read_mirrored(".env").as_deref(), fixture.read_mirrored("out/new")), (Some("1"), None));
    // The result is the same without a copy.
    let (source, covered) = (open_directory(fixture.source.path()), fixture.covered());
    let inputs = Mirror::current_inputs_of(None, source.as_fd(), (&covered, &fixture.ignored), &all_ignored());
    assert_eq!(inputs.expect("looks"), Some(now()));
}

/// A write through a shared mapping can change a file without a change of its stat data. The test changes the record
/// instead.
#[test]
fn content_of_recently_changed_file_is_compared() {
    let fixture = IgnoredFixture::new(&[".env", "out"]);
    fixture.write(".env", "KEY=1");
    fixture.write("out/same", "same");
    let mut mirror = fixture.mirror();
    fixture.update(&mut mirror);
    let recorded = |mirror: &Mirror, path: &str| {
        mirror.ignored.entries().leaf_at_path(path.as_bytes()).map(|leaf| leaf.found).expect("recorded")
    };
    let copy = |path: &str| {
        let found = fixture.state.path().join(TREE).join(path).metadata().expect("copied");
        (found.ino(), found.ctime(), found.ctime_nsec())
    };
    assert!(recorded(&mirror, ".env").racy, "the file changed less than 40 s ago");
    let same = copy("out/same");
    fixture.write(".env", "KEY=2");
    let stat = rustix::fs::lstat(fixture.source.path().join(".env")).expect("exists");
    let other = ScannedEntry { stat: FileStat::from_stat(&stat), ..recorded(&mirror, ".env") };
    mirror.ignored.finish(mirror.ignored.newest_mtime, vec![(b".env".to_vec(), other)]).expect("recorded");
    let inputs = fixture.update(&mut mirror);
    assert_eq!(fixture.read_mirrored(".env").as_deref(), Some("KEY=2"));
    assert_eq!(inputs[0].sha256, Some(Sha256Hex::digest(b"KEY=2")));
    // Where times do not show every change, all files are copied again.
    let source = open_directory(fixture.source.path());
    if read_beneath::trusted_device(source.as_fd()).is_ok_and(|device| device.is_some()) {
        assert_eq!(copy("out/same"), same, "an identical file is not copied again");
    }
}

#[test]
fn only_recent_changes_of_files_are_racy() {
    let at = |kind, seconds| ScannedEntry {
        kind,
        stat: FileStat { ctime: (seconds, 1), ..FileStat::default() },
        ..ScannedEntry::MISSING
    };
    let is_racy = |found: ScannedEntry| is_racy(&found, (1_000, 1));
    assert!(is_racy(at(ScannedKind::File, 970)) && !is_racy(at(ScannedKind::File, 950)));
    assert!(is_racy(at(ScannedKind::Executable, 970)) && is_racy(at(ScannedKind::Symlink, 1_000)));
    assert!(!is_racy(at(ScannedKind::Symlink, 970)), "no mapping can change a link");
}
